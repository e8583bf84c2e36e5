package transfer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// TestLargeExportsShareMemory: an export waits while others have as many large conversations in memory as the limit
// allows. Small conversations need not wait.
func TestLargeExportsShareMemory(t *testing.T) { synctest.Test(t, checkLargeExports) }

func checkLargeExports(t *testing.T) {
	t.Helper()
	s := memstore.New(store.Options{MaxConversationBytes: store.MaxConversationBytes})
	defer s.Close()
	message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", 1<<20)}
	for id, n := range map[string]int{"small": 5, "large": 7} {
		messages := make([]*parleyv1.Message, n)
		for i := range messages {
			messages[i] = message
		}
		if _, err := s.Append(t.Context(), &store.Append{Tenant: tenant, ConversationID: id, Messages: messages}); err != nil {
			t.Fatal(err)
		}
	}
	large := NewLargeReads(1)
	export := func(ctx context.Context, id string, send func()) error {
		r := &parleyv1.ExportConversationsRequest{ConversationIds: []string{id}}
		_, err := Export(ctx, s, large, tenant, r, func(*parleyv1.ExportConversationsResponse) error {
			send()
			return nil
		})
		return err
	}
	stopped := errors.New("stopped")
	waiting, stop := context.WithCancelCause(t.Context())
	responses := 0
	err := export(t.Context(), "large", func() {
		responses++
		if responses > 1 {
			return
		}
		if err := export(t.Context(), "small", func() {}); err != nil {
			t.Errorf("export of a small conversation during that of a large one = %v", err)
		}
		second := make(chan error, 1)
		go func() { second <- export(waiting, "large", func() { t.Error("the second export did not wait") }) }()
		synctest.Wait()
		stop(stopped)
		if err := <-second; !errors.Is(err, stopped) {
			t.Errorf("export of a second large conversation = %v, want %v", err, stopped)
		}
	})
	if err != nil || responses < 7 {
		t.Errorf("export = %v with %d responses, want at least 7", err, responses)
	}
	if err := export(t.Context(), "large", func() {}); err != nil {
		t.Errorf("export after the first has ended = %v", err)
	}
}
