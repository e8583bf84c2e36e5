package eventlog

import (
	"strings"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Encoded is a retained event in encoded form. Each reader decodes it into a new message. A
// turn has thousands of texts, and a value may be a tree of 100,000 objects. In encoded form an
// event is one object for the garbage collector, and its counted size is its real size.
type Encoded struct {
	data   string // a delta, or an encoded TurnEvent without turn_id and index
	call   *Call  // the call of a delta of arguments, else nil
	offset int32  // byte offset of a delta in its message or call
	kind   eventKind
}

// Call is what all deltas of a tool call have in common. It must not change after the first of them.
type Call struct {
	// Index is ToolCallDelta.index.
	Index int32
	// ID and Name are those of the call.
	ID, Name string
}

// overheadBytes is the memory of an event without its data: its element in a list that grows in
// steps, and the rounding of its data.
const overheadBytes = 48

// callOverheadBytes is the memory of a Call without its strings.
const callOverheadBytes = 48

type eventKind uint8

const (
	noEvent eventKind = iota // the index is unused
	textEvent
	reasoningEvent
	argumentsEvent
	protoEvent
	finishedEvent
)

// isDelta reports whether events of this kind are merged for late readers.
func (k eventKind) isDelta() bool {
	return k == textEvent || k == reasoningEvent || k == argumentsEvent
}

// Encode encodes an event. It returns the zero Encoded if a string in the event is not UTF-8.
func Encode(event *parleyv1.TurnEvent) Encoded {
	data, err := proto.Marshal(event)
	switch {
	case err != nil:
		return Encoded{}
	case event.GetFinished() != nil:
		return Encoded{data: string(data), kind: finishedEvent}
	}
	return Encoded{data: string(data), kind: protoEvent}
}

// IsZero reports whether this is the zero Encoded, which is no event.
func (n Encoded) IsZero() bool { return n.kind == noEvent }

// Len returns the size of the encoded event in bytes.
func (n Encoded) Len() int { return len(n.data) }

// size returns the size in bytes that counts toward MaxBytes.
func (n Encoded) size() int {
	switch {
	case n.kind == finishedEvent:
		return 0
	case n.call != nil && n.offset == 0: // The later deltas share the call.
		return len(n.data) + overheadBytes + len(n.call.ID) + len(n.call.Name) + callOverheadBytes
	}
	return len(n.data) + overheadBytes
}

// decode returns the event as a new message for one reader.
func (n Encoded) decode(turnID string, index int32) *parleyv1.TurnEvent {
	event := new(parleyv1.TurnEvent)
	switch n.kind {
	case textEvent:
		event.Event = &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: n.data, Offset: n.offset}}
	case reasoningEvent:
		event.Event = &parleyv1.TurnEvent_ReasoningDelta{
			ReasoningDelta: &parleyv1.ReasoningDelta{Text: n.data, Offset: n.offset},
		}
	case argumentsEvent:
		event.Event = &parleyv1.TurnEvent_ToolCallDelta{ToolCallDelta: &parleyv1.ToolCallDelta{
			Index: n.call.Index, Id: n.call.ID, Name: n.call.Name, Arguments: n.data, Offset: n.offset,
		}}
	default:
		_ = proto.Unmarshal([]byte(n.data), event) // cannot fail: Encode encoded it
	}
	event.TurnId, event.Index = turnID, index
	return event
}

// merge returns the first event of a batch and the number of events that it stands for. If the first event
// is a delta, merge adds the deltas that continue it, up to maxMergedBytes. A single delta may be longer.
func merge(batch []Encoded) (merged Encoded, count int) {
	merged = batch[0]
	if !merged.kind.isDelta() {
		return merged, 1
	}
	size := len(merged.data)
	for count = 1; count < len(batch); count++ {
		next := batch[count]
		if next.kind != merged.kind || next.call != merged.call || next.offset != merged.offset+int32(size) ||
			size+len(next.data) > maxMergedBytes {
			break
		}
		size += len(next.data)
	}
	if count == 1 {
		return merged, 1
	}
	var text strings.Builder
	text.Grow(size)
	for _, n := range batch[:count] {
		text.WriteString(n.data)
	}
	merged.data = text.String()
	return merged, count
}
