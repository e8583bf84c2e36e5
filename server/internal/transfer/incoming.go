package transfer

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

// maxSmallBytes is the maximum size of the messages of a conversation that an import collects without a slot for a
// large conversation.
const maxSmallBytes = 2 * store.MaxMessageBytes

// incoming is a conversation of which one or more requests have arrived.
type incoming struct {
	header    *parleyv1.Conversation // of the first request
	overwrite bool
	fault     string   // why it cannot be imported; empty if there is no fault so far
	requests  int      // requests received
	count     int      // messages received
	last      int32    // sequence of the newest message
	frames    [][]byte // the newest messages in encoded form, up to the limit of a stored conversation
	size      int      // of frames, in bytes
	limit     int      // of the messages of a conversation, in bytes
	large     bool     // It has a slot for a large conversation.

	records     []*parleyv1.Record // received and not stored, in rising order of their keys
	recordBytes int                // of records, as recordSize counts them
	recordCount int                // records received
	wantRecords int                // record_count of the last header; 0 if it has none
	lastKey     string             // of the newest record
	// uid is that of the stored conversation, if it was stored before all of its records arrived. version is the one
	// after the last commit of the import. changed is set if others have changed the conversation between two commits.
	uid     string
	version int32
	changed bool
	// skipped is set if the store skipped the conversation, noCapacity if the tenant had no capacity left for it.
	skipped, noCapacity bool
}

// continuesWith reports whether a request continues the conversation. A request with messages does not if the messages
// that the header counts have arrived: a file may contain a conversation twice.
func (c *incoming) continuesWith(r *parleyv1.ImportConversationsRequest) bool {
	header := r.GetConversation()
	if c == nil || header.GetId() == "" || header.GetId() != c.header.GetId() || header.GetUid() != c.header.GetUid() {
		return false
	}
	want := int(c.header.GetMessageCount())
	return len(r.GetMessages()) == 0 || want <= 0 || c.count < want
}

// sameHeader reports whether two headers are the same, except for record_count.
func sameHeader(a, b *parleyv1.Conversation) bool {
	if a.GetRecordCount() != b.GetRecordCount() {
		b = proto.CloneOf(b)
		b.RecordCount = a.GetRecordCount()
	}
	return proto.Equal(a, b)
}

// mustFollow reports whether the conversation must be stored after another one.
func (c *incoming) mustFollow(other *incoming) bool {
	return c.header.GetId() == other.header.GetId() ||
		proto.Equal(c.header.GetCreateTime(), other.header.GetCreateTime())
}

// add adds the messages and records of a request. If the request is invalid, it sets the fault; after that it only
// counts them. An error is a fault of the server, not of the request.
func (c *incoming) add(r *parleyv1.ImportConversationsRequest, now time.Time) error {
	c.requests++
	c.count += len(r.GetMessages())
	c.recordCount += len(r.GetRecords())
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
	} else if !sameHeader(c.header, r.GetConversation()) {
		found.add("conversation", "is not the same as in the previous request")
	}
	c.wantRecords = int(r.GetConversation().GetRecordCount())
	for n, m := range r.GetMessages() {
		found.checkMessage(fmt.Sprintf("messages[%d].", n), m, c.last, c.header, now)
		c.last = max(c.last, m.GetSequence())
	}
	if len(r.GetMessages()) > 0 && c.recordCount > len(r.GetRecords()) {
		found.add("messages", "must come before the records of the conversation")
	}
	if err := c.checkRecords(&found, r.GetRecords()); err != nil {
		return err
	}
	if len(found) > 0 {
		c.fault = found.String()
		if c.requests > 1 {
			c.fault = fmt.Sprintf("request %d: %s", c.requests, c.fault)
		}
		c.frames, c.records, c.recordBytes = nil, nil, 0
		return nil
	}
	for _, record := range r.GetRecords() {
		c.records, c.recordBytes = append(c.records, record), c.recordBytes+recordSize(record)
	}
	for _, m := range r.GetMessages() {
		if err := c.addMessage(m); err != nil || c.fault != "" {
			return err
		}
	}
	return nil
}

// addMessage adds a message in encoded form. It drops the oldest messages that exceed the limits of the
// conversation: no store would store them. If the conversation keeps all messages, addMessage sets the fault instead.
func (c *incoming) addMessage(m *parleyv1.Message) error {
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
		m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
	frame, err := store.EncodeFrame(m)
	if err != nil {
		return fmt.Errorf("message %d: %w", m.GetSequence(), err)
	}
	c.frames, c.size = append(c.frames, frame), c.size+len(frame)
	if c.header.GetRetention().GetKeepAll() {
		if kept := c.limit + min(c.limit, store.MaxMessageBytes); c.size > kept { // No store stores more.
			full := &store.ConversationFullError{Bytes: c.size, Limit: kept}
			c.fault, c.frames, c.records = fmt.Sprintf("CONVERSATION_FULL: %v", full), nil, nil
		}
		return nil
	}
	limit := int(c.header.GetRetention().GetMaxMessages())
	if limit == 0 {
		limit = store.MaxMessages // The store drops those above its default.
	}
	for len(c.frames) > limit || c.size > c.limit && len(c.frames) > 1 {
		c.size -= len(c.frames[0])
		c.frames[0] = nil
		c.frames = c.frames[1:]
	}
	return nil
}

// checkCount sets the fault if the number of received messages or records is not the one in the header. A
// truncated file or stream must not look like a complete conversation. Headers without a count are
// valid.
func (c *incoming) checkCount() {
	c.checkMessageCount()
	if want := c.wantRecords; c.fault == "" && want != 0 && c.recordCount != want {
		c.fault = fmt.Sprintf("conversation.record_count: is %d, but %d records arrived", want, c.recordCount)
	}
}

func (c *incoming) checkMessageCount() {
	if want := int(c.header.GetMessageCount()); c.fault == "" && want != 0 && c.count != want {
		c.fault = fmt.Sprintf("conversation.message_count: is %d, but %d messages arrived", want, c.count)
	}
}
