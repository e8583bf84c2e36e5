package memstore

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestAppendsDoNotCopyMessages checks that the memory of an append does not grow with the messages that the
// conversation keeps.
func TestAppendsDoNotCopyMessages(t *testing.T) {
	for name, n := range map[string]int{"dropping": 20_000, "keeping": 40_000} {
		t.Run(name, func(t *testing.T) {
			s := filled(t, n) // At least 3 MB.
			if n == 40_000 {
				s.options.MaxConversationBytes = math.MaxInt32
				update(t, s, "retention.keep_all", &parleyv1.Retention{KeepAll: true})
			}
			const rounds = 200
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				appendMessages(t, s, message())
			}
			runtime.ReadMemStats(&after)
			if per := (after.TotalAlloc - before.TotalAlloc) / rounds; per > 200<<10 {
				t.Errorf("an append allocates %d bytes, want at most 200 KiB", per)
			}
		})
	}
}

func appendMessages(t *testing.T, s *Store, messages ...*parleyv1.Message) {
	t.Helper()
	a := &store.Append{Tenant: "t", ConversationID: "c", Messages: messages}
	if _, err := s.Append(t.Context(), a); err != nil {
		t.Fatal(err)
	}
}

func update(t *testing.T, s *Store, field string, retention *parleyv1.Retention) {
	t.Helper()
	u := &store.Update{
		Tenant: "t", ConversationID: "c", Fields: []string{field}, Values: &parleyv1.Conversation{Retention: retention},
	}
	if _, err := s.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, s *Store, shared bool) store.Frames {
	t.Helper()
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "t", ConversationID: "c", Newest: -1, Shared: shared})
	if err != nil {
		t.Error(err)
		return nil
	}
	return snapshot.Messages
}

// sequences returns the sequences of messages.
func sequences(messages store.Frames) string {
	var all []string
	for frame := range messages.All() {
		all = append(all, fmt.Sprint(frame.Sequence()))
	}
	return strings.Join(all, " ")
}

// TestWritesDoNotChangeSnapshots reads a conversation whose messages share the memory of the store. The snapshot stays
// as it is while the conversation is written, and what its reader appends to it does not change the conversation.
func TestWritesDoNotChangeSnapshots(t *testing.T) {
	remove := func(u store.Update) func(t *testing.T, s *Store) {
		return func(t *testing.T, s *Store) {
			t.Helper()
			u.Tenant, u.ConversationID = "t", "c"
			if _, err := s.Update(t.Context(), &u); err != nil {
				t.Error(err)
			}
		}
	}
	for name, test := range map[string]struct {
		write func(t *testing.T, s *Store)
		kept  string // sequences after write
	}{
		"nothing": {func(*testing.T, *Store) {}, "4 5 6 7 8"},
		"drop by number": {func(t *testing.T, s *Store) {
			t.Helper()
			update(t, s, "retention.max_messages", &parleyv1.Retention{MaxMessages: 2})
		}, "7 8"},
		"remove the newest": {remove(store.Update{KeepThrough: new(int32(6))}), "4 5 6"},
		"remove one":        {remove(store.Update{Sequences: []int32{6}}), "4 5 7 8"},
		"remove all":        {remove(store.Update{KeepThrough: new(int32)}), ""},
		"replace": {func(t *testing.T, s *Store) {
			t.Helper()
			a := &store.Append{
				Tenant: "t", ConversationID: "c", ReplaceAfter: new(int32(6)), Messages: []*parleyv1.Message{message()},
			}
			if _, err := s.Append(t.Context(), a); err != nil {
				t.Error(err)
			}
		}, "4 5 6 9"},
		"refused append": {func(t *testing.T, s *Store) {
			t.Helper()
			limits := s.options.Limits
			s.options.Limits = func(string) store.Limits { return store.Limits{MaxBytes: 1} }
			larger := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("y", 200)}
			a := &store.Append{Tenant: "t", ConversationID: "c", Messages: []*parleyv1.Message{larger}}
			if _, err := s.Append(t.Context(), a); err == nil {
				t.Error("Append above the limit of bytes = nil, want an error")
			}
			s.options.Limits = limits
		}, "4 5 6 7 8"},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(store.Options{MaxMessages: 5})
			defer s.Close()
			for range 8 {
				appendMessages(t, s, message())
			}
			snapshot := read(t, s, true)
			want := bytes.Clone(snapshot)
			var readers sync.WaitGroup
			defer readers.Wait()
			readers.Go(func() { // The race detector reports a write to the same memory.
				for range 100 {
					if !bytes.Equal(snapshot, want) {
						t.Error("the snapshot has changed")
						return
					}
				}
			})
			test.write(t, s)
			if got := sequences(read(t, s, false)); got != test.kept {
				t.Errorf("sequences after the write = %q, want %q", got, test.kept)
			}
			for i := range 20 {
				shared := read(t, s, true)
				appendMessages(t, s, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprint("later ", i)})
				_ = append(shared, 0xff)
				kept, err := read(t, s, false).Messages()
				if err != nil || len(kept) == 0 || kept[len(kept)-1].GetContent() != fmt.Sprint("later ", i) {
					t.Fatalf("messages = %v, %v, want later %d as the newest", kept, err, i)
				}
			}
			if !bytes.Equal(snapshot, want) {
				t.Errorf("snapshot = %q, want %q", snapshot, want)
			}
		})
	}
}

// TestDroppedMessagesAreReleased checks that dropped messages do not stay in memory with those that are kept.
func TestDroppedMessagesAreReleased(t *testing.T) {
	s := New(store.Options{MaxMessages: 4})
	defer s.Close()
	for range 4 {
		appendMessages(t, s, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", 1<<20)})
	}
	for range 4 {
		appendMessages(t, s, message())
	}
	m := s.tenants["t"].byID["c"].messages
	if size := m.before + cap(m.frames); size > 8<<10 {
		t.Errorf("%d bytes of messages take %d bytes, want at most 8 KiB", len(m.frames), size)
	}
}
