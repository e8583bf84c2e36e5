package dev.parley.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Value;
import dev.parley.v1.AgentServiceGrpc;
import dev.parley.v1.CancelTurnRequest;
import dev.parley.v1.ChatRequest;
import dev.parley.v1.Message;
import dev.parley.v1.MessageStatus;
import dev.parley.v1.RespondRequest;
import dev.parley.v1.RespondResponse;
import dev.parley.v1.Role;
import dev.parley.v1.StructuredData;
import dev.parley.v1.ToolCall;
import dev.parley.v1.ToolResult;
import dev.parley.v1.TurnEvent;
import dev.parley.v1.TurnFinished;
import dev.parley.v1.TurnProgress;
import dev.parley.v1.TurnState;
import dev.parley.v1.Usage;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.health.v1.HealthGrpc;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Agents that a real server calls. */
@Timeout(60)
class AgentTest {
    /** What an agent answers. */
    private interface Script {
        void respond(RespondRequest request, Answer answer) throws Exception;
    }

    private static AgentServer serve(Script script, Duration grace) throws IOException {
        return new Agent() {
            @Override
            public void respond(RespondRequest request, Answer answer) throws Exception {
                script.respond(request, answer);
            }
        }.start("127.0.0.1:0", InsecureServerCredentials.create(), grace);
    }

    /** Chats with an agent. Returns the events of the turn. */
    private static List<TurnEvent> chat(Script script, String... contents) throws Exception {
        try (var agent = serve(script, Duration.ZERO);
                var server = Parleyd.start(Parleyd.agent(agent.address()));
                var client = ParleyClient.connect(server.address())) {
            List<TurnEvent> events = new ArrayList<>();
            for (String content : contents) {
                events.clear();
                var request = ChatRequest.newBuilder().setConversationId("c").setContent(content);
                client.chat(request.build()).forEach(events::add);
            }
            return events;
        }
    }

    private static TurnFinished finished(List<TurnEvent> events) {
        return events.get(events.size() - 1).getFinished();
    }

    @Test
    void anAgentReceivesTheConversation() throws Exception {
        var events = chat(
                (request, answer) -> {
                    for (Message message : request.getMessagesList()) {
                        answer.text(message.getContent() + "; ");
                    }
                },
                "one",
                "two");
        assertEquals("one; one; ; two; ", finished(events).getMessages(0).getContent());
        assertEquals(TurnState.TURN_STATE_COMPLETED, finished(events).getTurn().getState());
    }

    @Test
    void anAgentMaySendAllTypesOfPieces() throws Exception {
        var note = StructuredData.newBuilder()
                .setType("note")
                .setValue(Value.newBuilder().setStringValue("deep"))
                .build();
        var call = ToolCall.newBuilder().setId("1").setName("look").setArguments("{}").build();
        var events = chat(
                (request, answer) -> {
                    answer.send(TurnProgress.newBuilder().setText("thinking").build());
                    answer.text("Let me see. ");
                    answer.send(note);
                    answer.send(call);
                    answer.send(ToolResult.newBuilder().setCallId("1").setContent("found").build());
                    answer.send(RespondResponse.newBuilder().setNextAgent("other").build());
                    answer.text("Here: ü😀");
                    answer.send(Usage.newBuilder().setModel("m").setOutputTokens(5).build());
                    answer.send(RespondResponse.newBuilder().setFinishReason("stop").build());
                    answer.send(RespondResponse.newBuilder().setSummary("looked").build());
                },
                "hello");
        var messages = finished(events).getMessagesList();
        assertEquals(TurnState.TURN_STATE_COMPLETED, finished(events).getTurn().getState());
        assertEquals(3, messages.size());
        assertTrue(events.stream().anyMatch(event -> event.getProgress().getText().equals("thinking")));
        assertEquals(List.of(note), messages.get(0).getStructuredDataList());
        assertEquals(List.of(call), messages.get(0).getToolCallsList());
        assertEquals("found", messages.get(1).getToolResult().getContent());
        Message last = messages.get(2);
        assertEquals("other", last.getAgent());
        assertEquals("Here: ü😀", last.getContent());
        assertEquals("stop", last.getFinishReason());
        assertEquals("looked", last.getSummary());
        assertEquals(5, last.getUsage().getOutputTokens());
    }

    @Test
    void theMessageOfAnAgentExceptionReachesTheUser() throws Exception {
        var turn = finished(chat(
                        (request, answer) -> {
                            answer.text("So ");
                            throw new AgentException(Status.Code.RESOURCE_EXHAUSTED, "out of tea");
                        },
                        "hello"))
                .getTurn();
        assertEquals(TurnState.TURN_STATE_FAILED, turn.getState());
        assertTrue(turn.getError().getMessage().contains("out of tea"), turn::toString);
        assertTrue(turn.getError().getRetryable());
    }

    @Test
    void anotherExceptionIsHiddenAndThePartIsStored() throws Exception {
        var finished = finished(chat(
                (request, answer) -> {
                    answer.text("So ");
                    throw new IllegalStateException("a secret");
                },
                "hello"));
        var error = finished.getTurn().getError();
        assertEquals("AGENT_FAILED", error.getReason());
        assertTrue(error.getMessage().matches(".*IllegalStateException.*log.*"), error::toString);
        assertFalse(error.getMessage().contains("secret"));
        assertEquals("So ", finished.getMessages(0).getContent());
        assertEquals(MessageStatus.MESSAGE_STATUS_INCOMPLETE, finished.getMessages(0).getStatus());
    }

    @Test
    void anErrorEndsTheAnswer() throws Exception {
        var turn = finished(chat(
                        (request, answer) -> {
                            throw new OutOfMemoryError("of the test");
                        },
                        "hello"))
                .getTurn();
        assertEquals(TurnState.TURN_STATE_FAILED, turn.getState());
        assertTrue(turn.getError().getMessage().contains("OutOfMemoryError"), turn::toString);
    }

    @Test
    void cancelTurnInterruptsTheAgent() throws Exception {
        var interrupted = new CountDownLatch(1);
        var refused = new CountDownLatch(1);
        Script slow = (request, answer) -> {
            answer.text("tick");
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException interrupt) {
                interrupted.countDown();
            }
            try {
                answer.text("late");
            } catch (CancellationException cancelled) {
                refused.countDown();
            }
        };
        try (var agent = serve(slow, Duration.ZERO);
                var server = Parleyd.start(Parleyd.agent(agent.address()));
                var client = ParleyClient.connect(server.address())) {
            TurnEvent last = null;
            var request = ChatRequest.newBuilder().setConversationId("c").setContent("go");
            for (TurnEvent event : client.chat(request.build())) {
                last = event;
                if (event.hasTextDelta()) {
                    client.cancelTurn(CancelTurnRequest.newBuilder()
                            .setConversationId("c")
                            .setTurnId(event.getTurnId())
                            .build());
                }
            }
            assertEquals(TurnState.TURN_STATE_CANCELLED, last.getFinished().getTurn().getState());
            assertTrue(interrupted.await(30, TimeUnit.SECONDS));
            assertTrue(refused.await(30, TimeUnit.SECONDS));
        }
    }

    @Test
    void aStopWaitsForAnswers() throws Exception {
        var begun = new CountDownLatch(1);
        var end = new CountDownLatch(1);
        var agent = serve(
                (request, answer) -> {
                    begun.countDown();
                    end.await();
                    answer.text("done");
                },
                Duration.ofSeconds(30));
        var channel = channel(agent);
        var call = AgentServiceGrpc.newBlockingStub(channel).respond(question());
        begun.await();
        var stopping = new Thread(agent::close);
        stopping.start();
        end.countDown();
        assertEquals("done", call.next().getText());
        assertFalse(call.hasNext());
        stopping.join();
        channel.shutdownNow();
    }

    @Test
    void aProgramThatIsStoppedCompletesItsAnswers() throws Exception {
        var process = new ProcessBuilder(
                        System.getProperty("java.home") + "/bin/java",
                        "-cp",
                        System.getProperty("java.class.path"),
                        WaitingAgent.class.getName())
                .redirectErrorStream(true)
                .start();
        try {
            // The address is in the log.
            var serving = Pattern.compile("agent serving .* at (\\S+)");
            String address = process.inputReader()
                    .lines()
                    .map(serving::matcher)
                    .filter(Matcher::find)
                    .map(matcher -> matcher.group(1))
                    .findFirst()
                    .orElseThrow();
            var channel = Grpc.newChannelBuilder(address, InsecureChannelCredentials.create()).build();
            var call = AgentServiceGrpc.newBlockingStub(channel).respond(question());
            assertEquals("begun ", call.next().getText());
            var health = HealthGrpc.newBlockingStub(channel).watch(HealthCheckRequest.getDefaultInstance());
            assertEquals(ServingStatus.SERVING, health.next().getStatus());
            process.toHandle().destroy(); // SIGTERM; the pipes stay open.
            assertEquals(ServingStatus.NOT_SERVING, health.next().getStatus());
            process.getOutputStream().write('\n');
            process.getOutputStream().flush();
            assertEquals("and done", call.next().getText());
            assertFalse(call.hasNext());
            channel.shutdownNow();
            assertTrue(process.waitFor(30, TimeUnit.SECONDS));
        } finally {
            process.destroyForcibly();
        }
    }

    @Test
    void aStopCancelsAnswersAfterTheGrace() throws Exception {
        var begun = new CountDownLatch(1);
        var agent = serve(
                (request, answer) -> {
                    begun.countDown();
                    new CountDownLatch(1).await();
                },
                Duration.ZERO);
        var channel = channel(agent);
        var call = AgentServiceGrpc.newBlockingStub(channel).respond(question());
        begun.await();
        agent.close();
        var error = assertThrows(StatusRuntimeException.class, call::hasNext);
        assertEquals(Status.Code.UNAVAILABLE, error.getStatus().getCode());
        assertTrue(error.getMessage().contains("try again"), error::toString);
        channel.shutdownNow();
    }

    @Test
    void anAgentServesTheHealthService() throws Exception {
        try (var agent = serve((request, answer) -> {}, Duration.ZERO)) {
            var channel = channel(agent);
            var request = HealthCheckRequest.newBuilder().setService(AgentServiceGrpc.SERVICE_NAME);
            var reply = HealthGrpc.newBlockingStub(channel).check(request.build());
            assertEquals(ServingStatus.SERVING, reply.getStatus());
            channel.shutdownNow();
        }
    }

    @Test
    void badRequestsAndAddressesAreRefused() throws Exception {
        try (var agent = serve((request, answer) -> {}, Duration.ZERO)) {
            var channel = channel(agent);
            var call = AgentServiceGrpc.newBlockingStub(channel).respond(RespondRequest.getDefaultInstance());
            var error = assertThrows(StatusRuntimeException.class, call::hasNext);
            assertEquals(Status.Code.INVALID_ARGUMENT, error.getStatus().getCode());
            channel.shutdownNow();
            Agent other = new ScriptedAgent();
            assertThrows(IOException.class, () -> other.start(agent.address()));
            for (String address : List.of("", "7002", "localhost", "localhost:70000", ":")) {
                assertThrows(IllegalArgumentException.class, () -> other.start(address), address);
            }
        }
    }

    private static ManagedChannel channel(AgentServer agent) {
        return Grpc.newChannelBuilder(agent.address(), InsecureChannelCredentials.create()).build();
    }

    private static RespondRequest question() {
        return RespondRequest.newBuilder()
                .addMessages(Message.newBuilder().setRole(Role.ROLE_USER).setContent("go"))
                .build();
    }
}
