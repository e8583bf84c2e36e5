package dev.parley.client;

import io.grpc.ChannelCredentials;
import io.grpc.ConnectivityState;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** The channel of a client. Any number of threads may share it. */
final class Connection implements AutoCloseable {
    /** The same as the server's limit, so that the client can read every reply. */
    static final int MAX_MESSAGE_BYTES = 4 << 20;

    private final ManagedChannel channel;
    private volatile boolean closed;

    /** Connects to a target with the first call. Null as credentials means plaintext. */
    Connection(String target, ChannelCredentials credentials) {
        ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(
                        target, credentials == null ? InsecureChannelCredentials.create() : credentials)
                .userAgent("parley-client-java")
                .maxInboundMessageSize(MAX_MESSAGE_BYTES)
                // The retries are those of this package: it also renews a connection that gRPC waits to renew.
                .disableServiceConfigLookUp()
                // The server closes connections of clients that ping more often than every 10 s.
                .keepAliveTime(30, TimeUnit.SECONDS)
                .keepAliveTimeout(10, TimeUnit.SECONDS)
                .keepAliveWithoutCalls(true);
        if (Targets.isLocal(target)) {
            // A proxy of the environment would read the plaintext, and resolve "localhost" as its own machine.
            builder.proxyDetector(address -> null);
        }
        channel = builder.build();
    }

    ManagedChannel channel() {
        return channel;
    }

    boolean isClosed() {
        return closed;
    }

    /** Reports whether the channel is connected to a server now. */
    boolean isReady() {
        return channel.getState(false) == ConnectivityState.READY;
    }

    /**
     * Connects again now if there is no connection, and waits for it, but not longer than these nanoseconds. gRPC
     * itself waits up to two minutes between its attempts.
     */
    void reconnect(long nanos) throws InterruptedException {
        long deadline = System.nanoTime() + nanos;
        channel.resetConnectBackoff();
        for (; ; ) {
            ConnectivityState state = channel.getState(true);
            long left = deadline - System.nanoTime();
            if (state == ConnectivityState.READY || state == ConnectivityState.SHUTDOWN || left <= 0) {
                return;
            }
            var changed = new CountDownLatch(1);
            channel.notifyWhenStateChanged(state, changed::countDown);
            if (!changed.await(left, TimeUnit.NANOSECONDS)) {
                return;
            }
        }
    }

    @Override
    public void close() {
        closed = true;
        channel.shutdownNow();
    }
}
