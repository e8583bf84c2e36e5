package dev.parley.client;

import com.google.protobuf.Message;
import dev.parley.v1.ChatRequest;
import dev.parley.v1.ChatResponse;
import dev.parley.v1.ConversationServiceGrpc;
import dev.parley.v1.ResumeTurnRequest;
import dev.parley.v1.ResumeTurnResponse;
import dev.parley.v1.TurnEvent;
import io.grpc.Status;

/** Delivers the events of one turn. */
final class Follower implements Resumption<Message, TurnEvent> {
    private final Retry retry;
    private final View view;
    /** The request that starts the turn; null once the turn has started. */
    private ChatRequest chat;
    /** The client generated the request_id of chat. */
    private final boolean generatedId;

    private String conversation;
    /** The newest call begins after this index; 0 is the beginning of the turn. */
    private int after;
    /** The reader has received an event. */
    private boolean delivered;
    /** The reader has received the last event. */
    private boolean finished;

    /** Follows a new turn. */
    Follower(ChatRequest request, Retry retry) {
        this.retry = retry;
        view = new View();
        chat = RequestIds.fill(request);
        generatedId = request.getRequestId().isEmpty();
        conversation = request.getConversationId();
    }

    /** Follows an existing turn. */
    Follower(ResumeTurnRequest request, Retry retry) {
        this.retry = retry;
        view = new View(request.getTurnId(), request.getAfterIndex());
        generatedId = false;
        conversation = request.getConversationId();
    }

    @Override
    public NextCall<?, ? extends Message> nextCall() {
        retry.beginAttempt();
        after = chat == null ? view.resumeIndex() : 0;
        view.startStream(after);
        if (chat != null) {
            return new NextCall<>(ConversationServiceGrpc.getChatMethod(), chat);
        }
        var request = ResumeTurnRequest.newBuilder()
                .setConversationId(conversation)
                .setTurnId(view.turn())
                .setAfterIndex(after)
                .build();
        return new NextCall<>(ConversationServiceGrpc.getResumeTurnMethod(), request);
    }

    @Override
    public long receiveTimeout() {
        return retry.receiveTimeout();
    }

    @Override
    public TurnEvent accept(Message reply) {
        retry.noteMessage();
        TurnEvent event = view.newPart(
                reply instanceof ChatResponse started ? started.getEvent() : ((ResumeTurnResponse) reply).getEvent());
        if (event == null) {
            return null;
        }
        if (chat != null && event.hasStarted()) {
            if (generatedId && event.getStarted().getReplayed()) {
                // This stream itself has sent the request more than once.
                event = event.toBuilder()
                        .setStarted(event.getStarted().toBuilder().setReplayed(false))
                        .build();
            }
            String id = event.getStarted().getConversation().getId();
            conversation = id.isEmpty() ? chat.getConversationId() : id;
            chat = null;
        }
        delivered = true;
        retry.noteProgress();
        // After this event the turn is over and durable, so the status of the call does not matter. The stream still
        // reads to the end of the call: the server would see a disconnect if the client left before.
        finished = event.hasFinished();
        return event;
    }

    @Override
    public void readerReturned() {
        if (delivered) {
            retry.resetDeadline();
        }
    }

    @Override
    public ParleyException silenceError() {
        return retry.silenceError();
    }

    @Override
    public boolean maySignInAgain() {
        return !finished;
    }

    @Override
    public long retryDelay(ParleyException error, boolean reached) {
        if (finished) {
            return -1;
        }
        if (error == null) {
            if (!delivered && after > 0) {
                return -1; // The reader resumed after the last event.
            }
            error = new ParleyException(Status.Code.UNKNOWN, "the server ended the stream before the turn");
        }
        boolean known = retry.hasProgress() || after > 0;
        if (error.reason().equals("EVENTS_GONE") && known && view.restart()) {
            return 0;
        }
        if (!Retry.isResumable(error)) {
            throw error;
        }
        return retry.nextDelay(error, reached);
    }
}
