package dev.parley.client;

import dev.parley.v1.AgentServiceGrpc;
import dev.parley.v1.RespondRequest;
import dev.parley.v1.RespondResponse;
import io.grpc.Server;
import io.grpc.ServerCredentials;
import io.grpc.Status;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.services.HealthStatusManager;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A server of one agent. {@link Agent#start} returns it. */
public final class AgentServer implements AutoCloseable {
    private static final System.Logger LOGGER = System.getLogger(Agent.class.getName());
    private static final Pattern ADDRESS =
            Pattern.compile("(?:\\[(?<bracketed>[^]]+)]|(?<name>[^:]+)):(?<port>\\d{1,5})");
    /** The time that cancelled answers may take to end. */
    private static final Duration CLOSING_TIME = Duration.ofSeconds(1);

    private final Agent agent;
    private final Duration grace;
    private final Server server;
    private final String address;
    private final HealthStatusManager health = new HealthStatusManager();
    private final Set<Answer> running = new HashSet<>(); // guarded by itself
    private boolean graceOver; // guarded by running

    AgentServer(Agent agent, String address, ServerCredentials credentials, Duration grace) throws IOException {
        this.agent = agent;
        this.grace = grace;
        Matcher matcher = ADDRESS.matcher(address);
        if (!matcher.matches() || Integer.parseInt(matcher.group("port")) > 65535) {
            throw new IllegalArgumentException("address is \"" + address + "\", want HOST:PORT");
        }
        boolean isBracketed = matcher.group("bracketed") != null;
        String host = matcher.group(isBracketed ? "bracketed" : "name");
        server = NettyServerBuilder.forAddress(
                        new InetSocketAddress(host, Integer.parseInt(matcher.group("port"))), credentials)
                .maxInboundMessageSize(Connection.MAX_MESSAGE_BYTES)
                // Parley pings a connection that has been silent for some seconds.
                .permitKeepAliveTime(5, TimeUnit.SECONDS)
                .permitKeepAliveWithoutCalls(true)
                .addService(new Servicer())
                .addService(health.getHealthService())
                .build();
        try {
            server.start();
        } catch (IOException error) {
            throw new IOException("cannot listen on " + address + ": " + error.getMessage(), error);
        }
        health.setStatus(AgentServiceGrpc.SERVICE_NAME, ServingStatus.SERVING);
        this.address = (isBracketed ? "[" + host + "]" : host) + ":" + server.getPort();
        LOGGER.log(Level.INFO, "agent serving {0} at {1}", AgentServiceGrpc.SERVICE_NAME, this.address);
    }

    /** Returns the address of the server, with the actual port. */
    public String address() {
        return address;
    }

    /** Waits until the server has stopped. */
    public void awaitStop() throws InterruptedException {
        server.awaitTermination();
    }

    /**
     * Stops the server: accepts no new calls, and cancels running ones after the grace. If the thread is interrupted,
     * it cancels them at once.
     */
    @Override
    public void close() {
        health.enterTerminalState();
        server.shutdown();
        boolean interrupted = false;
        try {
            waitForAnswers();
        } catch (InterruptedException interrupt) {
            interrupted = true;
        }
        synchronized (running) {
            graceOver = true;
            for (Answer answer : running) {
                answer.cancel(Status.UNAVAILABLE.withDescription(
                        "the agent was stopped before its answer was complete; try again"));
            }
        }
        try {
            if (!server.awaitTermination(CLOSING_TIME.toMillis(), TimeUnit.MILLISECONDS)) {
                server.shutdownNow();
                server.awaitTermination(CLOSING_TIME.toMillis(), TimeUnit.MILLISECONDS);
            }
        } catch (InterruptedException interrupt) {
            server.shutdownNow();
            interrupted = true;
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void waitForAnswers() throws InterruptedException {
        long deadline = System.nanoTime() + grace.toNanos();
        synchronized (running) {
            while (!running.isEmpty()) {
                long left = deadline - System.nanoTime();
                if (left <= 0) {
                    return;
                }
                TimeUnit.NANOSECONDS.timedWait(running, left);
            }
        }
    }

    /** AgentService, implemented by an agent. */
    private final class Servicer extends AgentServiceGrpc.AgentServiceImplBase {
        @Override
        public void respond(RespondRequest request, StreamObserver<RespondResponse> observer) {
            if (request.getMessagesCount() == 0) {
                observer.onError(Status.INVALID_ARGUMENT
                        .withDescription("messages is empty; it must end with the message to answer")
                        .asRuntimeException());
                return;
            }
            var responses = (ServerCallStreamObserver<RespondResponse>) observer;
            // gRPC notifies of the end of a call only when this method has returned.
            var slot = new Answer[1];
            var thread = new Thread(() -> run(request, slot[0]), "parley-answer");
            thread.setDaemon(true);
            var answer = slot[0] = new Answer(responses, thread);
            responses.setOnReadyHandler(answer::noteReady);
            responses.setOnCancelHandler(() -> answer.cancel(null));
            synchronized (running) {
                if (graceOver) {
                    answer.end(Status.UNAVAILABLE.withDescription("the agent is stopping; try again"));
                    return;
                }
                running.add(answer);
            }
            thread.start();
        }

        private void run(RespondRequest request, Answer answer) {
            try {
                answer.end(statusOf(request, answer));
            } finally {
                synchronized (running) {
                    running.remove(answer);
                    running.notifyAll();
                }
            }
        }

        /** Runs the agent. Returns the status of the answer. */
        private Status statusOf(RespondRequest request, Answer answer) {
            try {
                agent.respond(request, answer);
                return Status.OK;
            } catch (AgentException error) {
                LOGGER.log(Level.WARNING, "turn " + request.getTurnId() + ": " + error.getMessage(), error.getCause());
                return Status.fromCode(error.code()).withDescription(error.getMessage());
            } catch (Throwable error) {
                // Also an Error: otherwise Parley would wait for the end of the answer.
                if (answer.isCancelled()) {
                    LOGGER.log(Level.INFO, "turn " + request.getTurnId() + ": answer cancelled");
                    return Status.CANCELLED;
                }
                LOGGER.log(Level.ERROR, "turn " + request.getTurnId() + ": respond failed", error);
                return Status.INTERNAL.withDescription(
                        "the agent failed with " + error.getClass().getSimpleName() + "; see its log");
            }
        }
    }
}
