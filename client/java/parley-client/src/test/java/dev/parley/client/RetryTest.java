package dev.parley.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonParser;
import dev.parley.v1.ConversationServiceGrpc;
import io.grpc.Status;
import java.nio.file.Files;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;

/** When calls and streams are made again, with a clock of the test. */
class RetryTest {
    private static final ParleyException LOST = error(Status.Code.UNAVAILABLE, "");

    private long now;
    private final Retry retry = new Retry(() -> now);

    private static ParleyException error(Status.Code code, String reason) {
        return new ParleyException(
                code, "text", new ParleyException.Details(reason, Map.of(), List.of(), null), null);
    }

    @Test
    void onlyMethodsThatMayBeRepeatedAreRetried() throws Exception {
        var path = Parleyd.repository().resolve("client/service_config.json");
        Set<String> want = new TreeSet<>();
        JsonParser.parseString(Files.readString(path))
                .getAsJsonObject()
                .getAsJsonArray("methodConfig")
                .get(0)
                .getAsJsonObject()
                .getAsJsonArray("name")
                .forEach(name -> want.add(name.getAsJsonObject().get("service").getAsString() + "/"
                        + name.getAsJsonObject().get("method").getAsString()));
        Set<String> got = new TreeSet<>(Transport.RETRIED);
        // These resume by themselves.
        got.add(ConversationServiceGrpc.getAppendStreamMethod().getFullMethodName());
        got.add(ConversationServiceGrpc.getChatMethod().getFullMethodName());
        got.add(ConversationServiceGrpc.getResumeTurnMethod().getFullMethodName());
        got.add(ConversationServiceGrpc.getWatchConversationsMethod().getFullMethodName());
        assertEquals(want, got);
    }

    @Test
    void aServerThatWasNeverReachedHasFiveAttempts() {
        long waited = 0;
        for (int i = 1; i < 5; i++) {
            retry.beginAttempt();
            waited += retry.nextDelay(LOST, false);
        }
        assertTrue(waited >= Duration.ofMillis(1200).toNanos() && waited <= Duration.ofMillis(1800).toNanos());
        retry.beginAttempt();
        assertSame(LOST, assertThrows(ParleyException.class, () -> retry.nextDelay(LOST, false)));
    }

    @Test
    void aServerThatWasReachedHasOneMinute() {
        retry.beginAttempt();
        retry.noteMessage();
        var failure = assertThrows(ParleyException.class, () -> {
            for (; ; ) {
                now += retry.nextDelay(LOST, true);
                retry.beginAttempt();
            }
        });
        assertTrue(now > Duration.ofSeconds(57).toNanos() && now <= Duration.ofSeconds(60).toNanos(), now + " ns");
        assertEquals("nothing new for 60 s: text", failure.text());
        assertEquals(Status.Code.UNAVAILABLE, failure.code());
    }

    @Test
    void aNewMessageRestartsTheMinuteAndTheDelay() {
        retry.beginAttempt();
        retry.noteMessage();
        for (int i = 0; i < 10; i++) {
            now += retry.nextDelay(LOST, true);
        }
        retry.resetDeadline();
        assertTrue(retry.nextDelay(LOST, true) <= Duration.ofMillis(120).toNanos());
        now += Duration.ofSeconds(58).toNanos();
        retry.nextDelay(LOST, true);
    }

    @Test
    void aReasonShowsThatAServerWasReached() {
        retry.beginAttempt();
        for (int i = 0; i < 10; i++) {
            now += retry.nextDelay(error(Status.Code.UNAVAILABLE, "SHUTTING_DOWN"), false);
        }
    }

    @Test
    void silenceIsLimited() {
        assertEquals(Duration.ofSeconds(45).toNanos(), retry.receiveTimeout());
        retry.beginAttempt();
        retry.noteMessage();
        now += Duration.ofSeconds(20).toNanos();
        assertEquals(Duration.ofSeconds(40).toNanos(), retry.receiveTimeout());
        assertEquals(Status.Code.UNAVAILABLE, retry.silenceError().code());
        retry.nextDelay(LOST, true);
        retry.beginAttempt();
        assertSame(LOST, retry.silenceError()); // It is more specific.
    }

    @Test
    void streamsResumeAfterErrorsOfTheConnectionOnly() {
        assertTrue(Retry.isResumable(LOST));
        assertTrue(Retry.isResumable(error(Status.Code.UNAVAILABLE, "SHUTTING_DOWN")));
        assertTrue(Retry.isResumable(error(Status.Code.RESOURCE_EXHAUSTED, "SLOW_READER")));
        assertTrue(Retry.isResumable(error(Status.Code.INTERNAL, "")));
        assertTrue(Retry.isResumable(error(Status.Code.UNKNOWN, "")));
        assertTrue(Retry.isResumable(error(Status.Code.CANCELLED, "")));
        assertFalse(Retry.isResumable(error(Status.Code.INTERNAL, "STORE_FAILED")));
        assertFalse(Retry.isResumable(error(Status.Code.RESOURCE_EXHAUSTED, "STORE_FULL")));
        assertFalse(Retry.isResumable(error(Status.Code.NOT_FOUND, "TURN_NOT_FOUND")));
        assertFalse(Retry.isResumable(error(Status.Code.DEADLINE_EXCEEDED, "")));
    }
}
