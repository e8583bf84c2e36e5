package dev.parley.client;

import com.google.protobuf.MessageLite;
import io.grpc.CallOptions;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * Makes calls over a connection: signs in, sends calls again that may be sent again, and converts errors. It is
 * immutable.
 *
 * @param timeout the limit of each call or stream; null means none
 * @param headers the headers that the caller adds to each call; they are not changed
 */
record Transport(Connection connection, SignIn credentials, Duration timeout, Metadata headers) {
    /**
     * The methods that may be sent again while the server is unavailable: those that only read, and those with a
     * request_id. A test compares them with client/service_config.json.
     */
    static final Set<String> RETRIED = Set.of(
            "parley.v1.ConversationService/CreateConversation",
            "parley.v1.ConversationService/LoadConversation",
            "parley.v1.ConversationService/ForkConversation",
            "parley.v1.ConversationService/ClearConversation",
            "parley.v1.ConversationService/AppendMessages",
            "parley.v1.ConversationService/GetConversation",
            "parley.v1.ConversationService/ListConversations",
            "parley.v1.ConversationService/ListMessages",
            "parley.v1.ConversationService/GetContext",
            "parley.v1.ConversationService/GetRoutingSummary",
            "parley.v1.ConversationService/BatchGetRoutingSummaries",
            "parley.v1.ConversationService/ListAgents",
            "parley.v1.ConversationService/GetTurn",
            "parley.v1.ConversationService/ListTurns",
            "parley.v1.ConversationService/CancelTurn",
            "parley.v1.ConversationService/ExportConversations",
            "parley.v1.RecordService/WriteRecords",
            "parley.v1.RecordService/GetRecords",
            "parley.v1.RecordService/ListRecords",
            "parley.v1.InteractionLogService/ListInteractions",
            "parley.v1.InteractionLogService/SearchInteractions",
            "parley.v1.AdminService/GetStats",
            "parley.v1.AdminService/BackupStore");

    /** When all attempts of a call must have ended; null as time means never. */
    record Deadline(Long time) {
        /** Returns the nanoseconds until then; Long.MAX_VALUE means no limit. */
        long left() {
            return time == null ? Long.MAX_VALUE : time - System.nanoTime();
        }
    }

    SignIn.Attempts signIn() {
        return credentials.begin(headers);
    }

    /** Returns the deadline of a call that begins now. */
    Deadline deadline() {
        return new Deadline(timeout == null ? null : System.nanoTime() + timeout.toNanos());
    }

    /** Makes a call with one request and one reply. */
    <Q, R> R unary(MethodDescriptor<Q, R> method, Q request) {
        Q sent = RequestIds.fill(request);
        checkSize(sent);
        SignIn.Attempts attempts = signIn();
        Deadline deadline = deadline();
        int remaining = RETRIED.contains(method.getFullMethodName()) ? Retry.ATTEMPTS - 1 : 0;
        long delay = Retry.FIRST_DELAY.toNanos();
        for (; ; ) {
            ParleyException error;
            try {
                checkOpen();
                var channel = io.grpc.ClientInterceptors.intercept(
                        connection.channel(), MetadataUtils.newAttachHeadersInterceptor(attempts.headers()));
                return ClientCalls.blockingUnaryCall(channel, method, options(deadline), sent);
            } catch (StatusRuntimeException cause) {
                error = Errors.of(cause);
            }
            if (attempts.replace(error)) {
                continue;
            }
            long wait = Retry.randomized(delay);
            if (error.code() != Status.Code.UNAVAILABLE
                    || remaining == 0
                    || deadline.left() <= wait
                    || connection.isClosed()) {
                throw error;
            }
            remaining--;
            delay = Math.min(2 * delay, Retry.MAX_CALL_DELAY.toNanos());
            try {
                TimeUnit.NANOSECONDS.sleep(wait / 2);
                connection.reconnect(wait - wait / 2);
            } catch (InterruptedException interrupt) {
                throw StreamCall.interrupted(interrupt);
            }
        }
    }

    /** Starts a streaming call without a request. */
    <Q, R> StreamCall<Q, R> start(MethodDescriptor<Q, R> method, SignIn.Attempts attempts, Deadline deadline) {
        checkOpen();
        return StreamCall.start(connection.channel(), method, options(deadline), attempts.headers());
    }

    /** Throws an error if a request is larger than the server accepts. */
    void checkSize(Object request) {
        int size = ((MessageLite) request).getSerializedSize();
        if (size > Connection.MAX_MESSAGE_BYTES) {
            throw new ParleyException(
                    Status.Code.RESOURCE_EXHAUSTED,
                    "the request has " + size + " bytes, the limit is " + Connection.MAX_MESSAGE_BYTES
                            + "; send fewer or smaller messages and records");
        }
    }

    private void checkOpen() {
        if (connection.isClosed()) {
            throw new ParleyException(Status.Code.CANCELLED, "the client is closed");
        }
    }

    private static CallOptions options(Deadline deadline) {
        return deadline.time() == null
                ? CallOptions.DEFAULT
                : CallOptions.DEFAULT.withDeadlineAfter(deadline.left(), TimeUnit.NANOSECONDS);
    }
}
