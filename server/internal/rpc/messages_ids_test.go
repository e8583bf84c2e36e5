package rpc

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// readCountingStore counts the reads.
type readCountingStore struct {
	store.Store
	reads atomic.Int32
}

func (s *readCountingStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	s.reads.Add(1)
	return s.Store.Read(ctx, r)
}

// TestListMessagesByIDStops: a list by ids of a long conversation reads no further when its page is full. The next page
// has the messages that have the same ids.
func TestListMessagesByIDStops(t *testing.T) {
	counting := new(readCountingStore)
	f := open(t, func(s *setup) {
		s.storeOptions.MaxConversationBytes, s.storeOptions.MaxMessages = 16<<20, 100
		s.wrap = func(inner store.Store) store.Store {
			counting.Store = inner
			return counting
		}
	})
	ids := map[int]string{1: "same", 2: "old", 51: "same", 52: "new"} // by sequence
	for i := range 52 {
		m := user(strings.Repeat("x", 200<<10)) // A read returns 15 of them.
		m.Id = ids[i+1]
		f.append(t, "c1", m)
	}
	for name, test := range map[string]struct {
		request     *parleyv1.ListMessagesRequest
		first, next []int32 // sequences of the first page, and of the second one if there is one
		reads       int32   // of the first page
		last        bool    // the first page is the last
	}{
		"newest":   {&parleyv1.ListMessagesRequest{MessageIds: []string{"new"}, PageSize: 1}, []int32{52}, nil, 1, false},
		"repeated": {&parleyv1.ListMessagesRequest{MessageIds: []string{"same"}, PageSize: 1}, []int32{51}, []int32{1}, 1, false},
		"oldest": {
			&parleyv1.ListMessagesRequest{MessageIds: []string{"old"}, PageSize: 1, Ascending: true}, []int32{2}, nil, 1, false,
		},
		"page not full": {&parleyv1.ListMessagesRequest{MessageIds: []string{"new"}}, []int32{52}, nil, 4, true},
		"in the last part": {
			&parleyv1.ListMessagesRequest{MessageIds: []string{"new", "old"}, PageSize: 2}, []int32{52, 2}, nil, 4, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.request.ConversationId = "c1"
			counting.reads.Store(0)
			reply, err := f.ListMessages(t.Context(), test.request)
			if got := sequences(reply.GetMessages()); err != nil || !slices.Equal(got, test.first) ||
				(reply.GetNextPageToken() == "") != test.last {
				t.Fatalf("ListMessages = %v, token %q, %v, want %v", got, reply.GetNextPageToken(), err, test.first)
			}
			if n := counting.reads.Load(); n != test.reads {
				t.Errorf("ListMessages made %d reads, want %d", n, test.reads)
			}
			if test.last {
				return
			}
			test.request.PageToken = reply.GetNextPageToken()
			reply, err = f.ListMessages(t.Context(), test.request)
			if got := sequences(reply.GetMessages()); err != nil || !slices.Equal(got, test.next) ||
				reply.GetNextPageToken() != "" {
				t.Errorf("next page = %v, token %q, %v, want %v and no token", got, reply.GetNextPageToken(), err, test.next)
			}
		})
	}
}
