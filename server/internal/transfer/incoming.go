package transfer

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

// maxMessages and maxMessageBytes limit the messages of one conversation that an import holds in memory.
// No store stores more.
const (
	maxMessages     = 1000
	maxMessageBytes = 3 << 20
)

// incoming is a conversation of which one or more requests have arrived.
type incoming struct {
	header    *parleyv1.Conversation
	overwrite bool
	fault     string   // why it cannot be imported; empty if there is no fault so far
	requests  int      // requests received
	count     int      // messages received
	last      int32    // sequence of the newest message
	frames    [][]byte // the newest messages in encoded form, as many as a store may store
	size      int      // of frames, in bytes
}

// continuesWith reports whether a request with the header c continues the conversation.
func (a *incoming) continuesWith(c *parleyv1.Conversation) bool {
	return a != nil && c.GetId() != "" && c.GetId() == a.header.GetId() && c.GetUid() == a.header.GetUid()
}

// mustFollow reports whether the conversation must be stored after another one.
func (a *incoming) mustFollow(other *incoming) bool {
	return a.header.GetId() == other.header.GetId() ||
		proto.Equal(a.header.GetCreateTime(), other.header.GetCreateTime())
}

// add adds the messages of a request. If the request is invalid, it sets the fault; after that it only
// counts messages. An error is a fault of the server, not of the request.
func (a *incoming) add(r *parleyv1.ImportConversationsRequest, now time.Time) error {
	a.requests++
	a.count += len(r.GetMessages())
	if a.fault != "" {
		return nil
	}
	broken, err := rules.Check(r)
	if err != nil {
		return err
	}
	found := faults(broken)
	if a.requests == 1 {
		found.checkHeader(r.GetConversation(), now)
	} else if !proto.Equal(a.header, r.GetConversation()) {
		found.add("conversation", "is not the same as in the previous request")
	}
	for n, m := range r.GetMessages() {
		found.checkMessage(fmt.Sprintf("messages[%d].", n), m, a.last, a.header, now)
		a.last = max(a.last, m.GetSequence())
	}
	if len(found) > 0 {
		a.fault = found.String()
		if a.requests > 1 {
			a.fault = fmt.Sprintf("request %d: %s", a.requests, a.fault)
		}
		a.frames = nil
		return nil
	}
	for _, m := range r.GetMessages() {
		if err := a.addMessage(m); err != nil {
			return err
		}
	}
	return nil
}

// addMessage adds a message in encoded form. It drops the oldest messages that exceed the limits of the
// conversation: no store would store them.
func (a *incoming) addMessage(m *parleyv1.Message) error {
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
		m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
	size := proto.Size(m)
	frame := make([]byte, 0, protowire.SizeTag(store.FrameField)+protowire.SizeBytes(size))
	frame = protowire.AppendVarint(protowire.AppendTag(frame, store.FrameField, protowire.BytesType), uint64(size))
	frame, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(frame, m)
	if err != nil {
		return fmt.Errorf("message %d: %w", m.GetSequence(), err)
	}
	a.frames, a.size = append(a.frames, frame), a.size+len(frame)
	limit := int(a.header.GetRetention().GetMaxMessages())
	if limit == 0 {
		limit = maxMessages
	}
	for len(a.frames) > limit || a.size > maxMessageBytes && len(a.frames) > 1 {
		a.size -= len(a.frames[0])
		a.frames[0] = nil
		a.frames = a.frames[1:]
	}
	return nil
}

// complete reports whether all messages that the header counts have arrived. Then the next request
// starts a new conversation even if it has the same header. A file may contain a conversation twice.
func (a *incoming) complete() bool {
	want := int(a.header.GetMessageCount())
	return want > 0 && a.count >= want
}

// checkCount sets the fault if the number of received messages is not the one in the header. A
// truncated file or stream must not look like a complete conversation. Headers without a count are
// valid.
func (a *incoming) checkCount() {
	if want := int(a.header.GetMessageCount()); a.fault == "" && want != 0 && a.count != want {
		a.fault = fmt.Sprintf("conversation.message_count: is %d, but %d messages arrived", want, a.count)
	}
}
