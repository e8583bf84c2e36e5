package boltstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

const (
	// childEnv makes the test program a child process that writes to the store in its directory.
	childEnv = "PARLEY_BOLTSTORE_CHILD"
	// withJournal is the value of childEnv with which the store has a journal.
	withJournal = "journal"
	writers     = 64
	// batchSize is the number of messages in one append.
	batchSize = 3
	// replacer is the writer whose appends replace all messages of its conversation.
	replacer = 1
)

var childOptions = store.Options{MaxMessages: 1000}

// heldByChild is what the child holds when it is killed.
var heldByChild = &store.Hold{
	Tenant: "acme", ConversationIDs: []string{"asked", "c0", "none"}, DeleteAfter: 24 * time.Hour,
}

// child appends to one conversation per goroutine until it is killed. One of them replaces all messages
// each time. Each append writes its text to a record of the conversation and to one of the tenant. It prints each
// acknowledged append to standard output.
func child() int {
	o := Options{Options: childOptions, chunkSize: 500} // So that conversations get many chunks.
	if os.Getenv(childEnv) == withJournal {
		o.JournalBudget = 16 << 10 // So that it is folded all the time.
	}
	s, err := Open("parley.db", o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx := context.Background()
	if _, err := s.Append(ctx, &store.Append{
		Tenant: "acme", ConversationID: "asked", Messages: text("question"), Begin: &parleyv1.Turn{
			Id: fmt.Sprint("turn of ", os.Getpid()),
		},
	}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := s.Hold(ctx, heldByChild); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var group sync.WaitGroup
	for writer := range writers {
		group.Go(func() {
			for i := 0; ; i++ {
				content, id := fmt.Sprint("append ", i, " of process ", os.Getpid()), fmt.Sprint("c", writer)
				a := &store.Append{Tenant: "acme", ConversationID: id, Records: []*parleyv1.RecordWrite{
					{Key: "state", Value: []byte(content)}, {Key: id, Value: []byte(content), TenantScope: true},
				}}
				if writer == replacer {
					a.ReplaceAfter = new(int32)
				}
				for range batchSize {
					a.Messages = append(a.Messages, text(content)...)
				}
				result, err := s.Append(ctx, a)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				fmt.Printf("c%d %d\n", writer, result.Appended[batchSize-1].GetSequence())
			}
		})
	}
	group.Wait()
	return 0
}

// TestKill kills a writing process several times, with and without a journal, and checks the file that it leaves.
func TestKill(t *testing.T) {
	path := newPath(t)
	for round, mode := range []string{"file", withJournal, withJournal, "file", withJournal, withJournal} {
		acknowledged := killAfter(t, path, mode, 5*writers+100*round)
		before := time.Now()
		s := openJournaled(t, path, childOptions, []int64{0, 1 << 20}[round%2])
		wantConsistent(t, s)
		releasedAt(t, s, before, time.Now())
		for id, sequence := range acknowledged {
			snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id, Newest: -1})
			if err != nil {
				t.Fatal(err)
			}
			if last := snapshot.Conversation.GetLastSequence(); last < sequence || last%batchSize != 0 {
				t.Errorf("last sequence of %s = %d, acknowledged was %d", id, last, sequence)
			}
			want := int(snapshot.Conversation.GetLastSequence())
			if id == fmt.Sprint("c", replacer) {
				want = batchSize
			}
			if n := snapshot.Messages.Count(); n != want {
				t.Errorf("%s has %d messages, want %d", id, n, want)
			}
		}
		wantTogether(t, s)
		turns, _, err := s.Abandoned(t.Context(), "")
		if err != nil || len(turns) != 1 || turns[0].ConversationID != "asked" {
			t.Fatalf("Abandoned = %v, %v, want the turn of asked", turns, err)
		}
		if _, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: "asked", End: &parleyv1.Turn{
				Id: turns[0].TurnID, State: parleyv1.TurnState_TURN_STATE_INTERRUPTED,
			},
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// wantTogether checks that each conversation has the record, and the tenant the record of the conversation, that its
// newest append wrote, and nothing else.
func wantTogether(t *testing.T, s *Store) {
	t.Helper()
	appends, revisions := 0, map[int64]bool{}
	for writer := range writers {
		id := fmt.Sprint("c", writer)
		snapshot, err := s.Read(t.Context(), &store.Read{
			Tenant: "acme", ConversationID: id, Newest: 1, RecordPrefixes: []string{""},
		})
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		common, err2 := getRecords(t.Context(), s, &store.GetRecords{Tenant: "acme", Keys: []string{id}, MaxBytes: 1 << 20})
		messages, err3 := snapshot.Messages.Messages()
		if err := errors.Join(err, err2, err3); err != nil || len(messages) != 1 || len(snapshot.Records) != 1 || len(common) != 1 {
			t.Fatalf("%s has %v, records %v, and %v of the tenant, %v; want one of each", id, messages, snapshot.Records, common, err)
		}
		content := messages[0].GetContent()
		for _, r := range []*parleyv1.Record{snapshot.Records[0], common[0]} {
			if string(r.GetValue()) != content {
				t.Errorf("record %q is of %q, the message of %s is %q", r.GetKey(), r.GetValue(), id, content)
			}
		}
		if r := snapshot.Records[0].GetRevision(); r != int64(snapshot.Conversation.GetVersion()) {
			t.Errorf("record of %s has revision %d at version %d", id, r, snapshot.Conversation.GetVersion())
		}
		if revisions[common[0].GetRevision()] {
			t.Errorf("two appends have revision %d of the tenant", common[0].GetRevision())
		}
		revisions[common[0].GetRevision()] = true
		appends += int(snapshot.Conversation.GetLastSequence()) / batchSize
	}
	t.Logf("%d conversations after %d appends, each with its records", len(revisions), appends)
}

// releasedAt checks that the holds of the child were released within that time, and that ids
// without a conversation are not ephemeral.
func releasedAt(t *testing.T, s *Store, from, to time.Time) {
	t.Helper()
	_ = s.db.View(func(tx *bolt.Tx) error {
		for _, id := range heldByChild.ConversationIDs {
			state := readState(tx.Bucket([]byte(layout.SessionsBucket)), s.tally.epoch, heldByChild.Tenant, id)
			if id == "none" {
				if !state.IsZero() {
					t.Errorf("%s is %+v", id, state)
				}
				continue
			}
			at := state.DeleteTime.Add(-heldByChild.DeleteAfter)
			if state.Held || at.Before(from) || at.After(to) {
				t.Errorf("%s is %+v, want released between %v and %v", id, state, from, to)
			}
		}
		return nil
	})
}

// killAfter kills a child after a number of acknowledged appends. It returns the last acknowledged
// sequence of each conversation.
func killAfter(t *testing.T, path, mode string, lines int) map[string]int32 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Dir, cmd.Env = filepath.Dir(path), append(os.Environ(), childEnv+"="+mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acknowledged := map[string]int32{}
	scanner, n := bufio.NewScanner(out), 0
	for ; scanner.Scan(); n++ {
		var id string
		var sequence int32
		if _, err := fmt.Sscan(scanner.Text(), &id, &sequence); err != nil {
			t.Fatalf("%q: %v", scanner.Text(), err)
		}
		acknowledged[id] = sequence
		switch n {
		case lines / 2:
			if _, err := Open(path, Options{Timeout: 1}); !errors.Is(err, ErrInUse) {
				t.Errorf("Open by a second process = %v, want ErrInUse", err)
			}
		case lines:
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || n <= lines {
		t.Fatalf("child ended after %d lines, %v", n, err)
	}
	return acknowledged
}
