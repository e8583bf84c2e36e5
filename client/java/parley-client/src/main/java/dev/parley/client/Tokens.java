package dev.parley.client;

import io.grpc.Status;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Map;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/** Where the tokens of a client come from. Any number of threads may use it. */
interface Tokens {
    /** It leaves space for the other headers: a server accepts 16 KiB. */
    int MAX_BYTES = 12 << 10;

    Pattern PRINTABLE = Pattern.compile("[!-~]*");

    /** Returns the token of the next call. refused says that the server has refused the last token. */
    String next(boolean refused);

    /** Returns a source that always returns this token. name is that of the setting. */
    static Tokens fixed(String token, String name) {
        check(token, name);
        return refused -> token;
    }

    /** Returns a source that calls a function of the caller. */
    static Tokens of(Supplier<String> function) {
        return refused -> {
            String token = function.get();
            check(token, "the result of the token function");
            return token;
        };
    }

    /** Returns the source of a file, which another program may replace. Reads the file. */
    static Tokens file(Path path) {
        return new TokenFile(path);
    }

    /** Throws IllegalArgumentException, without the token, if it cannot be sent. */
    static void check(String token, String name) {
        if (token == null || token.isEmpty()) {
            throw new IllegalArgumentException(name + ": the token is empty");
        }
        if (token.length() > MAX_BYTES) {
            throw new IllegalArgumentException(name + ": the token is longer than " + MAX_BYTES + " bytes");
        }
        if (!PRINTABLE.matcher(token).matches()) {
            throw new IllegalArgumentException(name + ": the token contains a space, a line break or another character"
                    + " that is not printable ASCII; it must be the plain token, without \"Bearer\"");
        }
    }

    /** A file with a token. */
    final class TokenFile implements Tokens {
        private final Path path;
        private State last;

        private record State(Map<String, Object> file, String token) {}

        TokenFile(Path path) {
            this.path = path;
            try {
                last = new State(state(), read());
            } catch (IOException error) {
                throw new UncheckedIOException("token file " + path + ": " + error.getMessage(), error);
            }
        }

        /** If the server has refused the last token, the file is read even if it seems unchanged. */
        @Override
        public synchronized String next(boolean refused) {
            try {
                Map<String, Object> now = state();
                if (Boolean.TRUE.equals(now.get("isRegularFile")) && (refused || !now.equals(last.file))) {
                    // If the file changes after state, the next call reads it again.
                    last = new State(now, read());
                }
            } catch (IOException | IllegalArgumentException fault) {
                if (refused) {
                    var details = new ParleyException.Details(
                            "UNAUTHENTICATED", Map.of(), java.util.List.of(), null);
                    throw new ParleyException(
                            Status.Code.UNAUTHENTICATED,
                            "the server refused the token, and there is no other: " + fault.getMessage(),
                            details,
                            fault);
                }
            }
            return last.token;
        }

        private Map<String, Object> state() throws IOException {
            var state = Files.readAttributes(path, BasicFileAttributes.class);
            return Map.of(
                    "isRegularFile", state.isRegularFile(),
                    "size", state.size(),
                    "time", state.lastModifiedTime(),
                    "key", String.valueOf(state.fileKey()));
        }

        private String read() throws IOException {
            try (InputStream file = Files.newInputStream(path)) {
                String token = new String(file.readNBytes(2 * MAX_BYTES), StandardCharsets.ISO_8859_1).strip();
                check(token, "token file " + path);
                return token;
            }
        }
    }
}
