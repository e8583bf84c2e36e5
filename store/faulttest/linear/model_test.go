package linear

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// What the server under test is told to keep.
const (
	maxConversations = 3
	maxMessages      = 4
)

// call is what a client asks for.
type call struct {
	kind      string // "append", "read" or "list"
	id        string // of a conversation; not of a list
	words     []string
	ifVersion int32 // of an append; below 0: any
}

// answer is what it was told.
type answer struct {
	lost    bool // the server was killed first
	missing bool // there is no such conversation
	// refused: the conversation is at another version, which is told.
	refused bool
	version int32
	created bool
	last    int32    // sequence
	words   []string // of a read
	listed  []string // of a list: ids with versions, newest first
}

// conversation is one as it should be.
type conversation struct {
	id            string
	version, last int32
	words         []string // kept, oldest first
}

// state is all conversations, oldest first. It is never changed.
type state []conversation

// model is the service as one client alone would see it.
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
		return a.id == b.id && a.version == b.version && a.last == b.last && slices.Equal(a.words, b.words)
	})
}

// next are the states that a call with that answer may lead to; none where the answer is wrong.
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
	return a.missing == b.missing && a.refused == b.refused && a.version == b.version && a.created == b.created && a.last == b.last &&
		slices.Equal(a.words, b.words) && slices.Equal(a.listed, b.listed)
}

// do does a call.
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
	return s, answer{version: s[at].version, last: s[at].last, words: s[at].words}
}

func (s state) append(at int, c call) (state, answer) {
	created, was := at < 0, conversation{id: c.id}
	if !created {
		was = s[at]
	}
	if c.ifVersion >= 0 && c.ifVersion != was.version {
		return s, answer{refused: true, version: was.version}
	}
	now := conversation{id: c.id, version: was.version + 1, last: was.last + int32(len(c.words)), words: slices.Concat(was.words, c.words)}
	now.words = now.words[max(0, len(now.words)-maxMessages):]
	after := slices.Clone(s)
	if created {
		after = append(after[max(0, len(s)+1-maxConversations):], now) // The oldest goes.
	} else {
		after[at] = now
	}
	return after, answer{version: now.version, last: now.last, created: created}
}

// row is a conversation in a list.
func row(id string, version int32) string { return fmt.Sprint(id, " at ", version) }

// as gives what the checker hands back its type again.
func as[T any](v any) T {
	typed, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("%T is no %T", v, typed))
	}
	return typed
}

// operation is a call and its answer.
type operation struct {
	client       int
	asked        call
	got          answer
	began, ended int64 // since the history began, in ns
}

// check asks whether the service could have answered so.
func check(history []operation) porcupine.CheckResult {
	all := make([]porcupine.Operation, len(history))
	for i, o := range history {
		all[i] = porcupine.Operation{ClientId: o.client, Input: o.asked, Output: o.got, Call: o.began, Return: o.ended}
	}
	return porcupine.CheckOperationsTimeout(model(), all, checkWithin)
}

// describe is a line for each operation.
func describe(history []operation) string {
	text := &strings.Builder{}
	for _, o := range history {
		fmt.Fprintf(text, "client %d, %d to %d: %+v -> %+v\n", o.client, o.began, o.ended, o.asked, o.got)
	}
	return text.String()
}
