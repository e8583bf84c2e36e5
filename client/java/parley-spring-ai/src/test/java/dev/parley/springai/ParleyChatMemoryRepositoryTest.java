package dev.parley.springai;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.parley.client.ParleyClient;
import dev.parley.client.Parleyd;
import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.ListMessagesRequest;
import dev.parley.v1.Retention;
import dev.parley.v1.Role;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.URI;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.ai.chat.memory.ChatMemoryRepository;
import org.springframework.ai.chat.memory.InMemoryChatMemoryRepository;
import org.springframework.ai.chat.memory.MessageWindowChatMemory;
import org.springframework.ai.chat.messages.AssistantMessage;
import org.springframework.ai.chat.messages.Message;
import org.springframework.ai.chat.messages.SystemMessage;
import org.springframework.ai.chat.messages.ToolResponseMessage;
import org.springframework.ai.chat.messages.UserMessage;
import org.springframework.ai.content.Media;
import org.springframework.util.MimeType;

class ParleyChatMemoryRepositoryTest {
    private Parleyd server;
    private ParleyClient client;
    private ParleyChatMemoryRepository repository;

    @BeforeEach
    void start() throws Exception {
        server = Parleyd.start();
        client = ParleyClient.connect(server.address());
        repository = new ParleyChatMemoryRepository(server.address());
    }

    @AfterEach
    void stop() throws Exception {
        repository.close();
        client.close();
        server.close();
    }

    /** What the documentation of the interface says, with the framework's own repository, too. */
    @TestFactory
    Stream<DynamicTest> theContractOfTheInterface() {
        return Stream.of(new InMemoryChatMemoryRepository(), repository)
                .map(each -> DynamicTest.dynamicTest(each.getClass().getSimpleName(), () -> contract(each)));
    }

    private static void contract(ChatMemoryRepository repository) {
        List<Message> first = List.of(new UserMessage("Which libraries?"), new AssistantMessage("Zustand."));
        assertEquals(List.of(), repository.findConversationIds());
        assertEquals(List.of(), repository.findByConversationId("a"));
        repository.saveAll("a", first);
        assertEquals(first, repository.findByConversationId("a"));
        repository.saveAll("b", List.of(new SystemMessage("Be brief.")));
        assertEquals(List.of("a", "b"), repository.findConversationIds().stream().sorted().toList());

        List<Message> other = List.of(first.get(0), new AssistantMessage("Jotai."));
        repository.saveAll("a", other);
        assertEquals(other, repository.findByConversationId("a"));
        repository.findByConversationId("a").clear(); // A copy.
        assertEquals(other, repository.findByConversationId("a"));

        repository.deleteByConversationId("a");
        repository.deleteByConversationId("nobody");
        assertEquals(List.of(), repository.findByConversationId("a"));
        assertEquals(List.of("b"), repository.findConversationIds());
        repository.saveAll("b", List.of());
        assertEquals(List.of(), repository.findByConversationId("b"));

        assertThrows(IllegalArgumentException.class, () -> repository.saveAll("", first));
        assertThrows(IllegalArgumentException.class, () -> repository.saveAll(null, first));
        assertThrows(IllegalArgumentException.class, () -> repository.saveAll("b", null));
        assertThrows(
                IllegalArgumentException.class,
                () -> repository.saveAll("b", Arrays.asList(new UserMessage("a"), null)));
        assertThrows(IllegalArgumentException.class, () -> repository.findByConversationId(" "));
        assertThrows(IllegalArgumentException.class, () -> repository.deleteByConversationId(null));
        assertEquals(List.of(), repository.findByConversationId("b"));
    }

    @Test
    void allTypesOfMessagesComeBack() {
        var call = new AssistantMessage.ToolCall("1", "function", "look", "{\"at\": \"ü😀\"}");
        List<Message> messages = List.of(
                new SystemMessage("Be brief.\nAlways."),
                UserMessage.builder().text("").metadata(Map.of("locale", "de")).build(),
                AssistantMessage.builder()
                        .content("Let me see.")
                        .properties(Map.of("finishReason", "tool_calls"))
                        .toolCalls(List.of(call))
                        .build(),
                ToolResponseMessage.builder()
                        .responses(List.of(
                                new ToolResponseMessage.ToolResponse("1", "look", "found\nit"),
                                new ToolResponseMessage.ToolResponse("2", "look", "")))
                        .metadata(Map.of("took", 3))
                        .build(),
                AssistantMessage.builder().content(null).toolCalls(List.of(call)).build(),
                new AssistantMessage("Here."));
        repository.saveAll("a", messages);
        var read = repository.findByConversationId("a");
        assertEquals(messages, read);
        assertNull(read.get(4).getText());
        for (int i = 0; i < messages.size(); i++) {
            assertEquals(messages.get(i).getMetadata(), read.get(i).getMetadata());
        }
    }

    @Test
    void metadataComesBackWithItsTypes() {
        Map<String, Object> metadata = new HashMap<>();
        metadata.put("text", "ü");
        metadata.put("integer", 5);
        metadata.put("long", 5L);
        metadata.put("large", Long.MAX_VALUE);
        metadata.put("double", 1.0);
        metadata.put("nan", Double.NaN);
        metadata.put("float", 0.1f);
        metadata.put("bool", true);
        metadata.put("big", new BigInteger("123456789012345678901234567890"));
        metadata.put("decimal", new BigDecimal("1.10"));
        metadata.put("time", Instant.parse("2026-11-29T10:00:00.123456789Z"));
        metadata.put("uuid", UUID.fromString("01a226a8-8093-74b0-b03e-9feab748e54f"));
        metadata.put("uri", URI.create("https://example.com/a"));
        metadata.put("nested", Map.of("list", List.of(1, 2L, Map.of("$type", "long")), "z", 1));
        metadata.put("none", null);
        var message = AssistantMessage.builder().content("a").properties(metadata).build();
        repository.saveAll("a", List.of(message));
        var read = repository.findByConversationId("a");
        assertEquals(message.getMetadata(), read.get(0).getMetadata());

        // A save of what was read changes nothing, so the JSON of a message is always the same.
        int version = version("a");
        repository.saveAll("a", read);
        assertEquals(version, version("a"));
    }

    /** An object that Jackson can write, and one that it cannot. */
    record Usage(int tokens) {}

    record Endless() {
        public Endless getSelf() {
            return new Endless();
        }
    }

    @Test
    void objectsInMetadataBecomeMapsOrAreRefused() {
        var usage = AssistantMessage.builder()
                .content("a")
                .properties(Map.of("usage", new Usage(3)))
                .build();
        repository.saveAll("a", List.of(usage));
        assertEquals(
                Map.of("tokens", 3),
                repository.findByConversationId("a").get(0).getMetadata().get("usage"));
        var endless = AssistantMessage.builder()
                .content("b")
                .properties(Map.of("endless", new Endless()))
                .build();
        var error = assertThrows(IllegalArgumentException.class, () -> repository.saveAll("a", List.of(endless)));
        assertTrue(error.getMessage().contains("\"endless\""), error::getMessage);
        assertEquals("a", repository.findByConversationId("a").get(0).getText());
    }

    @Test
    void mediaComesBack() {
        byte[] image = new byte[300_000];
        new java.util.Random(1).nextBytes(image);
        var png = Media.builder()
                .mimeType(new MimeType("image", "png"))
                .data(image)
                .id("m1")
                .name("photo")
                .build();
        var link = new Media(new MimeType("image", "jpeg"), URI.create("https://example.com/a.jpg"));
        var user = UserMessage.builder().text("See").media(png, link).build();
        var answer = AssistantMessage.builder().content("").media(List.of(png)).build();
        repository.saveAll("a", List.of(user, answer));
        var read = repository.findByConversationId("a");
        var media = assertInstanceOf(UserMessage.class, read.get(0)).getMedia();
        assertArrayEquals(image, media.get(0).getDataAsByteArray());
        assertEquals("m1", media.get(0).getId());
        assertEquals("photo", media.get(0).getName());
        assertEquals(png.getMimeType(), media.get(0).getMimeType());
        assertEquals(link.getData(), media.get(1).getData());
        assertEquals(link.getName(), media.get(1).getName());
        assertNull(media.get(1).getId());
        assertArrayEquals(
                image,
                assertInstanceOf(AssistantMessage.class, read.get(1)).getMedia().get(0).getDataAsByteArray());
    }

    @Test
    void otherProgramsReadRoleAndText() {
        var call = new AssistantMessage.ToolCall("1", "function", "look", "{}");
        repository.saveAll(
                "a",
                List.of(
                        new UserMessage("Which?"),
                        AssistantMessage.builder().content("See.").toolCalls(List.of(call)).build(),
                        ToolResponseMessage.builder()
                                .responses(List.of(new ToolResponseMessage.ToolResponse("1", "look", "found")))
                                .build()));
        var stored = stored("a");
        assertEquals("Which?", stored.get(0).getContent());
        assertEquals(Role.ROLE_ASSISTANT, stored.get(1).getRole());
        assertEquals("See.\n[calls look]", stored.get(1).getContent());
        assertEquals("found", stored.get(2).getToolResult().getContent());

        client.appendMessages(AppendMessagesRequest.newBuilder()
                .setConversationId("a")
                .addMessages(dev.parley.v1.Message.newBuilder()
                        .setRole(Role.ROLE_ASSISTANT)
                        .setContent("Foreign."))
                .build());
        assertEquals(new AssistantMessage("Foreign."), repository.findByConversationId("a").get(3));
    }

    @Test
    void memoriesShareARepositoryAcrossRestarts(@TempDir java.nio.file.Path data) throws Exception {
        List<Message> want = new ArrayList<>();
        for (int run = 0; run < 3; run++) {
            try (var stored = Parleyd.start(Parleyd.stored(data));
                    var ours = new ParleyChatMemoryRepository(stored.address())) {
                var memory = MessageWindowChatMemory.builder()
                        .chatMemoryRepository(ours)
                        .maxMessages(4)
                        .build();
                Message question = new UserMessage("question " + run);
                Message answer = new AssistantMessage("answer " + run);
                memory.add("user@example.com", question);
                memory.add("user@example.com", answer);
                want.add(question);
                want.add(answer);
                assertEquals(
                        want.subList(Math.max(0, want.size() - 4), want.size()), memory.get("user@example.com"));
            }
        }
    }

    @Test
    void retentionIsThatOfNewConversations() {
        var ours = new ParleyChatMemoryRepository(
                client, Retention.newBuilder().setMaxMessages(2).build());
        ours.saveAll("a", List.of(new UserMessage("1"), new UserMessage("2"), new UserMessage("3")));
        assertEquals(2, ours.findByConversationId("a").size());
        ours.close(); // It does not close the client of the caller.
        assertEquals(2, stored("a").size());
    }

    private List<dev.parley.v1.Message> stored(String id) {
        var request = ListMessagesRequest.newBuilder().setConversationId(id).setAscending(true);
        return client.listMessages(request.build()).getMessagesList();
    }

    private int version(String id) {
        var request = ListMessagesRequest.newBuilder().setConversationId(id);
        return client.listMessages(request.build()).getConversation().getVersion();
    }
}
