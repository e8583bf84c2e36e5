package transfer

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

// maxMessages and maxConversationBytes limit the messages of one conversation that an import collects in memory.
// No store stores more.
const (
	maxMessages          = 1000
	maxConversationBytes = store.MaxConversationBytes
)

// incoming is a conversation of which one or more requests have arrived.
type incoming struct {
	header    *parleyv1.Conversation
	overwrite bool
	fault     string   // why it cannot be imported; empty if there is no fault so far
	requests  int      // requests received
	count     int      // messages received
	last      int32    // sequence of the newest message
	frames    [][]byte // the newest messages in encoded form, up to the limit of a stored conversation
	size      int      // of frames, in bytes
}

// continuesWith reports whether a request with this header continues the conversation.
func (c *incoming) continuesWith(header *parleyv1.Conversation) bool {
	return c != nil && header.GetId() != "" && header.GetId() == c.header.GetId() &&
		header.GetUid() == c.header.GetUid()
}

// mustFollow reports whether the conversation must be stored after another one.
func (c *incoming) mustFollow(other *incoming) bool {
	return c.header.GetId() == other.header.GetId() ||
		proto.Equal(c.header.GetCreateTime(), other.header.GetCreateTime())
}

// add adds the messages of a request. If the request is invalid, it sets the fault; after that it only
// counts messages. An error is a fault of the server, not of the request.
func (c *incoming) add(r *parleyv1.ImportConversationsRequest, now time.Time) error {
	c.requests++
	c.count += len(r.GetMessages())
	if c.fault != "" {
		return nil
	}
	broken, err := rules.Check(r)
	if err != nil {
		return err
	}
	found := faults(broken)
	if c.requests == 1 {
		found.checkHeader(r.GetConversation(), now)
	} else if !proto.Equal(c.header, r.GetConversation()) {
		found.add("conversation", "is not the same as in the previous request")
	}
	for n, m := range r.GetMessages() {
		found.checkMessage(fmt.Sprintf("messages[%d].", n), m, c.last, c.header, now)
		c.last = max(c.last, m.GetSequence())
	}
	if len(found) > 0 {
		c.fault = found.String()
		if c.requests > 1 {
			c.fault = fmt.Sprintf("request %d: %s", c.requests, c.fault)
		}
		c.frames = nil
		return nil
	}
	for _, m := range r.GetMessages() {
		if err := c.addMessage(m); err != nil {
			return err
		}
	}
	return nil
}

// addMessage adds a message in encoded form. It drops the oldest messages that exceed the limits of the
// conversation: no store would store them.
func (c *incoming) addMessage(m *parleyv1.Message) error {
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
		m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
	frame, err := store.EncodeFrame(m)
	if err != nil {
		return fmt.Errorf("message %d: %w", m.GetSequence(), err)
	}
	c.frames, c.size = append(c.frames, frame), c.size+len(frame)
	limit := int(c.header.GetRetention().GetMaxMessages())
	if limit == 0 {
		limit = maxMessages
	}
	for len(c.frames) > limit || c.size > maxConversationBytes && len(c.frames) > 1 {
		c.size -= len(c.frames[0])
		c.frames[0] = nil
		c.frames = c.frames[1:]
	}
	return nil
}

// complete reports whether all messages that the header counts have arrived. Then the next request
// starts a new conversation even if it has the same header. A file may contain a conversation twice.
func (c *incoming) complete() bool {
	want := int(c.header.GetMessageCount())
	return want > 0 && c.count >= want
}

// checkCount sets the fault if the number of received messages is not the one in the header. A
// truncated file or stream must not look like a complete conversation. Headers without a count are
// valid.
func (c *incoming) checkCount() {
	if want := int(c.header.GetMessageCount()); c.fault == "" && want != 0 && c.count != want {
		c.fault = fmt.Sprintf("conversation.message_count: is %d, but %d messages arrived", want, c.count)
	}
}
