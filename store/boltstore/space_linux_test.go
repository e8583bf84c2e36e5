package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// TestLowSpace leaves little space in a small file system. It is reserved for operations that end
// or delete.
func TestLowSpace(t *testing.T) {
	dir := mountSmall(t)
	s := openSmall(t, dir, nil, nil)
	ctx := t.Context()
	appendTo(t, s, "deleted", "hello")
	add := func(id string, a store.Append) error {
		a.Tenant, a.ConversationID = "acme", id
		_, err := s.Append(ctx, &a)
		return err
	}
	asked := store.Append{
		Messages: text("question"), Request: &store.Request{ID: "r", Method: "Chat"}, Begin: &parleyv1.Turn{Id: "turn"},
		Events: &storev1.TurnEvents{Started: 1},
	}
	if err := add("asked", asked); err != nil {
		t.Fatal(err)
	}
	const remaining = 48 << 10
	free, size, err := boltfile.DiskSpace(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if remaining >= size/boltfile.ReservePart {
		t.Fatalf("%d bytes are not within the reserve of a disk of %d", remaining, size)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, free-remaining), 0o600); err != nil {
		t.Fatal(err)
	}
	create := func(id string) error {
		_, err := s.Create(ctx, &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: id}})
		return err
	}
	for name, err := range map[string]error{
		"append": add("new", store.Append{Messages: text("hello")}),
		"begin":  add("deleted", store.Append{Messages: text("hello"), Begin: &parleyv1.Turn{Id: "another"}}),
		"create": create("new"),
	} {
		if !errors.Is(err, store.ErrNoSpace) {
			t.Errorf("%s = %v, want ErrNoSpace", name, err)
		}
	}
	for name, err := range map[string]error{
		"replayed request": add("asked", asked),
		"progress": s.SaveProgress(ctx, &store.Progress{
			Tenant: "acme", ConversationID: "asked", TurnID: "turn", Messages: text("so far"),
			Events: &storev1.TurnEvents{Started: 1},
		}),
		"answer": add("asked", store.Append{
			Messages: text(strings.Repeat("word ", 200)), End: &parleyv1.Turn{
				Id: "turn", State: parleyv1.TurnState_TURN_STATE_COMPLETED,
			},
		}),
		"delete": s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "deleted"}),
	} {
		if err != nil {
			t.Errorf("%s = %v", name, err)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(create("new"), add("new", store.Append{Messages: text("hello")})); err != nil {
		t.Errorf("writes with space = %v", err)
	}
	wantConsistent(t, s)
}

// TestSweepWithoutSpaceForRecords leaves no space for the fold of records that have expired. Sweep still removes
// conversations, and removes the records when there is space.
func TestSweepWithoutSpaceForRecords(t *testing.T) {
	dir, clock := mountSmall(t), newClock()
	s := openJournaled(t, filepath.Join(dir, "parley.db"), store.Options{Now: clock.Now}, 1<<20)
	appendTo(t, s, "c", "hello")
	write(t, s, "", putOf("first", 1))
	for i := range 4 {
		w := putOf(fmt.Sprint(i), 30_000)
		w.Ttl = durationpb.New(time.Minute)
		write(t, s, "", w)
	}
	free, _, err := boltfile.DiskSpace(s.path)
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, free-48<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	clock.advance(3 * time.Hour)
	if _, err := s.Sweep(t.Context(), 10); err != nil {
		t.Errorf("Sweep without space = %v", err)
	}
	if stats, err := s.TenantStats(t.Context(), "acme"); err != nil || stats.Conversations != 0 || stats.Records != 5 {
		t.Errorf("TenantStats = %+v, %v, want no conversations and 5 records", stats, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	sweep(t, s)
	if stats, err := s.TenantStats(t.Context(), "acme"); err != nil || stats.Records != 1 {
		t.Errorf("TenantStats with space = %+v, %v, want 1 record", stats, err)
	}
	wantConsistent(t, s)
}

// TestSweepWithoutSpaceForOtherRecords leaves no space for the fold of a tenant's other records, which the removal of an
// expired one needs. Sweep skips that record, also for the next calls, and removes it when there is space.
func TestSweepWithoutSpaceForOtherRecords(t *testing.T) {
	dir, clock := mountSmall(t), newClock()
	s := openJournaled(t, filepath.Join(dir, "parley.db"), store.Options{Now: clock.Now}, 1<<20)
	expiring := putOf("expiring", 1)
	expiring.Ttl = durationpb.New(time.Minute)
	write(t, s, "", expiring) // The first write of records is a transaction of the file.
	for i := range 4 {
		write(t, s, "", putOf(fmt.Sprint(i), 30_000))
	}
	free, _, err := boltfile.DiskSpace(s.path)
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, free-48<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Hour)
	wantRecords := func(want int64) {
		t.Helper()
		if stats, err := s.TenantStats(t.Context(), "acme"); err != nil || stats.Records != want {
			t.Errorf("TenantStats = %+v, %v, want %d records", stats, err, want)
		}
	}
	for range 2 {
		if more, err := s.Sweep(t.Context(), 1); err != nil {
			t.Errorf("Sweep without space = %v, %v", more, err)
		}
	}
	if more, err := s.Sweep(t.Context(), 1); more || err != nil {
		t.Errorf("a later Sweep without space = %v, %v, want nothing to do", more, err)
	}
	wantRecords(5)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	clock.advance(noSpacePeriod)
	sweep(t, s)
	wantRecords(4)
	wantConsistent(t, s)
}
