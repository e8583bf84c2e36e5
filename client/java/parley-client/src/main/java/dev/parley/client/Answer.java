package dev.parley.client;

import dev.parley.v1.Native;
import dev.parley.v1.RecordWrite;
import dev.parley.v1.RespondResponse;
import dev.parley.v1.StructuredData;
import dev.parley.v1.ToolCall;
import dev.parley.v1.ToolCallDelta;
import dev.parley.v1.ToolResult;
import dev.parley.v1.TurnProgress;
import dev.parley.v1.Usage;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import java.util.concurrent.CancellationException;

/**
 * The answer of an agent, to which {@link Agent#respond} passes the pieces. Any number of threads may use it. A piece
 * waits while the connection has no space.
 *
 * <p>All methods throw {@link CancellationException} if the answer was cancelled, and {@link IllegalStateException}
 * after respond has ended.
 */
public final class Answer {
    private final ServerCallStreamObserver<RespondResponse> observer;
    private final Thread thread;
    private final Object lock = new Object(); // guards the fields below, and calls to observer
    private boolean cancelled;
    private boolean ended;

    Answer(ServerCallStreamObserver<RespondResponse> observer, Thread thread) {
        this.observer = observer;
        this.thread = thread;
    }

    /** Sends a piece of the text. */
    public void text(String text) {
        send(RespondResponse.newBuilder().setText(text).build());
    }

    /** Sends structured data. */
    public void send(StructuredData data) {
        send(RespondResponse.newBuilder().setStructuredData(data).build());
    }

    /** Sends a complete tool call. */
    public void send(ToolCall call) {
        send(RespondResponse.newBuilder().setToolCall(call).build());
    }

    /** Sends a piece of a tool call before it is complete. */
    public void send(ToolCallDelta delta) {
        send(RespondResponse.newBuilder().setToolCallDelta(delta).build());
    }

    /** Sends the result of a tool. */
    public void send(ToolResult result) {
        send(RespondResponse.newBuilder().setToolResult(result).build());
    }

    /** Sends what the answer has used. */
    public void send(Usage usage) {
        send(RespondResponse.newBuilder().setUsage(usage).build());
    }

    /** Sends the native form of the message, which later requests have unchanged. */
    public void send(Native nativeForm) {
        send(RespondResponse.newBuilder().setNative(nativeForm).build());
    }

    /**
     * Sends a write of a record. It is made in the same commit as the answer, if the turn completes or ends as
     * INPUT_REQUIRED.
     */
    public void send(RecordWrite write) {
        send(RespondResponse.newBuilder().setRecord(write).build());
    }

    /** Sends a note on the progress, which is not stored. */
    public void send(TurnProgress progress) {
        send(RespondResponse.newBuilder().setProgress(progress).build());
    }

    /** Sends any piece, such as a summary or reasoning. */
    public void send(RespondResponse piece) {
        synchronized (lock) {
            boolean interrupted = false;
            while (!ended && !cancelled && !observer.isReady()) {
                try {
                    lock.wait();
                } catch (InterruptedException interrupt) {
                    // An interrupt by Parley comes with cancelled. Another one is for the caller.
                    interrupted = true;
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
            if (cancelled) {
                throw new CancellationException("the answer was cancelled");
            }
            if (ended) {
                throw new IllegalStateException("the answer has ended");
            }
            observer.onNext(piece);
        }
    }

    /** Returns whether Parley has cancelled the answer. */
    public boolean isCancelled() {
        synchronized (lock) {
            return cancelled;
        }
    }

    /** Wakes threads that wait for space. */
    void noteReady() {
        synchronized (lock) {
            lock.notifyAll();
        }
    }

    /** Cancels the answer: respond is interrupted. status is sent, or null if the call has ended. */
    void cancel(Status status) {
        synchronized (lock) {
            if (ended) {
                return;
            }
            ended = cancelled = true;
            lock.notifyAll();
            thread.interrupt();
            if (status != null) {
                observer.onError(status.asRuntimeException());
            }
        }
    }

    /** Ends the answer with this status, if it has not ended. */
    void end(Status status) {
        synchronized (lock) {
            if (ended) {
                return;
            }
            ended = true;
            lock.notifyAll();
            if (status.isOk()) {
                observer.onCompleted();
            } else {
                observer.onError(status.asRuntimeException());
            }
        }
    }
}
