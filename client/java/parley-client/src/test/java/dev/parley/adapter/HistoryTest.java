package dev.parley.adapter;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.parley.client.ParleyClient;
import dev.parley.client.ParleyException;
import dev.parley.client.Parleyd;
import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.Conversation;
import dev.parley.v1.GetConversationRequest;
import dev.parley.v1.ListMessagesRequest;
import dev.parley.v1.Message;
import dev.parley.v1.Role;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Histories that are replaced as a whole, with messages that are texts. */
@Timeout(120)
class HistoryTest {
    private static final Codec<String> TEXTS = new Codec<>() {
        @Override
        public String encode(String message) {
            return message;
        }

        @Override
        public String decode(String line) {
            return line;
        }

        @Override
        public Message readable(String message) {
            return Message.newBuilder().setRole(Role.ROLE_USER).setContent(message).build();
        }

        @Override
        public String foreign(Message message) {
            return message.getContent();
        }
    };

    private Parleyd server;
    private ParleyClient client;
    private History<String> history;

    @BeforeEach
    void start() throws Exception {
        server = Parleyd.start();
        client = ParleyClient.connect(server.address());
        history = new History<>(client, "test", TEXTS, History.kept());
    }

    @AfterEach
    void stop() throws Exception {
        client.close();
        server.close();
    }

    private Conversation conversation(String id) {
        return client.getConversation(
                        GetConversationRequest.newBuilder().setConversationId(id).build())
                .getConversation();
    }

    private List<Message> stored(String id) {
        var request = ListMessagesRequest.newBuilder().setConversationId(id).setAscending(true).setPageSize(1000);
        return client.listMessages(request.build()).getMessagesList();
    }

    private void append(String id, String content) {
        client.appendMessages(AppendMessagesRequest.newBuilder()
                .setConversationId(id)
                .addMessages(Message.newBuilder().setRole(Role.ROLE_USER).setContent(content))
                .build());
    }

    @Test
    void replaceWritesOnlyTheEndThatDiffers() {
        history.replace("k", List.of("a", "b", "c"));
        List<Message> before = stored("k");
        history.replace("k", List.of("a", "b", "d", "e"));
        assertEquals(List.of("a", "b", "d", "e"), history.read("k"));
        assertEquals(before.subList(0, 2), stored("k").subList(0, 2));
        int version = conversation("k").getVersion();

        history.replace("k", List.of("a", "b", "d", "e"));
        assertEquals(version, conversation("k").getVersion()); // Nothing changed.

        history.replace("k", List.of("a"));
        assertEquals(List.of("a"), history.read("k"));
        history.replace("k", List.of("b", "a"));
        assertEquals(List.of("b", "a"), history.read("k"));
        history.replace("k", List.of());
        assertEquals(List.of(), history.read("k"));
        assertEquals(List.of("k"), history.keys());
    }

    @Test
    void replaceIsOneCommit() {
        history.replace("k", IntStream.range(0, 90).mapToObj(i -> "old " + i).toList());
        int version = conversation("k").getVersion();
        var many = IntStream.range(0, 3000).mapToObj(i -> "new " + i).toList();
        history.replace("k", many);
        assertEquals(version + 1, conversation("k").getVersion());
        assertEquals(many, history.read("k"));
    }

    @Test
    void replacementsOfSeveralWritersAreNeverMixed() throws Exception {
        // Each is the start of the next: a writer that trusts what it has read would append to another history.
        List<String> longest = List.of("a", "b", "c", "d", "e");
        ExecutorService pool = Executors.newFixedThreadPool(5);
        List<Future<?>> writers = new ArrayList<>();
        for (int writer = 1; writer <= longest.size(); writer++) {
            List<String> messages = longest.subList(0, writer);
            writers.add(pool.submit(() -> {
                for (int i = 0; i < 40; i++) {
                    history.replace("k", messages);
                    List<String> read = history.read("k");
                    assertEquals(longest.subList(0, read.size()), read);
                }
            }));
        }
        for (var writer : writers) {
            writer.get();
        }
        pool.shutdown();
    }

    @Test
    void largeMessagesAreRecords() {
        String large = IntStream.range(0, 400_000).mapToObj(i -> "ü" + i).collect(Collectors.joining());
        history.replace("k", List.of("small", large, "after"));
        assertEquals(List.of("small", large, "after"), history.read("k"));
        assertTrue(conversation("k").getRecordCount() >= 3);
        assertTrue(stored("k").get(1).getContent().length() <= 4096);

        // A message that stays keeps its records; one that goes leaves none.
        history.replace("k", List.of(large));
        assertEquals(List.of(large), history.read("k"));
        history.replace("k", List.of("small"));
        assertEquals(0, conversation("k").getRecordCount());
    }

    @Test
    void aLargeHistoryMovesOlderMessagesToRecords() {
        // 4 MiB are more than the messages of a conversation may have.
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < 80; i++) {
            lines.add(i + " ".repeat(50 << 10) + "x");
            if (i % 20 == 19) {
                history.replace("k", lines);
            }
        }
        assertEquals(lines, history.read("k"));
        lines.add("newest");
        history.replace("k", lines);
        assertEquals(lines, history.read("k"));
        var messages = stored("k");
        assertEquals("newest", messages.get(messages.size() - 1).getContent());
    }

    @Test
    void messagesOfOtherProgramsAreRead() {
        history.replace("k", List.of("a"));
        append("k", "foreign");
        assertEquals(List.of("a", "foreign"), history.read("k"));
        List<Message> before = stored("k");
        history.replace("k", List.of("a", "foreign", "b"));
        assertEquals(before, stored("k").subList(0, 2));
    }

    @Test
    void conversationsAreKeptAndListed() {
        history.replace("user@example.com", List.of("a"));
        history.replace("a b/c\n", List.of("b"));
        append("other", "c");
        assertEquals(List.of("user@example.com", "a b/c\n"), history.keys());
        var retention = conversation("user@example.com").getRetention();
        assertTrue(retention.getKeepAll() && retention.getNoExpiry() && retention.getNoEviction(), retention::toString);
        assertEquals("test", conversation("a b/c%0A").getLabelsOrThrow("parley.adapter"));
        assertEquals(List.of("b"), history.read("a b/c\n"));

        history.delete("user@example.com");
        history.delete("nobody");
        assertEquals(List.of("a b/c\n"), history.keys());
        assertEquals(List.of(), history.read("user@example.com"));
    }

    @Test
    void errorsChangeNothing() {
        history.replace("k", List.of("a"));
        for (String key : List.of("", "k".repeat(1025))) {
            assertThrows(IllegalArgumentException.class, () -> history.replace(key, List.of("b")));
        }
        client.close();
        assertThrows(ParleyException.class, () -> history.replace("k", List.of("b")));
        try (var other = ParleyClient.connect(server.address())) {
            var again = new History<>(other, "test", TEXTS, History.kept());
            assertEquals(List.of("a"), again.read("k"));
            assertEquals(List.of("k"), again.keys());
        }
    }
}
