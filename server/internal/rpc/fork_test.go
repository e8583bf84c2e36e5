package rpc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestForkConversation(t *testing.T) {
	f := open(t, nil)
	f.create(t, fullConversation("c1"))
	f.append(t, "c1", user("1"), assistant("2"), user("3"), assistant("4"))
	if _, err := f.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{ConversationId: "c1", Agent: "echo"}); err != nil {
		t.Fatal(err)
	}
	request := &parleyv1.ForkConversationRequest{ConversationId: "c1", AtSequence: 2, RequestId: "r1"}
	reply, err := f.ForkConversation(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	want := fullConversation(reply.GetConversation().GetId())
	want.Version, want.LastSequence, want.MessageCount = 1, 2, 2
	want.ForkedFrom = &parleyv1.ForkOrigin{ConversationId: "c1", Sequence: 2}
	diff := cmp.Diff(
		want,
		reply.GetConversation(),
		protocmp.Transform(),
		protocmp.IgnoreFields(
			want,
			"create_time",
			"update_time",
			"expire_time",
			"last_append_time",
			"uid",
			"size_bytes",
		),
	)
	if diff != "" || reply.GetReplayed() {
		t.Errorf("fork, replayed %t (-want +got):\n%s", reply.GetReplayed(), diff)
	}
	load := func(id string) []*parleyv1.Message {
		t.Helper()
		reply, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: id})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetMessages()
	}
	if diff := cmp.Diff(load("c1")[:2], load(want.GetId()), protocmp.Transform()); diff != "" {
		t.Errorf("messages (-source +fork):\n%s", diff)
	}

	for _, missing := range []int32{5, 100} {
		_, err := f.ForkConversation(
			t.Context(),
			&parleyv1.ForkConversationRequest{ConversationId: "c1", AtSequence: missing},
		)
		wantError(t, err, codes.OutOfRange, "SEQUENCE_GONE")
	}
	_, err = f.ForkConversation(
		t.Context(),
		&parleyv1.ForkConversationRequest{ConversationId: "c1", NewConversationId: want.GetId()},
	)
	wantError(t, err, codes.AlreadyExists, "CONVERSATION_EXISTS")
	full, err := f.ForkConversation(
		t.Context(),
		&parleyv1.ForkConversationRequest{ConversationId: "c1", NewConversationId: "full"},
	)
	if err != nil || full.GetConversation().GetLastSequence() != 4 ||
		full.GetConversation().GetForkedFrom().GetSequence() != 4 {
		t.Errorf("ForkConversation of all messages = %v, %v", full, err)
	}

	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "c1"}); err != nil {
		t.Fatal(err)
	}
	retry, err := f.ForkConversation(t.Context(), request)
	if err != nil || !retry.GetReplayed() || retry.GetConversation().GetUid() != reply.GetConversation().GetUid() {
		t.Errorf("retry after the source was deleted = %v, %v", retry, err)
	}
	_, err = f.ForkConversation(
		t.Context(),
		&parleyv1.ForkConversationRequest{ConversationId: "c1", AtSequence: 1, RequestId: "r1"},
	)
	wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	_, err = f.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{ConversationId: "c1"})
	if got := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND"); got.resource.GetResourceName() != "c1" {
		t.Errorf("resource = %v, want c1", got.resource)
	}
}

// TestForkAtRemovedMessage forks a conversation at a sequence that ClearConversation removed.
func TestForkAtRemovedMessage(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"), user("2"), user("3"))
	if _, err := f.ClearConversation(t.Context(),
		&parleyv1.ClearConversationRequest{ConversationId: "c1", AfterSequence: 1}); err != nil {
		t.Fatal(err)
	}
	f.append(t, "c1", user("4"))
	_, err := f.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{ConversationId: "c1", AtSequence: 2})
	wantError(t, err, codes.OutOfRange, "SEQUENCE_GONE")
	got, err := f.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{ConversationId: "c1", AtSequence: 1})
	if err != nil || got.GetConversation().GetMessageCount() != 1 {
		t.Errorf("ForkConversation at 1 = %v, %v", got, err)
	}
}
