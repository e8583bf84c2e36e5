package linear

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Settings of the server under test.
const (
	maxConversations = 3
	maxMessages      = 4
)

// call is a call of a client.
type call struct {
	kind      string // "append", "read" or "list"
	id        string // of a conversation; not of a list
	contents  []string
	ifVersion int32 // of an append; below 0 for any version
}

// answer is the answer to a call.
type answer struct {
	lost    bool // The server was killed before it answered.
	missing bool // The conversation does not exist.
	// refused means that the conversation has another version, which is in version.
	refused  bool
	version  int32
	created  bool
	last     int32    // sequence
	contents []string // of a read
	listed   []string // of a list: ids with versions, newest first
}

// conversation is the state of a conversation in the model.
type conversation struct {
	id            string
	version, last int32
	contents      []string // stored ones, oldest first
}

// state is all conversations, oldest first. It is immutable.
type state []conversation

// model returns the sequential specification of the service.
func model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, input, output any) []any {
			return next(as[state](s), as[call](input), as[answer](output))
		},
		Equal: func(a, b any) bool { return as[state](a).equal(as[state](b)) },
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v -> %+v", input, output)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
	}
	return m.ToModel()
}

func (s state) equal(other state) bool {
	return slices.EqualFunc(s, other, func(a, b conversation) bool {
		return a.id == b.id && a.version == b.version && a.last == b.last && slices.Equal(a.contents, b.contents)
	})
}

// next returns the possible states after a call with the answer got; none if the answer is wrong.
func next(s state, c call, got answer) []any {
	after, want := s.do(c)
	switch {
	case got.lost && after.equal(s):
		return []any{s}
	case got.lost:
		return []any{s, after}
	case want.equal(got):
		return []any{after}
	}
	return nil
}

func (a answer) equal(b answer) bool {
	return a.missing == b.missing && a.refused == b.refused && a.version == b.version && a.created == b.created &&
		a.last == b.last &&
		slices.Equal(a.contents, b.contents) && slices.Equal(a.listed, b.listed)
}

// do applies a call and returns the next state and the right answer.
func (s state) do(c call) (state, answer) {
	at := slices.IndexFunc(s, func(has conversation) bool { return has.id == c.id })
	switch {
	case c.kind == "list":
		listed := make([]string, 0, len(s))
		for _, has := range slices.Backward(s) {
			listed = append(listed, row(has.id, has.version))
		}
		return s, answer{listed: listed}
	case c.kind == "append":
		return s.append(at, c)
	case at < 0:
		return s, answer{missing: true}
	}
	return s, answer{version: s[at].version, last: s[at].last, contents: s[at].contents}
}

func (s state) append(at int, c call) (state, answer) {
	created, was := at < 0, conversation{id: c.id}
	if !created {
		was = s[at]
	}
	if c.ifVersion >= 0 && c.ifVersion != was.version {
		return s, answer{refused: true, version: was.version}
	}
	now := conversation{
		id: c.id, version: was.version + 1, last: was.last + int32(len(c.contents)),
		contents: slices.Concat(was.contents, c.contents),
	}
	now.contents = now.contents[max(0, len(now.contents)-maxMessages):]
	after := slices.Clone(s)
	if created {
		after = append(after[max(0, len(s)+1-maxConversations):], now) // The oldest conversation is evicted.
	} else {
		after[at] = now
	}
	return after, answer{version: now.version, last: now.last, created: created}
}

// row returns a conversation of a list as text.
func row(id string, version int32) string { return fmt.Sprint(id, " at ", version) }

// as converts a value of the checker to its type.
func as[T any](v any) T {
	typed, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("value is a %T, want a %T", v, typed))
	}
	return typed
}

// operation is a call with its answer.
type operation struct {
	client       int
	call         call
	got          answer
	began, ended int64 // since the start of the history, in ns
}

// check checks that a history is linearizable.
func check(history []operation) porcupine.CheckResult {
	all := make([]porcupine.Operation, len(history))
	for i, o := range history {
		all[i] = porcupine.Operation{ClientId: o.client, Input: o.call, Output: o.got, Call: o.began, Return: o.ended}
	}
	return porcupine.CheckOperationsTimeout(model(), all, checkLimit)
}

// describe returns a line for each operation.
func describe(history []operation) string {
	text := &strings.Builder{}
	for _, o := range history {
		fmt.Fprintf(text, "client %d, %d to %d: %+v -> %+v\n", o.client, o.began, o.ended, o.call, o.got)
	}
	return text.String()
}
