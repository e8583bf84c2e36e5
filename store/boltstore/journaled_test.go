package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
)

// killedStore returns the path of a store whose process has ended, with operations in its journal that the file does not
// contain. It has conversations "0" to "4" with 10 messages each, of which the file contains 4.
func killedStore(t *testing.T) string {
	t.Helper()
	path := newPath(t)
	s := openJournaled(t, path, store.Options{}, 1<<20)
	for round := range 10 {
		if round == 4 {
			s.folder.fold()
		}
		for c := range 5 {
			appendTo(t, s, fmt.Sprint(c), fmt.Sprint("message ", round))
		}
	}
	kill(t, s)
	return path
}

// wantMessages checks the conversations of killedStore.
func wantMessages(t *testing.T, s *Store) {
	t.Helper()
	wantConsistent(t, s)
	for c := range 5 {
		snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: fmt.Sprint(c), Newest: -1})
		if err != nil {
			t.Fatal(err)
		}
		messages, err := snapshot.Messages.Messages()
		if err != nil || len(messages) != 10 {
			t.Fatalf("%d messages, %v, want 10", len(messages), err)
		}
		for i, m := range messages {
			if want := fmt.Sprint("message ", i); m.GetContent() != want {
				t.Errorf("message %d is %q, want %q", i, m.GetContent(), want)
			}
		}
	}
}

// journalOf returns the directory of the journal of a store.
func journalOf(t *testing.T, path string) string {
	t.Helper()
	found, err := filepath.Glob(path + ".journal-*")
	if err != nil || len(found) != 1 {
		t.Fatalf("journals %v, %v, want one", found, err)
	}
	return found[0]
}

// damageSegment changes a bit of a text in the first segment of a store's journal.
func damageSegment(t *testing.T, path, text string) {
	t.Helper()
	segment := filepath.Join(journalOf(t, path), "00000001.segment")
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte(text))]++
	if err := os.WriteFile(segment, b, boltfile.FileMode); err != nil {
		t.Fatal(err)
	}
}

// TestJournalAfterKill checks that a killed store opens with all messages, with and without a journal from then on, and that
// check and compact know the journal.
func TestJournalAfterKill(t *testing.T) {
	path := killedStore(t)
	if done := wantSound(t, path); done.Conversations != 5 || done.Messages != 50 {
		t.Errorf("Check = %+v, want 5 conversations and 50 messages", done)
	}
	s := openJournaled(t, path, store.Options{}, 1<<20)
	wantMessages(t, s)
	if j := s.State().Journal; j.WaitingBytes == 0 || j.Age <= 0 || j.FileBytes == 0 {
		t.Errorf("journal = %+v, want the operations of the killed process", j)
	}
	kill(t, s)
	s = openJournaled(t, path, store.Options{}, 1<<20)
	wantMessages(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := schemaOf(t, open(t, path, store.Options{})); !bytes.Equal(got, boltfile.EncodeSchema(boltfile.SchemaVersion)) {
		t.Errorf("schema after Close = %x", got)
	}

	for name, use := range map[string]func(t *testing.T, path string){
		"without a journal": func(t *testing.T, path string) {
			t.Helper()
			wantMessages(t, open(t, path, store.Options{}))
		},
		"with a smaller budget": func(t *testing.T, path string) {
			t.Helper()
			committed := make(chan struct{}, 10)
			s, err := Open(path, Options{JournalBudget: 1, OnCommit: func(store.Commit) { committed <- struct{}{} }})
			if err != nil {
				t.Fatal(err)
			}
			for current, folding := s.tally.pending.Bytes(); current+folding > 0; current, folding = s.tally.pending.Bytes() {
				<-committed
			}
			wantMessages(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"compact": func(t *testing.T, path string) {
			t.Helper()
			if _, err := Compact(path, func(string) error { return nil }); err != nil {
				t.Fatal(err)
			}
			wantSound(t, path)
			wantMessages(t, openJournaled(t, path, store.Options{}, 1<<20))
		},
	} {
		t.Run(name, func(t *testing.T) { use(t, killedStore(t)) })
	}
}

// TestReplaceJournaled replaces and removes messages of which the file has some and the journal has the others. Messages
// that are appended after that are in the journal again.
func TestReplaceJournaled(t *testing.T) {
	path := killedStore(t)
	s := openJournaled(t, path, store.Options{}, 1<<20)
	replace := func(id string, after int32, content string) {
		t.Helper()
		_, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: id, ReplaceAfter: &after, Messages: text(content),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	replace("0", 2, "in place of 8 messages") // The file has 4 of 10.
	replace("1", 7, "in place of 3 messages")
	_, err := s.Update(t.Context(), &store.Update{Tenant: "acme", ConversationID: "2", Sequences: []int32{1, 4, 6, 8, 9, 10}})
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string][]int32{
		"0": {1, 2, 11, 12, 13}, "1": {1, 2, 3, 4, 5, 6, 7, 11, 12, 13}, "2": {2, 3, 5, 7, 11, 12},
	}
	check := func() {
		t.Helper()
		wantConsistent(t, s)
		for id, want := range wants {
			snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id, Newest: -1})
			if err != nil {
				t.Fatal(err)
			}
			var got []int32
			for frame := range snapshot.Messages.All() {
				got = append(got, frame.Sequence())
			}
			if !slices.Equal(got, want) {
				t.Errorf("conversation %s has messages %d, want %d", id, got, want)
			}
		}
	}
	for range 2 {
		for id := range wants {
			appendTo(t, s, id, "after that")
		}
	}
	if n := len(pendingOf(t, s, "0").Operations); n != 2 {
		t.Errorf("the journal has %d operations of conversation 0, want the 2 after the replacement", n)
	}
	check()
	kill(t, s)
	wantSound(t, path)
	s = openJournaled(t, path, store.Options{}, 1<<20)
	check()
	s.folder.fold()
	check()
}

// pendingOf returns the entry of a conversation that the file does not contain completely.
func pendingOf(t *testing.T, s *Store, id string) (e *overlay.Entry) {
	t.Helper()
	err := s.db.View(func(tx *bolt.Tx) error {
		name := layout.IDKey("acme", id)
		p, err := layout.DecodePlace(name, tx.Bucket([]byte(layout.IDsBucket)).Get(name))
		if err != nil {
			return err
		}
		e, err = s.tally.pending.View().Get(layout.ConversationKey("acme", p.Key), tx.ID())
		return err
	})
	if err != nil || e == nil {
		t.Fatalf("entry of conversation %s = %v, %v, want one", id, e, err)
	}
	return e
}

// TestJournalDamaged checks that a store is not opened, and that the check fails, if its file and its journal do not belong
// together, or if one of them is damaged or an older copy.
func TestJournalDamaged(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(t *testing.T, path string)
		want   string
	}{
		"missing": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.RemoveAll(journalOf(t, path)); err != nil {
				t.Fatal(err)
			}
		}, "is missing"},
		"emptied directory": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Remove(filepath.Join(journalOf(t, path), "00000001.segment")); err != nil {
				t.Fatal(err)
			}
		}, "segment 1 is missing"},
		"emptied file": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Truncate(filepath.Join(journalOf(t, path), "00000001.segment"), 0); err != nil {
				t.Fatal(err)
			}
		}, "cut short"},
		"file cut short": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Truncate(filepath.Join(journalOf(t, path), "00000001.segment"), 10<<10); err != nil {
				t.Fatal(err)
			}
		}, "cut short"},
		"zeros": {func(t *testing.T, path string) {
			t.Helper()
			segment := filepath.Join(journalOf(t, path), "00000001.segment")
			if err := os.WriteFile(segment, make([]byte, 16<<10), boltfile.FileMode); err != nil {
				t.Fatal(err)
			}
		}, "overwritten"},
		"of another store": {func(t *testing.T, path string) {
			t.Helper()
			own, other := journalOf(t, path), journalOf(t, killedStore(t))
			if err := errors.Join(os.RemoveAll(own), os.CopyFS(own, os.DirFS(other))); err != nil {
				t.Fatal(err)
			}
		}, "belongs to another store"},
		"a bit": {func(t *testing.T, path string) {
			t.Helper()
			damageSegment(t, path, "message 5")
		}, "cannot be read"},
		"older file": {func(t *testing.T, path string) {
			t.Helper()
			older, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s := openJournaled(t, path, store.Options{}, 1<<20)
			if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "4"}); err != nil {
				t.Fatal(err)
			}
			appendTo(t, s, "0", "after the delete")
			kill(t, s)
			if err := os.WriteFile(path, older, boltfile.FileMode); err != nil {
				t.Fatal(err)
			}
		}, "older copy"},
		"older journal": {func(t *testing.T, path string) {
			t.Helper()
			dir, older := journalOf(t, path), t.TempDir()
			if err := os.CopyFS(older, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			s := openJournaled(t, path, store.Options{}, 1<<20)
			appendTo(t, s, "0", "more")
			appendTo(t, s, "new conversation", "which is a transaction")
			kill(t, s)
			if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(older))); err != nil {
				t.Fatal(err)
			}
		}, "older copy"},
		"entry in meta": {func(t *testing.T, path string) {
			t.Helper()
			updateFile(t, path, func(tx *bolt.Tx) error {
				return tx.Bucket([]byte("meta")).Put([]byte(boltfile.JournalKey), []byte("damaged"))
			})
		}, "entry of the journal"},
	} {
		t.Run(name, func(t *testing.T) {
			path := killedStore(t)
			test.damage(t, path)
			s, err := Open(path, Options{JournalBudget: 1 << 20})
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("Open = %v, want %v with %q in one line", err, ErrDamaged, test.want)
			}
			if err == nil {
				s.Close()
			}
			if _, err := Check(path, func(string) {}); !errors.Is(err, ErrDamaged) {
				t.Errorf("Check = %v, want %v", err, ErrDamaged)
			}
		})
	}
}

// TestMissingSegment checks that a store is not opened without the newest segment of its journal, though no transaction of
// a caller has followed the appends in it.
func TestMissingSegment(t *testing.T) {
	path := newPath(t)
	committed := make(chan struct{}, 100)
	s, err := Open(path, Options{JournalBudget: 1 << 20, segmentBytes: 16 << 10, OnCommit: func(c store.Commit) {
		if !c.Journal {
			committed <- struct{}{}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, s, "a", "creates the conversation")
	<-committed
	for n := range 4 { // A segment has one of these.
		appendTo(t, s, "a", strings.Repeat(fmt.Sprint(n), 10<<10))
		<-committed
	}
	kill(t, s)
	segments, err := filepath.Glob(filepath.Join(journalOf(t, path), "*.segment"))
	if err != nil || len(segments) < 4 {
		t.Fatalf("segments %v, %v, want 4 or more", segments, err)
	}
	slices.Sort(segments)
	if err := os.Remove(segments[3]); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(path, Options{JournalBudget: 1 << 20}); !errors.Is(err, ErrDamaged) ||
		!strings.Contains(err.Error(), "is missing") {
		t.Errorf("Open without the newest segment = %v, %v, want %v", s, err, ErrDamaged)
	}
}

// TestQueuedAppendsShareCommits queues appends to one conversation while the writer is blocked. They are applied in order:
// in one transaction, or those from the first one on that the journal cannot take.
func TestQueuedAppendsShareCommits(t *testing.T) {
	const appends = 40
	for _, test := range []struct {
		name    string
		budget  int64
		late    int64 // the reading of the clock, from 1, at which the conversation has expired
		commits string
	}{
		{"transaction", 0, 0, "[40]"},
		{"journal", 1 << 20, 0, "[40]"},
		{"journal and transaction", 1 << 20, 10, "[9 31]"}, // A creation needs a transaction, until the clock is set back.
	} {
		t.Run(test.name, func(t *testing.T) {
			var readings atomic.Int64
			var released atomic.Bool
			start := time.Now()
			blocked, release := make(chan struct{}), make(chan struct{})
			var commits []int // The writer's goroutine owns it.
			s, err := Open(newPath(t), Options{
				Options: store.Options{
					Now: func() time.Time {
						if readings.Add(1) == test.late && released.Load() {
							return start.Add(2 * time.Hour)
						}
						return start
					},
					Observe: func(changes []store.Change) {
						if changes[0].ConversationID == "other" {
							close(blocked)
							<-release
							readings.Store(0)
							released.Store(true)
						}
					},
				},
				JournalBudget: test.budget,
				OnCommit: func(c store.Commit) {
					if c.Operations > 1 { // That of the folder, after the first batch, has one.
						commits = append(commits, c.Operations)
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			appendTo(t, s, "one", "first")
			results := make(chan *store.Result, appends+1)
			run := func(a *store.Append) {
				result, err := s.Append(t.Context(), a)
				if err != nil {
					t.Errorf("Append: %v", err)
				}
				results <- result
			}
			go run(&store.Append{Tenant: "acme", ConversationID: "other", Messages: text("blocks")})
			<-blocked
			for i := range appends {
				queued := make(chan struct{})
				go run(&store.Append{
					Tenant: "acme", ConversationID: "one", Messages: text(fmt.Sprint(i)), IfVersion: new(int32(i + 1)),
					Queued: func() { close(queued) },
				})
				<-queued
			}
			close(release)
			for range appends + 1 {
				<-results
			}
			if got := fmt.Sprint(commits); got != test.commits {
				t.Errorf("the commits have %s operations, want %s", got, test.commits)
			}
		})
	}
}
