package window

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// history returns one message for each word. u, a and s are a user, assistant and system message. c1 is
// a call with the id 1, and r1 is a result with that id. The sequences and exchanges are those that the
// store would set.
func history(words ...string) []*parleyv1.Message {
	var messages []*parleyv1.Message
	for _, word := range words {
		m := &parleyv1.Message{Content: word}
		switch kind, id := word[0], word[1:]; kind {
		case 'u':
			m.Role = parleyv1.Role_ROLE_USER
		case 's':
			m.Role = parleyv1.Role_ROLE_SYSTEM
		case 'r':
			m.Role = parleyv1.Role_ROLE_TOOL
			m.ToolResult = &parleyv1.ToolResult{CallId: id}
		case 'c':
			m.Role = parleyv1.Role_ROLE_ASSISTANT
			m.ToolCalls = []*parleyv1.ToolCall{{Id: id, Name: "tool"}}
		default:
			m.Role = parleyv1.Role_ROLE_ASSISTANT
		}
		messages = append(messages, m)
	}
	number(messages)
	return messages
}

func number(messages []*parleyv1.Message) {
	exchange := int32(0)
	for i, m := range messages {
		if m.GetRole() == parleyv1.Role_ROLE_USER {
			exchange++
		}
		m.Sequence, m.Exchange = int32(i+1), exchange
	}
}

// offsetsOf returns the offsets of messages for Start, after this number of dropped bytes.
func offsetsOf(before int64, messages []*parleyv1.Message) []int64 {
	offsets := []int64{before}
	for _, m := range messages {
		before += int64(proto.Size(m))
		offsets = append(offsets, before)
	}
	return offsets
}

func TestStart(t *testing.T) {
	one := int32(proto.Size(history("u")[0])) // size of a message with one letter
	tests := []struct {
		name    string
		history []*parleyv1.Message
		window  *parleyv1.ContextWindow
		want    int
	}{
		{"no history", nil, nil, 0},
		{"no bound", history("u", "a", "u", "a"), nil, 0},
		{"no bound set", history("u", "a", "u", "a"), &parleyv1.ContextWindow{}, 0},
		{"no bound set, cache stable", history("u", "a", "u", "a"), &parleyv1.ContextWindow{CacheStable: true}, 0},
		{"starts at a user message", history("a", "s", "r1", "u", "a"), nil, 3},
		{"no user message", history("a", "s", "a"), nil, 3},
		{"messages, exactly", history("u", "a", "u", "a"), &parleyv1.ContextWindow{MaxMessages: 2}, 2},
		{"messages, cut at a user message", history("u", "a", "u", "a"), &parleyv1.ContextWindow{MaxMessages: 3}, 2},
		{"messages, newest exchange too large", history("u", "a", "u", "a", "a"), &parleyv1.ContextWindow{MaxMessages: 2}, 5},
		{"exchanges", history("u", "a", "u", "a", "u", "a"), &parleyv1.ContextWindow{MaxExchanges: 2}, 2},
		{"user messages in a row", history("u", "u", "u", "a"), &parleyv1.ContextWindow{MaxExchanges: 2}, 1},
		{"bytes, exactly", history("u", "a", "u", "a"), &parleyv1.ContextWindow{MaxBytes: 2 * one}, 2},
		{"bytes, one short", history("u", "a", "u", "a"), &parleyv1.ContextWindow{MaxBytes: 2*one - 1}, 4},
		{
			"the tightest bound counts", history("u", "a", "u", "a"),
			&parleyv1.ContextWindow{MaxMessages: 4, MaxExchanges: 1, MaxBytes: 4 * one}, 2,
		},
		{
			"a call and its result stay together", history("u", "c1", "u", "r1", "u", "a"),
			&parleyv1.ContextWindow{MaxMessages: 4}, 4,
		},
		{"a call and its result both fit", history("u", "c1", "u", "r1", "u", "a"), nil, 0},
		{
			"a later call with the same id", history("u", "c1", "r1", "u", "c1", "r1"),
			&parleyv1.ContextWindow{MaxExchanges: 1}, 3,
		},
		{
			"a result belongs to the nearest call", history("u", "c1", "u", "c1", "u", "r1"),
			&parleyv1.ContextWindow{MaxExchanges: 1}, 6,
		},
		{"a second result", history("u", "c1", "r1", "u", "r1", "u"), &parleyv1.ContextWindow{MaxExchanges: 2}, 5},
		{"a result before its call", history("u", "r1", "c1", "u", "a"), nil, 3},
		{"a result without a call", history("u", "a", "u", "r1", "u", "a"), nil, 4},
		{"a call without a result", history("u", "c1", "u", "a"), &parleyv1.ContextWindow{MaxExchanges: 1}, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := Start(test.history, offsetsOf(0, test.history), test.window); got != test.want {
				t.Errorf("Start = %d, want %d", got, test.want)
			}
		})
	}
}

// isLawful implements the laws in a simple, slow way: it searches the nearest earlier call of each
// result.
func isLawful(messages []*parleyv1.Message, from int, w *parleyv1.ContextWindow) bool {
	if messages[from].GetRole() != parleyv1.Role_ROLE_USER {
		return false
	}
	exchanges, size := 0, 0
	for i := from; i < len(messages); i++ {
		size += proto.Size(messages[i])
		if messages[i].GetRole() == parleyv1.Role_ROLE_USER {
			exchanges++
		}
		if messages[i].GetRole() == parleyv1.Role_ROLE_TOOL && callIndex(messages, i) < from {
			return false
		}
	}
	return (w.GetMaxMessages() == 0 || len(messages)-from <= int(w.GetMaxMessages())) &&
		(w.GetMaxExchanges() == 0 || exchanges <= int(w.GetMaxExchanges())) &&
		(w.GetMaxBytes() == 0 || size <= int(w.GetMaxBytes()))
}

// callIndex returns the index of the call of a result, -1 if there is none.
func callIndex(messages []*parleyv1.Message, result int) int {
	id := messages[result].GetToolResult().GetCallId()
	for i, m := range slices.Backward(messages[:result]) {
		if slices.ContainsFunc(m.GetToolCalls(), func(c *parleyv1.ToolCall) bool { return c.GetId() == id }) {
			return i
		}
	}
	return -1
}

func largestStart(messages []*parleyv1.Message, w *parleyv1.ContextWindow) int {
	for i := range messages {
		if isLawful(messages, i, w) {
			return i
		}
	}
	return len(messages)
}

func exchanges(messages []*parleyv1.Message) int {
	n := 0
	for _, m := range messages {
		if m.GetRole() == parleyv1.Role_ROLE_USER {
			n++
		}
	}
	return n
}

// messageKinds generates words for history. The ids are few, so that a history uses them again. Calls
// and results are in any order, and some calls have no result or the reverse.
var messageKinds = rapid.SampledFrom([]string{"u", "u", "u", "a", "a", "s", "c1", "c2", "c3", "r1", "r2", "r3"})

func drawHistory(t *rapid.T) []*parleyv1.Message {
	messages := history(rapid.SliceOfN(messageKinds, 0, 40).Draw(t, "words")...)
	for _, m := range messages {
		m.Content = rapid.StringN(0, 20, -1).Draw(t, "content")
	}
	return messages
}

func drawWindow(t *rapid.T) *parleyv1.ContextWindow {
	bound := func(most int32, name string) int32 {
		return rapid.OneOf(rapid.Just(int32(0)), rapid.Int32Range(1, most)).Draw(t, name)
	}
	w := &parleyv1.ContextWindow{MaxBytes: bound(1000, "max_bytes")}
	if w.MaxBytes == 0 || rapid.Bool().Draw(t, "several bounds") {
		w.MaxMessages, w.MaxExchanges = bound(40, "max_messages"), bound(15, "max_exchanges")
	}
	return w
}

// drawOffsets returns the offsets of messages, sometimes nil.
func drawOffsets(t *rapid.T, messages []*parleyv1.Message) []int64 {
	if rapid.IntRange(0, 3).Draw(t, "offsets unknown") == 3 {
		return nil
	}
	return offsetsOf(rapid.Int64Range(0, 5000).Draw(t, "dropped"), messages)
}

// missingPart describes by how much a stable window is too small, compared to the largest window. It
// returns "" if the window is large enough.
func missingPart(got, full []*parleyv1.Message, offsets []int64, w *parleyv1.ContextWindow) string {
	has, fits := exchanges(got), exchanges(full)
	if offsets == nil || w.GetMaxExchanges() > 0 || w.GetMaxMessages() > 0 {
		if 2*has < fits {
			return fmt.Sprintf("%d exchanges of %d that fit", has, fits)
		}
		return ""
	}
	size, most, bound := bytes(got), bytes(full), int64(w.GetMaxBytes())
	if most-size > (bound+1)/2 || 2*size < most && 4*size < bound {
		return fmt.Sprintf("%d bytes of %d that fit", size, most)
	}
	return ""
}

func bytes(messages []*parleyv1.Message) int64 {
	offsets := offsetsOf(0, messages)
	return offsets[len(messages)]
}

func checkLaws(t *rapid.T) {
	messages, w := drawHistory(t), drawWindow(t)
	offsets := drawOffsets(t, messages)
	before := &parleyv1.ListMessagesResponse{Messages: messages}
	copied, copiedOffsets := proto.CloneOf(before), slices.Clone(offsets)

	full := largestStart(messages, w)
	if got := Start(messages, offsets, w); got != full {
		t.Fatalf("Start = %d, want %d: the largest lawful window", got, full)
	}
	w.CacheStable = true
	got := Start(messages, offsets, w)
	if got < len(messages) && !isLawful(messages, got, w) {
		t.Fatalf("cache stable: Start = %d breaks a law", got)
	}
	if missing := missingPart(messages[got:], messages[full:], offsets, w); missing != "" {
		t.Fatalf("cache stable: %s, want about half", missing)
	}
	if !bounded(w) && got != full {
		t.Fatalf("cache stable without a bound: Start = %d, want %d", got, full)
	}
	if diff := cmp.Diff(copied, before, protocmp.Transform()); diff != "" || !slices.Equal(copiedOffsets, offsets) {
		t.Fatalf("Start changed the messages or their offsets:\n%s", diff)
	}
}

func TestStartObeysLaws(t *testing.T) { rapid.Check(t, checkLaws) }

func FuzzStart(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkLaws)) }

// TestStartIgnoresOlderMessages: a store drops its oldest messages at any time. That must not move
// a window that does not contain them.
func TestStartIgnoresOlderMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages, w := drawHistory(t), drawWindow(t)
		offsets := offsetsOf(0, messages)
		dropped := rapid.IntRange(0, Start(messages, offsets, w)).Draw(t, "dropped")
		w.CacheStable = rapid.Bool().Draw(t, "cache_stable")
		want := Start(messages, offsets, w)
		if got := dropped + Start(messages[dropped:], offsets[dropped:], w); got != want {
			t.Fatalf("Start without the oldest %d messages = %d, want %d", dropped, got, want)
		}
	})
}

func BenchmarkStart(b *testing.B) {
	var messages []*parleyv1.Message
	for range 10 {
		messages = append(messages, history("u", "c1", "r1", "a")...)
	}
	number(messages)
	offsets := offsetsOf(0, messages)
	for _, w := range []*parleyv1.ContextWindow{
		{MaxExchanges: 5},
		{MaxBytes: 1 << 20},
		{MaxExchanges: 5, CacheStable: true},
	} {
		b.Run(w.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Start(messages, offsets, w)
			}
		})
	}
}
