package storetest_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/memstore"
	"github.com/parleyhq/parley/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bugEnv is the environment variable with the bug of the store that this process tests.
const bugEnv = "PARLEY_STORETEST_BUG"

// noBug is the name of the store without a bug. It shows that the other stores fail because of
// their bugs.
const noBug = "none"

// faultyStore is a store that sometimes violates the law.
type faultyStore struct {
	durable bool
	open    opener
	rare    bool   // The test needs seconds to find the bug, so -short leaves it out.
	test    string // the test that finds the bug, with its subtests after slashes; empty: Model
}

// faultyStores returns stores with one bug each, by the name of the bug.
func faultyStores() map[string]faultyStore {
	stores := faultyRecordStores()
	maps.Copy(stores, faultyConversationStores())
	maps.Copy(stores, faultyRetentionStores())
	maps.Copy(stores, faultyConcurrentStores())
	maps.Copy(stores, faultyTurnStores())
	return stores
}

func faultyConversationStores() map[string]faultyStore {
	return map[string]faultyStore{
		noBug: {open: openMemory, test: "Model.*"},
		"an append is lost": {open: wrapMemory(func(s store.Store, counter *callCounter) store.Store {
			return &lostAppend{s, counter, map[string]*store.Snapshot{}}
		}), rare: true},
		"a version is not checked": {
			open: wrapMemory(func(s store.Store, counter *callCounter) store.Store { return ignoresVersion{s, counter} }),
		},
		"a request is not stored": {
			open: wrapMemory(func(s store.Store, counter *callCounter) store.Store { return forgetsRequest{s, counter} }),
		},
		"capacity is exceeded by one": {open: func(tb testing.TB, dir string, o store.Options) store.Store {
			tb.Helper()
			o.MaxConversations++
			return openMemory(tb, dir, o)
		}},
		"an expired conversation is read": {open: wrapMemory(func(s store.Store, counter *callCounter) store.Store {
			return &readsExpired{s, counter, map[string]*store.Snapshot{}}
		})},
		"a fork lacks a message": {
			open: wrapMemory(func(s store.Store, _ *callCounter) store.Store { return shortFork{s} }), rare: true,
		},
		"a page skips a row": {
			open: wrapMemory(func(s store.Store, counter *callCounter) store.Store { return skipsRow{s, counter} }),
		},
		"progress is not saved": {
			open: wrapFile(func(s store.Store, _ *callCounter) store.Store { return dropsProgress{s} }), durable: true,
			rare: true,
		},
		"an ephemeral conversation is deleted too early": {
			open: wrapFile(func(s store.Store, _ *callCounter) store.Store { return earlyDelete{s} }), durable: true,
			rare: true,
		},
		"a replacement uses sequences again": {
			open: wrapMemory(func(s store.Store, _ *callCounter) store.Store {
				return reusesSequences{s, map[string]map[int32]int32{}}
			}),
		},
		"a retry removes messages": {
			open: wrapMemory(func(s store.Store, counter *callCounter) store.Store { return removesAgain{s, counter} }),
		},
		"a restart loses the newest conversation": {open: openWithoutNewest, durable: true},
	}
}

// TestBugs runs tests with stores that violate the law and checks that they fail. A failing test would fail this process,
// so each runs in a process of its own. All use the same random seed. With -short, the bugs that are rare are left out,
// and the store without a bug passes fewer checks. The race detector would make it five times as slow and sees the same
// code in the tests of the stores.
func TestBugs(t *testing.T) {
	faultyStores := faultyStores()
	if s, ok := faultyStores[os.Getenv(bugEnv)]; ok {
		storetest.Run(t, storetest.Subject{Open: s.open, Durable: s.durable})
		return
	}
	if storetest.RaceDetector {
		t.Skip("left out with the race detector; make testlaws runs it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(faultyStores)) {
		if testing.Short() && faultyStores[name].rare {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test := cmp.Or(faultyStores[name].test, "Model")
			pattern := "^TestBugs$/^" + strings.ReplaceAll(test, "/", "$/^") + "$"
			process := exec.CommandContext(t.Context(), self, "-test.run="+pattern, "-test.timeout=2m",
				fmt.Sprint("-test.short=", testing.Short() && name == noBug), "-rapid.seed=2", "-rapid.checks=100",
				"-rapid.nofailfile", "-rapid.shrinktime=1ms")
			process.Env = append(process.Environ(), bugEnv+"="+name)
			out, err := process.CombinedOutput()
			found := process.ProcessState.ExitCode() == 1 && strings.Contains(string(out), "--- FAIL: TestBugs/"+test+" ")
			if correct := name == noBug; correct && err != nil || !correct && !found {
				t.Errorf("%s of the store with bug %q = %v:\n%s", test, name, err, out)
			}
		})
	}
}

func openMemory(_ testing.TB, _ string, o store.Options) store.Store { return memstore.New(o) }

func openFile(tb testing.TB, dir string, o store.Options) store.Store {
	tb.Helper()
	s, err := boltstore.Open(filepath.Join(dir, "parley.db"), boltstore.Options{Options: o})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// openWithoutNewest deletes the newest conversation before it opens the store.
func openWithoutNewest(tb testing.TB, dir string, o store.Options) store.Store {
	tb.Helper()
	s := openFile(tb, dir, store.Options{Now: o.Now})
	page, err := s.List(tb.Context(), &store.List{Tenant: "acme", PageSize: 1})
	for _, e := range page.Entries {
		err = errors.Join(err, s.Delete(tb.Context(), &store.Delete{
			Tenant: "acme", ConversationID: e.GetConversation().GetId(),
		}))
	}
	if err = errors.Join(err, s.Close()); err != nil {
		tb.Fatal(err)
	}
	return openFile(tb, dir, o)
}

type opener func(testing.TB, string, store.Options) store.Store

// wrapMemory returns an opener of stores in memory. wrap adds a bug to each store.
func wrapMemory(wrap func(store.Store, *callCounter) store.Store) opener {
	counter := new(callCounter)
	return func(tb testing.TB, dir string, o store.Options) store.Store {
		tb.Helper()
		return wrap(openMemory(tb, dir, o), counter)
	}
}

// wrapFile returns an opener of stores in a file. wrap adds a bug to each store.
func wrapFile(wrap func(store.Store, *callCounter) store.Store) opener {
	counter := new(callCounter)
	return func(tb testing.TB, dir string, o store.Options) store.Store {
		tb.Helper()
		return wrap(openFile(tb, dir, o), counter)
	}
}

// callCounter counts calls over all stores that a process opens.
type callCounter struct{ calls int }

// nth reports whether this is the n-th call, the 2n-th call and so on.
func (e *callCounter) nth(n int) bool {
	e.calls++
	return e.calls%n == 0
}

// lostAppend acknowledges one append in fifty that reads do not return until the next append.
type lostAppend struct {
	store.Store
	counter *callCounter
	stale   map[string]*store.Snapshot
}

func (s *lostAppend) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	delete(s.stale, a.ConversationID)
	before, err := s.Store.Read(ctx, &store.Read{
		Tenant: a.Tenant, ConversationID: a.ConversationID, Newest: -1, Turns: true,
	})
	result, err2 := s.Store.Append(ctx, a)
	if err == nil && err2 == nil && !result.Replayed && s.counter.nth(50) {
		s.stale[a.ConversationID] = before
	}
	return result, err2
}

func (s *lostAppend) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	if before := s.stale[r.ConversationID]; before != nil {
		return before, nil
	}
	return s.Store.Read(ctx, r)
}

// ignoresVersion skips one version check in ten.
type ignoresVersion struct {
	store.Store
	counter *callCounter
}

func (s ignoresVersion) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.IfVersion != nil && s.counter.nth(10) {
		a.IfVersion = nil
	}
	return s.Store.Append(ctx, a)
}

// forgetsRequest does not store one request in ten.
type forgetsRequest struct {
	store.Store
	counter *callCounter
}

func (s forgetsRequest) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.Request != nil && s.counter.nth(10) {
		a.Request = nil
	}
	return s.Store.Append(ctx, a)
}

// reusesSequences stores the messages of a replacement with sequences as if those that it removes had not existed.
type reusesSequences struct {
	store.Store
	stored map[string]map[int32]int32 // by uid of the conversation: stored sequences by those of the law
}

func (s reusesSequences) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	result, err := s.Store.Append(ctx, a)
	if err != nil {
		return nil, err
	}
	stored := s.stored[result.Conversation.GetUid()]
	if stored == nil {
		stored = map[int32]int32{}
		s.stored[result.Conversation.GetUid()] = stored
	}
	for i, m := range result.Appended {
		if a.ReplaceAfter != nil && !result.Replayed {
			stored[m.GetSequence()] = min(m.GetSequence(), *a.ReplaceAfter+1+int32(i))
		}
		m.Sequence = cmp.Or(stored[m.GetSequence()], m.GetSequence())
	}
	renumber(result.Conversation, stored)
	return result, nil
}

func (s reusesSequences) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	snapshot, err := s.Store.Read(ctx, r)
	if err != nil || snapshot.Unchanged {
		return snapshot, err
	}
	stored := s.stored[snapshot.Conversation.GetUid()]
	renumber(snapshot.Conversation, stored)
	frames := snapshot.Messages
	snapshot.Messages = nil
	for frame := range frames.All() {
		if sequence := stored[frame.Sequence()]; sequence != 0 {
			body, err := proto.Marshal(&parleyv1.Message{Sequence: sequence})
			if err != nil {
				return nil, err
			}
			frame = store.AppendFrame(nil, frame.Body(), body) // The last value of a field wins.
			snapshot.Conversation.SizeBytes += int32(len(body))
		}
		snapshot.Messages = append(snapshot.Messages, frame...)
	}
	return snapshot, nil
}

// renumber sets the last sequence of a header to the stored one.
func renumber(c *parleyv1.Conversation, stored map[int32]int32) {
	c.LastSequence = cmp.Or(stored[c.GetLastSequence()], c.GetLastSequence())
}

// removesAgain forgets one request of a removal in five.
type removesAgain struct {
	store.Store
	counter *callCounter
}

func (s removesAgain) Update(ctx context.Context, u *store.Update) (*store.Result, error) {
	if u.Request != nil && s.counter.nth(5) {
		u.Request = nil
	}
	return s.Store.Update(ctx, u)
}

// readsExpired returns an old snapshot in one of a hundred reads of a missing conversation.
type readsExpired struct {
	store.Store
	counter *callCounter
	known   map[string]*store.Snapshot
}

func (s *readsExpired) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	got, err := s.Store.Read(ctx, r)
	if err == nil {
		s.known[r.ConversationID] = got
	} else if was := s.known[r.ConversationID]; was != nil && s.counter.nth(100) {
		return was, nil
	}
	return got, err
}

// shortFork creates forks without the oldest message.
type shortFork struct{ store.Store }

func (s shortFork) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	c.Messages = c.Messages.Skip(1)
	return s.Store.Create(ctx, c)
}

// skipsRow leaves out the first entry of one later page in a hundred.
type skipsRow struct {
	store.Store
	counter *callCounter
}

func (s skipsRow) List(ctx context.Context, l *store.List) (*store.Page, error) {
	page, err := s.Store.List(ctx, l)
	if err == nil && l.PageToken != "" && len(page.Entries) > 0 && s.counter.nth(100) {
		page.Entries = page.Entries[1:]
	}
	return page, err
}

// dropsProgress does not store the messages of an unfinished answer.
type dropsProgress struct{ store.Store }

func (s dropsProgress) SaveProgress(ctx context.Context, p *store.Progress) error {
	p.Messages = nil
	return s.Store.SaveProgress(ctx, p)
}

// earlyDelete deletes ephemeral conversations half a minute early.
type earlyDelete struct{ store.Store }

func (s earlyDelete) Release(ctx context.Context, h *store.Hold) error {
	h.DeleteAfter = max(0, h.DeleteAfter-30*time.Second)
	return s.Store.Release(ctx, h)
}
