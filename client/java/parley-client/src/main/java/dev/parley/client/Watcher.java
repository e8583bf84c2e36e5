package dev.parley.client;

import dev.parley.v1.ChangeKind;
import dev.parley.v1.ConversationChange;
import dev.parley.v1.ConversationServiceGrpc;
import dev.parley.v1.WatchConversationsRequest;
import dev.parley.v1.WatchConversationsResponse;
import io.grpc.Status;

/** Delivers changes. It has no end of its own. */
final class Watcher implements Resumption<WatchConversationsResponse, ConversationChange> {
    private final Retry retry;
    /** Its cursor is that of the last delivered change. */
    private WatchConversationsRequest request;
    /** The server has sent a change on any call. */
    private boolean accepted;
    /** The last change was a heartbeat or a gap. */
    private boolean idle;

    Watcher(WatchConversationsRequest request, Retry retry) {
        this.request = request;
        this.retry = retry;
    }

    @Override
    public NextCall<WatchConversationsRequest, WatchConversationsResponse> nextCall() {
        retry.beginAttempt();
        return new NextCall<>(ConversationServiceGrpc.getWatchConversationsMethod(), request);
    }

    @Override
    public long receiveTimeout() {
        return retry.receiveTimeout();
    }

    @Override
    public ConversationChange accept(WatchConversationsResponse reply) {
        retry.noteMessage();
        if (!reply.hasChange()) {
            return null;
        }
        ConversationChange change = reply.getChange();
        if (!change.getCursor().isEmpty()) {
            request = request.toBuilder().setCursor(change.getCursor()).build();
        }
        accepted = true;
        retry.noteProgress();
        idle = change.getKind() == ChangeKind.CHANGE_KIND_HEARTBEAT
                || change.getKind() == ChangeKind.CHANGE_KIND_GAP;
        return change;
    }

    @Override
    public void readerReturned() {
        if (!accepted) {
            return;
        }
        if (idle) {
            // Keep the delay, so that the client does not retry quickly against a server that answers but breaks each
            // stream after its first messages.
            retry.resetDeadlineOnly();
        } else {
            retry.resetDeadline();
        }
    }

    @Override
    public ParleyException silenceError() {
        return retry.silenceError();
    }

    @Override
    public boolean maySignInAgain() {
        return true;
    }

    @Override
    public long retryDelay(ParleyException error, boolean reached) {
        if (error == null) {
            error = new ParleyException(Status.Code.UNKNOWN, "the server ended the watch");
        }
        // At its limit of watchers the server refuses a new watch. If it accepted this watch before, it may still count
        // the broken stream of this watch.
        boolean full = accepted && error.reason().equals("TOO_MANY_WATCHERS");
        if (!full && !Retry.isResumable(error)) {
            throw error;
        }
        return retry.nextDelay(error, reached);
    }
}
