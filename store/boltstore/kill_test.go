package boltstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	// turnWriters is the number of conversations that have nothing but turns, at most childMaxTurns + 15 of them.
	turnWriters, childMaxTurns = 8, 60
	// turnsPerWriter is more than the number of turns of one conversation.
	turnsPerWriter = 1_000_000
)

var childOptions = store.Options{MaxMessages: 1000}

// heldByChild is what the child holds when it is killed.
var heldByChild = &store.Hold{
	Tenant: "acme", ConversationIDs: []string{"asked", "c0", "none"}, DeleteAfter: 24 * time.Hour,
}

// child appends to one conversation per goroutine until it is killed. One of them replaces all messages
// each time. Each append writes its text to a record of the conversation and to one of the tenant. Other goroutines run
// turns. It prints each acknowledged append to standard output.
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
	for writer := range turnWriters {
		group.Go(func() {
			if err := runTurns(ctx, s, writer); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		})
	}
	group.Wait()
	return 0
}

// runTurns runs turns of a conversation, after those that it has had. It prints each turn that has begun.
func runTurns(ctx context.Context, s *Store, writer int) error {
	id := fmt.Sprint("t", writer)
	page, err := s.ListTurns(ctx, &store.ListTurns{Tenant: "acme", ConversationID: id, Limit: 1})
	if err != nil {
		return err
	}
	number, err := numberOf(page.Turns[0].GetId())
	if err != nil {
		return err
	}
	for {
		number++
		turn := &parleyv1.Turn{
			Id: indexedTurn(writer*turnsPerWriter + number), State: parleyv1.TurnState_TURN_STATE_COMPLETED,
		}
		for _, a := range []*store.Append{{Begin: turn}, {End: turn}} {
			a.Tenant, a.ConversationID = "acme", id
			if _, err := s.Append(ctx, a); err != nil {
				return err
			}
			fmt.Println(id, number)
		}
	}
}

// numberOf returns the number of a turn of runTurns among those of its conversation.
func numberOf(turnID string) (int, error) {
	n, err := strconv.Atoi(turnID[len(turnID)-12:])
	return n % turnsPerWriter, err
}

// preparedTurns is the number of turns of a conversation of runTurns before the first child. Each conversation is another
// number of turns before the next chunk is made and the next one is dropped.
func preparedTurns(writer int) int { return childMaxTurns + 16 + 2*writer }

// prepareTurns makes the conversations of runTurns.
func prepareTurns(t *testing.T, path string) {
	t.Helper()
	s := openJournaled(t, path, childOptions, 0)
	for writer := range turnWriters {
		id := fmt.Sprint("t", writer)
		keepTurns(t, s, id, childMaxTurns)
		for n := range preparedTurns(writer) {
			runTurn(t, s, id, indexedTurn(writer*turnsPerWriter+n))
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantTurnsOf checks that a conversation of runTurns, whose turn with that number was acknowledged, keeps its newest
// turns and no others. It returns the number of the newest.
func wantTurnsOf(t *testing.T, s *Store, id string, acknowledged int) (newest int) {
	t.Helper()
	page, err := s.ListTurns(t.Context(), &store.ListTurns{Tenant: "acme", ConversationID: id, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(page.Turns); n < childMaxTurns || n > childMaxTurns+15 {
		t.Fatalf("%s keeps %d turns, want %d to %d", id, n, childMaxTurns, childMaxTurns+15)
	}
	if newest, err = numberOf(page.Turns[0].GetId()); err != nil || newest < acknowledged {
		t.Fatalf("newest turn of %s = %d, %v, acknowledged was %d", id, newest, err, acknowledged)
	}
	for i, turn := range page.Turns {
		running := turn.GetState() == parleyv1.TurnState_TURN_STATE_RUNNING
		if n, err := numberOf(turn.GetId()); err != nil || n != newest-i || running && i > 0 {
			t.Errorf("turn %d of %s before the newest, %d, is %v, %v", i, id, newest, turn, err)
		}
		if found, err := s.FindTurn(t.Context(), &store.FindTurn{Tenant: "acme", TurnID: turn.GetId()}); err != nil {
			t.Errorf("FindTurn of turn %d of %s = %v, %v", newest-i, id, found, err)
		}
	}
	return newest
}

// endAbandoned ends the turns that the child left. One is that of asked.
func endAbandoned(t *testing.T, s *Store) {
	t.Helper()
	turns, _, err := s.Abandoned(t.Context(), "")
	asked := 0
	for _, turn := range turns {
		if turn.ConversationID == "asked" {
			asked++
		} else if turn.ConversationID[0] != 't' {
			t.Errorf("%s has an abandoned turn", turn.ConversationID)
		}
		if _, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: turn.ConversationID, End: &parleyv1.Turn{
				Id: turn.TurnID, State: parleyv1.TurnState_TURN_STATE_INTERRUPTED,
			},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err != nil || asked != 1 {
		t.Fatalf("Abandoned = %v, %v, want one turn of asked", turns, err)
	}
}

// TestKill kills a writing process several times, with and without a journal, and checks the file that it leaves.
func TestKill(t *testing.T) {
	path := newPath(t)
	prepareTurns(t, path)
	ran := 0
	for round, mode := range []string{"file", withJournal, withJournal, "file", withJournal, withJournal} {
		acknowledged := killAfter(t, path, mode, 5*writers+100*round)
		before := time.Now()
		s := openJournaled(t, path, childOptions, []int64{0, 1 << 20}[round%2])
		wantConsistent(t, s)
		releasedAt(t, s, before, time.Now())
		ran = 0
		for writer := range turnWriters {
			id := fmt.Sprint("t", writer)
			ran += wantTurnsOf(t, s, id, int(acknowledged[id])) + 1 - preparedTurns(writer)
			delete(acknowledged, id)
		}
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
		endAbandoned(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d turns begun by the children", ran)
	if ran < 16*turnWriters/2 { // Half of the conversations have made a chunk then, and dropped one.
		t.Errorf("the children have begun %d turns, want %d at least", ran, 16*turnWriters/2)
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
