package openai

import (
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// maxNameBytes is the limit of a call's name.
const maxNameBytes = 128

// calls collects the tool calls of an answer.
//
// In the API, a call arrives in parts: the first contains its index, id and name, and the others
// contain the index and more of the arguments. Other servers differ. They send complete calls, omit
// the index or always send 0, omit the id or change it with each part, or repeat the name.
type calls struct {
	list   []*call
	bounds agent.CallLimits
	extras map[string]json.RawMessage // By the ids of the calls that done returned; nil if there are none.
	shown  map[string]bool            // Ids of calls whose parts are passed on.
}

// call is a tool call that is being received.
type call struct {
	index     agent.Index
	id, name  string
	arguments strings.Builder // The inside of a JSON string.
	renamed   bool            // A part repeated the name.
	extra     json.RawMessage // Nil if the server sent none.
	shown     bool            // Its parts are passed on.
	text      agent.Joiner    // Of the arguments that are passed on.
}

// callDelta is a part of a call. Arguments are kept escaped.
type callDelta struct {
	Index    *agent.Index `json:"index"` // Nil if the server sends none.
	ID       agent.ID     `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
	Extra json.RawMessage `json:"extra_content"` // See nativeDelta.
}

// add adds the next part of a call. It returns the piece that passes the part on, nil if there is none.
func (c *calls) add(delta *callDelta) (*parleyv1.RespondResponse, error) {
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
	if isSet(delta.Extra) {
		current.extra = delta.Extra
	}
	part := argumentsPart(string(delta.Function.Arguments))
	current.arguments.WriteString(part)
	size := len(part) + len(delta.ID) + len(delta.Function.Name) + len(delta.Extra)
	if err := c.bounds.Add(added, size); err != nil {
		return nil, err
	}
	return c.show(current, part), nil
}

// show returns the piece that passes on the next part of the arguments of a call, nil if there is none. A call needs a
// name and an id of its own; without them it is passed on only when it is complete.
func (c *calls) show(current *call, part string) *parleyv1.RespondResponse {
	begins := !current.shown
	if begins {
		if current.id == "" || len(current.id) > agent.MaxCallIDBytes || c.shown[current.id] ||
			agent.CheckCallName(current.name) != nil {
			return nil
		}
		if c.shown == nil {
			c.shown = make(map[string]bool)
		}
		c.shown[current.id], current.shown = true, true
		part = current.arguments.String() // Also the parts that came before the name and the id.
	}
	part = current.text.Add(part)
	if part == "" && !begins {
		return nil
	}
	return agent.CallDelta(current.id, current.name, part)
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
		if id == "" || len(id) > agent.MaxCallIDBytes || ids[id] || c.shown[id] && !call.shown {
			id = "call_" + rand.Text()
		}
		ids[id] = true
		result.Id, result.Name = agent.Truncate(id, agent.MaxCallIDBytes), agent.Truncate(call.name, maxNameBytes)
		if call.extra != nil {
			if c.extras == nil {
				c.extras = make(map[string]json.RawMessage)
			}
			c.extras[result.Id] = call.extra
		}
		complete = append(complete, result)
	}
	return complete, nil
}
