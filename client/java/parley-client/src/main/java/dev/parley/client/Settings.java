package dev.parley.client;

import io.grpc.ChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/** The settings of a client, with those of the environment for the ones that are null. */
final class Settings {
    /** The server has the same pattern. */
    private static final Pattern TENANT = Pattern.compile("[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}");

    String token;
    Supplier<String> tokenFunction;
    Path tokenFile;
    String tenant;
    Boolean plaintext;
    Path caFile;
    Path certFile;
    Path keyFile;

    /** Returns the source of the tokens, or null if the calls have none. */
    Tokens tokens(Function<String, String> environment) {
        String value = token;
        Path file = tokenFile;
        String name = "token";
        String fileName = "tokenFile";
        if (value == null && file == null && tokenFunction == null) {
            name = "PARLEY_TOKEN";
            fileName = "PARLEY_TOKEN_FILE";
            value = environment.apply(name);
            file = path(environment.apply(fileName));
        }
        boolean hasToken = tokenFunction != null || isSet(value);
        if (hasToken && isSet(file) || tokenFunction != null && isSet(value)) {
            throw new IllegalArgumentException(name + " and " + fileName + " are both set; set one of them");
        }
        if (tokenFunction != null) {
            return Tokens.of(tokenFunction);
        }
        if (isSet(file)) {
            return Tokens.file(file);
        }
        return isSet(value) ? Tokens.fixed(value, name) : null;
    }

    /** Returns the tenant that each call names, or an empty string. */
    String tenant(Function<String, String> environment) {
        String value = tenant == null ? environment.apply("PARLEY_TENANT") : tenant;
        if (!isSet(value)) {
            return "";
        }
        if (!TENANT.matcher(value).matches()) {
            throw new IllegalArgumentException("tenant is \"" + value.substring(0, Math.min(80, value.length()))
                    + "\", want 1 to 64 letters, digits, dots, underscores and hyphens, not starting with a dot or a"
                    + " hyphen");
        }
        return value;
    }

    /** Returns the credentials of a connection; null means plaintext. Reads the files of certificates. */
    ChannelCredentials credentials(String target, Function<String, String> environment) {
        boolean isPlaintext = Boolean.TRUE.equals(plaintext);
        if (isPlaintext) {
            if (isSet(caFile) || isSet(certFile) || isSet(keyFile)) {
                throw new IllegalArgumentException(
                        "plaintext cannot be combined with caFile, certFile and keyFile; leave out one");
            }
            return null;
        }
        Path ca = caFile == null ? path(environment.apply("PARLEY_TLS_CA_FILE")) : caFile;
        Path cert = certFile;
        Path key = keyFile;
        String pair = "certFile and keyFile";
        if (cert == null && key == null) {
            pair = "PARLEY_TLS_CERT_FILE and PARLEY_TLS_KEY_FILE";
            cert = path(environment.apply("PARLEY_TLS_CERT_FILE"));
            key = path(environment.apply("PARLEY_TLS_KEY_FILE"));
        }
        if (isSet(cert) != isSet(key)) {
            throw new IllegalArgumentException("only one of " + pair + " is set; a client certificate needs both");
        }
        if (plaintext == null && !isSet(ca) && !isSet(cert) && Targets.isLocal(target)) {
            return null;
        }
        TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder();
        try {
            if (isSet(ca)) {
                checkCertificates(ca);
                tls.trustManager(ca.toFile());
            }
            if (isSet(cert)) {
                checkCertificates(cert);
                checkKey(key);
                tls.keyManager(cert.toFile(), key.toFile());
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return tls.build();
    }

    /** gRPC would only fail to connect. */
    private static void checkCertificates(Path path) throws IOException {
        String fault = path + " contains no certificates in PEM form";
        try (InputStream file = Files.newInputStream(path)) {
            if (CertificateFactory.getInstance("X.509").generateCertificates(file).isEmpty()) {
                throw new IllegalArgumentException(fault);
            }
        } catch (CertificateException error) {
            throw new IllegalArgumentException(fault + ": " + error.getMessage(), error);
        }
    }

    private static void checkKey(Path path) throws IOException {
        if (!Files.readString(path).contains("-----BEGIN PRIVATE KEY-----")) {
            throw new IllegalArgumentException(path + " contains no private key in the PEM form of PKCS #8, not"
                    + " encrypted; convert it with openssl pkcs8 -topk8 -nodes");
        }
    }

    private static Path path(String name) {
        return name == null || name.isEmpty() ? null : Path.of(name);
    }

    private static boolean isSet(String value) {
        return value != null && !value.isEmpty();
    }

    private static boolean isSet(Path path) {
        return path != null && !path.toString().isEmpty();
    }
}
