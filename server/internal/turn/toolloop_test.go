package turn

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// newLimitedStore is newControlled with a store that retains this number of messages and bytes of a
// conversation; 0 is the default.
func newLimitedStore(t *testing.T, messages, bytes int) (*fixture, *controlledAgent) {
	t.Helper()
	s := memstore.New(store.Options{MaxMessages: messages, MaxConversationBytes: bytes})
	f, p := newControlled(t, func(o *Options) {
		if err := o.Store.Close(); err != nil {
			t.Error(err)
		}
		o.Store, o.MaxConversationBytes = s, bytes
	})
	f.store = s
	return f, p
}

// TestToolLoopLongerThanRetention: if one question takes more calls than the history retains, the
// agent receives everything of the exchange that is retained, starting with a message that has
// calls, although the question is dropped.
func TestToolLoopLongerThanRetention(t *testing.T) {
	const rounds, calls = 8, 3
	oneMessage := &parleyv1.ContextWindow{MaxMessages: 1}
	for _, window := range []*parleyv1.ContextWindow{nil, oneMessage, {MaxMessages: 10, CacheStable: true}} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, failing %t", window, fails), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, p := newLimitedStore(t, 20, 0)
					request := chatRequest("q", 0)
					for round := range rounds {
						request.Window = window
						f.startChat(t, request)
						if fails {
							p.lastRun().fail()
							f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", AnswerPending: true, Window: window})
						}
						given := p.lastRun().request.GetMessages()
						for _, m := range agent.Answered(given)[1:] {
							if m.GetRole() == parleyv1.Role_ROLE_USER {
								t.Errorf("round %d: a result without its call: %v", round, m)
							}
						}
						if first := given[0]; round > 0 && len(f.stored(t)) == 20 && len(first.GetToolCalls()) == 0 {
							t.Errorf("round %d: first message to the agent = %v, want one with calls", round, first)
						}
						stored := f.stored(t)
						for len(stored) == 20 && strings.HasPrefix(stored[0], "tool") {
							stored = stored[1:]
						}
						if diff := cmp.Diff(stored, describeMessages(given)); diff != "" {
							t.Errorf("round %d: messages to the agent (-want +got):\n%s", round, diff)
						}
						var ids []string
						for i := range calls {
							ids = append(ids, fmt.Sprintf("%d.%d", round, i))
							p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{call(ids[i])}})
						}
						p.lastRun().complete()
						request = resultsRequest("", ids...)
					}
				})
			})
		}
	}
}

// TestResultsThatEvictTheirCalls: results are refused, and nothing is stored, if storing them would
// drop their calls.
func TestResultsThatEvictTheirCalls(t *testing.T) {
	large := strings.Repeat("x", 2<<10)
	tests := []struct {
		name            string
		messages, bytes int
		history         []string
		text            string
		ids             []string
		content         string
		want            *HistoryTooSmallError // nil if they are accepted
	}{
		{"just enough", 5, 0, []string{"calls:1 2 3"}, "go on", []string{"1", "2", "3"}, "", nil},
		{
			"the text is one message too many", 4, 0,
			[]string{"calls:1 2 3"},
			"go on",
			[]string{"1", "2", "3"},
			"",
			&HistoryTooSmallError{CallID: "1", MaxMessages: 4},
		},
		{
			"more than may be stored", 2, 0,
			[]string{"calls:1 2 3"},
			"",
			[]string{"1", "2", "3"},
			"",
			&HistoryTooSmallError{CallID: "1", MaxMessages: 2},
		},
		{
			"the others of many", 4, 0,
			[]string{"calls:1 2 3 4", "tool:1", "tool:2"},
			"",
			[]string{"4", "3"},
			"",
			&HistoryTooSmallError{CallID: "4", MaxMessages: 4},
		},
		{
			"one of them is old", 4, 0,
			[]string{"calls:1", "calls:2"},
			"",
			[]string{"2", "1"},
			"",
			&HistoryTooSmallError{CallID: "1", MaxMessages: 4},
		},
		{"bytes, just enough", 20, 6 << 10, []string{"calls:1 2"}, "", []string{"1", "2"}, large, nil},
		{
			"bytes", 20, 4 << 10,
			[]string{"calls:1 2"},
			"",
			[]string{"1", "2"},
			large,
			&HistoryTooSmallError{CallID: "1", MaxMessages: 20, MaxBytes: 4 << 10},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newLimitedStore(t, test.messages, test.bytes)
				addHistory(t, f, p, test.history...)
				before, runsBefore := f.stored(t), p.runCount()
				request := resultsRequest(test.text, test.ids...)
				for _, r := range request.GetToolResults() {
					r.Content += test.content
				}
				r := f.startChat(t, request)
				got, _ := errors.AsType[*HistoryTooSmallError](r.err)
				switch {
				case !cmp.Equal(test.want, got), test.want == nil && p.runCount() != runsBefore+1:
					t.Errorf("Chat = %q, %v, want %v", r.received(), r.err, test.want)
				case test.want != nil && (!cmp.Equal(before, f.stored(t)) || p.runCount() != runsBefore):
					t.Errorf("%d agent calls, want 0; stored messages = %q", p.runCount()-runsBefore, f.stored(t))
				}
			})
		})
	}
}

// TestRefusedResultsDoNotInterrupt: tool results that will be refused interrupt nothing.
func TestRefusedResultsDoNotInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newLimitedStore(t, 3, 0)
		addHistory(t, f, p, "calls:1 2")
		other := f.startChat(t, chatRequest("other", 0))
		request := resultsRequest("", "1", "2")
		request.OnBusy = onBusyInterrupt
		if r := f.startChat(t, request); !errors.As(r.err, new(*HistoryTooSmallError)) || other.ended {
			t.Errorf("Chat = %q, %v, want HistoryTooSmallError; running turn ended = %t", r.received(), r.err, other.ended)
		}
	})
}
