package dev.parley.client;

import io.grpc.Status;

/**
 * The reason why {@link Agent#respond} has no answer, as a text for the user. For example {@code new
 * AgentException(Status.Code.UNAVAILABLE, "the shop is closed")}.
 */
public final class AgentException extends Exception {
    private static final long serialVersionUID = 1;

    private final Status.Code code;

    /**
     * Makes an exception. The code must not be OK; UNAVAILABLE and RESOURCE_EXHAUSTED mean that a retry may help.
     *
     * @param message the text for the user
     */
    public AgentException(Status.Code code, String message) {
        super(message);
        if (code == Status.Code.OK) {
            throw new IllegalArgumentException("the code of an AgentException must not be OK");
        }
        this.code = code;
    }

    /** Returns the gRPC code. */
    public Status.Code code() {
        return code;
    }
}
