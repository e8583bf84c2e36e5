package boltstore

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
)

// longTailStore is a store with chunks of tailChunk bytes. It counts the transactions of its file.
type longTailStore struct {
	*Store

	transactions atomic.Int64
}

const tailChunk = 300

func openLongTails(t *testing.T, path string) *longTailStore {
	t.Helper()
	l := new(longTailStore)
	s, err := Open(path, Options{
		Options: store.Options{MaxMessages: 100_000}, JournalBudget: 64 << 20, CacheBytes: 20 << 10, chunkSize: tailChunk,
		OnCommit: func(c store.Commit) {
			if !c.Journal {
				l.transactions.Add(1)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	l.Store = s
	return l
}

// stopFolder replaces the folder by one that only does what the test calls.
func (l *longTailStore) stopFolder() {
	l.folder.close()
	l.writer.working.Lock()
	defer l.writer.working.Unlock()
	done := make(chan struct{})
	close(done)
	l.folder = &folder{
		store: l.Store, tails: newLongTails(tailChunk), full: make(chan struct{}, 1), segment: make(chan struct{}, 1),
		stop: make(chan struct{}), done: done,
	}
}

// tail returns the size of the messages of a conversation that are not in chunks.
func (l *longTailStore) tail(t *testing.T, id string) (size int) {
	t.Helper()
	if err := l.readOnce(t.Context(), func(_ *bolt.Tx, r *reader) error {
		f, err := r.find("acme", id, sized)
		if err == nil {
			size = f.record.TailBytes()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return size
}

// appendUntil creates a conversation and appends messages until its tail has more than size bytes. It returns the number
// of the last message.
func (l *longTailStore) appendUntil(t *testing.T, id string, size int) (last int) {
	t.Helper()
	for last = 1; last == 1 || l.tail(t, id) <= size; last++ {
		if last > size/50 {
			t.Fatalf("the tail has %d bytes after %d messages, want more than %d", l.tail(t, id), last, size)
		}
		appendNumbers(t, l.Store, id, last, last)
	}
	return last - 1
}

// TestLongTailIsJournaled: appends to a conversation with a long tail are no transactions, and the folder divides it.
func TestLongTailIsJournaled(t *testing.T) {
	s := openLongTails(t, newPath(t))
	s.stopFolder()
	before := s.transactions.Load()
	last := s.appendUntil(t, "a", urgentTail*tailChunk)
	if n := s.transactions.Load() - before; n != 1 {
		t.Errorf("%d appends were transactions, want only the first one", n)
	}
	wantNumbers(t, s.Store, "a", 1, last)
	s.folder.divide()
	if got := s.tail(t, "a"); got > 2*tailChunk || len(chunkKeys(t, s.Store)) == 0 {
		t.Errorf("the tail has %d bytes after divide, want %d at most, and chunks", got, 2*tailChunk)
	}
	if n := s.State().Journal.FoldedConversations; n != 1 {
		t.Errorf("FoldedConversations = %d, want 1", n)
	}
	wantNumbers(t, s.Store, "a", 1, last)
	wantConsistent(t, s.Store)
}

// TestLongTailsTogether: one transaction divides the tails of several conversations. Tails that are not long, and those
// that another transaction has folded, stay as they are.
func TestLongTailsTogether(t *testing.T) {
	s := openLongTails(t, newPath(t))
	s.stopFolder()
	last := map[string]int{}
	for _, id := range []string{"a", "b", "c", "folded", "removed"} {
		last[id] = s.appendUntil(t, id, maxTail*tailChunk)
	}
	appendNumbers(t, s.Store, "short", 1, 5)
	u := &store.Update{Tenant: "acme", ConversationID: "folded", KeepThrough: new(int32(3))}
	if _, err := s.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "removed"}); err != nil {
		t.Fatal(err)
	}
	if n := len(s.folder.tails.sizes); n != 3 {
		t.Errorf("%d conversations wait for the folder, want 3", n)
	}
	before := s.transactions.Load()
	s.folder.divide()
	if n := s.transactions.Load() - before; n != 1 {
		t.Errorf("%d transactions divided the tails, want 1", n)
	}
	for _, id := range []string{"a", "b", "c"} {
		if got := s.tail(t, id); got > 2*tailChunk {
			t.Errorf("the tail of %q has %d bytes, want %d at most", id, got, 2*tailChunk)
		}
		wantNumbers(t, s.Store, id, 1, last[id])
	}
	wantNumbers(t, s.Store, "folded", 1, 3)
	wantNumbers(t, s.Store, "short", 1, 5)
	if s.folder.tails.sum != 0 {
		t.Errorf("tails of %d bytes wait for the folder, want none", s.folder.tails.sum)
	}
	wantConsistent(t, s.Store)
}

// TestLongTailLimit: if the folder does not keep up, an append is a transaction that divides the tail, so that no tail is
// longer than its limit.
func TestLongTailLimit(t *testing.T) {
	s := openLongTails(t, newPath(t))
	s.stopFolder()
	const last, message = 300, 100
	appendNumbers(t, s.Store, "a", 1, 1)
	before, longest := s.transactions.Load(), 0
	for i := 2; i <= last; i++ {
		appendNumbers(t, s.Store, "a", i, i)
		longest = max(longest, s.tail(t, "a"))
	}
	if longest <= urgentTail*tailChunk || longest > limitTail*tailChunk+2*message {
		t.Errorf("the longest tail had %d bytes, want no more than %d and a message", longest, limitTail*tailChunk)
	}
	if n := s.transactions.Load() - before; n == 0 || n > last/20 {
		t.Errorf("%d of %d appends were transactions", n, last)
	}
	wantNumbers(t, s.Store, "a", 1, last)
	wantConsistent(t, s.Store)
}

// TestLongTailUrgent: the folder divides tails by itself, while it waits and between the steps of a fold.
func TestLongTailUrgent(t *testing.T) {
	for name, between := range map[string]bool{"while it waits": false, "between steps": true} {
		t.Run(name, func(t *testing.T) {
			s := openLongTails(t, newPath(t))
			paused := make(chan bool, 1)
			if between {
				s.stopFolder()
				go func() { paused <- s.folder.pause(time.Hour) }()
			}
			last := 0
			for s.State().Journal.FoldedConversations == 0 {
				if last == 5000 {
					t.Fatalf("the folder divided no tail during %d appends", last)
				}
				last++
				appendNumbers(t, s.Store, "a", last, last)
			}
			if between {
				close(s.folder.stop)
				if <-paused {
					t.Error("pause = true after the folder was stopped")
				}
				s.folder.stop = make(chan struct{})
			}
			if got, err := readNumbers(t, s.Store, store.Read{ConversationID: "a", Newest: -1}); err != nil || len(got) != last {
				t.Errorf("Read() = %d messages, %v, want %d", len(got), err, last)
			}
			wantConsistent(t, s.Store)
		})
	}
}

// TestLongTailWhenUrgent: a long tail alone, and many together, wake the folder; shorter ones do not.
func TestLongTailWhenUrgent(t *testing.T) {
	for name, test := range map[string]struct {
		tails, size int
		want        bool
	}{
		"not long": {10_000, maxTail * tailChunk, false},
		"one":      {1, maxTail*tailChunk + 1, false},
		"too few":  {urgentTails/maxTail - 1, maxTail*tailChunk + 1, false},
		"urgent":   {1, urgentTail * tailChunk, true},
		"many":     {urgentTails / maxTail, maxTail*tailChunk + 1, true},
	} {
		l := newLongTails(tailChunk)
		for i := range test.tails {
			for range 3 { // It counts once.
				l.note(fmt.Sprint(i), test.size)
			}
		}
		if got := len(l.urgent) > 0; got != test.want {
			t.Errorf("%s: urgent = %t, want %t", name, got, test.want)
		}
	}
}

// TestLongTailAfterKill kills the process while a conversation has a long tail.
func TestLongTailAfterKill(t *testing.T) {
	path := newPath(t)
	s := openLongTails(t, path)
	s.stopFolder()
	last := s.appendUntil(t, "a", maxTail*tailChunk)
	kill(t, s.Store)

	s = openLongTails(t, path)
	s.stopFolder()
	wantNumbers(t, s.Store, "a", 1, last)
	appendNumbers(t, s.Store, "a", last+1, last+1)
	if got := s.tail(t, "a"); got <= maxTail*tailChunk {
		t.Errorf("the tail has %d bytes after the restart, want more than %d", got, maxTail*tailChunk)
	}
	s.folder.divide()
	if got := s.tail(t, "a"); got > 2*tailChunk {
		t.Errorf("the tail has %d bytes after divide, want %d at most", got, 2*tailChunk)
	}
	appendNumbers(t, s.Store, "a", last+2, last+2)
	kill(t, s.Store)

	s = openLongTails(t, path)
	wantNumbers(t, s.Store, "a", 1, last+2)
	wantConsistent(t, s.Store)
}

// TestWorkOfLongTail compares the memory that appends to a long tail and to a short one allocate.
func TestWorkOfLongTail(t *testing.T) {
	s := openJournaled(t, newPath(t), store.Options{MaxMessages: 100_000}, 64<<20)
	const appends = 100
	allocated := func() uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range appends {
			appendTo(t, s, "a", "hello")
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	appendTo(t, s, "a", strings.Repeat("x", 100))
	short := allocated()
	for range 20 {
		a := &store.Append{Tenant: "acme", ConversationID: "a", Messages: slices.Repeat(text("hello"), 100)}
		if _, err := s.Append(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	if long := allocated(); long > short+short/4 {
		t.Errorf("%d appends to a long tail allocate %d bytes, to a short one %d", appends, long, short)
	}
}
