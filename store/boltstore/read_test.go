package boltstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestAbandonedTurns calls Abandoned after a restart, when some of the turns were ended.
func TestAbandonedTurns(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{})
	begin := func(id, turn string) {
		t.Helper()
		if _, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: id, Messages: text("question"), Begin: &parleyv1.Turn{Id: turn},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"ended", "other answer", "runs"} {
		begin(id, "turn")
		if err := s.SaveProgress(t.Context(), &store.Progress{
			Tenant: "acme", ConversationID: id, TurnID: "turn", Messages: text("so far"),
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = open(t, path, store.Options{})
	if _, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: "ended", End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_FAILED},
	}); err != nil {
		t.Fatal(err)
	}
	begin("ended", "turn of this process")
	damage(t, s, layout.TurnsBucket, keyOf("other answer"), func([]byte) []byte {
		value, err := record.MarshalProgress(&store.Progress{TurnID: "another", Messages: text("so far")})
		if err != nil {
			t.Fatal(err)
		}
		return value
	})
	turns, _, err := s.Abandoned(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, p := range turns {
		got[p.ConversationID+" "+p.TurnID] = len(p.Messages)
	}
	if len(got) != 2 || got["runs turn"] != 1 || got["other answer turn"] != 0 {
		t.Errorf("Abandoned turns and their number of messages = %v", got)
	}
}

// TestPanic panics in a read, as bbolt does for damaged pages.
func TestPanic(t *testing.T) {
	s := open(t, newPath(t), store.Options{})
	err := s.view(t.Context(), func(*bolt.Tx) error { panic("page 7: unexpected page type") })
	if !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("view = %v, want ErrCorrupt", err)
	}
	if text := fmt.Sprint(err); !strings.Contains(text, "page 7") || !strings.Contains(text, "TestPanic") {
		t.Errorf("view = %q, want the cause and the stack", text)
	}
}
