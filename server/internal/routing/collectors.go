package routing

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// collectors compute the parts of a summary that depend on all messages. Messages are added from
// the newest to the oldest.
type collectors struct {
	limit    int           // of recent
	recent   []store.Frame // the summary's recent messages, the newest first
	data     dataUses
	agents   agentUses
	calls    toolCalls
	question question
	text     text
	message  message // reused for each added message
}

func newCollectors(limit int) *collectors {
	return &collectors{
		limit: limit, recent: make([]store.Frame, 0, limit),
		data:   dataUses{byType: make(map[string]*parleyv1.StructuredDataUse)},
		agents: agentUses{seen: make(map[string]bool)},
		calls:  toolCalls{results: make(map[string]int)},
		text:   newText(),
	}
}

// add adds a message, unless it is an empty answer.
func (c *collectors) add(frame store.Frame) error {
	m := &c.message
	if err := m.read(frame); err != nil {
		return err
	}
	if empty, err := m.isEmptyAnswer(frame); empty || err != nil {
		return err
	}
	older := len(c.recent) == c.limit
	if !older {
		c.recent = append(c.recent, frame)
	}
	c.data.add(m, older)
	c.question.add(m)
	c.text.add(m)
	if err := c.agents.add(m); err != nil {
		return err
	}
	return c.calls.add(m)
}

// referencedData is the field in which ReferencedData has its value.
var referencedData = store.FieldNumber(new(parleyv1.ReferencedData), "data")

// dataUses collects how each type of structured data is used, and the newest value of each type
// that only older messages have. Both lists start with the newest. Of two values in one message the
// second is newer.
type dataUses struct {
	types      []*parleyv1.StructuredDataUse
	referenced []*parleyv1.ReferencedData
	byType     map[string]*parleyv1.StructuredDataUse
}

func (u *dataUses) add(m *message, older bool) {
	for _, data := range slices.Backward(m.StructuredData) {
		if use, seen := u.byType[string(data.Name)]; seen {
			use.Count++
			continue
		}
		use := &parleyv1.StructuredDataUse{
			Type: string(data.Name), Count: 1, LastSequence: m.Sequence, LastAgent: string(m.Agent),
		}
		u.byType[use.Type] = use
		u.types = append(u.types, use)
		if older {
			r := &parleyv1.ReferencedData{Sequence: m.Sequence, Agent: use.LastAgent}
			tag := protowire.AppendTag(nil, referencedData, protowire.BytesType)
			setEncoded(r, protowire.AppendBytes(tag, data.Encoded))
			u.referenced = append(u.referenced, r)
		}
	}
}

// agentUses collects the agents that wrote assistant messages, the newest first.
type agentUses struct {
	recent []*parleyv1.AgentUse
	seen   map[string]bool
}

func (u *agentUses) add(m *message) error {
	if m.Role != parleyv1.Role_ROLE_ASSISTANT || len(m.Agent) == 0 || u.seen[string(m.Agent)] {
		return nil
	}
	use := &parleyv1.AgentUse{Agent: string(m.Agent), LastSequence: m.Sequence}
	if m.CreateTime != nil {
		at, err := m.Time()
		if err != nil {
			return err
		}
		use.LastTime = timestamppb.New(at)
	}
	u.seen[use.Agent] = true
	u.recent = append(u.recent, use)
	return nil
}

// question determines whether the newest user message is unanswered. It skips system messages,
// which answer nothing. An incomplete answer counts as an answer if it says anything, because an agent accepted
// the message. A tool result counts as an answer, too: it is a step of an answer that has started.
type question struct{ decided, open bool }

func (q *question) add(m *message) {
	if !q.decided && m.Role != parleyv1.Role_ROLE_SYSTEM {
		q.decided, q.open = true, m.Role == parleyv1.Role_ROLE_USER
	}
}

// toolCalls collects the pending calls, the newest first. ToolResult.call_id defines which calls are
// pending. A result belongs to the newest older message that has calls with its id, and answers the
// first of them that is open. User messages in between answer no call.
type toolCalls struct {
	pending []*parleyv1.ToolCall
	results map[string]int // results by call id in newer messages, or superseded
	open    []store.Nested // pending calls of the message being added
}

// superseded replaces the number of results of a call id once a newer message has a call with that
// id. Older calls with the id are not pending.
const superseded = -1

func (t *toolCalls) add(m *message) error {
	if m.Role == parleyv1.Role_ROLE_TOOL && t.results[string(m.resultCallID)] != superseded {
		t.results[string(m.resultCallID)]++
	}
	t.open = t.open[:0]
	for _, call := range m.ToolCalls {
		switch n := t.results[string(call.Name)]; n {
		case superseded:
		case 0:
			t.open = append(t.open, call)
		default:
			t.results[string(call.Name)] = n - 1
		}
	}
	for _, call := range m.ToolCalls {
		t.results[string(call.Name)] = superseded
	}
	for _, open := range slices.Backward(t.open) {
		call := new(parleyv1.ToolCall)
		if err := decode(open.Encoded, call); err != nil {
			return err
		}
		t.pending = append(t.pending, call)
	}
	return nil
}

// decode unmarshals a nested message. It wraps errors in store.ErrCorrupt.
func decode(encoded []byte, into proto.Message) error {
	if err := proto.Unmarshal(encoded, into); err != nil {
		return fmt.Errorf("%w: %s: %w", store.ErrCorrupt, into.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}
