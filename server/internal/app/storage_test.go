package app

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/store"
)

// countingObserver counts the changes that it receives.
type countingObserver struct{ changes int }

func (o *countingObserver) Committed(changes []store.Change) { o.changes += len(changes) }

// types returns the types of observers.
func types(observers []Observer) (names []string) {
	for _, o := range observers {
		names = append(names, fmt.Sprintf("%T", o))
	}
	return names
}

// TestObservers checks the order of the observers, that each receives a commit, and that the interaction log
// is one of them only if it is on.
func TestObservers(t *testing.T) {
	for _, flag := range []string{"--interaction-log=true", "--interaction-log=false"} {
		t.Run(flag, func(t *testing.T) {
			c := loadConfig(t, []string{"--data-dir", t.TempDir(), flag}, nil)
			s := NewStorage(c, limit.New(c.Limits(), time.Now), slog.New(slog.DiscardHandler), c.LogLevel)
			first, second := &countingObserver{}, &countingObserver{}
			if err := s.Open(t.Context(), c, []Observer{first, second}, func(err error) { t.Error(err) }); err != nil {
				t.Fatalf("Open() = %v, want nil", err)
			}
			want := []Observer{first, second, s.changes}
			if c.InteractionLog {
				want = append([]Observer{s.interactions}, want...)
			}
			if !slices.Equal(*s.observers.Load(), want) {
				t.Errorf("observers = %s, want %s", types(*s.observers.Load()), types(want))
			}
			if _, err := s.Create(t.Context(), &store.Create{
				Tenant: "tenant", Conversation: &parleyv1.Conversation{Id: "conversation"},
			}); err != nil {
				t.Errorf("Create() = %v, want nil", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close() = %v, want nil", err)
			}
			if first.changes != 1 || second.changes != 1 {
				t.Errorf("changes received = %d and %d, want 1 and 1", first.changes, second.changes)
			}
		})
	}
}
