package dev.parley.client;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/** A TCP proxy between a client and a server that breaks connections on request. */
final class Proxy implements AutoCloseable {
    private final ServerSocket listener;
    private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();
    private final AtomicInteger opened = new AtomicInteger();
    private final AtomicInteger limit = new AtomicInteger(Integer.MAX_VALUE);
    private volatile String target;
    private volatile boolean refusing;

    Proxy(String target) throws IOException {
        this.target = target;
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        run(this::accept);
    }

    String address() {
        return "127.0.0.1:" + listener.getLocalPort();
    }

    /** Returns the number of connections, including refused ones. */
    int opened() {
        return opened.get();
    }

    /** Sets the target of the next connections. */
    void aim(String target) {
        this.target = target;
    }

    /** Sets whether the next connections are refused. */
    void refuse(boolean refuse) {
        refusing = refuse;
    }

    /** Breaks the next connection after this many bytes from the server. */
    void cutAfter(int bytes) {
        limit.set(bytes);
    }

    /** Breaks all connections. */
    void cut() {
        sockets.forEach(Proxy::reset);
    }

    @Override
    public void close() throws IOException {
        listener.close();
        cut();
    }

    private void accept() {
        while (!listener.isClosed()) {
            try {
                Socket client = listener.accept();
                opened.incrementAndGet();
                if (refusing) {
                    reset(client);
                    continue;
                }
                int colon = target.lastIndexOf(':');
                Socket server = new Socket(
                        target.substring(0, colon), Integer.parseInt(target.substring(colon + 1)));
                sockets.add(client);
                sockets.add(server);
                int bytes = limit.getAndSet(Integer.MAX_VALUE);
                run(() -> copy(client, server, Integer.MAX_VALUE));
                run(() -> copy(server, client, bytes));
            } catch (IOException ignored) {
                // The listener is closed, or the server does not run. The client sees a broken connection.
            }
        }
    }

    private void copy(Socket from, Socket to, int limit) {
        try {
            byte[] buffer = new byte[16 << 10];
            for (int left = limit; left > 0; ) {
                int count = from.getInputStream().read(buffer, 0, Math.min(buffer.length, left));
                if (count < 0) {
                    break;
                }
                to.getOutputStream().write(buffer, 0, count);
                left -= limit == Integer.MAX_VALUE ? 0 : count;
            }
        } catch (IOException ignored) {
            // Both are closed below.
        } finally {
            reset(from);
            reset(to);
            sockets.remove(from);
            sockets.remove(to);
        }
    }

    private static void reset(Socket socket) {
        try {
            socket.setSoLinger(true, 0);
            socket.close();
        } catch (IOException ignored) {
            // It is closed.
        }
    }

    private static void run(Runnable task) {
        var thread = new Thread(task, "proxy");
        thread.setDaemon(true);
        thread.start();
    }
}
