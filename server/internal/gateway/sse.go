package gateway

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// acceptsEvents reports whether a client takes server-sent events, if among others.
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

// aheadMark is behind the id of an event that came ahead of text; see [eventIDs].
const aheadMark = "~"

// eventIDs are those of the server-sent events of one stream, which a client gives back as
// Last-Event-ID: the cursor of a change, the index of an event of a turn.
//
// Where the server has merged texts, the one of a message comes at the index of its last
// piece, so data and calls may come ahead of text that was before them. To go on behind one
// of those would be to lose that text, and nobody but this stream knows: its id has a mark
// that [parseEventID] tells. An index left out is the sign; all text ahead of a text has
// come, and so has that of earlier messages when the next one begins.
type eventIDs struct {
	last  int32 // Index of the newest event of a turn.
	ahead bool  // Text from before it may be still to come.
}

// number gives a reply its id, if it is of a kind that has one.
func (n *eventIDs) number(reply proto.Message) any {
	switch r := reply.(type) {
	case *parleyv1.WatchConversationsResponse:
		return numbered{Message: reply, id: r.GetChange().GetCursor()}
	case interface{ GetEvent() *parleyv1.TurnEvent }:
		return numbered{Message: reply, id: n.of(r.GetEvent())}
	}
	return reply
}

func (n *eventIDs) of(event *parleyv1.TurnEvent) string {
	switch event.GetEvent().(type) {
	case *parleyv1.TurnEvent_StructuredData, *parleyv1.TurnEvent_ToolCall, *parleyv1.TurnEvent_Progress:
		n.ahead = n.ahead || event.GetIndex() > n.last+1
	default:
		n.ahead = false
	}
	n.last = event.GetIndex()
	id := strconv.Itoa(int(n.last))
	if n.ahead {
		id += aheadMark
	}
	return id
}

// parseEventID returns the index that an id of an event of a turn holds, and whether text
// from before it may not have come. Not ok: it is none.
func parseEventID(id string) (index int32, ahead, ok bool) {
	digits, ahead := strings.CutSuffix(id, aheadMark)
	n, err := strconv.ParseUint(digits, 10, 31)
	return int32(n), ahead, err == nil
}
