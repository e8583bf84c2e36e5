package openai

import (
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"

	sdk "github.com/openai/openai-go/v3"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// maxNameBytes is the limit of a call's id and of its name.
const maxNameBytes = 128

// calls puts the tool calls of an answer together.
//
// By the API a call comes in parts: the first has its index, id and name, the others the
// index and more of the arguments. Servers differ: calls come whole, the index is missing or
// 0 in all of them, ids are missing or are others in each part, names are told again.
type calls struct {
	list   []*call
	bounds agent.CallLimits
}

// call is one of them so far.
type call struct {
	index     int64
	id, name  string
	arguments strings.Builder // the inside of a JSON string
	renamed   bool            // a part told the name again
}

// add takes the next part of a call.
func (c *calls) add(delta *sdk.ChatCompletionChunkChoiceDeltaToolCall) error {
	current, begun := c.find(delta), 0
	if current == nil {
		current, begun = &call{index: delta.Index}, 1
		c.list = append(c.list, current)
	}
	if current.id == "" {
		current.id = delta.ID
	}
	if current.name == "" {
		current.name = delta.Function.Name
	}
	part := argumentsPart(delta.Function.JSON.Arguments.Raw())
	current.arguments.WriteString(part)
	return c.bounds.Add(begun, len(part)+len(delta.ID)+len(delta.Function.Name))
}

// find is the call that the part belongs to; nil: it begins another one.
func (c *calls) find(delta *sdk.ChatCompletionChunkChoiceDeltaToolCall) *call {
	var newest *call
	for _, call := range slices.Backward(c.list) {
		if delta.JSON.Index.Valid() && call.index != delta.Index {
			continue
		}
		if delta.ID != "" && call.id == delta.ID {
			return call
		}
		if newest == nil {
			newest = call
		}
	}
	switch name := delta.Function.Name; {
	case newest == nil || name == "" || newest.name == "":
		return newest // a part without a name begins nothing, whatever its id
	case delta.ID != "" && newest.id != "", name != newest.name, newest.whole():
		return nil
	}
	newest.renamed = true
	return newest
}

// whole reports whether nothing can be added to the arguments: they are JSON. That is
// looked at once a call, and not again for a name in each of a thousand parts.
func (c *call) whole() bool {
	return !c.renamed && json.Valid([]byte(unescaped(c.arguments.String())))
}

// argumentsPart is the text of the JSON value, escaped as in a JSON string. Where the API
// has the text of an object, some servers send the object.
func argumentsPart(value string) string {
	if strings.HasPrefix(value, "{") {
		quoted, err := json.Marshal(value)
		if err != nil {
			return "" // a string always can be written
		}
		value = string(quoted)
	}
	return inside(value)
}

// done are the calls of an answer that ended for this reason, each with an id that no other of
// the answer has.
func (c *calls) done(finish string) ([]*parleyv1.ToolCall, error) {
	var done []*parleyv1.ToolCall
	ids := make(map[string]bool)
	for _, call := range c.list {
		whole := &parleyv1.ToolCall{Arguments: unescaped(call.arguments.String())}
		if !agent.IsComplete(whole, finish) {
			continue
		}
		if err := agent.CheckCallName(call.name); err != nil {
			return nil, err
		}
		id := call.id
		if id == "" || len(id) > maxNameBytes || ids[id] {
			id = "call_" + rand.Text()
		}
		ids[id] = true
		whole.Id, whole.Name = agent.Truncate(id, maxNameBytes), agent.Truncate(call.name, maxNameBytes)
		done = append(done, whole)
	}
	return done, nil
}
