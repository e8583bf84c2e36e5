package dev.parley.client;

import dev.parley.client.Resumption.NextCall;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A stream of events for one loop:
 *
 * <pre>{@code
 * try (var events = client.chat(request)) {
 *     for (var event : events) {
 *         System.out.print(event.getTextDelta().getText());
 *     }
 * }
 * }</pre>
 *
 * <p>The call begins with the first step of the loop. It ends when the loop has received the last event, when a step
 * throws, and with {@link #close}. Close a stream whose loop you leave before: otherwise its call continues. A stream
 * that fails throws {@link ParleyException} and has then ended.
 *
 * <p>Only one thread at a time may loop over it. An interrupt of that thread ends the stream with a ParleyException of
 * code CANCELLED.
 *
 * @param <T> the type of the events
 */
public final class ParleyStream<T> implements Iterable<T>, Iterator<T>, AutoCloseable {
    private final Transport transport;
    private final Resumption<Object, T> resumption;
    private final SignIn.Attempts attempts;
    private final CountDownLatch closed = new CountDownLatch(1);
    private final Object lock = new Object(); // guards call
    private StreamCall<?, ?> call;
    /** Of all attempts; set by the first step. */
    private Transport.Deadline deadline;

    private T next;

    @SuppressWarnings("unchecked")
    ParleyStream(Transport transport, Resumption<?, T> resumption) {
        this.transport = transport;
        this.resumption = (Resumption<Object, T>) resumption;
        attempts = transport.signIn();
    }

    /** Returns the stream itself. */
    @Override
    public Iterator<T> iterator() {
        return this;
    }

    /** Waits for the next event, and returns whether there is one. */
    @Override
    public boolean hasNext() {
        if (next == null) {
            resumption.readerReturned();
            boolean arrived = false;
            try {
                next = advance();
                arrived = next != null;
            } finally {
                if (!arrived) {
                    close();
                }
            }
        }
        return next != null;
    }

    /** Waits for the next event and returns it. */
    @Override
    public T next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        T event = next;
        next = null;
        return event;
    }

    /** Ends the stream and a loop over it. Any thread may call it. */
    @Override
    public void close() {
        synchronized (lock) {
            closed.countDown();
            if (call != null) {
                call.cancel();
            }
        }
    }

    private boolean isClosed() {
        return closed.getCount() == 0;
    }

    /** Returns the next event, or null at the end. */
    private T advance() {
        if (deadline == null) {
            deadline = transport.deadline();
        }
        while (!isClosed()) {
            ParleyException error = null;
            StreamCall<?, ?> current = call;
            try {
                if (current == null) {
                    current = start();
                }
                Object reply = current.read(resumption.receiveTimeout());
                if (reply != null) {
                    attempts.accepted();
                    T item = resumption.accept(reply);
                    if (item != null) {
                        return item;
                    }
                    continue;
                }
            } catch (TimeoutException silence) {
                current.cancel();
                error = resumption.silenceError();
            } catch (ParleyException failure) {
                error = failure;
            }
            if (isClosed()) {
                break;
            }
            if (error != null && (Thread.currentThread().isInterrupted() || transport.connection().isClosed())) {
                throw error;
            }
            boolean reached = current != null && current.reached();
            if (error != null && resumption.maySignInAgain() && attempts.replace(error)) {
                forget();
                continue;
            }
            long delay = resumption.retryDelay(error, reached);
            if (delay < 0) {
                break;
            }
            forget();
            pause(delay);
        }
        return null;
    }

    private StreamCall<?, ?> start() {
        return start(resumption.nextCall());
    }

    private <Q, R> StreamCall<Q, R> start(NextCall<Q, R> next) {
        transport.checkSize(next.request());
        StreamCall<Q, R> started = transport.start(next.method(), attempts, deadline);
        started.send(next.request());
        started.halfClose();
        synchronized (lock) {
            call = started;
            if (isClosed()) {
                started.cancel();
            }
        }
        return started;
    }

    private void forget() {
        synchronized (lock) {
            call = null;
        }
    }

    /** Waits before the next attempt. The second half of the delay ends when there is a connection. */
    private void pause(long delay) {
        long nanos = Math.min(delay, deadline.left());
        try {
            if (nanos > 0 && !closed.await(nanos / 2, TimeUnit.NANOSECONDS)) {
                transport.connection().reconnect(nanos - nanos / 2);
            }
        } catch (InterruptedException interrupt) {
            throw StreamCall.interrupted(interrupt);
        }
    }
}
