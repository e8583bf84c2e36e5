package interactionlog

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
)

const (
	// childEnv makes the test program a child process with a store and a log in its directory.
	childEnv     = "PARLEY_INTERACTIONLOG_CHILD"
	childWriters = 16
)

// childTenant returns the tenant of a child's conversation. The conversations belong to two tenants.
func childTenant(id string) string {
	if id[len(id)-1]%2 == 0 {
		return "default"
	}
	return "acme"
}

// openBoth opens the store and the log of a directory and catches up.
func openBoth(ctx context.Context, dir string) (store.Store, *Log, error) {
	l, err := Open(Options{Dir: filepath.Join(dir, "interactions"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	s, err := boltstore.Open(filepath.Join(dir, "parley.db"), boltstore.Options{Options: store.Options{
		MaxMessages: 1000, Observe: l.Committed,
	}})
	if err != nil {
		return nil, nil, cmp.Or(l.Close(), err)
	}
	err = l.CatchUp(ctx, s)
	return s, l, err
}

// runChild appends to one conversation per goroutine until it is killed. It writes each acknowledgement
// to standard output.
func runChild() int {
	ctx := context.Background()
	s, l, err := openBoth(ctx, ".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go l.Maintain(ctx)
	var group sync.WaitGroup
	for writer := range childWriters {
		group.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprint("c", writer)
				result, err := s.Append(ctx, &store.Append{Tenant: childTenant(id), ConversationID: id, Messages: []*parleyv1.Message{
					{Id: "q", Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("question ", 1+i%50)},
					{Id: "a", Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "writer", Content: strings.Repeat("answer\n", 1+i%90)},
				}})
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				fmt.Printf("c%d %d\n", writer, result.Appended[1].GetSequence())
			}
		})
	}
	group.Wait()
	return 0
}

// TestKill kills a writing process several times. It checks that the log has all acknowledged messages
// when the process has ended, and all that the store retains when the next one has caught up.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	for round := range 5 {
		acknowledged := killAfter(t, dir, 150+70*round, func() bool { return true })
		logged := checkLog(t, dir, round+1)
		for id, n := range acknowledged {
			if logged[id] < n {
				t.Errorf("%s: %d messages in the log, %d acknowledged", id, logged[id], n)
			}
		}
		checkCatchUp(t, dir, round+1, acknowledged)
	}
}

// checkCatchUp starts and stops the next process. It checks that the log has all messages that the store
// retains, and at least those that were acknowledged. It returns how many messages the log has.
func checkCatchUp(t *testing.T, dir string, maxBroken int, acknowledged map[string]int) map[string]int {
	t.Helper()
	s, l, err := openBoth(t.Context(), dir)
	must(t, err)
	logged := checkLog(t, dir, maxBroken)
	for id, n := range acknowledged {
		snapshot, err := s.Read(t.Context(), &store.Read{Tenant: childTenant(id), ConversationID: id})
		must(t, err)
		if last := int(snapshot.Conversation.GetLastSequence()); last != logged[id] || last < n {
			t.Errorf("%s: %d messages, %d in the log, %d acknowledged", id, last, logged[id], n)
		}
	}
	must(t, s.Close(), l.Close())
	return logged
}

// checkLog checks that the log of a directory has the messages of each conversation once and in order,
// and at most maxBroken invalid lines. It returns how many messages there are.
func checkLog(t *testing.T, dir string, maxBroken int) map[string]int {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "interactions", "*.jsonl"))
	must(t, err)
	slices.Sort(paths)
	last, broken := map[string]int{}, 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		must(t, err)
		for text := range strings.Lines(string(text)) {
			l, err := entry.Parse([]byte(text))
			if err != nil {
				broken++
				continue
			}
			id := l.Interaction.GetConversationId()
			if l.Tenant != childTenant(id) {
				t.Fatalf("entry of %s has tenant %q, want %q", id, l.Tenant, childTenant(id))
			}
			n := int(l.Interaction.GetMetadata().GetFields()["turn_number"].GetNumberValue())
			last[id]++
			if n != last[id] {
				t.Fatalf("%s: message %d, want %d", id, n, last[id])
			}
			if role := l.Interaction.GetRole(); (role == parleyv1.Role_ROLE_USER) != (n%2 == 1) {
				t.Fatalf("message %d of %s has role %v", n, id, role)
			}
		}
	}
	if broken > maxBroken {
		t.Errorf("%d invalid lines, want at most %d", broken, maxBroken)
	}
	return last
}

// killAfter kills a child after a number of acknowledged messages, as soon as ready returns true. It returns the
// last sequence that was acknowledged of each conversation.
func killAfter(t *testing.T, dir string, lines int, ready func() bool) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // The child may never become ready.
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), childEnv+"=1"), t.Output()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	acknowledged := map[string]int{}
	scanner, n, killed := bufio.NewScanner(out), 0, false
	for ; scanner.Scan(); n++ {
		var id string
		var sequence int
		if _, err := fmt.Sscan(scanner.Text(), &id, &sequence); err != nil {
			t.Fatalf("%q: %v", scanner.Text(), err)
		}
		acknowledged[id] = sequence
		if !killed && n >= lines && ready() {
			killed = true
			must(t, cmd.Process.Kill())
		}
	}
	if err := cmd.Wait(); err == nil || !killed {
		t.Fatalf("the child ended after %d lines: %v", n, err)
	}
	return acknowledged
}
