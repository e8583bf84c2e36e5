package dev.parley.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Grpc;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** A streaming call whose replies one thread reads. Other threads may send and cancel. */
final class StreamCall<Q, R> extends ClientCall.Listener<R> {
    /** How many replies the server may send before they are read. */
    private static final int PREFETCH = 8;

    private final ClientCall<Q, R> call;
    private final BlockingQueue<Object> arrived = new LinkedBlockingQueue<>();
    private final Object sending = new Object(); // guards halfClosed, ended, and calls to send
    private boolean halfClosed;
    private boolean ended;
    private volatile boolean reached;

    /** The last element of arrived. */
    private record End(Status status, Metadata trailers) {}

    private StreamCall(ClientCall<Q, R> call) {
        this.call = call;
    }

    /** Starts a call without a request. */
    static <Q, R> StreamCall<Q, R> start(
            Channel channel, MethodDescriptor<Q, R> method, CallOptions options, Metadata headers) {
        var call = new StreamCall<>(channel.newCall(method, options));
        call.call.start(call, headers);
        call.call.request(PREFETCH);
        return call;
    }

    /** Sends a request. It is lost if the call has ended. */
    void send(Q request) {
        synchronized (sending) {
            if (!halfClosed && !ended) {
                call.sendMessage(request);
            }
        }
    }

    /** Sends a request as soon as the connection has space for it. Returns false if the call has ended. */
    boolean sendWhenReady(Q request) throws InterruptedException {
        synchronized (sending) {
            while (!call.isReady() && !ended) {
                sending.wait();
            }
            send(request);
            return !ended;
        }
    }

    /** Records that no request follows. */
    void halfClose() {
        synchronized (sending) {
            if (!halfClosed && !ended) {
                halfClosed = true;
                call.halfClose();
            }
        }
    }

    /**
     * Waits for the next reply, at most these nanoseconds. Returns null at the end of the stream. Throws its error if
     * it failed, and TimeoutException if there was no reply.
     */
    R read(long nanos) throws TimeoutException {
        Object next;
        try {
            next = nanos == Long.MAX_VALUE ? arrived.take() : arrived.poll(Math.max(0, nanos), TimeUnit.NANOSECONDS);
        } catch (InterruptedException interrupt) {
            throw interrupted(interrupt);
        }
        if (next == null) {
            throw new TimeoutException();
        }
        if (next instanceof End end) {
            arrived.add(end);
            if (end.status.isOk()) {
                return null;
            }
            throw Errors.of(end.status, end.trailers);
        }
        call.request(1);
        @SuppressWarnings("unchecked")
        R reply = (R) next;
        return reply;
    }

    /** Reports whether the call has reached a server, as far as the client knows. */
    boolean reached() {
        return reached || call.getAttributes().get(Grpc.TRANSPORT_ATTR_REMOTE_ADDR) != null;
    }

    void cancel() {
        call.cancel("the client cancelled the call", null);
    }

    @Override
    public void onHeaders(Metadata headers) {
        reached = true;
    }

    @Override
    public void onMessage(R message) {
        reached = true;
        arrived.add(message);
    }

    @Override
    public void onReady() {
        synchronized (sending) {
            sending.notifyAll();
        }
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
        arrived.add(new End(status, trailers));
        synchronized (sending) {
            ended = true;
            sending.notifyAll();
        }
    }

    /** Returns the error of a thread that was interrupted while it waited. The thread stays interrupted. */
    static ParleyException interrupted(InterruptedException cause) {
        Thread.currentThread().interrupt();
        return new ParleyException(
                Status.Code.CANCELLED, "the thread was interrupted", ParleyException.Details.NONE, cause);
    }
}
