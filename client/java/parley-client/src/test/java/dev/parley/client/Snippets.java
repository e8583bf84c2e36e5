package dev.parley.client;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;

/** The Java snippets of a page. */
public final class Snippets {
    private static final Pattern CODE = Pattern.compile("^```java\\n(.*?)^```$", Pattern.MULTILINE | Pattern.DOTALL);
    private static final Pattern NAME = Pattern.compile("public class (\\w+)");

    private Snippets() {}

    /** Returns the snippets of a page by the headings of their sections. A section has at most one. */
    public static Map<String, String> of(Path page) throws IOException {
        Map<String, String> snippets = new LinkedHashMap<>();
        for (String section : Files.readString(page).split("(?m)^## ")) {
            Matcher matcher = CODE.matcher(section);
            if (matcher.find()) {
                String heading = section.lines().findFirst().orElseThrow();
                snippets.put(heading, matcher.group(1));
                if (matcher.find()) {
                    throw new IllegalStateException("the section \"" + heading + "\" has two snippets");
                }
            }
        }
        return snippets;
    }

    /** Compiles a program with the class path of the tests. Returns its public class. */
    public static Class<?> compile(String program) throws Exception {
        Matcher matcher = NAME.matcher(program);
        if (!matcher.find()) {
            throw new IllegalArgumentException("the program has no public class: " + program);
        }
        String name = matcher.group(1);
        Path folder = Files.createTempDirectory(Files.createDirectories(Path.of("target", "snippets")), name);
        Path source = folder.resolve(name + ".java");
        Files.writeString(source, program);
        var compiler = ToolProvider.getSystemJavaCompiler();
        try (var files = compiler.getStandardFileManager(null, null, StandardCharsets.UTF_8)) {
            var errors = new StringWriter();
            String classPath = System.getProperty("java.class.path");
            var options = List.of("-d", folder.toString(), "-cp", classPath, "--release", "17", "-proc:none");
            var task = compiler.getTask(errors, files, null, options, null, files.getJavaFileObjects(source));
            if (!task.call()) {
                throw new AssertionError(errors + "\n" + program);
            }
        }
        return new java.net.URLClassLoader(
                        new java.net.URL[] {folder.toUri().toURL()}, Snippets.class.getClassLoader())
                .loadClass(name);
    }

    /** Compiles a program and runs its main method. Returns what it has printed. */
    public static String run(String program) throws Exception {
        var main = compile(program).getMethod("main", String[].class);
        var printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        try {
            main.invoke(null, (Object) new String[0]);
        } finally {
            System.setOut(out);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }
}
