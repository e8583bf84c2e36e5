package openai

import (
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// maxNameBytes is the limit of a call's id and name.
const maxNameBytes = 128

// calls collects the tool calls of an answer.
//
// In the API, a call arrives in parts: the first contains its index, id and name, and the others
// contain the index and more of the arguments. Other servers differ. They send complete calls, omit
// the index or always send 0, omit the id or change it with each part, or repeat the name.
type calls struct {
	list   []*call
	bounds agent.CallLimits
}

// call is a tool call that is being received.
type call struct {
	index     agent.Index
	id, name  string
	arguments strings.Builder // The inside of a JSON string.
	renamed   bool            // A part repeated the name.
}

// callDelta is a part of a call. Arguments are kept escaped.
type callDelta struct {
	Index    *agent.Index `json:"index"` // Nil if the server sends none.
	ID       agent.ID     `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

// add adds the next part of a call.
func (c *calls) add(delta *callDelta) error {
	current, added := c.find(delta), 0
	if current == nil {
		current, added = new(call), 1
		if delta.Index != nil {
			current.index = *delta.Index
		}
		c.list = append(c.list, current)
	}
	if current.id == "" {
		current.id = string(delta.ID)
	}
	if current.name == "" {
		current.name = delta.Function.Name
	}
	part := argumentsPart(string(delta.Function.Arguments))
	current.arguments.WriteString(part)
	return c.bounds.Add(added, len(part)+len(delta.ID)+len(delta.Function.Name))
}

// find returns the call that the part belongs to, or nil if the part begins a new call.
func (c *calls) find(delta *callDelta) *call {
	var newest *call
	for _, call := range slices.Backward(c.list) {
		if delta.Index != nil && call.index != *delta.Index {
			continue
		}
		if delta.ID != "" && call.id == string(delta.ID) {
			return call
		}
		if newest == nil {
			newest = call
		}
	}
	switch name := delta.Function.Name; {
	case newest == nil || name == "" || newest.name == "":
		return newest // A part without a name does not begin a call, whatever its id is.
	case delta.ID != "" && newest.id != "", name != newest.name, newest.isComplete():
		return nil
	}
	newest.renamed = true
	return newest
}

// isComplete reports whether the arguments are complete JSON. It checks this once for a call,
// because a server may repeat the name in each of a thousand parts.
func (c *call) isComplete() bool {
	return !c.renamed && json.Valid([]byte(agent.Unescape(c.arguments.String())))
}

// argumentsPart returns the text in a JSON value, escaped as in a JSON string. Some servers send
// the arguments as an object instead of a string.
func argumentsPart(value string) string {
	if strings.HasPrefix(value, "{") {
		quoted, err := json.Marshal(value)
		if err != nil {
			return "" // Encoding a string cannot fail.
		}
		value = string(quoted)
	}
	return inside(value)
}

// done returns the calls of an answer that ended for this reason, with unique ids.
func (c *calls) done(finish string) ([]*parleyv1.ToolCall, error) {
	var complete []*parleyv1.ToolCall
	ids := make(map[string]bool)
	for _, call := range c.list {
		result := &parleyv1.ToolCall{Arguments: agent.Unescape(call.arguments.String())}
		if !agent.IsComplete(result, finish) {
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
		result.Id, result.Name = agent.Truncate(id, maxNameBytes), agent.Truncate(call.name, maxNameBytes)
		complete = append(complete, result)
	}
	return complete, nil
}
