package rpc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
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
		{"no user message", exchange[1:], nil, 5},
	} {
		var frames store.Frames
		for i, m := range test.messages {
			m.Sequence = int32(i + 1)
			encoded, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			frames = store.AppendFrame(frames, encoded)
		}
		got := startOnPage(test.messages, &store.Snapshot{Messages: frames, Conversation: &parleyv1.Conversation{}}, test.w)
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s: start (-want +got):\n%s", test.name, d)
		}
	}
}
