package history

import (
	"slices"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// MatchResults returns the call in a history that each result resolves, or a NoOpenCallError.
func MatchResults(history []*parleyv1.Message, results []*parleyv1.ToolResult) ([]*Call, error) {
	c, _ := Track(history)
	open := c.openIDs()
	calls := make([]*Call, len(results))
	for i, r := range results {
		if calls[i] = c.Resolve(r.GetCallId()); calls[i] == nil {
			return nil, &NoOpenCallError{CallID: r.GetCallId(), Answered: c.has(r.GetCallId()), Open: open}
		}
	}
	return calls, nil
}

// maxStoredFieldBytes is the maximum that the store adds to the encoded size of a message: numbers,
// time and frame.
const maxStoredFieldBytes = 64

// CheckFull returns a store.ConversationFullError if the store would certainly refuse these inputs of a turn, because
// the conversation c keeps all messages. c may be nil. maxBytes is the limit of a conversation; 0 means no limit.
func CheckFull(inputs []*parleyv1.Message, c *parleyv1.Conversation, maxBytes int) error {
	count, size := int(c.GetMessageCount())+len(inputs), int(c.GetSizeBytes())
	for _, m := range inputs {
		size += proto.Size(m)
	}
	if !c.GetRetention().GetKeepAll() || count <= 1 || maxBytes == 0 || size <= maxBytes {
		return nil
	}
	return &store.ConversationFullError{Bytes: size, Limit: maxBytes}
}

// CheckRetention returns a TooSmallError if the store, to retain these inputs, would drop a call that
// they resolve. maxBytes is the limit of a conversation; 0 means no limit.
func CheckRetention(inputs []*parleyv1.Message, calls []*Call, snapshot *store.Snapshot, maxBytes int) error {
	if snapshot.Conversation.GetRetention().GetKeepAll() {
		return nil // The store drops nothing; CheckFull checks the size.
	}
	count, size, limit := snapshot.Messages.Count()+len(inputs), len(snapshot.Messages),
		snapshot.Conversation.GetRetention().GetMaxMessages()
	for _, m := range inputs {
		size += proto.Size(m) + maxStoredFieldBytes
	}
	oldest := slices.MinFunc(calls, func(a, b *Call) int { return a.message - b.message })
	dropped := 0
	for frame := range snapshot.Messages.All() {
		tooMany, tooLarge := count > int(limit), maxBytes > 0 && size > maxBytes
		if !tooMany && !tooLarge {
			break
		}
		if dropped == oldest.message {
			e := &TooSmallError{CallID: oldest.GetId(), MaxMessages: limit}
			if !tooMany {
				e.MaxBytes = maxBytes
			}
			return e
		}
		dropped, count, size = dropped+1, count-1, size-len(frame)
	}
	return nil
}
