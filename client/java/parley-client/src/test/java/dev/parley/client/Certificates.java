package dev.parley.client;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** A certificate for localhost that is its own authority, and the tokens of a server. */
final class Certificates {
    private final Path certificate;
    private final Path key;

    Certificates(Path folder) throws Exception {
        certificate = folder.resolve("ca.pem");
        key = folder.resolve("key.pem");
        run(("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost"
                        + " -addext subjectAltName=DNS:localhost -keyout " + key + " -out " + certificate)
                .split(" "));
    }

    Path certificate() {
        return certificate;
    }

    Path key() {
        return key;
    }

    /** Returns the settings of a server that uses the certificate and these tokens. */
    String[] settings(Path tokens, String... more) {
        var settings = new ArrayList<>(List.of(more));
        settings.add("tls_cert_file: \"" + certificate + "\"");
        settings.add("tls_key_file: \"" + key + "\"");
        settings.add("auth_token_file: \"" + tokens + "\"");
        return settings.toArray(String[]::new);
    }

    /** Creates a token in a file of tokens, with more flags. */
    static String createToken(Path file, String... flags) throws Exception {
        List<String> command =
                new ArrayList<>(List.of(Parleyd.program(), "token", "create", "--file", file.toString()));
        command.addAll(flags.length > 0 ? List.of(flags) : List.of("--tenant=acme", "--role=writer"));
        return run(command.toArray(String[]::new)).strip();
    }

    /** Runs a program to its end. Returns what it has printed to standard output. */
    static String run(String... command) throws Exception {
        var process = new ProcessBuilder(command)
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
        String printed = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (process.waitFor() != 0) {
            throw new IllegalStateException(String.join(" ", command) + " failed: " + printed);
        }
        return printed;
    }
}
