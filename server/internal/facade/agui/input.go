package agui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// input is a RunAgentInput.
type input struct {
	threadID, runID string
	messages        []inputMessage
	// data has the values of state, context and forwardedProps that are not empty, by their names.
	data []namedValue
}

type namedValue struct {
	name  string
	value any
}

// Types of structured data for the values of a RunAgentInput.
const (
	dataPrefix = "ag-ui."
	stateType  = dataPrefix + "state"
)

// parseInput decodes a RunAgentInput. The error is a status that names all faults. Fields that are not in the protocol
// are ignored, as the protocol demands.
func parseInput(text []byte) (*input, error) {
	var f faults
	if !utf8.Valid(text) {
		f.add("body", "is not UTF-8")
		return nil, f.err()
	}
	o, ok := decodeObject(text)
	if !ok {
		f.add("body", "is not a JSON object: send a RunAgentInput")
		return nil, f.err()
	}
	in := &input{threadID: o.text(&f, "", "threadId", true), runID: o.text(&f, "", "runId", true)}
	o.text(&f, "", "protocolVersion", false)
	if o.text(&f, "", "parentRunId", false) != "" {
		f.unsupport("parentRunId", "runs have no parents; leave it out")
	}
	if len(o.list(&f, "", "tools", false)) > 0 {
		f.unsupport("tools", "an agent has the tools of its own configuration; leave the tools of the page out")
	}
	if len(o.list(&f, "", "resume", false)) > 0 {
		f.unsupport("resume", "runs do not end with interrupts; leave it out")
	}
	o.list(&f, "", "context", false) // It must be a list.
	for _, name := range []string{"state", "context", "forwardedProps"} {
		if value := o.value(&f, name); !isEmpty(value) {
			in.data = append(in.data, namedValue{name, value})
		}
	}
	messages := o.list(&f, "", "messages", true)
	for i, raw := range messages {
		if f.isFull() {
			break
		}
		in.messages = append(in.messages, parseMessage(&f, fmt.Sprintf("messages[%d]", i), raw))
	}
	if len(messages) == 0 && !f.has("messages") {
		f.add("messages", "is empty: send at least the message of the user")
	}
	return in, f.err()
}

// has reports whether a field has a fault.
func (f *faults) has(field string) bool {
	for _, v := range f.invalid {
		if v.GetField() == field {
			return true
		}
	}
	return false
}

// isEmpty reports whether a value says nothing: null, {}, [] and "".
func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	case string:
		return v == ""
	}
	return false
}

// object is a JSON object whose values are not decoded.
type object map[string]json.RawMessage

// decodeObject decodes an object. ok is false if the text is anything else.
func decodeObject(text []byte) (o object, ok bool) {
	if !bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) {
		return nil, false
	}
	return o, json.Unmarshal(text, &o) == nil
}

// has reports whether a field is there. A null counts as absent.
func (o object) has(name string) bool {
	raw, ok := o[name]
	return ok && string(raw) != "null"
}

// text returns the text of a field. It adds a fault if the field is no text, or if it is required and absent.
func (o object) text(f *faults, at, name string, required bool) string {
	var text string
	switch {
	case !o.has(name):
		if required {
			f.add(at+name, "is required")
		}
	case json.Unmarshal(o[name], &text) != nil:
		f.add(at+name, "must be a text")
	}
	return text
}

// list returns the elements of a field. It adds a fault if the field is no list, or if it is required and absent.
func (o object) list(f *faults, at, name string, required bool) []json.RawMessage {
	var list []json.RawMessage
	switch {
	case !o.has(name):
		if required {
			f.add(at+name, "is required")
		}
	case json.Unmarshal(o[name], &list) != nil:
		f.add(at+name, "must be a list")
	}
	return list
}

// value returns the value of a field, nil if it is absent.
func (o object) value(f *faults, name string) any {
	var value any
	if o.has(name) && json.Unmarshal(o[name], &value) != nil {
		f.add(name, "has a number that is too large")
	}
	return value
}
