package client

import (
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// unknown is how much of a message a caller has been shown that brought its after_index
// from elsewhere.
const unknown = -1

// view is what a caller has been shown of a turn. It cuts a stream that repeats some of that
// to what is new.
//
// The messages of an answer follow each other: answer_started or tool_result opens another,
// and nothing of the one before comes later. So an event behind the last one shown is of the
// message under way then, or of one that such an event behind the last one opens first. Of
// the message under way, text is cut by the bytes shown of it; everything else, and all text
// of the others, is either not behind the last one, and known, or new.
//
// Where texts are merged, data may overtake the text that came before it; the indexes left
// out in between tell. From then on only a stream from the start can be gone on with: the
// one behind the last index would lack that text.
type view struct {
	turn  string // Its id; empty until it is known.
	last  int32  // Index of the newest event shown.
	bytes int    // Shown of the text of the answer message under way; or unknown.
	// merged: the events before last have not all been shown one by one.
	merged bool
	// repeats: the stream begins before last.
	repeats bool
}

// viewFrom is the view of a caller that has the events up to that one from elsewhere; 0: none.
func viewFrom(turn string, after int32) view {
	v := view{turn: turn, last: after}
	if after != 0 {
		v.bytes = unknown
	}
	return v
}

// next is where the next stream has to begin: the index behind which it does.
func (v *view) next() int32 {
	if v.merged && v.bytes != unknown {
		return 0
	}
	return v.last
}

// begin notes that a stream begins there.
func (v *view) begin(after int32) int32 {
	v.repeats = after < v.last
	return after
}

// gone notes that the server does not keep the events one by one any more. It reports
// whether there is a way to go on.
func (v *view) gone() bool {
	v.merged = v.bytes != unknown
	return v.merged
}

// take notes an event as shown and returns what is new of it: all, some of its text in a
// copy, or nil.
func (v *view) take(event *parleyv1.TurnEvent) *parleyv1.TurnEvent {
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
		// A server that lost count in a crash; the end is news in any case.
		event = proto.CloneOf(event)
		event.Index = v.last + 1
	}
	v.merged = v.merged || event.GetIndex() > v.last+1
	v.last = event.GetIndex()
	switch event.GetEvent().(type) {
	case *parleyv1.TurnEvent_AnswerStarted, *parleyv1.TurnEvent_ToolResult:
		v.bytes = 0
	case *parleyv1.TurnEvent_TextDelta:
		return v.takeText(event)
	}
	return event
}

func (v *view) takeText(event *parleyv1.TurnEvent) *parleyv1.TurnEvent {
	delta := event.GetTextDelta()
	begin, end := int(delta.GetOffset()), int(delta.GetOffset())+len(delta.GetText())
	known := v.bytes - begin
	v.bytes = max(v.bytes, end)
	switch {
	case !v.repeats || known <= 0:
		return event
	case known >= len(delta.GetText()):
		return nil // All of it; or a crash has taken the end of what was shown.
	}
	event = proto.CloneOf(event)
	event.GetTextDelta().Text = delta.GetText()[known:]
	event.GetTextDelta().Offset = int32(begin + known)
	return event
}
