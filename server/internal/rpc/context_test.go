package rpc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

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

// TestStableStartOfNewestMessages: with cache_stable, the start of the context also remains for many turns if the
// conversation is larger than a reply.
func TestStableStartOfNewestMessages(t *testing.T) {
	f := open(t, func(s *setup) { s.storeOptions.MaxConversationBytes = 32 << 20 })
	f.append(t, "c1", user("first"))
	if _, err := f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "c1", Retention: &parleyv1.Retention{KeepAll: true}},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"retention.keep_all"}},
	}); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*parleyv1.ContextWindow{{CacheStable: true}, {CacheStable: true, MaxMessages: 500}} {
		const turns = 32
		starts := 0
		for first, turn := int32(0), 0; turn < turns; turn++ {
			f.append(t, "c1", user(strings.Repeat("q", 100<<10)), assistant(strings.Repeat("a", 100<<10)))
			reply, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c1", Window: w})
			if err != nil {
				t.Fatal(err)
			}
			if start := reply.GetMessages()[0].GetSequence(); start != first {
				first, starts = start, starts+1
			}
		}
		if starts < 2 || starts > turns/4 {
			t.Errorf("window %v: %d starts in %d turns, want 2 to %d", w, starts, turns, turns/4)
		}
	}
}
