package gateway

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// acceptsEvents reports whether the Accept header contains server-sent events.
func acceptsEvents(h http.Header) bool {
	for _, list := range h.Values("Accept") {
		for part := range strings.SplitSeq(list, ",") {
			mediaType, parameters, err := mime.ParseMediaType(part)
			if quality, err := strconv.ParseFloat(parameters["q"], 64); err == nil && quality == 0 {
				continue
			}
			if err == nil && mediaType == mediaEvents {
				return true
			}
		}
	}
	return false
}

// textPendingMark is the suffix of the id of an event that was sent before earlier text; see [EventIDs].
const textPendingMark = "~"

// EventIDs assigns the ids of the server-sent events of one stream. A client sends the last one
// back as Last-Event-ID. The id of a change is its cursor, and the id of an event of a turn is its
// index.
//
// The server may merge the texts of a message into one event, which has the index of the last text.
// Data and tool calls may then be sent before text that precedes them. If a client resumed after
// such an event, it would lose that text, and only this stream knows that. So the id of the event
// has a suffix that [ParseEventID] recognizes. A missing index shows that text may be pending. All
// text before a delta of text, reasoning or a call has been sent, and so has the text of earlier
// messages when the next message begins.
//
// The zero value is for a stream from the first event of a turn on.
type EventIDs struct {
	last        int32 // Index of the newest event of a turn.
	textPending bool  // Text before it may not have been sent yet.
}

// EventIDsAfter returns the ids of a stream whose client has the events up to index.
func EventIDsAfter(index int32) EventIDs { return EventIDs{last: index} }

// withID returns a reply with its id, or the reply if its kind has no id.
func (n *EventIDs) withID(reply proto.Message) any {
	switch r := reply.(type) {
	case *parleyv1.WatchConversationsResponse:
		return replyWithID{Message: reply, id: r.GetChange().GetCursor()}
	case interface{ GetEvent() *parleyv1.TurnEvent }:
		return replyWithID{Message: reply, id: n.ID(r.GetEvent())}
	}
	return reply
}

// ID returns the id of the next event of the stream. The events must have the order of their indexes.
func (n *EventIDs) ID(event *parleyv1.TurnEvent) string {
	switch event.GetEvent().(type) {
	case *parleyv1.TurnEvent_StructuredData, *parleyv1.TurnEvent_ToolCall, *parleyv1.TurnEvent_Progress:
		n.textPending = n.textPending || event.GetIndex() > n.last+1
	default:
		n.textPending = false
	}
	n.last = event.GetIndex()
	id := strconv.Itoa(int(n.last))
	if n.textPending {
		id += textPendingMark
	}
	return id
}

// ParseEventID returns the index in an id of an event of a turn, and whether text before it may not
// have been sent. ok is false if id is malformed.
func ParseEventID(id string) (index int32, textPending, ok bool) {
	digits, textPending := strings.CutSuffix(id, textPendingMark)
	n, err := strconv.ParseUint(digits, 10, 31)
	return int32(n), textPending, err == nil
}
