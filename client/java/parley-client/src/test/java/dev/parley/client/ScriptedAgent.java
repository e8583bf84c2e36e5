package dev.parley.client;

import dev.parley.v1.RespondRequest;
import dev.parley.v1.RespondResponse;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;

/** An agent whose answer the test sends piece by piece. */
final class ScriptedAgent extends Agent {
    private static final RespondResponse END = RespondResponse.getDefaultInstance();

    /** The number of calls of respond. */
    final AtomicInteger runs = new AtomicInteger();

    private final BlockingQueue<RespondResponse> pieces = new LinkedBlockingQueue<>();

    void send(String... texts) {
        for (String text : texts) {
            pieces.add(RespondResponse.newBuilder().setText(text).build());
        }
    }

    void send(RespondResponse piece) {
        pieces.add(piece);
    }

    void end() {
        pieces.add(END);
    }

    @Override
    public void respond(RespondRequest request, Answer answer) throws InterruptedException {
        runs.incrementAndGet();
        for (var piece = pieces.take(); piece != END; piece = pieces.take()) {
            answer.send(piece);
        }
    }
}
