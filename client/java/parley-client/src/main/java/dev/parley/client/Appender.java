package dev.parley.client;

import dev.parley.v1.AppendMessagesRequest;
import dev.parley.v1.AppendMessagesResponse;
import dev.parley.v1.AppendStreamRequest;
import dev.parley.v1.AppendStreamResponse;
import dev.parley.v1.ConversationServiceGrpc;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Appends messages over one stream, without waiting for a reply before the next request. {@link ParleyClient#appender}
 * makes it. Any number of threads may share it.
 *
 * <p>Requests are sent in the order of the calls of {@link #append}. That costs the server less than a call for each.
 * If the connection breaks or the server restarts, the appender reconnects and sends the requests without a reply
 * again, in their order and with the same request_id. So each message is stored once, and the messages of a
 * conversation in their order. A reply with replayed may only mean that the appender sent the request twice.
 *
 * <p>The server refuses single requests, for example one that is not valid. Only the future of that request fails; the
 * others are not affected. The appender fails, and all futures without a reply with it, when the server refuses the
 * stream, when the timeout of the client has passed, when no server could be reached at first, or when no reply arrived
 * for one minute, although the appender kept retrying.
 */
public final class Appender implements AutoCloseable {
    /** The time to wait until the server ends a stream of which it has answered all requests. */
    private static final Duration END_DELAY = Duration.ofSeconds(5);

    private final Transport transport;
    private final SignIn.Attempts attempts;
    private final Retry retry = new Retry(System::nanoTime); // Only the thread uses it.
    private final ReentrantLock order = new ReentrantLock(true); // One append at a time waits for space.
    private final ReentrantLock lock = new ReentrantLock(); // guards the fields below, except accepted
    private final Condition work = lock.newCondition(); // There is a request to answer, or an end.
    private final Condition changed = lock.newCondition(); // The queue is shorter, or an end.
    private final AppendQueue queue = new AppendQueue();
    private Thread thread; // It alone answers and removes requests.
    private StreamCall<AppendStreamRequest, AppendStreamResponse> call; // The current stream.
    private boolean closed; // No request follows.
    private boolean interrupted; // The caller does not wait for replies.
    private RuntimeException failure;
    private boolean accepted; // The server has answered a request. Only the thread uses it.

    Appender(Transport transport) {
        this.transport = transport;
        attempts = transport.signIn();
    }

    /**
     * Sends a request and returns the future of its reply, at once if there is space.
     *
     * <p>It first waits while 1024 requests, 4 MiB of requests, or 16 requests for the same conversation are without a
     * reply. The future fails with the {@link ParleyException} that appendMessages would throw. Its callbacks run in the
     * thread of the appender unless they are asynchronous, so they must not block.
     *
     * @throws ParleyException the appender has failed or is closed, or the thread was interrupted
     * @throws IllegalStateException a callback of a future called append, and there is no space
     */
    public CompletableFuture<AppendMessagesResponse> append(AppendMessagesRequest request) {
        var envelope =
                AppendStreamRequest.newBuilder().setAppend(RequestIds.fill(request)).build();
        var append = new AppendQueue.Append(envelope, envelope.getSerializedSize(), new CompletableFuture<>());
        try {
            transport.checkSize(envelope);
        } catch (ParleyException error) {
            append.future().completeExceptionally(error);
            return append.future();
        }
        try {
            if (Thread.currentThread() == thread) {
                add(append);
            } else {
                order.lockInterruptibly();
                try {
                    add(append);
                } finally {
                    order.unlock();
                }
            }
        } catch (InterruptedException interrupt) {
            throw StreamCall.interrupted(interrupt);
        }
        return append.future();
    }

    /**
     * Waits until all requests of earlier calls of append have their results.
     *
     * @throws ParleyException the appender has failed, or the thread was interrupted
     */
    public void flush() {
        lock.lock();
        try {
            long number = queue.added();
            while (!queue.hasAnswered(number) && failure == null) {
                checkThread();
                changed.await();
            }
            if (!queue.hasAnswered(number)) {
                throw failure;
            }
        } catch (InterruptedException interrupt) {
            throw StreamCall.interrupted(interrupt);
        } finally {
            lock.unlock();
        }
    }

    /**
     * Waits for all replies and ends the appender. If the thread is interrupted, the requests without a reply fail with
     * CANCELLED.
     *
     * @throws ParleyException the appender has failed, or the thread was interrupted
     */
    @Override
    public void close() {
        lock.lock();
        try {
            checkThread();
            closed = true;
            if (call != null) {
                call.halfClose();
            }
            work.signalAll();
            changed.signalAll();
        } finally {
            lock.unlock();
        }
        try {
            flush();
        } finally {
            if (Thread.currentThread().isInterrupted()) {
                interrupt();
            } else if (thread != null) {
                try {
                    thread.join();
                } catch (InterruptedException interrupt) {
                    interrupt();
                    Thread.currentThread().interrupt();
                }
            }
        }
    }

    private void add(AppendQueue.Append append) throws InterruptedException {
        lock.lock();
        try {
            while (failure == null && !closed && !queue.hasSpace(append)) {
                checkThread();
                changed.await();
            }
            if (failure != null) {
                throw failure;
            }
            if (closed) {
                throw new ParleyException(Status.Code.FAILED_PRECONDITION, "the appender is closed");
            }
            queue.add(append);
            sendUnsent();
            work.signalAll();
            if (thread == null) {
                thread = new Thread(this::run, "parley-appender");
                thread.setDaemon(true);
                thread.start();
            }
        } finally {
            lock.unlock();
        }
    }

    private void interrupt() {
        lock.lock();
        try {
            interrupted = true;
            if (call != null) {
                call.cancel();
            }
            work.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void checkThread() {
        if (Thread.currentThread() == thread) {
            throw new IllegalStateException("a callback of a future must not wait for the appender");
        }
    }

    private void sendUnsent() {
        if (call != null) {
            for (var next = queue.nextUnsent(); next != null; next = queue.nextUnsent()) {
                call.send(next);
            }
        }
    }

    // The rest runs in the thread.

    /** Sends requests and receives replies, over as many streams as it takes. */
    private void run() {
        RuntimeException end =
                new ParleyException(Status.Code.CANCELLED, "the appender was closed before the reply");
        try {
            Transport.Deadline deadline = transport.deadline();
            while (waitForRequests()) {
                prepareNext(attempt(deadline), deadline);
            }
        } catch (RuntimeException error) {
            end = error;
        } catch (InterruptedException interrupt) {
            end = StreamCall.interrupted(interrupt);
        }
        List<CompletableFuture<AppendMessagesResponse>> futures;
        lock.lock();
        try {
            if (!queue.isEmpty()) {
                failure = end;
            }
            futures = queue.removeAll();
        } finally {
            lock.unlock();
        }
        for (var future : futures) {
            future.completeExceptionally(end);
        }
        lock.lock();
        changed.signalAll();
        lock.unlock();
    }

    /** Waits until the next stream has a request to send. Returns false at the end. */
    private boolean waitForRequests() throws InterruptedException {
        lock.lock();
        try {
            while (!closed && queue.isEmpty()) {
                work.await();
            }
            return !queue.isEmpty() && !interrupted;
        } finally {
            lock.unlock();
        }
    }

    /** How a stream ended. The error is null if the server ended it normally. */
    private record End(ParleyException error, boolean reached) {}

    /** Opens a stream and uses it to its end. */
    private End attempt(Transport.Deadline deadline) throws InterruptedException {
        retry.beginAttempt();
        var started = transport.start(ConversationServiceGrpc.getAppendStreamMethod(), attempts, deadline);
        lock.lock();
        try {
            call = started;
            sendUnsent();
            if (closed) {
                started.halfClose();
            }
            if (interrupted) {
                started.cancel();
            }
        } finally {
            lock.unlock();
        }
        ParleyException error = null;
        try {
            for (boolean open = true; open && error == null; ) {
                var reply = started.read(waitForWork());
                open = reply != null;
                error = open ? accept(reply) : null;
            }
        } catch (TimeoutException silence) {
            error = retry.silenceError();
        } catch (ParleyException failed) {
            error = failed;
        } finally {
            started.cancel(); // Without effect on a stream that has ended.
            lock.lock();
            try {
                call = null;
                queue.beginStream();
            } finally {
                lock.unlock();
            }
        }
        return new End(error, started.reached());
    }

    /** Waits until the stream has something to read. Returns how many nanoseconds to wait for it. */
    private long waitForWork() throws InterruptedException {
        lock.lock();
        try {
            while (queue.isEmpty() && !closed) {
                work.await();
            }
            if (queue.isEmpty()) {
                return END_DELAY.toNanos();
            }
            retry.extendDeadline(queue.waitingSince());
            return retry.receiveTimeout();
        } finally {
            lock.unlock();
        }
    }

    /** Answers a request. Returns the error if the stream must not be used after this reply. */
    private ParleyException accept(AppendStreamResponse reply) {
        attempts.accepted();
        retry.noteMessage();
        accepted = true;
        ParleyException refusal = null;
        if (reply.hasError()) {
            refusal = Errors.of(reply.getError());
            if (refusal.code() == Status.Code.UNAVAILABLE) {
                return refusal; // As calls do, send it again. The requests after it go with it.
            }
        } else if (!reply.hasResponse()) {
            refusal = new ParleyException(Status.Code.INTERNAL, "the server sent a reply without a result");
        }
        lock.lock();
        CompletableFuture<AppendMessagesResponse> future = queue.takeAnswered();
        lock.unlock();
        if (future == null) {
            return new ParleyException(Status.Code.INTERNAL, "the server answered a request that was not sent");
        }
        retry.noteProgress();
        retry.resetDeadline();
        // It runs what depends on it, so it comes after the request has left its space to others.
        if (refusal != null) {
            future.completeExceptionally(refusal);
        } else {
            future.complete(reply.getResponse());
        }
        lock.lock();
        try {
            queue.noteAnswered();
            changed.signalAll();
        } finally {
            lock.unlock();
        }
        return null;
    }

    /** Waits until the next stream may begin. Throws the error if there must be none. */
    private void prepareNext(End end, Transport.Deadline deadline) throws InterruptedException {
        long since;
        lock.lock();
        try {
            if (interrupted || queue.isEmpty()) {
                return; // Without requests the end of the stream does not matter.
            }
            since = queue.waitingSince();
        } finally {
            lock.unlock();
        }
        ParleyException error = end.error;
        if (error == null) {
            error = new ParleyException(
                    Status.Code.UNKNOWN, "the server ended the stream before it answered all requests");
        }
        if (attempts.replace(error)) {
            return;
        }
        checkResumable(error);
        retry.extendDeadline(since);
        long nanos = Math.min(retry.nextDelay(error, end.reached), deadline.left());
        lock.lock();
        try {
            long first = nanos / 2;
            while (first > 0 && !interrupted) {
                first = work.awaitNanos(first);
            }
            if (interrupted) {
                return;
            }
        } finally {
            lock.unlock();
        }
        transport.connection().reconnect(nanos - nanos / 2);
    }

    private void checkResumable(ParleyException error) {
        if (error.code() == Status.Code.UNIMPLEMENTED) {
            throw error.after("the server has no AppendStream: update it, or use appendMessages");
        }
        // The server ended a stream that was idle until the request. Or the tenant is at its limit of streams or of
        // requests: the server may still count the broken stream, and its requests.
        boolean expected = error.reason().equals("SLOW_SENDER")
                || (accepted && List.of("TENANT_STREAMS", "TENANT_REQUESTS").contains(error.reason()));
        if (!expected && !Retry.isResumable(error)) {
            throw error;
        }
    }
}
