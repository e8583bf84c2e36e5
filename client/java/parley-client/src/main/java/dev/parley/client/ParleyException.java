package dev.parley.client;

import io.grpc.Status;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A failed call or stream: every error of the server and of the connection. The message begins with the code and the
 * reason. If gRPC threw an exception, that is the cause.
 *
 * <p>Arguments that are not valid throw {@link IllegalArgumentException} before anything is sent.
 */
public class ParleyException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final Status.Code code;
    private final transient Details details;
    private final String text;

    /** What an error says beside its code and its text. */
    record Details(
            String reason, Map<String, String> metadata, List<FieldViolation> fieldViolations, Duration retryDelay) {
        static final Details NONE = new Details("", Map.of(), List.of(), null);
    }

    ParleyException(Status.Code code, String text) {
        this(code, text, Details.NONE, null);
    }

    ParleyException(Status.Code code, String text, Details details, Throwable cause) {
        super(heading(code, details.reason()) + text, cause);
        this.code = code;
        this.text = text;
        this.details = details;
    }

    private static String heading(Status.Code code, String reason) {
        return reason.isEmpty() ? code + ": " : code + " " + reason + ": ";
    }

    /** Returns the gRPC code. */
    public Status.Code code() {
        return code;
    }

    /** Returns what was wrong and what to do, for people: the message without the code and the reason. */
    public String text() {
        return text;
    }

    /**
     * Returns the stable reason, such as {@code CONVERSATION_NOT_FOUND}. It is empty if the error is not from a Parley
     * server: no connection, a deadline, a message over the size limit.
     */
    public String reason() {
        return details().reason();
    }

    /** Returns details of the reason, such as {@code current_version} for {@code VERSION_MISMATCH}. */
    public Map<String, String> metadata() {
        return details().metadata();
    }

    /** Returns every field that breaks a rule, for {@code INVALID_REQUEST}; empty otherwise. */
    public List<FieldViolation> fieldViolations() {
        return details().fieldViolations();
    }

    /** Returns the time after which the same call may succeed; empty if waiting does not help. */
    public Optional<Duration> retryDelay() {
        return Optional.ofNullable(details().retryDelay());
    }

    /**
     * Returns how the conversation ended, for {@code CONVERSATION_NOT_FOUND}: {@code EVICTED}, {@code EXPIRED} or
     * {@code DELETED}. The server remembers an end for an hour. Empty if it does not, or for another reason.
     */
    public String ended() {
        return metadata().getOrDefault("ended", "");
    }

    /** Returns when the server removed the conversation; empty if {@link #ended} is. */
    public Optional<Instant> endedAt() {
        String at = ended().isEmpty() ? "" : metadata().getOrDefault("at", "");
        return at.isEmpty() ? Optional.empty() : Optional.of(Instant.parse(at));
    }

    /** Returns a copy with this text before that of the error, which becomes the cause. */
    ParleyException after(String prefix) {
        return new ParleyException(code, prefix + ": " + text, details(), this);
    }

    private Details details() {
        // A deserialized exception has no details.
        return details == null ? Details.NONE : details;
    }
}
