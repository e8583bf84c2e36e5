package routing

import (
	"fmt"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// parts are those of a summary that every message has a say in. Messages are added from the
// newest on.
type parts struct {
	data     dataUses
	agents   agentUses
	calls    toolCalls
	question question
	text     text
	message  message // the one that is added
}

func newParts() *parts {
	return &parts{
		data:   dataUses{byType: make(map[string]*parleyv1.StructuredDataUse)},
		agents: agentUses{met: make(map[string]bool)},
		calls:  toolCalls{results: make(map[string]int)},
		text:   newText(),
	}
}

func (p *parts) add(frame store.Frame, older bool) error {
	m := &p.message
	if err := m.read(frame); err != nil {
		return err
	}
	p.data.add(m, older)
	p.question.add(m)
	p.text.add(m)
	if err := p.agents.add(m); err != nil {
		return err
	}
	return p.calls.add(m)
}

// dataUses are the types of structured data with their use, newest first, and the newest
// value of each type that only older messages carry, newest first. Of the values of one
// message the later is the newer.
type dataUses struct {
	types      []*parleyv1.StructuredDataUse
	referenced []*parleyv1.ReferencedData
	byType     map[string]*parleyv1.StructuredDataUse
}

func (u *dataUses) add(m *message, older bool) {
	for _, data := range slices.Backward(m.data) {
		if use, met := u.byType[string(data.name)]; met {
			use.Count++
			continue
		}
		use := &parleyv1.StructuredDataUse{
			Type: string(data.name), Count: 1, LastSequence: m.sequence, LastAgent: string(m.agent),
		}
		u.byType[use.Type] = use
		u.types = append(u.types, use)
		if older {
			r := &parleyv1.ReferencedData{Sequence: m.sequence, Agent: use.LastAgent}
			splice(r, protowire.AppendBytes(protowire.AppendTag(nil, referencedData, protowire.BytesType), data.encoded))
			u.referenced = append(u.referenced, r)
		}
	}
}

// agentUses are the agents that wrote an assistant message, newest first.
type agentUses struct {
	recent []*parleyv1.AgentUse
	met    map[string]bool
}

func (u *agentUses) add(m *message) error {
	if m.role != parleyv1.Role_ROLE_ASSISTANT || len(m.agent) == 0 || u.met[string(m.agent)] {
		return nil
	}
	use := &parleyv1.AgentUse{Agent: string(m.agent), LastSequence: m.sequence}
	if m.createTime != nil {
		use.LastTime = new(timestamppb.Timestamp)
		if err := decode(m.createTime, use.LastTime); err != nil {
			return err
		}
	}
	u.met[use.Agent] = true
	u.recent = append(u.recent, use)
	return nil
}

// question is open when a person asks and nobody has answered. A system message after the
// question answers nothing and is passed over. A cut-off answer is one, since somebody took
// the question; a tool's result is a step of an answer that has begun.
type question struct{ decided, open bool }

func (q *question) add(m *message) {
	if !q.decided && m.role != parleyv1.Role_ROLE_SYSTEM {
		q.decided, q.open = true, m.role == parleyv1.Role_ROLE_USER
	}
}

// toolCalls are pending while they are open by the rule of ToolResult.call_id, newest first:
// results answer the first calls by their id in the newest message ahead of them that has
// some. What a user says in between answers nothing.
type toolCalls struct {
	pending []*parleyv1.ToolCall
	results map[string]int // by id, of the messages so far; over once there is a call by it
	open    []part         // of the message that is added
}

// over is instead of a number of results: older calls by the id are not open, whatever comes.
const over = -1

func (t *toolCalls) add(m *message) error {
	if m.role == parleyv1.Role_ROLE_TOOL && t.results[string(m.answers)] != over {
		t.results[string(m.answers)]++
	}
	t.open = t.open[:0]
	for _, part := range m.calls {
		switch n := t.results[string(part.name)]; n {
		case over:
		case 0:
			t.open = append(t.open, part)
		default:
			t.results[string(part.name)] = n - 1
		}
	}
	for _, part := range m.calls {
		t.results[string(part.name)] = over
	}
	for _, part := range slices.Backward(t.open) {
		call := new(parleyv1.ToolCall)
		if err := decode(part.encoded, call); err != nil {
			return err
		}
		t.pending = append(t.pending, call)
	}
	return nil
}

func decode(encoded []byte, into proto.Message) error {
	if err := proto.Unmarshal(encoded, into); err != nil {
		return fmt.Errorf("%w: %s: %w", store.ErrCorrupt, into.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}
