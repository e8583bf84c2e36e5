package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

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
// attempt: the write is not made a second time. If the commit was not made at all, the write is made.
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
		_, err := l.Append(ctx, &store.Append{Tenant: "acme", ConversationID: id, Messages: message("mine")})
		wantError(t, "Append before a removal", err, store.ErrUnavailable)
		l.proxy.set(nil)
		_, err = l.other.Read(ctx, &store.Read{Tenant: "acme", ConversationID: id})
		wantError(t, "Read of what was removed", err, store.ErrNotFound)
	}
	l.proxy.set(&fault{matches: isWrite, times: 1, unsent: true})
	appendTo(t, l, "unsent", "mine")
	wantTexts(t, l.other, "unsent", "mine")
}
