package dev.parley.client;

import dev.parley.v1.RespondRequest;

/** A program whose agent ends its answer when the program reads a line. */
public final class WaitingAgent extends Agent {
    @Override
    public void respond(RespondRequest request, Answer answer) throws Exception {
        answer.text("begun ");
        System.in.read();
        answer.text("and done");
    }

    public static void main(String[] args) throws Exception {
        new WaitingAgent().serve("127.0.0.1:0");
    }
}
