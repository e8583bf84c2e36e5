package dev.parley.client;

import com.google.protobuf.ByteString;
import dev.parley.v1.TurnEvent;
import java.util.HashMap;
import java.util.Map;

/**
 * Which part of a turn a reader has received. It reduces a stream that repeats some of that part to what is new.
 *
 * <p>The messages of an answer follow one another. The events answer_started and tool_result begin the next message,
 * and no event of an earlier message follows them. So an event after the last delivered one belongs either to the
 * message that was current then, or to a later message that such an event begins first. In the current message, the
 * view cuts text, reasoning and the arguments of calls by the bytes delivered of them. All other events, and all deltas
 * of other messages, are either known, if their index is not after the last one, or new.
 *
 * <p>When the server merges all texts of a message, data may arrive before the text that preceded it. The client sees
 * this because indexes are left out before an event that is no delta. After that, only a stream from the beginning can
 * resume the turn: a stream after the last index would lack that text. Indexes that are left out before a delta are
 * those of deltas that were merged into it, or of deltas of a call that is complete.
 */
final class View {
    /**
     * The delivered bytes if the reader's index is from an earlier call, because the client then does not know how much
     * of the message the reader has.
     */
    private static final int UNKNOWN = -1;

    /** The id of the turn; empty until it is known. */
    private String turn;
    /** The index of the newest delivered event. */
    private int last;
    /** The delivered bytes of the current message's text, or UNKNOWN. */
    private int bytes;
    /** The delivered bytes of its reasoning, as far as the client knows. */
    private int reasoning;
    /** The delivered bytes of the arguments of its calls, by id. */
    private final Map<String, Integer> calls = new HashMap<>();
    /** Text before last may not have been delivered. */
    private boolean merged;
    /** The current stream begins before last. */
    private boolean repeats;

    /** Makes the view of a reader that has nothing of an unknown turn. */
    View() {
        this("", 0);
    }

    /** Makes the view of a reader that has the events of a turn up to an index. */
    View(String turn, int after) {
        this.turn = turn;
        last = after;
        bytes = after == 0 ? 0 : UNKNOWN;
    }

    String turn() {
        return turn;
    }

    /** Returns the index after which the next stream must begin. */
    int resumeIndex() {
        return merged && bytes != UNKNOWN ? 0 : last;
    }

    /** Records that a stream begins after this index. */
    void startStream(int after) {
        repeats = after < last;
    }

    /**
     * Records EVENTS_GONE: the next stream must begin at the start of the turn. Returns false if that is not possible,
     * because the client does not know how much text the reader has.
     */
    boolean restart() {
        merged = bytes != UNKNOWN;
        return merged;
    }

    /** Records an event as delivered. Returns the part of it that is new, or null if there is none. */
    TurnEvent newPart(TurnEvent event) {
        if (!event.getTurnId().isEmpty() && !event.getTurnId().equals(turn)) {
            if (!turn.isEmpty()) {
                last = 0;
                beginMessage();
                merged = repeats = false;
            }
            turn = event.getTurnId();
        }
        var kind = event.getEventCase();
        if (event.getIndex() <= last) {
            if (kind != TurnEvent.EventCase.FINISHED) {
                return null;
            }
            // The server's indexes restarted after a crash. The reader needs finished in any case.
            event = event.toBuilder().setIndex(last + 1).build();
        }
        boolean isDelta =
                switch (kind) {
                    case TEXT_DELTA, REASONING_DELTA, TOOL_CALL_DELTA -> true;
                    default -> false;
                };
        merged = merged || (!isDelta && event.getIndex() > last + 1);
        last = event.getIndex();
        switch (kind) {
            case ANSWER_STARTED, TOOL_RESULT -> beginMessage();
            case TEXT_DELTA -> {
                var delta = event.getTextDelta();
                Rest rest = rest(delta.getTextBytes(), delta.getOffset(), bytes);
                bytes = rest.delivered;
                if (rest.cut > 0) {
                    String text = delta.getTextBytes().substring(rest.cut).toStringUtf8();
                    var cut = delta.toBuilder().setText(text).setOffset(delta.getOffset() + rest.cut);
                    return event.toBuilder().setTextDelta(cut).build();
                }
                return rest.known ? null : event;
            }
            case REASONING_DELTA -> {
                var delta = event.getReasoningDelta();
                Rest rest = rest(delta.getTextBytes(), delta.getOffset(), reasoning);
                reasoning = rest.delivered;
                if (rest.cut > 0) {
                    String text = delta.getTextBytes().substring(rest.cut).toStringUtf8();
                    var cut = delta.toBuilder().setText(text).setOffset(delta.getOffset() + rest.cut);
                    return event.toBuilder().setReasoningDelta(cut).build();
                }
                return rest.known ? null : event;
            }
            case TOOL_CALL_DELTA -> {
                var delta = event.getToolCallDelta();
                Rest rest = rest(delta.getArgumentsBytes(), delta.getOffset(), calls.getOrDefault(delta.getId(), 0));
                calls.put(delta.getId(), rest.delivered);
                if (rest.cut > 0) {
                    String text = delta.getArgumentsBytes().substring(rest.cut).toStringUtf8();
                    var cut = delta.toBuilder().setArguments(text).setOffset(delta.getOffset() + rest.cut);
                    return event.toBuilder().setToolCallDelta(cut).build();
                }
                return rest.known ? null : event;
            }
            default -> {}
        }
        return event;
    }

    private void beginMessage() {
        bytes = reasoning = 0;
        calls.clear();
    }

    /**
     * What a delta adds: the delivered bytes after it, whether the reader has all of it, and otherwise how many bytes
     * of it to cut.
     */
    private record Rest(int delivered, boolean known, int cut) {}

    private Rest rest(ByteString text, int offset, int delivered) {
        int known = delivered - offset;
        int after = Math.max(delivered, offset + text.size());
        if (!repeats || known <= 0) {
            return new Rest(after, false, 0);
        }
        // The reader may even have text that the server lost in a crash.
        boolean all = known >= text.size();
        return new Rest(after, all, all ? 0 : known);
    }
}
