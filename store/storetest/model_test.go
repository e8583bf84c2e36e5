package storetest_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/memstore"
	"github.com/parleyhq/parley/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bugEnv names the bug of the store that this process puts to the law.
const bugEnv = "PARLEY_STORETEST_BUG"

// noBug is that of a store without any, which shows that the others fail for theirs.
const noBug = "none"

// A lawless store breaks the law now and then.
type lawless struct {
	durable bool
	open    func(tb testing.TB, dir string, o store.Options) store.Store
}

// bugs are lawless stores by what is wrong with them.
func bugs() map[string]lawless {
	return map[string]lawless{
		noBug: {open: openMemory},
		"an append is lost": {open: over(func(s store.Store, now *every) store.Store {
			return &lostAppend{s, now, map[string]*store.Snapshot{}}
		})},
		"a version is not checked": {open: over(func(s store.Store, now *every) store.Store { return unchecked{s, now} })},
		"a request is forgotten":   {open: over(func(s store.Store, now *every) store.Store { return forgetful{s, now} })},
		"one conversation too many": {open: func(tb testing.TB, dir string, o store.Options) store.Store {
			tb.Helper()
			o.MaxConversations++
			return openMemory(tb, dir, o)
		}},
		"expired, and still there":      {open: over(func(s store.Store, now *every) store.Store { return &undead{s, now, map[string]*store.Snapshot{}} })},
		"a fork lacks a message":        {open: over(func(s store.Store, _ *every) store.Store { return forkless{s} })},
		"a page skips a row":            {open: over(func(s store.Store, now *every) store.Store { return skipping{s, now} })},
		"progress is not saved":         {open: overFile(func(s store.Store, _ *every) store.Store { return unsaved{s} }), durable: true},
		"session memory ends too early": {open: overFile(func(s store.Store, _ *every) store.Store { return early{s} }), durable: true},
		"a restart loses the newest":    {open: openLosing, durable: true},
	}
}

// TestBugs puts stores that break the law to the model test, which must find out. That fails
// then, so each runs in a process of its own; always with the same choices.
func TestBugs(t *testing.T) {
	bugs := bugs()
	if s, ok := bugs[os.Getenv(bugEnv)]; ok {
		storetest.Run(t, storetest.Subject{Open: s.open, Durable: s.durable})
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(bugs)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			process := exec.CommandContext(t.Context(), self, "-test.run=^TestBugs$/^Model$", "-test.timeout=2m",
				"-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=1ms")
			process.Env = append(process.Environ(), bugEnv+"="+name)
			out, err := process.CombinedOutput()
			found := process.ProcessState.ExitCode() == 1 && strings.Contains(string(out), "[rapid]")
			if sound := name == noBug; sound && err != nil || !sound && !found {
				t.Errorf("with bug %q the model test ended with %v:\n%s", name, err, out)
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

// openLosing deletes the newest conversation ahead of opening the file.
func openLosing(tb testing.TB, dir string, o store.Options) store.Store {
	tb.Helper()
	s := openFile(tb, dir, store.Options{Now: o.Now})
	page, err := s.List(tb.Context(), &store.List{Tenant: "acme", PageSize: 1})
	for _, e := range page.Entries {
		err = errors.Join(err, s.Delete(tb.Context(), &store.Delete{Tenant: "acme", ConversationID: e.GetConversation().GetId()}))
	}
	if err = errors.Join(err, s.Close()); err != nil {
		tb.Fatal(err)
	}
	return openFile(tb, dir, o)
}

type opener func(testing.TB, string, store.Options) store.Store

// over is a store in memory in something that gives it a bug.
func over(wrap func(store.Store, *every) store.Store) opener {
	now := new(every)
	return func(tb testing.TB, dir string, o store.Options) store.Store {
		tb.Helper()
		return wrap(openMemory(tb, dir, o), now)
	}
}

// overFile is the same of a store in a file.
func overFile(wrap func(store.Store, *every) store.Store) opener {
	now := new(every)
	return func(tb testing.TB, dir string, o store.Options) store.Store {
		tb.Helper()
		return wrap(openFile(tb, dir, o), now)
	}
}

// every counts calls, over all stores that a process opens.
type every struct{ calls int }

// nth reports whether this is the n-th call, the 2n-th and so on.
func (e *every) nth(n int) bool {
	e.calls++
	return e.calls%n == 0
}

// lostAppend acknowledges one append in fifty that nobody can read afterwards, until the
// next one.
type lostAppend struct {
	store.Store
	now   *every
	stale map[string]*store.Snapshot
}

func (s *lostAppend) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	delete(s.stale, a.ConversationID)
	before, err := s.Store.Read(ctx, &store.Read{Tenant: a.Tenant, ConversationID: a.ConversationID, Newest: -1, Turns: true})
	result, err2 := s.Store.Append(ctx, a)
	if err == nil && err2 == nil && !result.Replayed && s.now.nth(50) {
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

// unchecked leaves one check of a version in ten out.
type unchecked struct {
	store.Store
	now *every
}

func (s unchecked) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.IfVersion != nil && s.now.nth(10) {
		a.IfVersion = nil
	}
	return s.Store.Append(ctx, a)
}

// forgetful does not remember one request in ten.
type forgetful struct {
	store.Store
	now *every
}

func (s forgetful) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.Request != nil && s.now.nth(10) {
		a.Request = nil
	}
	return s.Store.Append(ctx, a)
}

// undead answers one read in a hundred of what is no more with what was there.
type undead struct {
	store.Store
	now   *every
	known map[string]*store.Snapshot
}

func (s *undead) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	got, err := s.Store.Read(ctx, r)
	if err == nil {
		s.known[r.ConversationID] = got
	} else if was := s.known[r.ConversationID]; was != nil && s.now.nth(100) {
		return was, nil
	}
	return got, err
}

// forkless forks without the oldest message.
type forkless struct{ store.Store }

func (s forkless) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	c.Messages = c.Messages.Skip(1)
	return s.Store.Create(ctx, c)
}

// skipping leaves out the first row of one page in a hundred that goes on from another.
type skipping struct {
	store.Store
	now *every
}

func (s skipping) List(ctx context.Context, l *store.List) (*store.Page, error) {
	page, err := s.Store.List(ctx, l)
	if err == nil && l.PageToken != "" && len(page.Entries) > 0 && s.now.nth(100) {
		page.Entries = page.Entries[1:]
	}
	return page, err
}

// unsaved keeps nothing of an answer that is not whole.
type unsaved struct{ store.Store }

func (s unsaved) SaveProgress(ctx context.Context, p *store.Progress) error {
	p.Messages = nil
	return s.Store.SaveProgress(ctx, p)
}

// early deletes session memory half a minute before its time.
type early struct{ store.Store }

func (s early) Release(ctx context.Context, h *store.Hold) error {
	h.DeleteAfter = max(0, h.DeleteAfter-30*time.Second)
	return s.Store.Release(ctx, h)
}
