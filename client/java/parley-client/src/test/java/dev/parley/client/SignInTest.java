package dev.parley.client;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.ChatRequest;
import dev.parley.v1.ListConversationsRequest;
import dev.parley.v1.Message;
import dev.parley.v1.Role;
import io.grpc.Metadata;
import io.grpc.Status;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Tokens, tenants and TLS, with a real server that requires them. */
@Timeout(60)
class SignInTest {
    private static final ListConversationsRequest LIST = ListConversationsRequest.getDefaultInstance();

    @TempDir
    private Path folder;

    private Certificates certificates;
    private Path tokens;
    private String token;
    private String tokenOfTwo; // It is valid for two tenants.
    private Parleyd server;
    private String address;

    @BeforeEach
    void start() throws Exception {
        certificates = new Certificates(folder);
        tokens = folder.resolve("tokens.yaml");
        token = Certificates.createToken(tokens);
        tokenOfTwo = Certificates.createToken(tokens, "--tenant=acme", "--tenant=beta", "--role=writer");
        server = Parleyd.start(certificates.settings(tokens));
        address = "localhost:" + server.address().replaceFirst(".*:", "");
    }

    @AfterEach
    void stop() throws Exception {
        server.close();
    }

    private ParleyClient.Builder builder() {
        return ParleyClient.builder(address).caFile(certificates.certificate());
    }

    private static Status.Code refusal(ParleyClient client) {
        return assertThrows(ParleyException.class, () -> client.listConversations(LIST)).code();
    }

    @Test
    void aTokenSignsInOverTls() {
        try (var client = builder().token(token).build()) {
            client.listConversations(LIST);
            var chat = ChatRequest.newBuilder().setContent("hello").build();
            String last = "";
            for (var event : client.chat(chat)) {
                last = event.getFinished().getTurn().getState().name();
            }
            assertEquals("TURN_STATE_COMPLETED", last);
            try (var appender = client.appender()) {
                var message = Message.newBuilder().setRole(Role.ROLE_USER).setContent("a");
                appender.append(AppendMessagesRequest.newBuilder()
                                .setConversationId("c")
                                .addMessages(message)
                                .build())
                        .join();
            }
        }
    }

    @Test
    void missingAndWrongTokensAreRefused() {
        try (var none = builder().build();
                var wrong = builder().token("parley_wrong").build()) {
            var error = assertThrows(ParleyException.class, () -> none.listConversations(LIST));
            assertEquals(Status.Code.UNAUTHENTICATED, error.code());
            assertEquals("UNAUTHENTICATED", error.reason());
            assertEquals(Status.Code.UNAUTHENTICATED, refusal(wrong));
            var chat = ChatRequest.newBuilder().setContent("hello").build();
            assertThrows(ParleyException.class, () -> wrong.chat(chat).hasNext());
        }
    }

    @Test
    void aServerWhoseCertificateIsNotTrustedIsNotCalled() {
        try (var client = ParleyClient.builder(address).token(token).plaintext(false).build()) {
            assertEquals(Status.Code.UNAVAILABLE, refusal(client));
        }
    }

    @Test
    void aRefusedTokenIsReplacedOnce() {
        var calls = new AtomicInteger();
        try (var client = builder()
                .token(() -> calls.getAndIncrement() == 0 ? "parley_old" : token)
                .build()) {
            client.listConversations(LIST);
            assertEquals(2, calls.get());
        }
        calls.set(0);
        try (var client = builder().token(() -> "parley_wrong" + calls.getAndIncrement()).build()) {
            assertEquals(Status.Code.UNAUTHENTICATED, refusal(client));
            assertEquals(2, calls.get());
            var watch = dev.parley.v1.WatchConversationsRequest.getDefaultInstance();
            assertThrows(ParleyException.class, () -> client.watchConversations(watch).hasNext());
            assertEquals(4, calls.get());
        }
    }

    @Test
    void theTokenFileIsReadAgain() throws Exception {
        Path file = folder.resolve("token");
        Files.writeString(file, "parley_old\n");
        try (var client = builder().tokenFile(file).build()) {
            assertEquals(Status.Code.UNAUTHENTICATED, refusal(client));
            Files.writeString(file, "  " + token + "\n");
            client.listConversations(LIST);
            Files.delete(file);
            client.listConversations(LIST); // The last token remains in use.
        }
        assertThrows(UncheckedIOException.class, () -> builder().tokenFile(file).build());
    }

    @Test
    void anExceptionOfTheTokenFunctionIsThrownUnchanged() {
        var failure = new IllegalStateException("no token today");
        try (var client = builder()
                .token(() -> {
                    throw failure;
                })
                .build()) {
            assertEquals(failure, assertThrows(IllegalStateException.class, () -> client.listConversations(LIST)));
            var chat = ChatRequest.newBuilder().setContent("hello").build();
            assertEquals(failure, assertThrows(IllegalStateException.class, () -> client.chat(chat).hasNext()));
        }
    }

    @Test
    void headersOfACallReplaceThoseOfTheClient() {
        try (var client = builder().token(tokenOfTwo).tenant("beta").build()) {
            client.listConversations(LIST);
            var headers = new Metadata();
            headers.put(Metadata.Key.of("parley-tenant", Metadata.ASCII_STRING_MARSHALLER), "gamma");
            assertEquals(Status.Code.PERMISSION_DENIED, refusal(client.withHeaders(headers)));
        }
        try (var client = builder().token(tokenOfTwo).build()) {
            var error = assertThrows(ParleyException.class, () -> client.listConversations(LIST));
            assertEquals("TENANT_REQUIRED", error.reason());
        }
    }

    @Test
    void settingsComeFromTheEnvironment() throws Exception {
        Path file = folder.resolve("token");
        Files.writeString(file, token);
        var environment = Map.of(
                "PARLEY_TOKEN_FILE", file.toString(), "PARLEY_TLS_CA_FILE", certificates.certificate().toString());
        try (var client = ParleyClient.builder(address).build(environment::get)) {
            client.listConversations(LIST);
        }
        var empty = ParleyClient.builder(address).token("");
        try (var client = empty.build(environment::get)) {
            assertEquals(Status.Code.UNAUTHENTICATED, refusal(client));
        }
    }

    @Test
    void settingsThatAreNotValidAreRefused() throws Exception {
        Path text = folder.resolve("text");
        Files.writeString(text, "not PEM");
        for (var builder : List.of(
                builder().token("Bearer secret"),
                builder().token("x".repeat(13 << 10)),
                builder().token(token).tokenFile(text),
                builder().tenant("no blanks"),
                builder().plaintext(true),
                builder().certificate(certificates.certificate(), null),
                builder().certificate(certificates.certificate(), text),
                ParleyClient.builder(address).caFile(text))) {
            var error = assertThrows(IllegalArgumentException.class, builder::build);
            assertFalse(error.getMessage().contains("secret"));
        }
        var missing = ParleyClient.builder(address).caFile(folder.resolve("missing"));
        assertThrows(UncheckedIOException.class, missing::build);
        assertDoesNotThrow(() -> builder()
                .certificate(certificates.certificate(), certificates.key())
                .build()
                .close());
    }

    @Test
    void localTargets() {
        for (String target : List.of(
                "127.0.0.1:1", "localhost:1", "LOCALHOST", "[::1]:1", "dns:///localhost:1", "dns://8.8.8.8/127.0.0.2:1",
                "unix:/tmp/socket", "[0:0:0:0:0:0:0:1]:1", "[::ffff:127.0.0.1]:1")) {
            assertTrue(Targets.isLocal(target), target);
        }
        for (String target : List.of(
                "example.com:1", "10.0.0.1:1", "127.0.0.1.example.com:1", "localhost.example.com", "[::2]:1",
                "128.0.0.1", "dns:///example.com:1", "dns://localhost/example.com", "")) {
            assertFalse(Targets.isLocal(target), target);
        }
    }
}
