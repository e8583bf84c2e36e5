package storetest

import (
	"fmt"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// oraclePair is a tool call and its result, by the sequences of their messages.
type oraclePair struct {
	id           string
	call, result int32
}

// oraclePairs returns the pairs in messages: a result belongs to the newest earlier message that has calls with its
// id, as long as one of them has no result.
func oraclePairs(messages []*parleyv1.Message) []oraclePair {
	var pairs []oraclePair
	for i, m := range messages {
		if m.GetToolResult() == nil {
			continue
		}
		id := m.GetToolResult().GetCallId()
		for _, earlier := range slices.Backward(messages[:i]) {
			open := 0
			for _, call := range earlier.GetToolCalls() {
				if call.GetId() == id {
					open++
				}
			}
			if open == 0 {
				continue
			}
			for _, p := range pairs {
				if p.id == id && p.call == earlier.GetSequence() {
					open--
				}
			}
			if open > 0 {
				pairs = append(pairs, oraclePair{id, earlier.GetSequence(), m.GetSequence()})
			}
			break
		}
	}
	return pairs
}

// checkReplacement returns the SeparatedError of a replacement, if it has one.
func (c *oracleConversation) checkReplacement(w *store.Append) error {
	if c == nil || w.ReplaceAfter == nil {
		return nil
	}
	after, next := *w.ReplaceAfter, c.header.GetLastSequence()
	crosses := func(p oraclePair) bool { return p.call <= after && p.result > after }
	var replaced []*parleyv1.Message
	for _, m := range c.messages {
		if m.GetSequence() <= after {
			replaced = append(replaced, m)
		}
	}
	for _, m := range w.Messages {
		next++
		replaced = append(replaced, &parleyv1.Message{
			Sequence: max(next, after+1), ToolCalls: m.GetToolCalls(), ToolResult: m.GetToolResult(),
		})
	}
	answered := map[string]int{}
	for _, p := range oraclePairs(replaced) {
		if crosses(p) {
			answered[fmt.Sprint(p.call, p.id)]++
		}
	}
	for _, p := range oraclePairs(c.messages) {
		if !crosses(p) {
			continue
		}
		key := fmt.Sprint(p.call, p.id)
		answered[key]--
		if answered[key] < 0 {
			return &store.SeparatedError{CallID: p.id, Call: p.call, Result: p.result, Replacing: true}
		}
	}
	return nil
}

// checkRemoval returns the SeparatedError of an update with Sequences, if it has one.
func (c *oracleConversation) checkRemoval(w *store.Update) error {
	for _, p := range oraclePairs(c.messages) {
		if slices.Contains(w.Sequences, p.call) != slices.Contains(w.Sequences, p.result) {
			return &store.SeparatedError{CallID: p.id, Call: p.call, Result: p.result}
		}
	}
	return nil
}

// removeAfter removes the messages after a sequence, if it is not nil, and returns how many.
func (c *oracleConversation) removeAfter(after *int32) int {
	if after == nil {
		return 0
	}
	return c.remove(func(m *parleyv1.Message) bool { return m.GetSequence() > *after })
}

// remove removes messages and returns how many.
func (c *oracleConversation) remove(removed func(*parleyv1.Message) bool) int {
	before := len(c.messages)
	c.messages = slices.DeleteFunc(slices.Clone(c.messages), removed)
	return before - len(c.messages)
}

// reportRemoval reports the CLEARED change of a removal.
func (o *oracle) reportRemoval(id string, c *oracleConversation, m *store.Removal, count, trimmed int) {
	o.changes = append(o.changes, c.summary("CLEARED", id, count, trimmed)+removalSummary(m))
}
