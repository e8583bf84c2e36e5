package turn

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
)

// maxTold is how many open calls somebody is told who has named none of them; a history may
// have hundreds of thousands.
const maxListedCalls = 64

// calls are the tool calls of messages, added in their order, and which of them are open, by
// the rule of ToolResult.call_id. The zero value has no calls.
type callTracker struct {
	all  []trackedCall
	open map[string][]int // of all, by id, each of one message; the first one gets the next result
}

// maxNumberBytes is the most that the store adds to a message's encoded form: its numbers, its
// time, and what frames it.
const maxStoredFieldBytes = 64

// toolCall is one of calls.
type trackedCall struct {
	*parleyv1.ToolCall

	message int // index of the one that asks for it
	open    bool
}

// callsOf returns the calls of messages and, for each message, the index of the one whose
// call it answers, -1 when there is none.
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

// add adds calls of the message of that index. Those of an older message are over whose ids
// they have.
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

// isOpen reports whether a call of that id is open.
func (c *callTracker) isOpen(id string) bool { return len(c.open[id]) > 0 }

// answer adds the result of a call, and returns that; nil when none of the id is open.
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

// has reports whether there is a call of that id, open or not.
func (c *callTracker) has(id string) bool {
	return slices.ContainsFunc(c.all, func(one trackedCall) bool { return one.GetId() == id })
}

// openIDs are the ids of the newest open calls, maxTold at most, the oldest first.
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

// answeredBy returns the call that each result answers in a history, or a NoOpenCallError.
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

// mayStore returns a NoRoomError when, to keep these inputs, the store would drop a call that
// they answer. Bytes are the most that it keeps of a conversation; 0 is any number.
func checkRetention(inputs []*parleyv1.Message, answered []*trackedCall, found *store.Snapshot, bytes int) error {
	count, size, limit := found.Messages.Count()+len(inputs), len(found.Messages), found.Conversation.GetRetention().GetMaxMessages()
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
