package boltstore

import (
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestQueuedSize checks the sizes that the writer assumes for queued writes.
func TestQueuedSize(t *testing.T) {
	path := newPath(t) // Created outside of the bubble.
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		s := open(t, path, store.Options{Observe: func([]store.Change) { <-gate }})
		events := &storev1.TurnEvents{Messages: []*storev1.MessageEvents{{StructuredData: make([]int32, 10_000)}}}
		message := text("some words")[0]
		var writes sync.WaitGroup
		start := func(write func() error) {
			writes.Go(func() {
				if err := write(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		appending := func(a *store.Append) func() error {
			return func() error {
				a.Tenant, a.ConversationID, a.Messages = "acme", "a", []*parleyv1.Message{message}
				_, err := s.Append(t.Context(), a)
				return err
			}
		}
		queued := func() int {
			s.writer.mu.Lock()
			defer s.writer.mu.Unlock()
			return s.writer.queue.Bytes()
		}
		start(appending(&store.Append{Begin: &parleyv1.Turn{Id: "turn"}})) // The writer is blocked from now on.
		last := queued()
		for name, write := range map[string]func() error{
			"append": appending(&store.Append{Events: events}),
			"progress": func() error {
				return s.SaveProgress(t.Context(), &store.Progress{
					Tenant: "acme", ConversationID: "a", TurnID: "turn", Messages: []*parleyv1.Message{message}, Events: events,
				})
			},
		} {
			start(write)
			now := queued()
			if size, want := now-last, proto.Size(message)+proto.Size(events); size < want || size > want+100 {
				t.Errorf("%s: %d bytes are queued, want about %d", name, size, want)
			}
			last = now
		}
		close(gate)
		writes.Wait()
		s.Close()
	})
}
