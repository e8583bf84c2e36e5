package dev.parley.client;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A real parleyd on a free port, with a memory store unless the settings say otherwise. */
public final class Parleyd implements AutoCloseable {
    private static final Pattern SERVING = Pattern.compile("\"msg\":\"serving grpc\".*\"address\":\"([^\"]+)\"");

    private final Process process;
    private final Path config;
    private final String address;
    private final List<String> output = new ArrayList<>();

    private Parleyd(List<String> settings) throws Exception {
        config = Files.createTempFile("parley-", ".yaml");
        Files.write(config, settings);
        process = new ProcessBuilder(program(), "--config", config.toString())
                .redirectErrorStream(true)
                .start();
        var found = new CompletableFuture<String>();
        var reader = new Thread(() -> read(found), "parleyd-output");
        reader.setDaemon(true);
        reader.start();
        address = found.get(30, TimeUnit.SECONDS);
    }

    /** Returns the path of the program: PARLEYD, or bin/parleyd of the repository. */
    public static String program() {
        String given = System.getenv("PARLEYD");
        return given == null || given.isEmpty() ? repository().resolve("bin/parleyd").toString() : given;
    }

    /** Returns the root of the repository. Maven runs tests in the folder of their module. */
    public static Path repository() {
        return Path.of("../../..").toAbsolutePath().normalize();
    }

    /** Starts a server with more settings, as lines of its YAML file. */
    public static Parleyd start(String... more) throws Exception {
        var settings = new ArrayList<>(List.of("http_address: \"\"", "interaction_log: false", "log_format: json"));
        settings.addAll(List.of(more));
        for (String standard : List.of("grpc_address: 127.0.0.1:0", "store: memory")) {
            String key = standard.replaceFirst(" .*", "");
            if (settings.stream().noneMatch(line -> line.startsWith(key))) {
                settings.add(standard);
            }
        }
        return new Parleyd(settings);
    }

    /** Returns the settings of a server whose default agent is a remote one. */
    public static String[] agent(String address, String... more) {
        var settings = new ArrayList<>(List.of(more));
        settings.add("default_agent: own");
        settings.add("agents: {own: {kind: remote, address: \"" + address + "\"}}");
        return settings.toArray(String[]::new);
    }

    /** Returns the settings of a server with a store in this folder. */
    public static String[] stored(Path folder, String... more) {
        var settings = new ArrayList<>(List.of(more));
        settings.add("store: bolt");
        settings.add("data_dir: \"" + folder + "\"");
        return settings.toArray(String[]::new);
    }

    /** Returns the address of the gRPC listener. */
    public String address() {
        return address;
    }

    /** Kills the server with SIGKILL. */
    public void kill() throws InterruptedException, IOException {
        process.destroyForcibly().waitFor();
        Files.deleteIfExists(config);
    }

    @Override
    public void close() throws Exception {
        kill();
    }

    private void read(CompletableFuture<String> found) {
        try (var lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                output.add(line);
                Matcher matcher = SERVING.matcher(line);
                if (matcher.find()) {
                    found.complete(matcher.group(1));
                }
            }
        } catch (IOException ignored) {
            // The process was killed.
        }
        found.completeExceptionally(new IllegalStateException("parleyd has not started: " + output));
    }
}
