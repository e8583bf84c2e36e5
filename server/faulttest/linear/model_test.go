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
	refused bool
	version int32
	created bool
	// createTime is that of the conversation if an append created it. Without an answer, only its bounds are known.
	createTime span
	last       int32    // sequence
	contents   []string // of a read
	listed     []string // of a list: ids with versions, newest first
}

// conversation is the state of a conversation in the model.
type conversation struct {
	id            string
	version, last int32
	contents      []string // stored ones, oldest first
	createTime    span
}

// span is the time between two instants, in ns since 1970.
type span struct{ from, to int64 }

// state is all conversations in the order of their create times, oldest first. Several servers may commit in another
// order. It is immutable.
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
		return a.id == b.id && a.version == b.version && a.last == b.last && a.createTime == b.createTime &&
			slices.Equal(a.contents, b.contents)
	})
}

// next returns the possible states after a call with the answer got; none if the answer is wrong.
func next(s state, c call, got answer) []any {
	possible, want := s.do(c, got.createTime)
	if !got.lost && !want.equal(got) {
		return nil
	}
	var after []any
	if got.lost {
		after = append(after, s)
	}
	for _, p := range possible {
		after = append(after, p)
	}
	return after
}

func (a answer) equal(b answer) bool {
	return a.missing == b.missing && a.refused == b.refused && a.version == b.version && a.created == b.created &&
		a.createTime == b.createTime && a.last == b.last &&
		slices.Equal(a.contents, b.contents) && slices.Equal(a.listed, b.listed)
}

// do applies a call and returns the possible next states and the right answer. createTime is that of a conversation
// that the call creates.
func (s state) do(c call, createTime span) ([]state, answer) {
	at := slices.IndexFunc(s, func(has conversation) bool { return has.id == c.id })
	switch {
	case c.kind == "list":
		listed := make([]string, 0, len(s))
		for _, has := range slices.Backward(s) {
			listed = append(listed, row(has.id, has.version))
		}
		return []state{s}, answer{listed: listed}
	case c.kind == "append":
		return s.append(at, c, createTime)
	case at < 0:
		return []state{s}, answer{missing: true}
	}
	return []state{s}, answer{version: s[at].version, last: s[at].last, contents: s[at].contents}
}

func (s state) append(at int, c call, createTime span) ([]state, answer) {
	created, was := at < 0, conversation{id: c.id, createTime: createTime}
	if !created {
		was = s[at]
	}
	if c.ifVersion >= 0 && c.ifVersion != was.version {
		return []state{s}, answer{refused: true, version: was.version}
	}
	now := conversation{
		id: c.id, version: was.version + 1, last: was.last + int32(len(c.contents)),
		contents: slices.Concat(was.contents, c.contents), createTime: was.createTime,
	}
	now.contents = now.contents[max(0, len(now.contents)-maxMessages):]
	right := answer{version: now.version, last: now.last, created: created}
	if created {
		right.createTime = createTime
		return s[max(0, len(s)+1-maxConversations):].insert(now), right // The oldest conversation is evicted.
	}
	after := slices.Clone(s)
	after[at] = now
	return []state{after}, right
}

// insert returns the states with one more conversation, which is at any place that the create times allow.
func (s state) insert(created conversation) []state {
	later := func(has conversation) bool { return has.createTime.from > created.createTime.to }
	earlier := func(has conversation) bool { return has.createTime.to < created.createTime.from }
	var possible []state
	for at := range len(s) + 1 {
		if !slices.ContainsFunc(s[:at], later) && !slices.ContainsFunc(s[at:], earlier) {
			possible = append(possible, slices.Insert(slices.Clone(s), at, created))
		}
	}
	return possible
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
