package redisstore

import (
	"errors"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// copyOptions are the options of a source or target in an engine.
func copyOptions(t *testing.T, engine *redistest.Server) Options {
	t.Helper()
	return Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 4}
}

// copyOf is a copy of a conversation without messages.
func copyOf(t *testing.T, id string) *store.ConversationCopy {
	t.Helper()
	engine := redistest.Start(t)
	s := openShared(t, engine, "")
	if _, err := s.Create(t.Context(), &store.Create{
		Tenant: "acme", Conversation: &parleyv1.Conversation{Id: id},
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	source, err := OpenSource(t.Context(), copyOptions(t, engine))
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	c, err := source.CopyConversation(t.Context(), "acme", id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTargetRemovesAll: a target that is discarded, or was not finished, leaves nothing of a conversation whose id looks
// like the key of leases or of a tenant.
func TestTargetRemovesAll(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	for _, id := range []string{"x}ls", "x}la", "x}t:4:evil:"} {
		c := copyOf(t, id)
		for range 2 { // The second one finds what the first one has left.
			target, err := OpenTarget(t.Context(), copyOptions(t, engine))
			if err != nil {
				t.Fatal(err)
			}
			if err := target.PutConversation(t.Context(), c); err != nil {
				t.Errorf("PutConversation of %q = %v, want nil", id, err)
			}
			if tenants, err := target.store.allTenants(t.Context()); err != nil || len(tenants) != 1 || tenants[0] != "acme" {
				t.Errorf("tenants = %q, %v, want acme", tenants, err)
			}
			if err := target.Discard(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if left, err := engine.Do("KEYS", "*c:*"); err != nil || left != "" {
			t.Errorf("keys after Discard = %q, %v, want none", left, err)
		}
	}
}

// TestTargetWithoutSchema: data whose schema is lost is no empty target.
func TestTargetWithoutSchema(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	s, err := Open(t.Context(), copyOptions(t, engine))
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, s, "c", "hello")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Do("DEL", "parley:schema"); err != nil {
		t.Fatal(err)
	}
	o := copyOptions(t, engine)
	if _, err := OpenTarget(t.Context(), o); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("OpenTarget = %v, want ErrNotEmpty", err)
	}
	if keys, err := engine.Do("KEYS", "*c:*"); err != nil || keys == "" {
		t.Errorf("keys = %q, %v, want those of the conversation", keys, err)
	}
}

// TestSourceClock: no conversation expires while it is copied.
func TestSourceClock(t *testing.T) {
	t.Parallel()
	engine, now := redistest.Start(t), time.Now()
	o := copyOptions(t, engine)
	o.TTL, o.Now = time.Minute, func() time.Time { return now }
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, s, "c", "hello")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	source, err := OpenSource(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	now = now.Add(time.Hour)
	if _, err := source.CopyConversation(t.Context(), "acme", "c"); err != nil {
		t.Errorf("CopyConversation after its end = %v, want nil", err)
	}
	if _, err := source.CopyRecords(t.Context(), "acme", "c", ""); err != nil {
		t.Errorf("CopyRecords after its end = %v, want nil", err)
	}
}

// TestHoldsWithoutLease: a process whose lease has ended, for example because the engine was away, keeps its own holds.
func TestHoldsWithoutLease(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	s := openShared(t, engine, "")
	if err := s.Hold(t.Context(), &store.Hold{Tenant: "acme", ConversationIDs: []string{"c"}}); err != nil {
		t.Fatal(err)
	}
	beginTurn(t, s, "c", testTurn)
	for _, b := range s.buckets {
		if _, err := engine.Do("ZREM", b.prefix+"ls", s.server); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range s.buckets {
		if err := s.releaseWithoutLease(t.Context(), b, []string{s.server}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "c"}); err != nil {
		t.Errorf("Read of a conversation that this process holds = %v, want nil", err)
	}
}
