package dev.parley.langchain4j;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.langchain4j.agent.tool.ToolExecutionRequest;
import dev.langchain4j.data.audio.Audio;
import dev.langchain4j.data.message.AiMessage;
import dev.langchain4j.data.message.AudioContent;
import dev.langchain4j.data.message.ChatMessage;
import dev.langchain4j.data.message.CustomMessage;
import dev.langchain4j.data.message.ImageContent;
import dev.langchain4j.data.message.SystemMessage;
import dev.langchain4j.data.message.TextContent;
import dev.langchain4j.data.message.ToolExecutionResultMessage;
import dev.langchain4j.data.message.UserMessage;
import dev.langchain4j.memory.chat.MessageWindowChatMemory;
import dev.langchain4j.store.memory.chat.ChatMemoryStore;
import dev.langchain4j.store.memory.chat.InMemoryChatMemoryStore;
import dev.parley.client.ParleyClient;
import dev.parley.client.Parleyd;
import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.ListMessagesRequest;
import dev.parley.v1.Message;
import dev.parley.v1.Retention;
import dev.parley.v1.Role;
import dev.parley.v1.ToolCall;
import dev.parley.v1.ToolResult;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.io.TempDir;

class ParleyChatMemoryStoreTest {
    private static final ToolExecutionRequest CALL =
            ToolExecutionRequest.builder().id("1").name("look").arguments("{\"at\": \"ü😀\"}").build();

    private Parleyd server;
    private ParleyClient client;
    private ParleyChatMemoryStore store;

    @BeforeEach
    void start() throws Exception {
        server = Parleyd.start();
        client = ParleyClient.connect(server.address());
        store = new ParleyChatMemoryStore(server.address());
    }

    @AfterEach
    void stop() throws Exception {
        store.close();
        client.close();
        server.close();
    }

    /** What the documentation of the interface says, with the framework's own store, too. */
    @TestFactory
    Stream<DynamicTest> theContractOfTheInterface() {
        return Stream.of(new InMemoryChatMemoryStore(), store)
                .map(each -> DynamicTest.dynamicTest(each.getClass().getSimpleName(), () -> contract(each)));
    }

    private static void contract(ChatMemoryStore store) throws Exception {
        List<ChatMessage> first = List.of(UserMessage.from("Which libraries?"), AiMessage.from("Zustand."));
        assertEquals(List.of(), store.getMessages("a"));
        store.updateMessages("a", first);
        store.updateMessages(7, List.of(SystemMessage.from("Be brief.")));
        assertEquals(first, store.getMessages("a"));
        assertEquals(List.of(SystemMessage.from("Be brief.")), store.getMessages(7));

        List<ChatMessage> other = List.of(first.get(0), AiMessage.from("Jotai."));
        store.updateMessages("a", other);
        assertEquals(other, store.getMessages("a"));
        store.deleteMessages("a");
        store.deleteMessages("nobody");
        assertEquals(List.of(), store.getMessages("a"));

        store.updateMessagesAsync("b", first).get();
        assertEquals(first, store.getMessagesAsync("b").get());
        store.deleteMessagesAsync("b").get();
        assertEquals(List.of(), store.getMessages("b"));
    }

    @Test
    void allTypesOfMessagesComeBack() {
        List<ChatMessage> messages = List.of(
                SystemMessage.from("Be brief.\nAlways."),
                UserMessage.from("anna", "Which?"),
                UserMessage.builder()
                        .addContent(TextContent.from("See"))
                        .addContent(ImageContent.from("https://example.com/a.png"))
                        .addContent(AudioContent.from(
                                Audio.builder().base64Data("AAAA").mimeType("audio/wav").build()))
                        .attributes(Map.of("locale", "de"))
                        .build(),
                AiMessage.builder()
                        .text("Let me see.")
                        .thinking("Hm.")
                        .toolExecutionRequests(List.of(CALL))
                        .attributes(Map.of("step", "1"))
                        .build(),
                ToolExecutionResultMessage.from(CALL, "found\nit"),
                AiMessage.from(CALL),
                CustomMessage.from(Map.of("kind", "note")));
        store.updateMessages("a", messages);
        assertEquals(messages, store.getMessages("a"));
    }

    @Test
    void largeMessagesComeBack() {
        byte[] image = new byte[300_000];
        new Random(1).nextBytes(image);
        List<ChatMessage> messages = List.of(
                UserMessage.from(ImageContent.from(Base64.getEncoder().encodeToString(image), "image/png")),
                AiMessage.from("ü".repeat(1_000_000)));
        store.updateMessages("a", messages);
        assertEquals(messages, store.getMessages("a"));
    }

    @Test
    void otherProgramsReadRoleAndText() {
        store.updateMessages(
                "a", List.of(UserMessage.from("Which?"), AiMessage.from("See.", List.of(CALL)),
                        ToolExecutionResultMessage.from(CALL, "found")));
        var stored = stored("a");
        assertEquals("Which?", stored.get(0).getContent());
        assertEquals(Role.ROLE_ASSISTANT, stored.get(1).getRole());
        assertEquals("See.\n[calls look]", stored.get(1).getContent());
        assertEquals("found", stored.get(2).getToolResult().getContent());

        var call = ToolCall.newBuilder().setId("1").setName("look").setArguments(CALL.arguments());
        client.appendMessages(AppendMessagesRequest.newBuilder()
                .setConversationId("a")
                .addMessages(Message.newBuilder().setRole(Role.ROLE_USER).setContent("And now?"))
                .addMessages(Message.newBuilder().setRole(Role.ROLE_ASSISTANT).addToolCalls(call))
                .addMessages(Message.newBuilder()
                        .setRole(Role.ROLE_TOOL)
                        .setToolResult(ToolResult.newBuilder().setCallId("1").setName("look").setContent("it")))
                .build());
        var read = store.getMessages("a");
        assertEquals(UserMessage.from("And now?"), read.get(3));
        assertEquals(List.of(CALL), ((AiMessage) read.get(4)).toolExecutionRequests());
        assertEquals(ToolExecutionResultMessage.from("1", "look", "it"), read.get(5));
    }

    @Test
    void memoriesShareAStoreAcrossRestarts(@TempDir Path data) throws Exception {
        List<ChatMessage> want = new ArrayList<>();
        for (int run = 0; run < 3; run++) {
            try (var stored = Parleyd.start(Parleyd.stored(data));
                    var ours = new ParleyChatMemoryStore(stored.address())) {
                var memory = MessageWindowChatMemory.builder()
                        .id("user@example.com")
                        .maxMessages(4)
                        .chatMemoryStore(ours)
                        .build();
                for (ChatMessage message :
                        List.of(UserMessage.from("question " + run), AiMessage.from("answer " + run))) {
                    memory.add(message);
                    want.add(message);
                }
                assertEquals(want.subList(Math.max(0, want.size() - 4), want.size()), memory.messages());
            }
        }
    }

    @Test
    void badIdsAreRefused() {
        assertThrows(IllegalArgumentException.class, () -> store.getMessages(null));
        assertThrows(IllegalArgumentException.class, () -> store.updateMessages("", List.of()));
        assertThrows(IllegalArgumentException.class, () -> store.deleteMessages(""));
    }

    @Test
    void retentionIsThatOfNewConversations() {
        var ours = new ParleyChatMemoryStore(client, Retention.newBuilder().setMaxMessages(2).build());
        ours.updateMessages("a", List.of(UserMessage.from("1"), UserMessage.from("2"), UserMessage.from("3")));
        assertEquals(2, ours.getMessages("a").size());
        ours.close(); // It does not close the client of the caller.
        assertEquals(2, stored("a").size());
    }

    private List<Message> stored(String id) {
        var request = ListMessagesRequest.newBuilder().setConversationId(id).setAscending(true);
        return client.listMessages(request.build()).getMessagesList();
    }
}
