package agui

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// page is what a client of AG-UI shows. It applies events by the rules of verifyEvents and of the reducer of
// @ag-ui/client.
type page struct {
	messages []*shown
	state    any
	custom   []string
	open     []string // "message id", "call id" and so on
	running  bool
	end      map[string]any
}

// shown is a message on the page.
type shown struct {
	ID, Role, Text string
	Calls          []shownCall
	CallID         string
}

type shownCall struct{ ID, Name, Arguments string }

// String returns the page in a form that can be compared.
func (p *page) String() string {
	text, _ := json.MarshalIndent(map[string]any{
		"messages": p.messages, "state": p.state, "custom": p.custom, "end": p.end,
	}, "", " ")
	return string(text)
}

func (p *page) find(id string) *shown {
	for _, m := range p.messages {
		if m.ID == id {
			return m
		}
	}
	return nil
}

func (p *page) message(id, role string) *shown {
	m := p.find(id)
	if m == nil {
		m = &shown{ID: id, Role: role}
		p.messages = append(p.messages, m)
	}
	return m
}

// begin and finish track what is open.
func (p *page) begin(kind, id string) error {
	if slices.Contains(p.open, kind+" "+id) {
		return fmt.Errorf("%s %q begins twice", kind, id)
	}
	p.open = append(p.open, kind+" "+id)
	return nil
}

func (p *page) need(kind, id string) error {
	if !slices.Contains(p.open, kind+" "+id) {
		return fmt.Errorf("%s %q is not open", kind, id)
	}
	return nil
}

func (p *page) finish(kind, id string) error {
	if err := p.need(kind, id); err != nil {
		return err
	}
	p.open = slices.DeleteFunc(p.open, func(s string) bool { return s == kind+" "+id })
	return nil
}

// apply applies an event. It returns an error if a client of AG-UI would refuse it.
func (p *page) apply(e map[string]any) error {
	kind := textOf(e, "type")
	text := func(name string) string { return textOf(e, name) }
	if p.running == (kind == "RUN_STARTED") {
		return fmt.Errorf("%s while running = %v", kind, p.running)
	}
	id := text("messageId")
	switch kind {
	case "RUN_STARTED":
		p.running, p.end = true, nil
	case "RUN_FINISHED", "RUN_ERROR":
		if p.running, p.end = false, e; kind == "RUN_FINISHED" && len(p.open) > 0 {
			return fmt.Errorf("the run finishes while %q are open", p.open)
		}
	case "TEXT_MESSAGE_START":
		p.message(id, text("role"))
		return p.begin("text", id)
	case "TEXT_MESSAGE_CONTENT":
		if err := p.need("text", id); err != nil {
			return err
		}
		p.find(id).Text += text("delta")
	case "TEXT_MESSAGE_END":
		return p.finish("text", id)
	case "REASONING_START":
		return p.begin("span", id)
	case "REASONING_MESSAGE_START":
		p.message(id, text("role"))
		return p.begin("reasoning", id)
	case "REASONING_MESSAGE_CONTENT":
		if err := p.need("reasoning", id); err != nil {
			return err
		}
		p.find(id).Text += text("delta")
	case "REASONING_MESSAGE_END":
		return p.finish("reasoning", id)
	case "REASONING_END":
		return p.finish("span", id)
	case "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END":
		return p.applyCall(kind, text("toolCallId"), e)
	case "TOOL_CALL_RESULT":
		p.messages = append(p.messages, &shown{ID: id, Role: "tool", Text: text("content"), CallID: text("toolCallId")})
	case "MESSAGES_SNAPSHOT":
		p.replace(listOf(e, "messages"))
	case "STATE_SNAPSHOT":
		p.state = e["snapshot"]
	case "CUSTOM":
		value, _ := json.Marshal(e["value"])
		p.custom = append(p.custom, text("name")+" "+string(value))
	default:
		return fmt.Errorf("unknown event %q", kind)
	}
	return nil
}

func (p *page) applyCall(kind, id string, e map[string]any) error {
	if kind == "TOOL_CALL_START" {
		m := p.message(textOf(e, "parentMessageId"), "assistant")
		m.Calls = append(m.Calls, shownCall{ID: id, Name: textOf(e, "toolCallName")})
		return p.begin("call", id)
	}
	if kind == "TOOL_CALL_END" {
		return p.finish("call", id)
	}
	if err := p.need("call", id); err != nil {
		return err
	}
	for _, m := range slices.Backward(p.messages) {
		for i := range m.Calls {
			if m.Calls[i].ID == id {
				m.Calls[i].Arguments += textOf(e, "delta")
				return nil
			}
		}
	}
	return nil
}

// replace shows the messages of a snapshot.
func (p *page) replace(messages []any) {
	p.messages = nil
	for _, one := range messages {
		m, _ := one.(map[string]any)
		s := &shown{ID: textOf(m, "id"), Role: textOf(m, "role"), Text: textOf(m, "content"), CallID: textOf(m, "toolCallId")}
		for _, each := range listOf(m, "toolCalls") {
			call, _ := each.(map[string]any)
			function := objectOf(call, "function")
			s.Calls = append(s.Calls, shownCall{textOf(call, "id"), textOf(function, "name"), textOf(function, "arguments")})
		}
		p.messages = append(p.messages, s)
	}
}

// show applies events to an empty page.
func show(list []received) (*page, error) {
	p := new(page)
	for i, one := range list {
		if err := p.apply(one.event); err != nil {
			return p, fmt.Errorf("event %d: %w", i, err)
		}
	}
	return p, nil
}

// text returns the texts of the page without those of the user.
func (p *page) text() string {
	var texts []string
	for _, m := range p.messages {
		if m.Role == "assistant" {
			texts = append(texts, m.Text)
		}
	}
	return strings.Join(texts, "|")
}
