package history

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// frames returns messages in the form in which a store returns them.
func frames(t *testing.T, messages []*parleyv1.Message) store.Frames {
	t.Helper()
	var encoded store.Frames
	for _, m := range messages {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		encoded = store.AppendFrame(encoded, body)
	}
	return encoded
}

// results returns a result for each id, which has one letter.
func results(ids string) []*parleyv1.ToolResult {
	var all []*parleyv1.ToolResult
	for id := range strings.SplitSeq(ids, "") {
		all = append(all, &parleyv1.ToolResult{CallId: id})
	}
	return all
}

func TestMatchResults(t *testing.T) {
	tests := []struct {
		name    string
		history string
		ids     string
		want    []int // index of the message with each call
		err     *NoOpenCallError
	}{
		{"one call", "u a1", "1", []int{1}, nil},
		{"in another order", "u a12", "21", []int{1, 1}, nil},
		{"calls of two messages", "u a1 u a2", "21", []int{3, 1}, nil},
		{"an id that is used again", "u a1 u a1", "1", []int{3}, nil},
		{"two calls with one id", "u a11", "11", []int{1, 1}, nil},
		{"no call", "u a", "1", nil, &NoOpenCallError{CallID: "1"}},
		{"another call", "u a12", "3", nil, &NoOpenCallError{CallID: "3", Open: []string{"1", "2"}}},
		{"a call with a result", "u a12 r1", "1", nil, &NoOpenCallError{CallID: "1", Answered: true, Open: []string{"2"}}},
		{"more results than calls", "u a1", "11", nil, &NoOpenCallError{CallID: "1", Answered: true, Open: []string{"1"}}},
		{"a call of an older message with the id", "u a1 u a1 r1", "1", nil, &NoOpenCallError{CallID: "1", Answered: true}},
	}
	for _, test := range tests {
		calls, err := MatchResults(parse(test.history), results(test.ids))
		var got []int
		for _, call := range calls {
			got = append(got, call.message)
		}
		refused, _ := errors.AsType[*NoOpenCallError](err)
		if !cmp.Equal(test.want, got) || !cmp.Equal(test.err, refused) {
			t.Errorf("%s: MatchResults(%q, %q) = %v, %v, want %v, %v", test.name, test.history, test.ids, got, err, test.want,
				test.err)
		}
	}
}

// TestOpenCallsOfAnError: an error lists the newest open calls, oldest first.
func TestOpenCallsOfAnError(t *testing.T) {
	const count = maxListedCalls + 10
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT}
	for i := range count {
		m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: string(rune('A' + i))})
	}
	_, err := MatchResults([]*parleyv1.Message{m}, results("?"))
	refused, _ := errors.AsType[*NoOpenCallError](err)
	if refused == nil || len(refused.Open) != maxListedCalls || refused.Open[0] != string(rune('A'+count-maxListedCalls)) {
		t.Errorf("MatchResults: error = %v, want the newest %d open calls", err, maxListedCalls)
	}
}

func TestCheckRetention(t *testing.T) {
	tests := []struct {
		name        string
		history     string
		maxMessages int32
		maxBytes    int
		inputs      int
		want        *TooSmallError
	}{
		{"exactly", "u a12", 4, 0, 3, nil}, // Without the user message.
		{"one message too many", "u a12", 4, 0, 4, &TooSmallError{CallID: "1", MaxMessages: 4}},
		{"bytes", "u a12", 100, 100, 2, &TooSmallError{CallID: "1", MaxMessages: 100, MaxBytes: 100}},
		{"enough bytes", "u a12", 100, 1000, 2, nil},
	}
	for _, test := range tests {
		messages := parse(test.history)
		snapshot := &store.Snapshot{
			Conversation: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: test.maxMessages}},
			Messages:     frames(t, messages),
		}
		calls, err := MatchResults(messages, results("12"))
		if err != nil {
			t.Fatal(err)
		}
		var inputs []*parleyv1.Message
		for range test.inputs {
			inputs = append(inputs, &parleyv1.Message{
				Role:       parleyv1.Role_ROLE_TOOL,
				ToolResult: &parleyv1.ToolResult{CallId: "1"},
			})
		}
		got, _ := errors.AsType[*TooSmallError](CheckRetention(inputs, calls, snapshot, test.maxBytes))
		if !cmp.Equal(test.want, got) {
			t.Errorf("%s: CheckRetention = %v, want %v", test.name, got, test.want)
		}
	}
}

// TestCheckRetentionOfAll: a conversation that keeps all messages drops no call.
func TestCheckRetentionOfAll(t *testing.T) {
	messages := parse("u a12")
	snapshot := &store.Snapshot{
		Conversation: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 1, KeepAll: true}},
		Messages:     frames(t, messages),
	}
	calls, err := MatchResults(messages, results("12"))
	if err != nil {
		t.Fatal(err)
	}
	inputs := []*parleyv1.Message{{ToolResult: &parleyv1.ToolResult{CallId: "1"}}}
	if err := CheckRetention(inputs, calls, snapshot, 1); err != nil {
		t.Errorf("CheckRetention = %v, want no error", err)
	}
}

func TestCheckFull(t *testing.T) {
	input := &parleyv1.Message{Content: strings.Repeat("x", 100)}
	size := int32(proto.Size(input))
	tests := []struct {
		name           string
		keepAll        bool
		messages, size int32
		maxBytes       int
		full           bool
	}{
		{"exactly", true, 3, 900, int(900 + size), false},
		{"one byte more", true, 3, 901, int(900 + size), true},
		{"no limit", true, 3, 901, 0, false},
		{"the first message", true, 0, 0, 10, false},
		{"it drops messages", false, 3, 901, int(900 + size), false},
	}
	for _, test := range tests {
		c := &parleyv1.Conversation{
			Retention: &parleyv1.Retention{KeepAll: test.keepAll}, MessageCount: test.messages, SizeBytes: test.size,
		}
		err := CheckFull([]*parleyv1.Message{input}, c, test.maxBytes)
		if _, full := errors.AsType[*store.ConversationFullError](err); full != test.full || full != (err != nil) {
			t.Errorf("%s: CheckFull = %v, want an error: %t", test.name, err, test.full)
		}
	}
	if err := CheckFull([]*parleyv1.Message{input}, nil, 1); err != nil {
		t.Errorf("CheckFull without a conversation = %v", err)
	}
}
