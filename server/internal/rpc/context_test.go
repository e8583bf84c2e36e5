package rpc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// TestStartOnPage: if the newest exchange is larger than a reply, GetContext returns the newest messages that fit, within
// the other bounds and without a result that lacks its call.
func TestStartOnPage(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	user := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "q"}
	call := &parleyv1.Message{
		Role: parleyv1.Role_ROLE_ASSISTANT, Content: large, ToolCalls: []*parleyv1.ToolCall{{Id: "1", Name: "find"}},
	}
	result := &parleyv1.Message{
		Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1", Content: large},
	}
	answer := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Content: large}
	exchange := []*parleyv1.Message{user, call, result, call, result, answer}
	for _, test := range []struct {
		name     string
		messages []*parleyv1.Message
		w        *parleyv1.ContextWindow
		want     int
	}{
		{"result without its call", exchange, nil, 5},
		{"calls with results", exchange[:5], nil, 3},
		{"as large as the reply allows", append([]*parleyv1.Message{user}, exchange[3:5]...), nil, 0},
		{"older exchanges", append(exchange[:6:6], user, answer), nil, 6},
		{"the caller's own limit is smaller", exchange, &parleyv1.ContextWindow{MaxBytes: 1000}, 6},
		{"the caller's own limit is larger", exchange, &parleyv1.ContextWindow{MaxBytes: 1 << 30}, 5},
		{"too many messages", exchange, &parleyv1.ContextWindow{MaxMessages: 2}, 6},
		{"no user message", exchange[1:], nil, 4},
	} {
		s := memstore.New(store.Options{MaxConversationBytes: store.MaxConversationBytes})
		if _, err := s.Append(t.Context(), &store.Append{ConversationID: "c", Messages: test.messages}); err != nil {
			t.Fatal(err)
		}
		snapshot, err := s.Read(t.Context(), &store.Read{ConversationID: "c", Newest: -1, MaxBytes: maxPageBytes})
		if err != nil {
			t.Fatal(err)
		}
		messages, err := snapshot.Messages.Messages()
		if err != nil {
			t.Fatal(err)
		}
		got := len(test.messages) - len(messages) + startOnPage(messages, snapshot, test.w)
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s: start (-want +got):\n%s", test.name, d)
		}
	}
}
