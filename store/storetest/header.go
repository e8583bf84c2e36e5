package storetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law15Headers writes headers just below and just above the limit.
func (s Subject) law15Headers(t *testing.T) {
	fits, tooLarge := strings.Repeat("x", store.MaxHeaderBytes-1000), strings.Repeat("x", store.MaxHeaderBytes)
	for _, test := range []struct {
		name  string
		write func(f *fixture, text string) any
	}{
		{"created", func(_ *fixture, text string) any {
			return &store.Create{Conversation: &parleyv1.Conversation{Id: "b", Labels: map[string]string{"l": text}}}
		}},
		{"created, prompt", func(_ *fixture, text string) any {
			return &store.Create{Conversation: &parleyv1.Conversation{Id: "b", SystemPrompt: text}}
		}},
		{"created, of parts", func(_ *fixture, text string) any {
			half := text[len(text)/2:]
			return &store.Create{Conversation: &parleyv1.Conversation{Id: "b", SystemPrompt: half, Title: half}}
		}},
		{"updated", func(_ *fixture, text string) any {
			return &store.Update{ConversationID: "a", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: text}}
		}},
		{"updated, prompt", func(_ *fixture, text string) any {
			return &store.Update{
				ConversationID: "a", Fields: []string{"system_prompt"}, Values: &parleyv1.Conversation{SystemPrompt: text},
			}
		}},
		{"lease", func(_ *fixture, text string) any {
			return &store.Update{ConversationID: "a", Lease: &store.Lease{Agent: "writer", Reason: text}}
		}},
		{"imported", func(f *fixture, text string) any {
			i := f.newImport("b", time.Minute)
			i.Conversation.ForkedFrom = &parleyv1.ForkOrigin{ConversationId: text}
			return i
		}},
		{"overwritten", func(f *fixture, text string) any {
			i := f.newImport("a", time.Minute)
			i.Conversation.SystemPrompt, i.Overwrite = text, true
			return i
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := s.open(t, nil)
			f.append("a", user("hello"))
			before := f.all()
			f.observer.drain()
			_, err := f.try(test.write(f, tooLarge))
			if e, ok := errors.AsType[*store.HeaderTooLargeError](err); !ok || e.Bytes <= store.MaxHeaderBytes {
				t.Errorf("write of a header that is too large = %v, want a HeaderTooLargeError", err)
			}
			same(t, "conversations after a header that is too large", f.all(), before)
			if changes := f.observer.drain(); len(changes) > 0 {
				t.Errorf("write of a header that is too large reported %v", summaries(changes))
			}
			// A conversation whose header fits can still get messages and turns.
			id := f.do(test.write(f, fits)).Conversation.GetId()
			f.append(id, user("hello"))
			f.beginTurn(id, "turn")
			f.endTurn(id, "turn")
			f.entry(id)
		})
	}
}
