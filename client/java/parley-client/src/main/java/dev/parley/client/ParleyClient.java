package dev.parley.client;

import dev.parley.v1.ChatRequest;
import dev.parley.v1.ConversationChange;
import dev.parley.v1.ConversationServiceGrpc;
import dev.parley.v1.ImportConversationsRequest;
import dev.parley.v1.ImportConversationsResponse;
import dev.parley.v1.ResumeTurnRequest;
import dev.parley.v1.TurnEvent;
import dev.parley.v1.WatchConversationsRequest;
import io.grpc.Metadata;
import io.grpc.Status;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * A connection to one Parley server. Any number of threads may share it.
 *
 * <p>{@link #appender} appends many messages over one stream. {@link #records} and {@link #tenantRecords} read and
 * write records. Three methods stream: {@link #chat} sends a message to an agent and streams its answer, {@link
 * #resumeTurn} streams a turn that has begun before, and {@link #watchConversations} streams the changes of
 * conversations. They reconnect and resume automatically if the connection breaks or the server restarts. Every other
 * method is one call.
 *
 * <p>These rules hold for all methods:
 *
 * <ul>
 *   <li>If request_id is empty, the client sets it to a random UUID, on a copy of the request. The server executes a
 *       request_id once, so the client may send such a call again.
 *   <li>Calls that only read, and calls with a request_id, are sent up to five times within about 1.5 s while the
 *       server is UNAVAILABLE. A quick restart of the server stays unnoticed. The other calls (update, delete, purge,
 *       lease, import) are sent once.
 *   <li>A program that repeats a call itself, for example after its own restart, must set request_id itself, to the
 *       same value each time.
 *   <li>An interrupt of a thread that waits ends its call with a ParleyException of code CANCELLED.
 * </ul>
 *
 * <p>The client does not connect before the first call. If there is no server, that call fails with UNAVAILABLE. The
 * limit of a message is 4 MiB in each direction. The client pings a connection that has been silent for 30 s, and
 * closes it if there is no answer within 10 s.
 */
public final class ParleyClient extends Calls implements AutoCloseable {
    private ParleyClient(Transport transport) {
        super(transport);
    }

    /**
     * Makes a client of the server at target with the settings of the environment, see {@link Builder}. Target is
     * {@code host:port}, {@code unix:PATH} or any other target that gRPC can resolve.
     */
    public static ParleyClient connect(String target) {
        return builder(target).build();
    }

    /** Returns a builder of a client of the server at target, see {@link #connect}. */
    public static Builder builder(String target) {
        return new Builder(target);
    }

    /**
     * Returns a client that shares this connection, and whose calls fail with DEADLINE_EXCEEDED after this time. For a
     * stream, the time limits the loop from its first step, over all attempts. Null means no limit, the default.
     */
    public ParleyClient withTimeout(Duration timeout) {
        return new ParleyClient(
                new Transport(transport.connection(), transport.credentials(), timeout, transport.headers()));
    }

    /**
     * Returns a client that shares this connection, and whose calls have these headers instead of those of this client.
     * The headers authorization and parley-tenant replace the client's token and tenant.
     */
    public ParleyClient withHeaders(Metadata headers) {
        var copy = new Metadata();
        copy.merge(headers);
        return new ParleyClient(
                new Transport(transport.connection(), transport.credentials(), transport.timeout(), copy));
    }

    /**
     * Closes the connection, also that of clients that share it. Calls in progress fail with UNAVAILABLE or CANCELLED.
     * The turns that they started continue on the server, unless their requests set ON_DISCONNECT_CANCEL.
     */
    @Override
    public void close() {
        transport.connection().close();
    }

    /**
     * Sends a user's message and streams the events of the turn.
     *
     * <p>The first events are queued, while the turn waits for other turns, and started, once the user's message is
     * durable. The pieces of the answer follow. The last event is finished, once the answer is durable. Finished
     * contains the turn's final state. A failed turn is not an error.
     *
     * <p>The caller sees one uninterrupted stream. If the connection breaks or the server restarts, the client
     * reconnects and resumes after the last event. Indexes increase, no event is repeated, and no text is missing or
     * repeated. There are these limits:
     *
     * <ul>
     *   <li>If the server no longer has the single events, text and reasoning arrive in larger pieces. Some indexes are
     *       then left out, and so may be progress notes, deltas of tool calls, records and messages that the history
     *       has dropped.
     *   <li>A crash of the server may lose up to one second of text that the caller has already received. The messages
     *       in finished are the stored ones.
     *   <li>A turn that loses its connection while it is queued may lose its position in the queue. The turn_id may
     *       then change before started, and the indexes begin at 1 again.
     *   <li>With ON_DISCONNECT_CANCEL a broken connection cancels the turn, and finished says so.
     *   <li>If request_id is empty, started.replayed is never set, because the turn is a new one. If the caller sets
     *       request_id, started.replayed may only mean that the client sent the request twice.
     * </ul>
     *
     * <p>The loop throws when the server refuses the call, when the turn no longer exists (NOT_FOUND), when the timeout
     * has passed, when no server could be reached at first (UNAVAILABLE, after about 1.5 s), or when no new event
     * arrived for one minute, although the client kept retrying. The time that the loop's body takes counts only for
     * the timeout.
     *
     * <p>If you leave the loop and close the stream, the turn continues on the server unless request.on_disconnect is
     * ON_DISCONNECT_CANCEL.
     */
    public ParleyStream<TurnEvent> chat(ChatRequest request) {
        return new ParleyStream<>(transport, new Follower(request, new Retry(System::nanoTime)));
    }

    /**
     * Streams the events of a turn after request.after_index.
     *
     * <p>The turn may be running or have ended. Everything that {@link #chat} guarantees for its stream holds here too.
     * The stream is empty if after_index is the index of the last event. If turn_id is empty, the turn is the running
     * one, or the newest one if none runs; it is chosen when the first event arrives.
     *
     * <p>With after_index 0 it works as long as the server keeps the turn. With another after_index it may end with
     * OUT_OF_RANGE, EVENTS_GONE: the server no longer has the single events, and the client does not know how much of a
     * message the caller has. Then show the turn from index 0 again, or use the offsets of deltas to cut what you have.
     */
    public ParleyStream<TurnEvent> resumeTurn(ResumeTurnRequest request) {
        return new ParleyStream<>(transport, new Follower(request, new Retry(System::nanoTime)));
    }

    /**
     * Streams the changes of conversations as they are committed. They begin after request.cursor or, if it is empty,
     * with the next commit. The stream has no end of its own: close it.
     *
     * <p>The caller sees one stream. If the connection breaks or the server restarts, the client reconnects and resumes
     * after the last change, so that no change is missing and none is repeated. There are these limits:
     *
     * <ul>
     *   <li>The stream includes each HEARTBEAT. The first one confirms that the watch is active, with
     *       request.delete_after_disconnect in force. Another one follows after each 15 s without a change, and each
     *       time the stream is opened again. Every change, heartbeats included, has a cursor from which another watch
     *       can resume, for example after the caller restarts.
     *   <li>A GAP means that changes are missing, because the server no longer has them, has restarted, or the caller
     *       was too slow to read earlier changes. Read the state again, then continue. Changes that are committed after
     *       the GAP follow it.
     *   <li>The events of turns during a break are lost. Index and offset of the later events show this, and {@link
     *       #resumeTurn} returns the complete turn.
     *   <li>For the server a break is a disconnect. An ephemeral conversation that must survive a break needs a
     *       delete_after_disconnect of some seconds.
     * </ul>
     *
     * <p>The loop throws when the server refuses the watch, when the timeout has passed, when no server could be
     * reached at first (UNAVAILABLE, after about 1.5 s), or when the server sent nothing for one minute, although the
     * client kept retrying.
     */
    public ParleyStream<ConversationChange> watchConversations(WatchConversationsRequest request) {
        return new ParleyStream<>(transport, new Watcher(request, new Retry(System::nanoTime)));
    }

    /** Stores complete conversations, as they were exported. Never sent again. */
    public ImportConversationsResponse importConversations(Iterable<ImportConversationsRequest> requests) {
        var method = ConversationServiceGrpc.getImportConversationsMethod();
        var call = transport.start(method, transport.signIn(), transport.deadline());
        try {
            for (ImportConversationsRequest request : requests) {
                transport.checkSize(request);
                if (!call.sendWhenReady(request)) {
                    break;
                }
            }
            call.halfClose();
            ImportConversationsResponse reply = call.read(Long.MAX_VALUE);
            if (reply == null) {
                throw new ParleyException(Status.Code.INTERNAL, "the server sent no reply");
            }
            return reply;
        } catch (InterruptedException interrupt) {
            throw StreamCall.interrupted(interrupt);
        } catch (TimeoutException silence) {
            throw new IllegalStateException(silence); // There is no limit.
        } finally {
            call.cancel(); // Without effect on a call that has ended.
        }
    }

    /**
     * Returns an appender, which appends messages over one stream, many at the same time. Close it: it has a thread.
     * See {@link Appender}.
     */
    public Appender appender() {
        return new Appender(transport);
    }

    /** Returns the records of a conversation. It makes no call. Throws IllegalArgumentException if the id is empty. */
    public Records records(String conversationId) {
        if (conversationId.isEmpty()) {
            throw new IllegalArgumentException("the id of a conversation is empty; for the tenant use tenantRecords");
        }
        return new Records(this, conversationId);
    }

    /** Returns the records of the tenant. It makes no call. */
    public Records tenantRecords() {
        return new Records(this, "");
    }

    /**
     * The settings of a client. A setting that is not made is read from the environment: PARLEY_TOKEN or
     * PARLEY_TOKEN_FILE, PARLEY_TENANT, PARLEY_TLS_CA_FILE, and the pair PARLEY_TLS_CERT_FILE and PARLEY_TLS_KEY_FILE.
     * If a setting is an empty text or path, its variable is ignored.
     */
    public static final class Builder {
        private final String target;
        private final Settings settings = new Settings();

        private Builder(String target) {
            this.target = target;
        }

        /** Sets the token to sign in with. */
        public Builder token(String token) {
            settings.token = token;
            return this;
        }

        /**
         * Sets a function that returns the token. The client calls it for each attempt of each call, perhaps in several
         * threads at once. So it should cache the token, and get another one before it expires. The call throws an
         * exception of the function unchanged.
         */
        public Builder token(Supplier<String> token) {
            settings.tokenFunction = token;
            return this;
        }

        /**
         * Sets the file of the token. White space around the token is ignored. The client reads the file again when it
         * has changed, or when the server refuses its token. If the file is missing or not valid for a time, the last
         * token remains in use.
         */
        public Builder tokenFile(Path file) {
            settings.tokenFile = file;
            return this;
        }

        /** Sets the tenant that each call names. Only callers with several tenants need it. */
        public Builder tenant(String tenant) {
            settings.tenant = tenant;
            return this;
        }

        /** Sets the certificates of the authorities to trust, as PEM. If not set, those of the JDK are trusted. */
        public Builder caFile(Path file) {
            settings.caFile = file;
            return this;
        }

        /** Sets the client certificate, with its intermediates, and its key: both as PEM, the key as PKCS #8. */
        public Builder certificate(Path certFile, Path keyFile) {
            settings.certFile = certFile;
            settings.keyFile = keyFile;
            return this;
        }

        /**
         * Sets whether to connect without TLS. If not set, the connection is plaintext if target is a loopback address,
         * localhost or a Unix socket, and there are no files of certificates. Otherwise it uses TLS. With true, a token
         * is sent in plaintext, also to another machine.
         */
        public Builder plaintext(boolean plaintext) {
            settings.plaintext = plaintext;
            return this;
        }

        /**
         * Makes the client. It reads the files of certificates only now.
         *
         * @throws IllegalArgumentException settings are not valid or contradict each other; the text does not contain
         *     the token
         * @throws java.io.UncheckedIOException a file cannot be read
         */
        public ParleyClient build() {
            return build(System::getenv);
        }

        ParleyClient build(Function<String, String> environment) {
            var signIn = new SignIn(settings.tokens(environment), settings.tenant(environment));
            var connection = new Connection(target, settings.credentials(target, environment));
            return new ParleyClient(new Transport(connection, signIn, null, new Metadata()));
        }
    }
}
