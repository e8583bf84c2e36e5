package rpc

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// fullConversation returns a conversation with all fields that a client can set.
func fullConversation(id string) *parleyv1.Conversation {
	return &parleyv1.Conversation{
		Id: id, Title: "Sugar", Labels: map[string]string{"team": "shop"}, Agent: "echo", SystemPrompt: "Be brief.",
		Retention: &parleyv1.Retention{MaxMessages: 7, Ttl: durationpb.New(time.Minute)},
	}
}

func (f *fixture) create(t *testing.T, c *parleyv1.Conversation) *parleyv1.Conversation {
	t.Helper()
	reply, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: c})
	if err != nil {
		t.Fatal(err)
	}
	return reply.GetConversation()
}

func (f *fixture) get(t *testing.T, id string) *parleyv1.Conversation {
	t.Helper()
	reply, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	return reply.GetConversation()
}

func TestCreateConversation(t *testing.T) {
	f := open(t, nil)
	in := fullConversation("c1")
	in.Version, in.LastSequence, in.MessageCount, in.SizeBytes, in.ActiveTurnId, in.Uid = 9, 9, 9, 9, "t", "u"
	in.CreateTime, in.UpdateTime, in.ExpireTime, in.LastAppendTime = timestamppb.New(
		time.Unix(9, 0),
	), timestamppb.Now(), timestamppb.Now(), timestamppb.Now()
	in.ActiveAgent, in.ForkedFrom = &parleyv1.ActiveAgent{Agent: "x"}, &parleyv1.ForkOrigin{ConversationId: "x"}
	got := f.create(t, in)
	want := fullConversation("c1")
	want.Version = 1
	diff := cmp.Diff(want, got, protocmp.Transform(),
		protocmp.IgnoreFields(want, "create_time", "update_time", "expire_time", "last_append_time", "uid"))
	if diff != "" {
		t.Errorf("conversation (-want +got):\n%s", diff)
	}
	if got.GetUid() == "u" || got.GetCreateTime().AsTime().Unix() == 9 {
		t.Errorf("CreateConversation = %v, want output-only fields set by the server", got)
	}
	if diff := cmp.Diff(got, f.get(t, "c1"), protocmp.Transform()); diff != "" {
		t.Errorf("conversation (-created +read):\n%s", diff)
	}
	_, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: in})
	wantError(t, err, codes.AlreadyExists, "CONVERSATION_EXISTS")
	if id := f.create(t, nil).GetId(); uuid.Validate(id) != nil {
		t.Errorf("id of a conversation without an id = %q, want a UUID", id)
	}
}

func TestUpdateConversation(t *testing.T) {
	f := open(t, nil)
	defaults := &parleyv1.Retention{MaxMessages: 20, Ttl: durationpb.New(time.Hour)}
	other := &parleyv1.Conversation{
		Title: "Salt", Labels: map[string]string{"a": "b"}, Agent: "writer", SystemPrompt: "Be long.",
		Retention: &parleyv1.Retention{MaxMessages: 3, Ttl: durationpb.New(time.Second)},
	}
	tests := []struct {
		name   string
		values *parleyv1.Conversation
		paths  []string
		want   func(c *parleyv1.Conversation)
	}{
		{"one field of many", other, []string{"title"}, func(c *parleyv1.Conversation) { c.Title = "Salt" }},
		{"all labels", other, []string{"labels"}, func(c *parleyv1.Conversation) { c.Labels = other.Labels }},
		{
			"to empty values",
			&parleyv1.Conversation{},
			[]string{"title", "labels", "agent", "system_prompt", "retention"},
			func(c *parleyv1.Conversation) {
				c.Title, c.Labels, c.Agent, c.SystemPrompt, c.Retention = "", nil, "", "", defaults
			},
		},
		{
			"part of retention",
			other,
			[]string{"retention.max_messages"},
			func(c *parleyv1.Conversation) { c.Retention.MaxMessages = 3 },
		},
		{
			"other part of retention",
			other,
			[]string{"retention.ttl"},
			func(c *parleyv1.Conversation) { c.Retention.Ttl = durationpb.New(time.Second) },
		},
		{"no mask, all fields set", other, nil, func(c *parleyv1.Conversation) {
			c.Title, c.Labels, c.Agent, c.SystemPrompt, c.Retention = other.Title, other.Labels, other.Agent, other.SystemPrompt, other.Retention
		}},
		{
			"no mask, one field set",
			&parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)}},
			nil,
			func(c *parleyv1.Conversation) {
				c.Retention.Ttl = durationpb.New(time.Second)
			},
		},
		{"no mask, no field set", &parleyv1.Conversation{}, nil, func(c *parleyv1.Conversation) { c.Version = 1 }},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			id := string(rune('a' + i))
			want := f.create(t, fullConversation(id))
			want.Version = 2
			test.want(want)
			values := proto.CloneOf(test.values)
			values.Id, values.Version, values.CreateTime = id, 77, timestamppb.Now()
			reply, err := f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{
				Conversation: values, UpdateMask: &fieldmaskpb.FieldMask{Paths: test.paths},
			})
			if err != nil {
				t.Fatal(err)
			}
			times := protocmp.IgnoreFields(want, "update_time", "expire_time")
			if diff := cmp.Diff(want, f.get(t, id), protocmp.Transform(), times); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
			want.SystemPrompt = ""
			if diff := cmp.Diff(want, reply.GetConversation(), protocmp.Transform(), times); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
		})
	}
	_, err := f.UpdateConversation(
		t.Context(),
		&parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: "missing", Title: "x"}},
	)
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
}

func TestSetActiveAgent(t *testing.T) {
	f := open(t, nil)
	f.create(t, fullConversation("c1"))
	reply, err := f.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{
		ConversationId: "c1", Agent: "nobody-here", Reason: "asked for", LeaseDuration: durationpb.New(time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	lease := reply.GetConversation().GetActiveAgent()
	if lease.GetAgent() != "nobody-here" || lease.GetReason() != "asked for" ||
		reply.GetConversation().GetSystemPrompt() != "" {
		t.Errorf("SetActiveAgent = %v, want the lease and no system prompt", reply)
	}
	if d := lease.GetLeaseExpireTime().AsTime().Sub(lease.GetStartTime().AsTime()); d != time.Minute {
		t.Errorf("duration of the lease = %v, want 1m", d)
	}
	_, err = f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "hello"})
	wantError(t, err, codes.FailedPrecondition, "AGENT_NOT_CONFIGURED")
	if reply, err = f.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{ConversationId: "c1"}); err != nil ||
		reply.GetConversation().GetActiveAgent() != nil {
		t.Errorf("SetActiveAgent without an agent = %v, %v, want no lease", reply, err)
	}
}

func TestClearConversation(t *testing.T) {
	f := open(t, nil)
	f.create(t, fullConversation("c1"))
	f.append(t, "c1", user("1"), assistant("2"), user("3"))
	reply, err := f.ClearConversation(
		t.Context(),
		&parleyv1.ClearConversationRequest{ConversationId: "c1", AfterSequence: 2},
	)
	if err != nil || reply.GetConversation().GetMessageCount() != 2 || reply.GetConversation().GetSystemPrompt() != "" {
		t.Errorf("ClearConversation after 2 = %v, %v", reply, err)
	}
	if reply, err = f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{ConversationId: "c1"}); err != nil ||
		reply.GetConversation().GetMessageCount() != 0 {
		t.Errorf("ClearConversation = %v, %v", reply, err)
	}
	if got := f.append(t, "c1", user("4")).GetAppended()[0].GetSequence(); got != 4 {
		t.Errorf("sequence of the next message = %d, want 4", got)
	}
}

func TestDeleteConversation(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"))
	remove := func(r *parleyv1.DeleteConversationRequest) error {
		_, err := f.DeleteConversation(t.Context(), r)
		return err
	}
	got := wantError(
		t,
		remove(&parleyv1.DeleteConversationRequest{ConversationId: "c1", IfVersion: proto.Int32(9)}),
		codes.Aborted,
		"VERSION_MISMATCH",
	)
	if got.metadata["current_version"] != "1" {
		t.Errorf("metadata = %v, want current_version 1", got.metadata)
	}
	if err := remove(&parleyv1.DeleteConversationRequest{ConversationId: "c1"}); err != nil {
		t.Error(err)
	}
	wantError(
		t,
		remove(&parleyv1.DeleteConversationRequest{ConversationId: "c1"}),
		codes.NotFound,
		"CONVERSATION_NOT_FOUND",
	)
	if err := remove(&parleyv1.DeleteConversationRequest{ConversationId: "c1", AllowMissing: true}); err != nil {
		t.Error(err)
	}
}

func TestPurgeConversations(t *testing.T) {
	clock := newManualClock()
	f := open(t, onClock(clock))
	f.append(t, "old", user("1"))
	clock.advance(10 * time.Minute)
	f.append(t, "new", user("1"))
	for _, dry := range []bool{true, false} {
		reply, err := f.PurgeConversations(
			t.Context(),
			&parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(5 * time.Minute), DryRun: dry},
		)
		if err != nil || reply.GetPurgedCount() != 1 || strings.Join(reply.GetSampleIds(), "") != "old" {
			t.Errorf("PurgeConversations(dry_run %t) = %v, %v, want 1, old", dry, reply, err)
		}
		if logged := len(f.log.lines("msg=purged", "tenant=default", "count=1")) == 1; logged == dry {
			t.Errorf("PurgeConversations(dry_run %t): logged = %t, want %t", dry, logged, !dry)
		}
	}
	f.get(t, "new")
}

func TestListConversations(t *testing.T) {
	f := open(t, nil)
	for _, id := range []string{"a", "b", "c"} {
		c := fullConversation(id)
		c.Labels["id"], c.Title = id, "The "+id
		f.create(t, c)
		f.append(t, id, user("message of "+id))
	}
	page := func(r *parleyv1.ListConversationsRequest) (*parleyv1.ListConversationsResponse, string) {
		t.Helper()
		reply, err := f.ListConversations(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		ids := ""
		for _, e := range reply.GetConversations() {
			ids += e.GetConversation().GetId()
			if e.GetConversation().GetSystemPrompt() != "" ||
				e.GetPreview() != "message of "+e.GetConversation().GetId() {
				t.Errorf("entry = %v, want a preview and no system prompt", e)
			}
		}
		return reply, ids
	}
	all, ids := page(&parleyv1.ListConversationsRequest{})
	if ids != "cba" || all.GetNextPageToken() != "" || all.GetTotalSize() != 3 ||
		all.GetWatchCursor() != f.hub.Cursor("default") {
		t.Errorf("ListConversations = %s, %v", ids, all)
	}
	first, ids := page(&parleyv1.ListConversationsRequest{PageSize: 2})
	if ids != "cb" {
		t.Errorf("first page = %s, want cb", ids)
	}
	if rest, ids := page(&parleyv1.ListConversationsRequest{PageSize: 2, PageToken: first.GetNextPageToken()}); ids != "a" ||
		rest.GetNextPageToken() != "" {
		t.Errorf("second page = %s, want a", ids)
	}
	if _, ids := page(&parleyv1.ListConversationsRequest{Labels: map[string]string{"team": "shop", "id": "b"}}); ids != "b" {
		t.Errorf("ListConversations by labels = %s, want b", ids)
	}
	if _, ids := page(&parleyv1.ListConversationsRequest{Text: "the C"}); ids != "c" {
		t.Errorf("ListConversations by text = %s, want c", ids)
	}
	_, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{
		PageToken: first.GetNextPageToken(), Labels: map[string]string{"id": "b"},
	})
	if got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST"); strings.Join(
		got.fields,
		"",
	) != "page_token" {
		t.Errorf("fields for the token of another list = %q, want page_token", got.fields)
	}
}
