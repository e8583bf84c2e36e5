package redisstore

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestLostReplyOfHold loses the replies or the requests of holds and releases. Each is made once.
func TestLostReplyOfHold(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	ctx := t.Context()
	hold := &store.Hold{Tenant: "acme", ConversationIDs: []string{"held"}}
	want := func(state string) {
		t.Helper()
		get := l.other.client.B().Hget().Key(l.space("acme").key("em")).Field("held").Build()
		got, err := l.other.client.Do(ctx, get).ToString()
		if err != nil && !isNil(err) {
			t.Fatal(err)
		}
		if got != state {
			t.Errorf("state = %q, want %q", got, state)
		}
	}
	for _, unsent := range []bool{false, true} {
		lose := func(do func(context.Context, *store.Hold) error) {
			t.Helper()
			l.proxy.set(&fault{matches: isWrite, times: 1, unsent: unsent})
			if err := do(ctx, hold); err != nil || l.proxy.lost() != 1 {
				t.Errorf("%d lost, %v, want 1", l.proxy.lost(), err)
			}
			l.proxy.set(nil)
		}
		lose(l.Hold)
		want("h1")
		lose(l.Hold)
		want("h2")
		appendTo(t, l, "held", "hello")
		lose(l.Release)
		want("h1")
		l.seen.take()
		lose(l.Release)
		want("")
		l.seen.want(t, "a release", "DELETED held 1")
	}
}

// TestHoldWithoutReply: a hold or a release that ends without a reply, because all replies are lost for longer than a call
// may take, counts once: the caller's next call with the same Hold continues it. A hold that its caller has given up is
// undone after the next call of the tenant.
func TestHoldWithoutReply(t *testing.T) {
	t.Parallel()
	l := newLossy(t)
	ctx := t.Context()
	want := func(state string) {
		t.Helper()
		get := l.other.client.B().Hget().Key(l.space("acme").key("em")).Field("held").Build()
		if got, err := l.other.client.Do(ctx, get).ToString(); err != nil && !isNil(err) || got != state {
			t.Errorf("state = %q, %v, want %q", got, err, state)
		}
	}
	// The time of a call is short, so a busy machine needs several.
	do := func(call func(context.Context, *store.Hold) error, h *store.Hold) {
		t.Helper()
		err := call(ctx, h)
		for isUnavailable(err) && ctx.Err() == nil {
			err = call(ctx, h)
		}
		if err != nil {
			t.Errorf("call = %v, want nil", err)
		}
	}
	hold := func() *store.Hold { return &store.Hold{Tenant: "acme", ConversationIDs: []string{"held"}} }
	l.Store = openWith(t, Options{Buckets: 1, Timeout: 500 * time.Millisecond}, l.proxy.addr)
	for _, unsent := range []bool{false, true} {
		lose := func(call func(context.Context, *store.Hold) error, h *store.Hold) {
			t.Helper()
			l.proxy.set(&fault{matches: isWrite, times: math.MaxInt, unsent: unsent})
			if err := call(ctx, h); !isUnavailable(err) {
				t.Errorf("call without a reply = %v, want ErrUnavailable", err)
			}
			l.proxy.set(nil)
		}
		first, second, third := hold(), hold(), hold()
		do(l.Hold, first)
		appendTo(t, l, "held", "hello")
		lose(l.Hold, second)
		do(l.Hold, second)
		want("h2")
		lose(l.Release, second)
		do(l.Release, second)
		want("h1")
		lose(l.Hold, third)
		do(l.Hold, second) // third is given up.
		want("h2")
		lose(l.Release, second)
		lose(l.Release, second)
		do(l.Hold, third) // It also finishes the release of second.
		want("h2")
		do(l.Release, second)
		want("h2")
		do(l.Release, third)
		do(l.Release, first)
		want("")
	}
}

// TestHoldOfSeveralBucketsWithoutReply: a hold whose part in one bucket ends without a reply, so that its caller gives it
// up, is undone in all buckets after the next call of the tenant. Otherwise its conversations would stay forever.
func TestHoldOfSeveralBucketsWithoutReply(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	proxy := newProxy(t, engine.Addr())
	s := openWith(t, Options{Buckets: 8, Spread: 4, Timeout: 500 * time.Millisecond}, proxy.addr)
	ctx := t.Context()
	first, second := "held", ""
	for i := 0; second == ""; i++ {
		if id := fmt.Sprint("held", i); s.spaceOf("acme", id).index != s.spaceOf("acme", first).index {
			second = id
		}
	}
	want := func(when string, states ...string) {
		t.Helper()
		for i, id := range []string{first, second} {
			get := s.client.B().Hget().Key(s.spaceOf("acme", id).key("em")).Field(id).Build()
			if got, err := s.client.Do(ctx, get).ToString(); err != nil && !isNil(err) || got != states[i] {
				t.Errorf("%s: state of %s = %q, %v, want %q", when, id, got, err, states[i])
			}
		}
	}
	do := func(call func(context.Context, *store.Hold) error, h *store.Hold) {
		t.Helper()
		err := call(ctx, h)
		for isUnavailable(err) && ctx.Err() == nil { // The time of a call is short, so a busy machine needs several.
			err = call(ctx, h)
		}
		if err != nil {
			t.Errorf("call = %v, want nil", err)
		}
	}
	hold := func(ids ...string) *store.Hold { return &store.Hold{Tenant: "acme", ConversationIDs: ids} }
	both := hold(first, second)
	do(s.Hold, both) // The engine must know the scripts.
	do(s.Release, both)
	keys := s.spaceOf("acme", second).key("t")
	for _, unsent := range []bool{false, true} {
		kept, next := hold(first), hold("next")
		do(s.Hold, kept)
		proxy.set(&fault{
			matches: func(args []string) bool { return isWrite(args) && args[3] == keys },
			skip:    1, // the check of the limit
			times:   math.MaxInt, unsent: unsent,
		})
		if err := s.Hold(ctx, hold(first, second)); !isUnavailable(err) {
			t.Errorf("hold without a reply = %v, want ErrUnavailable", err)
		}
		if proxy.lost() == 0 {
			t.Error("no reply was lost")
		}
		proxy.set(nil)
		do(s.Hold, next)
		want("after the next call", "h1", "")
		do(s.Release, kept)
		do(s.Release, next)
		want("after the releases", "", "")
	}
}
