package rpc

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func TestLoadConversation(t *testing.T) {
	f := open(t, nil)
	load := func(r *parleyv1.LoadConversationRequest) *parleyv1.LoadConversationResponse {
		t.Helper()
		reply, err := f.LoadConversation(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	made := load(&parleyv1.LoadConversationRequest{ConversationId: "c1", RequestId: "r1"})
	if !made.GetCreated() || len(made.GetMessages()) != 0 || made.GetConversation().GetVersion() != 1 {
		t.Errorf("first LoadConversation = %v, want a new conversation", made)
	}
	f.append(t, "c1", user("1"), assistant("2"), user("3"))
	tests := []struct {
		name    string
		request *parleyv1.LoadConversationRequest
		created bool
		want    []int32
	}{
		{"all", &parleyv1.LoadConversationRequest{}, false, []int32{1, 2, 3}},
		{"newest", &parleyv1.LoadConversationRequest{MessageLimit: proto.Int32(2)}, false, []int32{2, 3}},
		{"none", &parleyv1.LoadConversationRequest{MessageLimit: proto.Int32(0)}, false, nil},
		{"retry", &parleyv1.LoadConversationRequest{RequestId: "r1"}, true, []int32{1, 2, 3}},
		{"another request", &parleyv1.LoadConversationRequest{RequestId: "r2"}, false, []int32{1, 2, 3}},
		{"retry of the other request", &parleyv1.LoadConversationRequest{RequestId: "r2"}, false, []int32{1, 2, 3}},
	}
	for _, test := range tests {
		test.request.ConversationId = "c1"
		got := load(test.request)
		if diff := cmp.Diff(test.want, sequences(got.GetMessages())); diff != "" || got.GetCreated() != test.created {
			t.Errorf("%s: created %t, sequences (-want +got):\n%s", test.name, got.GetCreated(), diff)
		}
	}
	if v := f.get(t, "c1").GetVersion(); v != 2 {
		t.Errorf("version after LoadConversation = %d, want 2", v)
	}
	first, retry := load(
		&parleyv1.LoadConversationRequest{RequestId: "r3"},
	), load(
		&parleyv1.LoadConversationRequest{RequestId: "r3"},
	)
	if a, b := first.GetConversation(), retry.GetConversation(); a.GetUid() != b.GetUid() || !retry.GetCreated() {
		t.Errorf("retry without an id = conversation %q, want %q", b.GetId(), a.GetId())
	}
}

// countingStore counts reads and creates.
type countingStore struct {
	store.Store
	reads, creates int
}

func (s *countingStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	s.reads++
	return s.Store.Read(ctx, r)
}

func (s *countingStore) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	s.creates++
	return s.Store.Create(ctx, c)
}

// TestLoadIsOneRead checks that LoadConversation of an existing conversation costs one read. Agents
// call it before every answer.
func TestLoadIsOneRead(t *testing.T) {
	counted := new(countingStore)
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			counted.Store = inner
			return counted
		}
	})
	f.append(t, "c1", user("1"))
	if _, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c1", RequestId: "r"}); err != nil {
		t.Fatal(err)
	}
	if counted.reads != 1 || counted.creates != 0 {
		t.Errorf("got %d reads and %d creates, want 1 and 0", counted.reads, counted.creates)
	}
}

// racingStore calls race before the next create, as another caller would between a read and a create.
type racingStore struct {
	store.Store
	race func()
}

func (s *racingStore) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	if race := s.race; race != nil {
		s.race = nil
		race()
	}
	return s.Store.Create(ctx, c)
}

func TestLoadRace(t *testing.T) {
	r := new(racingStore)
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			r.Store = inner
			return r
		}
	})
	r.race = func() { f.append(t, "c1", user("first")) }
	got, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c1"})
	if err != nil || got.GetCreated() || len(got.GetMessages()) != 1 {
		t.Errorf("LoadConversation after an append = %v, %v", got, err)
	}
	same := &parleyv1.LoadConversationRequest{ConversationId: "c2", RequestId: "r1"}
	r.race = func() {
		if _, err := f.LoadConversation(t.Context(), same); err != nil {
			t.Error(err)
		}
		f.append(t, "c2", user("first"))
	}
	if got, err = f.LoadConversation(t.Context(), same); err != nil || !got.GetCreated() ||
		len(got.GetMessages()) != 1 {
		t.Errorf("LoadConversation after its own retry and an append = %v, %v", got, err)
	}
}
