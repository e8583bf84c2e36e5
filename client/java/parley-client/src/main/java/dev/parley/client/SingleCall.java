package dev.parley.client;

import io.grpc.MethodDescriptor;
import io.grpc.Status;

/**
 * A stream that does not resume: it ends with its call. Like other calls that only read, it is sent again while the
 * server is unavailable, until the first reply.
 */
final class SingleCall<Q, R> implements Resumption<R, R> {
    private final NextCall<Q, R> call;
    /** There was a reply. */
    private boolean begun;

    private int attempts = Retry.ATTEMPTS;
    private long delay = Retry.FIRST_DELAY.toNanos();

    SingleCall(MethodDescriptor<Q, R> method, Q request) {
        call = new NextCall<>(method, request);
    }

    @Override
    public NextCall<Q, R> nextCall() {
        return call;
    }

    @Override
    public long receiveTimeout() {
        return Long.MAX_VALUE;
    }

    @Override
    public R accept(R reply) {
        begun = true;
        return reply;
    }

    @Override
    public void readerReturned() {}

    @Override
    public ParleyException silenceError() {
        throw new IllegalStateException("a stream without a limit was silent for too long");
    }

    @Override
    public boolean maySignInAgain() {
        return !begun;
    }

    @Override
    public long retryDelay(ParleyException error, boolean reached) {
        if (error == null) {
            return -1;
        }
        if (begun || error.code() != Status.Code.UNAVAILABLE || --attempts == 0) {
            throw error;
        }
        long next = Retry.randomized(delay);
        delay = Math.min(2 * delay, Retry.MAX_CALL_DELAY.toNanos());
        return next;
    }
}
