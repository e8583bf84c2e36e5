package turn

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxTold is how many open calls somebody is told who has named none of them; a history may
// have hundreds of thousands.
const maxTold = 64

// calls are the tool calls of messages, added in their order, and which of them have a
// result. A result belongs to the newest message with a call of its id that has none, and
// there to the first of them, as agent.Answered has it. The zero value has no calls.
type calls struct {
	all  []toolCall
	open map[string][]int // of all, by id; the last one gets the next result
}

// toolCall is one of calls.
type toolCall struct {
	*parleyv1.ToolCall

	message  int // index of the one that asks for it
	answered bool
}

// callsOf returns the calls of messages and, for each message, the index of the one whose
// call it answers, -1 when there is none.
func callsOf(messages []*parleyv1.Message) (c *calls, answers []int) {
	c, answers = new(calls), make([]int, len(messages))
	for i, m := range messages {
		answers[i] = -1
		c.add(i, m.GetToolCalls()...)
		if m.GetToolResult() == nil {
			continue
		}
		if one := c.answer(m.GetToolResult().GetCallId()); one != nil {
			answers[i] = one.message
		}
	}
	return c, answers
}

// add adds calls of the message of that index.
func (c *calls) add(message int, asked ...*parleyv1.ToolCall) {
	if c.open == nil {
		c.open = make(map[string][]int)
	}
	first := len(c.all)
	for _, one := range asked {
		c.all = append(c.all, toolCall{ToolCall: one, message: message})
	}
	for i, one := range slices.Backward(asked) {
		c.open[one.GetId()] = append(c.open[one.GetId()], first+i)
	}
}

// isOpen reports whether there is a call of that id without a result.
func (c *calls) isOpen(id string) bool { return len(c.open[id]) > 0 }

// answer adds the result of a call, and returns that; nil when none of the id is open.
func (c *calls) answer(id string) *toolCall {
	if !c.isOpen(id) {
		return nil
	}
	last := len(c.open[id]) - 1
	one := &c.all[c.open[id][last]]
	one.answered = true
	if c.open[id] = c.open[id][:last]; last == 0 {
		delete(c.open, id)
	}
	return one
}

// has reports whether there is a call of that id, open or not.
func (c *calls) has(id string) bool {
	return slices.ContainsFunc(c.all, func(one toolCall) bool { return one.GetId() == id })
}

// unanswered are the ids of the newest open calls, maxTold at most, the oldest first.
func (c *calls) unanswered() []string {
	var ids []string
	for _, one := range slices.Backward(c.all) {
		if !one.answered && len(ids) < maxTold {
			ids = append(ids, one.GetId())
		}
	}
	slices.Reverse(ids)
	return ids
}

// answeredBy returns the call that each result answers in a history, or a NoOpenCallError.
func answeredBy(history []*parleyv1.Message, results []*parleyv1.ToolResult) ([]*toolCall, error) {
	c, _ := callsOf(history)
	open := c.unanswered()
	answered := make([]*toolCall, len(results))
	for i, r := range results {
		if answered[i] = c.answer(r.GetCallId()); answered[i] == nil {
			return nil, &NoOpenCallError{CallID: r.GetCallId(), Answered: c.has(r.GetCallId()), Open: open}
		}
	}
	return answered, nil
}
