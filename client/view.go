package client

import (
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// unknown is the value of view.bytes if the caller's after_index is from an earlier call, because
// the client then does not know how much of the message the caller has.
const unknown = -1

// view records which part of a turn a caller has received. It reduces a stream that repeats some
// of that part to what is new.
//
// The messages of an answer follow one another. The events answer_started and tool_result begin the
// next message, and no event of an earlier message follows them. So an event after the last
// delivered one belongs either to the message that was current then, or to a later message that
// such an event begins first. In the current message, view cuts text, reasoning and the arguments of
// calls by the bytes delivered of them. All other events, and all deltas of other messages, are
// either known, if their index is not after the last one, or new.
//
// When the server merges all texts of a message, data may arrive before the text that preceded it. The
// client sees this because indexes are left out before an event that is no delta. After that, only a
// stream from the beginning can resume the turn: a stream after the last index would lack that text.
// Indexes that are left out before a delta are those of deltas that were merged into it, or of deltas
// of a call that is complete.
type view struct {
	turn      string         // The id of the turn; empty until it is known.
	last      int32          // The index of the newest delivered event.
	bytes     int            // The delivered bytes of the current message's text, or unknown.
	reasoning int            // The delivered bytes of its reasoning, as far as the client knows.
	calls     map[string]int // The delivered bytes of the arguments of its calls, by id.
	// merged means that text before last may not have been delivered.
	merged bool
	// repeats means that the current stream begins before last.
	repeats bool
}

// newView returns the view of a caller that already has the events of turn up to index after.
// If after is 0, the caller has none.
func newView(turn string, after int32) view {
	v := view{turn: turn, last: after}
	if after != 0 {
		v.bytes = unknown
	}
	return v
}

// resumeIndex returns the index after which the next stream must begin.
func (v *view) resumeIndex() int32 {
	if v.merged && v.bytes != unknown {
		return 0
	}
	return v.last
}

// startStream records that a stream begins after index after, and returns after.
func (v *view) startStream(after int32) int32 {
	v.repeats = after < v.last
	return after
}

// restart records that the server no longer keeps the single events (EVENTS_GONE), so that the next
// stream must begin at the start of the turn. It returns false if that is not possible because the
// client does not know how much text the caller has.
func (v *view) restart() bool {
	v.merged = v.bytes != unknown
	return v.merged
}

// newPart records event as delivered and returns the part of it that is new: event itself, a copy
// with the rest of its text, or nil.
func (v *view) newPart(event *parleyv1.TurnEvent) *parleyv1.TurnEvent {
	if id := event.GetTurnId(); id != "" && id != v.turn {
		if v.turn != "" {
			*v = view{}
		}
		v.turn = id
	}
	if event.GetIndex() <= v.last {
		if event.GetFinished() == nil {
			return nil
		}
		// The server's indexes restarted after a crash. The caller needs finished in any case.
		event = proto.CloneOf(event)
		event.Index = v.last + 1
	}
	v.merged = v.merged || !isDelta(event) && event.GetIndex() > v.last+1
	v.last = event.GetIndex()
	switch e := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_AnswerStarted, *parleyv1.TurnEvent_ToolResult:
		v.bytes, v.reasoning, v.calls = 0, 0, nil
	case *parleyv1.TurnEvent_TextDelta:
		return v.newDelta(event, &v.bytes, e.TextDelta.GetText(), e.TextDelta.GetOffset())
	case *parleyv1.TurnEvent_ReasoningDelta:
		return v.newDelta(event, &v.reasoning, e.ReasoningDelta.GetText(), e.ReasoningDelta.GetOffset())
	case *parleyv1.TurnEvent_ToolCallDelta:
		if v.calls == nil {
			v.calls = make(map[string]int)
		}
		delivered := v.calls[e.ToolCallDelta.GetId()]
		event = v.newDelta(event, &delivered, e.ToolCallDelta.GetArguments(), e.ToolCallDelta.GetOffset())
		v.calls[e.ToolCallDelta.GetId()] = delivered
	}
	return event
}

// isDelta reports whether indexes that are left out before event are no loss.
func isDelta(event *parleyv1.TurnEvent) bool {
	return event.GetTextDelta() != nil || event.GetReasoningDelta() != nil || event.GetToolCallDelta() != nil
}

// newDelta is newPart for a delta with this text and offset: it cuts the bytes that the caller has.
// delivered is their number, which newDelta updates.
func (v *view) newDelta(event *parleyv1.TurnEvent, delivered *int, text string, offset int32) *parleyv1.TurnEvent {
	begin, end := int(offset), int(offset)+len(text)
	known := *delivered - begin
	*delivered = max(*delivered, end)
	switch {
	case !v.repeats || known <= 0:
		return event
	case known >= len(text):
		return nil // The caller has all of it, or has text that the server lost in a crash.
	}
	event = proto.CloneOf(event)
	switch e := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_TextDelta:
		e.TextDelta.Text, e.TextDelta.Offset = text[known:], int32(begin+known)
	case *parleyv1.TurnEvent_ReasoningDelta:
		e.ReasoningDelta.Text, e.ReasoningDelta.Offset = text[known:], int32(begin+known)
	case *parleyv1.TurnEvent_ToolCallDelta:
		e.ToolCallDelta.Arguments, e.ToolCallDelta.Offset = text[known:], int32(begin+known)
	}
	return event
}
