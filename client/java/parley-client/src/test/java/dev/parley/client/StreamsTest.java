package dev.parley.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.ChangeKind;
import dev.parley.v1.ChatRequest;
import dev.parley.v1.ConversationChange;
import dev.parley.v1.GetConversationRequest;
import dev.parley.v1.GetRoutingSummaryRequest;
import dev.parley.v1.ListMessagesRequest;
import dev.parley.v1.LoadConversationRequest;
import dev.parley.v1.Message;
import dev.parley.v1.RespondResponse;
import dev.parley.v1.ResumeTurnRequest;
import dev.parley.v1.Role;
import dev.parley.v1.TurnEvent;
import dev.parley.v1.TurnState;
import dev.parley.v1.UpdateConversationRequest;
import dev.parley.v1.WatchConversationsRequest;
import io.grpc.InsecureServerCredentials;
import io.grpc.Status;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Streams and calls whose connection breaks, with a real server behind a proxy. */
@Timeout(60)
class StreamsTest {
    private static final ChatRequest GO =
            ChatRequest.newBuilder().setConversationId("c").setContent("go").build();

    @TempDir
    private Path data;

    private final ScriptedAgent scripted = new ScriptedAgent();
    private AgentServer agent;
    private Parleyd server;
    private Proxy proxy;
    private ParleyClient client;

    @BeforeEach
    void start() throws Exception {
        agent = scripted.start("127.0.0.1:0", InsecureServerCredentials.create(), Duration.ZERO);
        server = startServer();
        proxy = new Proxy(server.address());
        client = ParleyClient.connect(proxy.address());
    }

    @AfterEach
    void stop() throws Exception {
        client.close();
        proxy.close();
        server.close();
        agent.close();
    }

    private Parleyd startServer() throws Exception {
        return Parleyd.start(Parleyd.agent(agent.address(), Parleyd.stored(data)));
    }

    @Test
    void chatResumesOverBrokenConnections() {
        List<String> pieces = IntStream.range(0, 40).mapToObj(i -> "größer " + i + ", ").toList();
        scripted.send(pieces.get(0));
        List<TurnEvent> events = new ArrayList<>();
        int sent = 1;
        try (var stream = client.chat(GO)) {
            for (TurnEvent event : stream) {
                events.add(event);
                if (!event.hasTextDelta()) {
                    continue;
                }
                if (sent == pieces.size()) {
                    scripted.send(RespondResponse.newBuilder().setSummary("counted").build());
                    scripted.end();
                    continue;
                }
                if (sent % 2 == 0) {
                    proxy.cutAfter(200 + 40 * sent); // Within the next bytes.
                }
                proxy.cut();
                scripted.send(pieces.get(sent++));
            }
        }
        String whole = String.join("", pieces);
        assertEquals(whole, textOf(events));
        assertEquals(
                IntStream.rangeClosed(1, events.size()).boxed().toList(),
                events.stream().map(TurnEvent::getIndex).toList());
        assertTrue(events.get(0).hasStarted());
        assertFalse(events.get(0).getStarted().getReplayed());
        var finished = events.get(events.size() - 1).getFinished();
        assertEquals(TurnState.TURN_STATE_COMPLETED, finished.getTurn().getState());
        assertEquals(whole, finished.getMessages(0).getContent());
        assertEquals(1, scripted.runs.get());
        assertTrue(proxy.opened() > 20, proxy.opened() + " connections");

        var again = new ArrayList<TurnEvent>();
        client.resumeTurn(ResumeTurnRequest.newBuilder().setConversationId("c").build())
                .forEach(again::add);
        assertEquals(whole, textOf(again));
    }

    @Test
    void resumeTurnContinuesAfterAnIndex() {
        scripted.send("one ", "two ", "three");
        scripted.end();
        List<TurnEvent> events = new ArrayList<>();
        client.chat(GO).forEach(events::add);
        var first = events.get(1);
        var request = ResumeTurnRequest.newBuilder()
                .setConversationId("c")
                .setTurnId(first.getTurnId())
                .setAfterIndex(first.getIndex());
        var rest = new ArrayList<TurnEvent>();
        client.resumeTurn(request.build()).forEach(rest::add);
        assertEquals(events.subList(2, events.size()), rest);

        request.setAfterIndex(events.get(events.size() - 1).getIndex());
        assertFalse(client.resumeTurn(request.build()).hasNext());
    }

    @Test
    void chatResumesAfterAServerWasKilledAndRestarted() throws Exception {
        scripted.send("Once ", "upon ", "a ", "time");
        List<TurnEvent> events = new ArrayList<>();
        try (var stream = client.chat(GO)) {
            for (TurnEvent event : stream) {
                events.add(event);
                if (textOf(events).equals("Once upon a time") && !event.hasFinished()) {
                    server.kill();
                    server = startServer();
                    proxy.aim(server.address());
                }
            }
        }
        assertEquals("Once upon a time", textOf(events));
        var finished = events.get(events.size() - 1).getFinished();
        assertEquals(TurnState.TURN_STATE_INTERRUPTED, finished.getTurn().getState());
        var loaded = client.loadConversation(
                LoadConversationRequest.newBuilder().setConversationId("c").build());
        assertEquals(loaded.getMessagesList().subList(1, loaded.getMessagesCount()), finished.getMessagesList());
        assertEquals(1, scripted.runs.get());
    }

    @Test
    void watchResumesOverABreakAndARestart() throws Exception {
        var direct = ParleyClient.connect(server.address());
        List<String> seen = new ArrayList<>();
        var request = WatchConversationsRequest.newBuilder().addConversationIds("c").build();
        try (var changes = client.watchConversations(request)) {
            while (!seen.contains("third")) {
                ConversationChange change = changes.next();
                if (change.getKind() == ChangeKind.CHANGE_KIND_HEARTBEAT && seen.isEmpty()) {
                    append(direct, "first");
                    continue;
                }
                if (change.getKind() == ChangeKind.CHANGE_KIND_GAP) {
                    seen.add("gap");
                    append(direct, "third");
                } else if (change.hasMessage()) {
                    seen.add(change.getMessage().getContent());
                    if (change.getMessage().getContent().equals("first")) {
                        proxy.cut();
                        append(direct, "second");
                    } else if (change.getMessage().getContent().equals("second")) {
                        server.kill();
                        direct.close();
                        server = startServer();
                        direct = ParleyClient.connect(server.address());
                        append(direct, "unseen");
                        proxy.aim(server.address());
                    }
                }
            }
        }
        direct.close();
        // A program reads the state again after the gap.
        assertEquals(List.of("first", "second", "gap", "third"), seen);
    }

    @Test
    void aCallIsSentAgainAndStoredOnce() {
        List<String> want = new ArrayList<>();
        // The break cuts the settings of HTTP/2 at first, and then the reply to a message that is stored.
        for (int bytes = 20; bytes <= 380; bytes += 20) {
            proxy.cut();
            proxy.cutAfter(bytes);
            want.add("after " + bytes);
            append(client, "after " + bytes);
        }
        assertEquals(want, stored());
    }

    @Test
    void aCallThatMayNotBeRepeatedIsSentOnce() {
        append(client, "first");
        proxy.refuse(true);
        proxy.cut();
        int before = proxy.opened();
        var update = UpdateConversationRequest.newBuilder();
        update.getConversationBuilder().setId("c").setTitle("t");
        var error = assertThrows(ParleyException.class, () -> client.updateConversation(update.build()));
        assertEquals(Status.Code.UNAVAILABLE, error.code());
        assertTrue(proxy.opened() - before <= 2, (proxy.opened() - before) + " connections");
    }

    @Test
    void callsAndStreamsFailWithoutAServer() throws Exception {
        server.close();
        proxy.refuse(true);
        for (Runnable call : List.<Runnable>of(
                () -> append(client, "lost"),
                () -> client.chat(GO).hasNext(),
                () -> client.watchConversations(WatchConversationsRequest.getDefaultInstance())
                        .hasNext())) {
            var error = assertThrows(ParleyException.class, call::run);
            assertEquals(Status.Code.UNAVAILABLE, error.code(), error::toString);
            assertEquals("", error.reason());
        }
    }

    @Test
    void closingAStreamLeavesTheTurn() {
        scripted.send("begun ");
        var stream = client.chat(GO);
        while (!stream.next().hasTextDelta()) {
            // The started event comes first.
        }
        stream.close();
        assertFalse(stream.hasNext());
        scripted.send("and done");
        scripted.end();
        var events = new ArrayList<TurnEvent>();
        client.resumeTurn(ResumeTurnRequest.newBuilder().setConversationId("c").build())
                .forEach(events::add);
        assertEquals("begun and done", textOf(events));
    }

    @Test
    void timeoutLimitsTheLoop() {
        var limited = client.withTimeout(Duration.ofMillis(300));
        scripted.send("begun ");
        var error = assertThrows(ParleyException.class, () -> limited.chat(GO).forEach(event -> {}));
        assertEquals(Status.Code.DEADLINE_EXCEEDED, error.code());
        scripted.end();
    }

    @Test
    void anInterruptEndsAStream() throws Exception {
        var failure = new ArrayList<ParleyException>();
        var begun = new java.util.concurrent.CountDownLatch(1);
        scripted.send("begun ");
        var reader = new Thread(() -> {
            try {
                client.chat(GO).forEach(event -> begun.countDown());
            } catch (ParleyException error) {
                failure.add(error);
            }
        });
        reader.start();
        begun.await();
        reader.interrupt();
        reader.join();
        assertEquals(Status.Code.CANCELLED, failure.get(0).code());
        scripted.end();
    }

    @Test
    void closingTheClientEndsItsStreams() throws Exception {
        var failure = new ArrayList<ParleyException>();
        var begun = new java.util.concurrent.CountDownLatch(1);
        scripted.send("begun ");
        var reader = new Thread(() -> {
            try {
                client.chat(GO).forEach(event -> begun.countDown());
            } catch (ParleyException error) {
                failure.add(error);
            }
        });
        reader.start();
        begun.await();
        var appender = client.appender();
        appender.append(message("first")).get();
        client.close();
        reader.join();
        assertEquals(1, failure.size());
        var error = assertThrows(
                java.util.concurrent.ExecutionException.class,
                () -> appender.append(message("second")).get());
        assertTrue(error.getCause() instanceof ParleyException, error::toString);
        assertThrows(ParleyException.class, appender::close);
        assertThrows(ParleyException.class, () -> client.chat(GO).hasNext());
        scripted.end();
    }

    @Test
    void appenderStoresEachMessageOnceInOrder() throws Exception {
        List<String> contents = IntStream.range(0, 300).mapToObj(i -> "message " + i).toList();
        try (Appender appender = client.appender()) {
            var replies = new ArrayList<java.util.concurrent.CompletableFuture<?>>();
            for (int i = 0; i < contents.size(); i++) {
                replies.add(appender.append(message(contents.get(i))));
                if (i % 50 == 20) {
                    replies.get(i - 10).get();
                    proxy.cutAfter(100 + i);
                    proxy.cut();
                } else if (i == 170) {
                    server.kill();
                    server = startServer();
                    proxy.aim(server.address());
                }
            }
            appender.flush();
            for (var reply : replies) {
                assertTrue(reply.isDone() && !reply.isCompletedExceptionally());
            }
        }
        assertEquals(contents.subList(contents.size() - 20, contents.size()), stored());
        var conversation = client.getConversation(
                        GetConversationRequest.newBuilder().setConversationId("c").build())
                .getConversation();
        assertEquals(contents.size(), conversation.getLastSequence());
        assertTrue(proxy.opened() > 5, proxy.opened() + " connections");
    }

    @Test
    void aRefusedAppendAffectsNoOther() throws Exception {
        try (Appender appender = client.appender()) {
            var first = appender.append(message("first"));
            var refused = appender.append(AppendMessagesRequest.newBuilder()
                    .setConversationId("c")
                    .addMessages(Message.newBuilder().setContent("no role"))
                    .build());
            var second = appender.append(message("second"));
            assertEquals(1, first.get().getAppended(0).getSequence());
            assertEquals(2, second.get().getAppended(0).getSequence());
            var error = assertThrows(java.util.concurrent.ExecutionException.class, refused::get);
            assertEquals("INVALID_REQUEST", ((ParleyException) error.getCause()).reason());
        }
    }

    @Test
    void anAppenderFailsWithoutAServer() throws Exception {
        server.close();
        proxy.refuse(true);
        var appender = client.appender();
        var reply = appender.append(message("lost"));
        var error = assertThrows(java.util.concurrent.ExecutionException.class, reply::get);
        assertEquals(Status.Code.UNAVAILABLE, ((ParleyException) error.getCause()).code());
        assertThrows(ParleyException.class, appender::close);
        assertThrows(ParleyException.class, () -> appender.append(message("late")));
    }

    @Test
    void summaryOfAConversation() {
        append(client, "Which libraries keep state?");
        var reply = client.getRoutingSummary(
                GetRoutingSummaryRequest.newBuilder().setConversationId("c").build());
        assertTrue(reply.getSummary().getAwaitingAnswer());
        assertEquals("Which libraries keep state?", reply.getSummary().getRecentMessages(0).getContent());
    }

    private List<String> stored() {
        var request = ListMessagesRequest.newBuilder().setConversationId("c").setAscending(true);
        return client.listMessages(request.build()).getMessagesList().stream()
                .map(Message::getContent)
                .toList();
    }

    private static AppendMessagesRequest message(String... contents) {
        return AppendMessagesRequest.newBuilder()
                .setConversationId("c")
                .addAllMessages(Arrays.stream(contents)
                        .map(content -> Message.newBuilder()
                                .setRole(Role.ROLE_USER)
                                .setContent(content)
                                .build())
                        .toList())
                .build();
    }

    private static void append(ParleyClient client, String content) {
        client.appendMessages(message(content));
    }

    private static String textOf(List<TurnEvent> events) {
        return events.stream().map(event -> event.getTextDelta().getText()).collect(Collectors.joining());
    }
}
