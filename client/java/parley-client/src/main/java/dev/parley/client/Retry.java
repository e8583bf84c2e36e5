package dev.parley.client;

import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.LongSupplier;

/** When a stream that resumes over several calls makes the next call, and when it gives up. One thread uses it. */
final class Retry {
    /** The attempts to reach a server at first, and those of a call that is no stream. */
    static final int ATTEMPTS = 5;
    /** The longest delay between these attempts of a call that is no stream. */
    static final Duration MAX_CALL_DELAY = Duration.ofSeconds(1);

    static final Duration FIRST_DELAY = Duration.ofMillis(100);

    /**
     * The limit of the time without a new message over all attempts. The server sends something at least every 15 s.
     * The time that the reader's loop takes does not count.
     */
    private static final Duration GIVE_UP_AFTER = Duration.ofSeconds(60);
    /**
     * The time without a message after which a stream counts as broken although its connection works: three messages of
     * the server are then missing. It leaves time for another attempt.
     */
    static final Duration MAX_SILENCE = Duration.ofSeconds(45);
    /** The delay before the next attempt doubles up to this until there is a new message. */
    private static final Duration MAX_DELAY = Duration.ofSeconds(2);

    private final LongSupplier clock;
    private long delay = FIRST_DELAY.toNanos();
    /** A new message has arrived since the last attempt began. */
    private boolean progress;
    /** The server has been reached. */
    private boolean connected;

    private int firstAttempts = ATTEMPTS;
    /** Of the newest attempt, until the server has been reached. */
    private long attemptBegin;
    /** The stream gives up at this time. Only set when connected. */
    private long deadline;
    /** The error that ended the previous call. */
    private ParleyException lastError;

    /** Makes the state before the first attempt. The clock returns nanoseconds. */
    Retry(LongSupplier clock) {
        this.clock = clock;
    }

    void beginAttempt() {
        progress = false;
        if (!connected) {
            attemptBegin = clock.getAsLong();
        }
    }

    /** Records that the server has sent a message. */
    void noteMessage() {
        if (!connected) {
            connected = true;
            resetDeadline();
        }
    }

    void noteProgress() {
        progress = true;
    }

    boolean hasProgress() {
        return progress;
    }

    /** Restarts the time limit and the delay, because there is a new message. */
    void resetDeadline() {
        deadline = clock.getAsLong() + GIVE_UP_AFTER.toNanos();
        delay = FIRST_DELAY.toNanos();
    }

    /** Restarts only the time limit. */
    void resetDeadlineOnly() {
        deadline = clock.getAsLong() + GIVE_UP_AFTER.toNanos();
    }

    /** Lets the time limit begin at this time or later. Before, there was nothing to wait for. */
    void extendDeadline(long since) {
        long later = since + GIVE_UP_AFTER.toNanos();
        if (connected && later - deadline > 0) {
            deadline = later;
        }
    }

    /** Returns how many nanoseconds to wait for the next message of a call. */
    long receiveTimeout() {
        return connected ? Math.min(MAX_SILENCE.toNanos(), deadline - clock.getAsLong()) : MAX_SILENCE.toNanos();
    }

    /** Returns the error of a call that was cancelled for its silence. */
    ParleyException silenceError() {
        if (lastError != null && !progress && isResumable(lastError)) {
            return lastError; // It is more specific.
        }
        return new ParleyException(Status.Code.UNAVAILABLE, "the stream has been silent for too long");
    }

    /**
     * Returns the nanoseconds to wait before the next attempt. reached says whether the failed attempt has reached a
     * server. Throws the error if there must be no other attempt.
     */
    long nextDelay(ParleyException error, boolean reached) {
        lastError = error;
        if (!connected) {
            // Only a Parley server sets a reason.
            if (reached || !error.reason().isEmpty()) {
                connected = true;
                deadline = attemptBegin + GIVE_UP_AFTER.toNanos();
            } else if (--firstAttempts > 0 && error.code() == Status.Code.UNAVAILABLE) {
                return backoff();
            } else {
                throw error;
            }
        }
        long next = backoff();
        if (deadline - clock.getAsLong() < next) {
            throw error.after("nothing new for " + GIVE_UP_AFTER.toSeconds() + " s");
        }
        return next;
    }

    private long backoff() {
        long next = randomized(delay);
        delay = Math.min(2 * delay, MAX_DELAY.toNanos());
        return next;
    }

    /** Returns a delay between 80 and 120 percent of this one. */
    static long randomized(long nanos) {
        return (long) (nanos * ThreadLocalRandom.current().nextDouble(0.8, 1.2));
    }

    /**
     * Reports whether a stream may resume after a call that ended with this error. That is so if the connection broke,
     * the server restarts, a proxy reset the stream, or the reader was too slow.
     */
    static boolean isResumable(ParleyException error) {
        return switch (error.code()) {
            case UNAVAILABLE -> true;
            case RESOURCE_EXHAUSTED -> error.reason().equals("SLOW_READER");
            case INTERNAL, UNKNOWN, CANCELLED -> error.reason().isEmpty();
            default -> false;
        };
    }
}
