package boltstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// openMany opens a store with conversations 0 to n-1 of tenant "acme", each created a millisecond
// after the one before.
func openMany(t *testing.T, path string, n int, o store.Options) (*Store, *clock) {
	t.Helper()
	c := newClock()
	o.Now = c.Now
	s := open(t, path, o)
	for i := range n {
		if _, err := s.Create(t.Context(), &store.Create{
			Tenant: "acme", Conversation: &parleyv1.Conversation{Id: fmt.Sprint(i)},
		}); err != nil {
			t.Fatal(err)
		}
		c.advance(time.Millisecond)
	}
	return s, c
}

// stepCounter records the number of changes of one kind in each transaction.
type stepCounter struct {
	kind  parleyv1.ChangeKind
	sizes []int
	each  func()
}

func (s *stepCounter) observe(changes []store.Change) {
	n := 0
	for _, c := range changes {
		if c.Kind == s.kind {
			n++
		}
	}
	if n > 0 {
		s.sizes = append(s.sizes, n)
		if s.each != nil {
			s.each()
		}
	}
}

func (s *stepCounter) want(t *testing.T, sizes ...int) {
	t.Helper()
	if !slices.Equal(s.sizes, sizes) {
		t.Errorf("%v changes in steps of %v, want %v", s.kind, s.sizes, sizes)
	}
}

func TestSweepInSteps(t *testing.T) {
	seen := stepCounter{kind: parleyv1.ChangeKind_CHANGE_KIND_EXPIRED}
	s, c := openMany(t, newPath(t), 700, store.Options{Observe: seen.observe})
	c.advance(2 * time.Hour)
	for _, want := range []bool{true, false} {
		if more, err := s.Sweep(t.Context(), 600); err != nil || more != want {
			t.Errorf("Sweep = %v, %v; want %v", more, err, want)
		}
	}
	seen.want(t, 256, 256, 88, 100)
	wantConsistent(t, s)
}

func TestPurgeInSteps(t *testing.T) {
	seen := stepCounter{kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED}
	s, c := openMany(t, newPath(t), 700, store.Options{Observe: seen.observe})
	appendTo(t, s, "0", "stays")
	c.advance(time.Minute)
	appendTo(t, s, "1", "stays")

	dry, err := s.Purge(t.Context(), &store.Purge{Tenant: "acme", InactiveFor: time.Minute, DryRun: true})
	if err != nil || dry.Count != 699 || len(dry.SampleIDs) != store.MaxSampleIDs {
		t.Errorf("dry Purge = %d conversations, %v", dry.Count, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen.each = cancel
	inactive := &store.Purge{Tenant: "acme", InactiveFor: time.Minute}
	purged, err := s.Purge(ctx, inactive)
	if !errors.Is(err, context.Canceled) || purged.Count != 255 || len(purged.SampleIDs) != store.MaxSampleIDs {
		t.Errorf("cancelled Purge = %d conversations, %v", purged.Count, err)
	}
	purged, err = s.Purge(t.Context(), inactive)
	if err != nil || purged.Count != 444 || len(purged.SampleIDs) != store.MaxSampleIDs {
		t.Errorf("Purge = %d conversations, %v", purged.Count, err)
	}
	seen.want(t, 255, 255, 189)
	if got := listIDs(t, s, "acme"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("List = %v", got)
	}
	wantConsistent(t, s)
}

func TestLoweredCapacity(t *testing.T) {
	path := newPath(t)
	s, c := openMany(t, path, 600, store.Options{})
	s.Close()
	seen := stepCounter{kind: parleyv1.ChangeKind_CHANGE_KIND_EVICTED}
	s = open(t, path, store.Options{Now: c.Now, MaxConversations: 10, Observe: seen.observe})
	appendTo(t, s, "new", "hello")
	for _, want := range []bool{true, false} {
		if more, err := s.Sweep(t.Context(), 300); err != nil || more != want {
			t.Errorf("Sweep = %v, %v; want %v", more, err, want)
		}
	}
	seen.want(t, 256, 256, 44, 35)
	if got := listIDs(t, s, "acme"); len(got) != 10 || got[0] != "new" || got[9] != "591" {
		t.Errorf("List = %v", got)
	}
	wantConsistent(t, s)
}

// TestExpiredAmongOthers creates a conversation at capacity when one of the tenant's conversations has
// expired. Many expired ones of another tenant come before it.
func TestExpiredAmongOthers(t *testing.T) {
	s, c := openMany(t, newPath(t), 300, store.Options{MaxConversations: 300})
	create := func(id string) {
		t.Helper()
		if _, err := s.Create(t.Context(), &store.Create{
			Tenant: "other", Conversation: &parleyv1.Conversation{Id: id},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 300 {
		create(fmt.Sprint(i))
	}
	c.advance(30 * time.Minute)
	for i := range 300 {
		if i != 299 {
			if _, err := s.Append(t.Context(), &store.Append{
				Tenant: "other", ConversationID: fmt.Sprint(i), Messages: text("more"),
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.advance(time.Hour - 29*time.Minute)
	create("new")
	if got := listIDs(t, s, "other"); len(got) != 300 || slices.Contains(got, "299") {
		t.Errorf("List = %v, want all except 299", got)
	}
	wantConsistent(t, s)
}

func TestLarge(t *testing.T) {
	path := newPath(t)
	o := store.Options{MaxConversationBytes: 64 << 20, MaxMessages: 1000}
	s := open(t, path, o)
	var batch []*parleyv1.Message
	for i := range 30 {
		batch = append(batch, text(fmt.Sprint(i, strings.Repeat(" word", 60_000)))...) // The text is also in the id.
	}
	// The message is larger than a batch of the writer.
	if _, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "a", Messages: batch}); err != nil {
		t.Fatal(err)
	}
	appendTo(t, s, "b", "small")
	wantConsistent(t, s)
	s.Close()

	s = open(t, path, o)
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "a", Newest: -1})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil || len(messages) != 30 {
		t.Fatalf("Read = %d messages, %v", len(messages), err)
	}
	for i, m := range messages {
		if m.GetContent() != batch[i].GetContent() {
			t.Errorf("message %d differs", i)
		}
	}
	full, err := s.Stats(t.Context())
	if err != nil || full.Messages != 31 || full.Bytes < 17_000_000 || full.FileBytesInUse < full.Bytes ||
		full.FileBytes < full.FileBytesInUse {
		t.Errorf("Stats = %+v, %v", full, err)
	}
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "a"}); err != nil {
		t.Fatal(err)
	}
	sweep(t, s) // The delete removes only some of the chunks.
	if empty, err := s.Stats(t.Context()); err != nil || empty.FileBytesInUse > full.FileBytesInUse-17_000_000 {
		t.Errorf("FileBytesInUse after Delete and Sweep = %d, %v; before %d", empty.FileBytesInUse, err, full.FileBytesInUse)
	}
}
