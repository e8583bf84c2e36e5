package turn

import (
	"slices"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// maxListedCalls limits the open calls that an error lists. A history may have hundreds of
// thousands.
const maxListedCalls = 64

// callTracker tracks the tool calls of messages and which of them are open, by the rule of
// ToolResult.call_id. Add the messages in their order. The zero value has no calls.
type callTracker struct {
	all []trackedCall
	// Indexes in all, by call id; those of one id are calls of one message, and the first receives the next result.
	open map[string][]int
}

// maxStoredFieldBytes is the maximum that the store adds to the encoded size of a message: numbers,
// time and frame.
const maxStoredFieldBytes = 64

// trackedCall is a call of a callTracker.
type trackedCall struct {
	*parleyv1.ToolCall

	message int // index of the message that has the call
	open    bool
}

// trackCalls returns the calls of messages. For each message it also returns the index of the
// message whose call it resolves, -1 if there is none.
func trackCalls(messages []*parleyv1.Message) (c *callTracker, resolvedBy []int) {
	c, resolvedBy = new(callTracker), make([]int, len(messages))
	for i, m := range messages {
		resolvedBy[i] = -1
		c.add(i, m.GetToolCalls()...)
		if m.GetToolResult() == nil {
			continue
		}
		if call := c.resolve(m.GetToolResult().GetCallId()); call != nil {
			resolvedBy[i] = call.message
		}
	}
	return c, resolvedBy
}

// add adds calls of the message with this index. Open calls of older messages with the same ids are
// closed.
func (c *callTracker) add(message int, added ...*parleyv1.ToolCall) {
	if c.open == nil {
		c.open = make(map[string][]int)
	}
	for _, call := range added {
		id := call.GetId()
		if same := c.open[id]; len(same) > 0 && c.all[same[0]].message != message {
			for _, i := range same {
				c.all[i].open = false
			}
			delete(c.open, id)
		}
		c.open[id] = append(c.open[id], len(c.all))
		c.all = append(c.all, trackedCall{ToolCall: call, message: message, open: true})
	}
}

// isOpen reports whether a call with this id is open.
func (c *callTracker) isOpen(id string) bool { return len(c.open[id]) > 0 }

// resolve adds the result of a call and returns the call, nil if no call with this id is open.
func (c *callTracker) resolve(id string) *trackedCall {
	if !c.isOpen(id) {
		return nil
	}
	call := &c.all[c.open[id][0]]
	call.open = false
	if c.open[id] = c.open[id][1:]; len(c.open[id]) == 0 {
		delete(c.open, id)
	}
	return call
}

// has reports whether there is a call with this id, open or not.
func (c *callTracker) has(id string) bool {
	return slices.ContainsFunc(c.all, func(one trackedCall) bool { return one.GetId() == id })
}

// openIDs returns the ids of the newest open calls, oldest first, at most maxListedCalls.
func (c *callTracker) openIDs() []string {
	var ids []string
	for _, one := range slices.Backward(c.all) {
		if one.open && len(ids) < maxListedCalls {
			ids = append(ids, one.GetId())
		}
	}
	slices.Reverse(ids)
	return ids
}

// matchResults returns the call in a history that each result resolves, or a NoOpenCallError.
func matchResults(history []*parleyv1.Message, results []*parleyv1.ToolResult) ([]*trackedCall, error) {
	c, _ := trackCalls(history)
	open := c.openIDs()
	answered := make([]*trackedCall, len(results))
	for i, r := range results {
		if answered[i] = c.resolve(r.GetCallId()); answered[i] == nil {
			return nil, &NoOpenCallError{CallID: r.GetCallId(), Answered: c.has(r.GetCallId()), Open: open}
		}
	}
	return answered, nil
}

// checkRetention returns a NoRoomError if the store, to retain these inputs, would drop a call that
// they resolve. maxBytes is the limit of a conversation; 0 means no limit.
func checkRetention(inputs []*parleyv1.Message, answered []*trackedCall, found *store.Snapshot, bytes int) error {
	count, size, limit := found.Messages.Count()+len(inputs), len(found.Messages),
		found.Conversation.GetRetention().GetMaxMessages()
	for _, m := range inputs {
		size += proto.Size(m) + maxStoredFieldBytes
	}
	oldest := slices.MinFunc(answered, func(a, b *trackedCall) int { return a.message - b.message })
	dropped := 0
	for frame := range found.Messages.All() {
		many, large := count > int(limit), bytes > 0 && size > bytes
		if !many && !large {
			break
		}
		if dropped == oldest.message {
			e := &NoRoomError{CallID: oldest.GetId(), MaxMessages: limit}
			if !many {
				e.MaxBytes = bytes
			}
			return e
		}
		dropped, count, size = dropped+1, count-1, size-len(frame)
	}
	return nil
}
