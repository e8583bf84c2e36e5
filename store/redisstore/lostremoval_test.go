package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestLostReplyOfSweep loses the replies of sweeps. What they have removed is told, although their calls fail. Only if
// the lost connection was that of the subscription, too, there is a GAP.
func TestLostReplyOfSweep(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	p, seen, now := newProxy(t, engine.Addr()), new(watcher), time.Now()
	s := openAt(t, store.Options{
		Now: func() time.Time { return now }, TTL: time.Minute, Observe: seen.observe,
	}, p.addr)
	sweep := func(id string) error {
		appendTo(t, s, id, "hello")
		now = now.Add(time.Hour)
		seen.take()
		return lastError(s.Sweep(t.Context(), 10))
	}
	if err := sweep("first"); err != nil { // The engine replies that it needs the script.
		t.Fatal(err)
	}
	for i := range 30 {
		id := fmt.Sprint("c", i)
		p.set(&fault{matches: isWrite, skip: 1, times: 1}) // after the append
		wantError(t, "Sweep", sweep(id), store.ErrUnavailable)
		p.set(nil)
		s.awaitTold(t.Context(), s.buckets[0])
		got := seen.take()
		if want := []string{"EXPIRED " + id + " 1"}; slices.Equal(got, want) {
			return
		} else if !slices.Contains(got, "GAP  0") {
			t.Fatalf("changes = %v, want %v or a GAP", got, want)
		}
	}
	t.Error("each sweep was told as a GAP")
}

// TestLostReplyAndRemoval has another process remove the conversation between a commit whose reply is lost and the next
// attempt: the write is not made a second time. If the commit has added the conversation, the write returns its result.
func TestLostReplyAndRemoval(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	ctx := t.Context()
	remove := func(id string) func() {
		return func() {
			if err := l.other.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: id}); err != nil {
				t.Errorf("Delete(%q) = %v", id, err)
			}
		}
	}
	for _, present := range []bool{true, false} {
		id := fmt.Sprint("removed ", present)
		if present {
			appendTo(t, l, id, "one")
		}
		l.proxy.set(&fault{matches: isWrite, times: 1, afterward: remove(id)})
		r, err := l.Append(ctx, &store.Append{Tenant: "acme", ConversationID: id, Messages: message("mine")})
		if present {
			wantError(t, "Append before a removal", err, store.ErrUnavailable)
		} else if err != nil || r.Appended[0].GetSequence() != 1 {
			t.Errorf("Append that creates before a removal = %+v, %v, want its result", r, err)
		}
		l.proxy.set(nil)
		_, err = l.other.Read(ctx, &store.Read{Tenant: "acme", ConversationID: id})
		wantError(t, "Read of what was removed", err, store.ErrNotFound)
	}
}

// TestLostCreateAndOthers loses a create, or its reply, and has another process create other conversations before the
// next attempt. The conversation is created once, unless so many others follow that the commit may be forgotten.
func TestLostCreateAndOthers(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	// It waits until the others have been created.
	l.Store = openWith(t, Options{
		Client: rueidis.ClientOption{ConnWriteTimeout: time.Minute}, Buckets: 1, Timeout: time.Minute,
	}, l.proxy.addr)
	for _, test := range []struct {
		name          string
		unsent, fails bool
		others        int
		removed       bool // whether the conversation is also removed
	}{
		{name: "request", unsent: true, others: 1},
		{name: "request and many others", unsent: true, others: maxAdded},
		{name: "request and too many others", unsent: true, others: maxAdded + 1, fails: true},
		{name: "reply", others: 1},
		{name: "reply and many others", others: 2 * maxAdded},
		{name: "reply and removal", others: maxAdded - 1, removed: true},
		{name: "reply, removal and too many others", others: 2 * maxAdded, removed: true, fails: true},
	} {
		others := func() {
			if test.removed {
				if err := l.other.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: test.name}); err != nil {
					t.Error(err)
				}
			}
			for i := range test.others {
				if err := create(t.Context(), l.other, fmt.Sprint("other ", i)); err != nil {
					t.Error(err)
				}
			}
		}
		l.proxy.set(&fault{matches: isWrite, times: 1, unsent: test.unsent, afterward: others, sentNone: others})
		err := create(t.Context(), l.Store, test.name)
		l.proxy.set(nil)
		if test.fails {
			wantError(t, "Create after a lost "+test.name, err, store.ErrUnavailable)
		} else if err != nil {
			t.Errorf("Create after a lost %s = %v, want nil", test.name, err)
		}
		err = read(t.Context(), l.other, test.name)
		if exists := !test.fails && !test.removed; exists == (err != nil) {
			t.Errorf("Read after a lost %s = %v, want the conversation: %t", test.name, err, exists)
		}
		if _, err := l.other.Purge(t.Context(), &store.Purge{Tenant: "acme"}); err != nil {
			t.Fatal(err)
		}
	}
}
