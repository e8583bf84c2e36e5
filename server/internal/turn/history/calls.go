// Package history answers questions about the stored messages of a conversation: which message needs
// an answer, which tool calls are open, and where an exchange starts. The package is pure.
//
// Start at [Pending], [MatchResults] and [ExchangeStart].
package history

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxListedCalls limits the open calls that an error lists. A history may have hundreds of
// thousands.
const maxListedCalls = 64

// Calls tracks the tool calls of messages and which of them are open, by the rule of
// ToolResult.call_id. Add the messages in their order. The zero value has no calls.
type Calls struct {
	all []Call
	// Indexes in all, by call id; those of one id are calls of one message, and the first receives the next result.
	open map[string][]int
}

// Call is a call of a Calls.
type Call struct {
	*parleyv1.ToolCall

	message int // index of the message that has the call
	open    bool
}

// Track returns the calls of messages. For each message it also returns the index of the
// message whose call it resolves, -1 if there is none.
func Track(messages []*parleyv1.Message) (c *Calls, resolvedBy []int) {
	c, resolvedBy = new(Calls), make([]int, len(messages))
	for i, m := range messages {
		resolvedBy[i] = -1
		c.Add(i, m.GetToolCalls()...)
		if m.GetToolResult() == nil {
			continue
		}
		if call := c.Resolve(m.GetToolResult().GetCallId()); call != nil {
			resolvedBy[i] = call.message
		}
	}
	return c, resolvedBy
}

// Add adds calls of the message with this index. Open calls of older messages with the same ids are
// closed.
func (c *Calls) Add(message int, added ...*parleyv1.ToolCall) {
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
		c.all = append(c.all, Call{ToolCall: call, message: message, open: true})
	}
}

// IsOpen reports whether a call with this id is open.
func (c *Calls) IsOpen(id string) bool { return len(c.open[id]) > 0 }

// Resolve adds the result of a call and returns the call, nil if no call with this id is open.
func (c *Calls) Resolve(id string) *Call {
	if !c.IsOpen(id) {
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
func (c *Calls) has(id string) bool {
	return slices.ContainsFunc(c.all, func(one Call) bool { return one.GetId() == id })
}

// openIDs returns the ids of the newest open calls, oldest first, at most maxListedCalls.
func (c *Calls) openIDs() []string {
	var ids []string
	for _, one := range slices.Backward(c.all) {
		if one.open && len(ids) < maxListedCalls {
			ids = append(ids, one.GetId())
		}
	}
	slices.Reverse(ids)
	return ids
}

// HasOpen reports whether a call is open.
func (c *Calls) HasOpen() bool { return len(c.open) > 0 }
