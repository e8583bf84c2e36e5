package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// changingLimits are limits of the tenant acme that a test changes while the store is open. Other
// tenants have no limits.
type changingLimits struct {
	mu     sync.Mutex
	limits store.Limits
}

func (l *changingLimits) set(limits store.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits = limits
}

func (l *changingLimits) of(name string) store.Limits {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name != tenant {
		return store.Limits{}
	}
	return l.limits
}

// openLimited opens a store whose limits can be changed.
func (s Subject) openLimited(t *testing.T) (*fixture, *changingLimits) {
	t.Helper()
	l := &changingLimits{}
	return s.open(t, func(o *store.Options) { o.Limits = l.of }), l
}

// law11ChangedLimits changes the capacity of one tenant while the store is open.
func (s Subject) law11ChangedLimits(t *testing.T) {
	f, limits := s.openLimited(t)
	limits.set(store.Limits{MaxConversations: 3})
	for _, id := range []string{"a", "b", "c", "d"} {
		f.create(id)
		f.do(&store.Create{Tenant: "other", Conversation: &parleyv1.Conversation{Id: id}})
	}
	f.settle()
	same(t, "conversations at capacity", f.pages(store.List{PageSize: 9}), [][]string{{"d", "c", "b"}})
	limits.set(store.Limits{MaxConversations: 1})
	f.observer.drain()
	f.sweep()
	same(t, "conversations after the capacity was lowered", f.pages(store.List{PageSize: 9}), [][]string{{"d"}})
	f.sameChanges("EVICTED b version 1 count 0 trimmed 0", "EVICTED c version 1 count 0 trimmed 0")
	limits.set(store.Limits{})
	for _, id := range []string{"e", "f", "g", "h"} {
		f.create(id)
	}
	same(t, "conversations without a limit", f.pages(store.List{PageSize: 9}), [][]string{{"h", "g", "f", "e", "d"}})
	if page := f.list(store.List{Tenant: "other", PageSize: 9}); page.Total != 4 {
		t.Errorf("total of the other tenant = %d, want 4", page.Total)
	}
}

func (s Subject) law16Bytes(t *testing.T) {
	long := user(strings.Repeat("x", 1000))
	// full returns a store in which the tenant has conversations a and b and may have 100 bytes more.
	full := func(t *testing.T) (*fixture, *changingLimits, int64) {
		t.Helper()
		f, limits := s.openLimited(t)
		f.append("a", long)
		f.append("b", long)
		most := f.stats().Bytes + 100
		limits.set(store.Limits{MaxBytes: most})
		f.observer.drain()
		return f, limits, most
	}
	messages := []*parleyv1.Message{long}
	prompt := &parleyv1.Conversation{SystemPrompt: long.GetContent()}
	for name, write := range map[string]any{
		"append":          &store.Append{ConversationID: "a", Messages: messages},
		"append, new":     &store.Append{ConversationID: "c", Messages: messages},
		"begin of a turn": &store.Append{ConversationID: "a", Messages: messages, Begin: &parleyv1.Turn{Id: "t"}},
		"create":          &store.Create{Conversation: &parleyv1.Conversation{Id: "c", SystemPrompt: long.GetContent()}},
		"update":          &store.Update{ConversationID: "a", Fields: []string{"system_prompt"}, Values: prompt},
		"import":          &store.Import{Conversation: &parleyv1.Conversation{Id: "c", SystemPrompt: long.GetContent()}},
		"import, overwrites": &store.Import{
			Conversation: &parleyv1.Conversation{Id: "a", SystemPrompt: strings.Repeat("x", 5000)}, Overwrite: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, limits, most := full(t)
			if i, ok := write.(*store.Import); ok {
				i.Conversation.Version, i.Conversation.LastAppendTime = 1, timestamppb.New(f.clock.Now())
			}
			_, err := f.try(write)
			var full *store.TenantBytesError
			if !errors.As(err, &full) || full.Limit != most || full.Bytes <= most {
				t.Fatalf("%T above the limit = %v, want a TenantBytesError with limit %d", write, err, most)
			}
			f.expectError(write, full)
			limits.set(store.Limits{MaxBytes: full.Bytes})
			f.do(write)
			if bytes := f.stats().Bytes; bytes != full.Bytes {
				t.Errorf("Stats().Bytes at the limit = %d, want %d", bytes, full.Bytes)
			}
		})
	}
	t.Run("removals free bytes", func(t *testing.T) {
		f, _, _ := full(t)
		write := &store.Append{ConversationID: "c", Messages: []*parleyv1.Message{user(strings.Repeat("x", 500))}}
		f.expectError(write, new(store.TenantBytesError))
		f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32)})
		f.do(write)
		write.ConversationID = "d"
		f.expectError(write, new(store.TenantBytesError))
		f.do(&store.Delete{ConversationID: "b"})
		f.do(write)
	})
	t.Run("expiry frees bytes", func(t *testing.T) {
		f, _, _ := full(t)
		f.clock.Advance(2 * time.Hour)
		f.sweep()
		f.append("c", long)
	})
	t.Run("dropped and evicted messages free bytes", func(t *testing.T) {
		if s.lanes() > 1 {
			t.Skip("with several buckets a tenant, a new conversation evicts none from a bucket that is below its share")
		}
		f, limits, most := full(t)
		limits.set(store.Limits{MaxBytes: most, MaxConversations: 2})
		f.append("c", long) // evicts a
		f.missing("a")
		f.do(&store.Update{
			ConversationID: "b", Fields: []string{"retention.max_messages"},
			Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 1}},
		})
		f.append("b", long)
		f.append("b", long)
	})
	t.Run("the end of a turn is stored", func(t *testing.T) {
		f, limits, _ := full(t)
		limits.set(store.Limits{})
		f.beginTurn("a", "turn")
		limits.set(store.Limits{MaxBytes: 1})
		f.expectError(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{long}}, new(store.TenantBytesError))
		f.endTurn("a", "turn")
		if c := f.header("a"); c.GetActiveTurnId() != "" || c.GetMessageCount() != 3 {
			t.Errorf("conversation after the end of the turn = %v, want 3 messages", c)
		}
	})
	t.Run("writes that add nothing", func(t *testing.T) {
		f, limits, _ := full(t)
		r := request("r", "once")
		limits.set(store.Limits{})
		f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{long}, Request: r})
		limits.set(store.Limits{MaxBytes: 1})
		result := f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{long}, Request: r})
		if !result.Replayed {
			t.Error("a repeated request was not replayed above the limit")
		}
		f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a"}, OrGet: true})
		f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(1))})
		f.do(&store.Delete{ConversationID: "a"})
	})
	t.Run("other tenants", func(t *testing.T) {
		f, _, _ := full(t)
		f.do(&store.Append{Tenant: "other", ConversationID: "c", Messages: []*parleyv1.Message{long}})
	})
	t.Run("never more under concurrent writes", func(t *testing.T) {
		f, _, most := full(t)
		var group sync.WaitGroup
		for i := range 32 {
			group.Go(func() {
				_, err := f.store.Append(t.Context(), &store.Append{
					Tenant: tenant, ConversationID: fmt.Sprint("c", i%4), Messages: []*parleyv1.Message{user("x")},
				})
				if err != nil && !errorIs(err, new(store.TenantBytesError)) {
					t.Errorf("Append: %v", err)
				}
			})
		}
		group.Wait()
		if bytes := f.stats().Bytes; bytes > most {
			t.Errorf("Stats().Bytes = %d, want at most %d", bytes, most)
		}
		f.consistent()
	})
	if s.Durable {
		t.Run("reopened", func(t *testing.T) {
			f, limits, most := full(t)
			write := &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{long}}
			_, err := f.try(write)
			f.reopen(nil)
			if _, again := f.try(write); again == nil || err == nil || again.Error() != err.Error() {
				t.Errorf("Append before and after the reopen = %v, %v, want the same error", err, again)
			}
			limits.set(store.Limits{MaxBytes: 10 * most})
			f.do(write)
		})
	}
}
