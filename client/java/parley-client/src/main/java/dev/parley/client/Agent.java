package dev.parley.client;

import dev.parley.v1.RespondRequest;
import io.grpc.InsecureServerCredentials;
import io.grpc.ServerCredentials;
import java.io.IOException;
import java.time.Duration;

/**
 * The base class of agents. Override {@link #respond}, then call {@link #serve}. A complete agent:
 *
 * <pre>{@code
 * class Parrot extends Agent {
 *     @Override
 *     public void respond(RespondRequest request, Answer answer) {
 *         var last = request.getMessages(request.getMessagesCount() - 1);
 *         for (String word : last.getContent().split(" ")) {
 *             answer.text(word + " ");
 *         }
 *     }
 * }
 *
 * new Parrot().serve("127.0.0.1:7002");
 * }</pre>
 *
 * <p>One agent answers many conversations at once, each answer in a thread of its own. The request contains the
 * conversation, so an agent needs no state and may restart at any time.
 */
public abstract class Agent {
    /** The time that running answers have to end after a stop. */
    public static final Duration STOP_GRACE = Duration.ofSeconds(10);

    /**
     * Answers the last message of the request. Each piece is sent as soon as it is passed to the answer. The answer is
     * complete when the method returns.
     *
     * <p>If Parley cancels the answer, because it took too long or the user cancelled the turn, the thread is
     * interrupted, and the methods of the answer throw {@link java.util.concurrent.CancellationException}.
     *
     * <p>If it throws, the turn fails, and the pieces that were sent before are stored as an incomplete message. The
     * user sees the message of an {@link AgentException}. Of any other exception, such as a {@link ParleyException} of
     * the agent's own calls, the user sees only the type, because the text may not be for users. The log (System.Logger
     * "dev.parley.client.Agent") contains the complete exception.
     */
    public abstract void respond(RespondRequest request, Answer answer) throws Exception;

    /**
     * Serves the agent and the gRPC health service in plaintext until the program stops. Use a loopback address or a
     * trusted network; {@link #start(String, ServerCredentials, Duration)} takes credentials for TLS. After SIGINT or
     * SIGTERM, running answers have 10 s to end. It returns only if the thread is interrupted, and then stops the
     * agent.
     *
     * @param address HOST:PORT
     * @throws IOException listening on the address failed
     * @throws IllegalArgumentException the address is not valid
     */
    public final void serve(String address) throws IOException {
        try (AgentServer server = start(address)) {
            var hook = new Thread(server::close, "parley-agent-stop");
            Runtime.getRuntime().addShutdownHook(hook);
            server.awaitStop();
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
        }
    }

    /** Starts a server as {@link #serve} does, and returns it. With port 0 the system chooses a free port. */
    public final AgentServer start(String address) throws IOException {
        return start(address, InsecureServerCredentials.create(), STOP_GRACE);
    }

    /**
     * Starts a server of the agent and returns it.
     *
     * @param address HOST:PORT; with port 0 the system chooses a free port
     * @param credentials such as those of io.grpc.TlsServerCredentials
     * @param grace the time that running answers have to end after a stop; those that take longer fail with UNAVAILABLE
     * @throws IOException listening on the address failed
     * @throws IllegalArgumentException the address is not valid
     */
    public final AgentServer start(String address, ServerCredentials credentials, Duration grace) throws IOException {
        return new AgentServer(this, address, credentials, grace);
    }
}
