package rpc

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestListAgents(t *testing.T) {
	reply, err := open(t, nil).ListAgents(t.Context(), &parleyv1.ListAgentsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &parleyv1.ListAgentsResponse{
		Agents: []*parleyv1.AgentInfo{{Name: "echo", Kind: "echo", Description: "Says it again.", IsDefault: true}},
	}
	if diff := cmp.Diff(want, reply, protocmp.Transform()); diff != "" {
		t.Errorf("agents (-want +got):\n%s", diff)
	}
}

func TestGetStats(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	f := open(t, func(s *setup) {
		s.Now = func() time.Time { return start }
		s.storeOptions.MaxConversations = 2
	})
	f.append(t, "c1", user("1"))
	f.append(t, "c2", user("1"), assistant("2"))
	f.append(t, "c3", user("1"))
	_, stop, err := f.hub.Subscribe("default", "c3")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	reply, err := f.admin.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if reply.GetMemoryBytes() <= 0 || reply.GetDataBytes() <= 0 {
		t.Errorf("GetStats = %v, want memory_bytes and data_bytes above 0", reply)
	}
	want := &parleyv1.GetStatsResponse{
		Version: "v0.0.0-test", Store: "memory", ConversationCount: 2, MessageCount: 3, EvictedTotal: 1,
		WatcherCount: 1, StartTime: timestamppb.New(start),
	}
	if diff := cmp.Diff(want, reply, protocmp.Transform(), protocmp.IgnoreFields(want, "memory_bytes", "data_bytes")); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

// TestGetStatsOfTenant: a caller that is bound to a tenant gets the counts of that tenant only. What others do
// changes nothing. A caller for all tenants gets those of all.
func TestGetStatsOfTenant(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	f, _ := openScripted(t, func(s *setup) {
		s.Now, s.Auth = func() time.Time { return start }, byMetadata()
		s.storeOptions.MaxConversations = 2
	})
	a, b := withMetadata(t, "tenant", "a", "role", "admin"), withMetadata(t, "tenant", "b", "role", "admin")
	stats := func(ctx context.Context) *parleyv1.GetStatsResponse {
		t.Helper()
		reply, err := f.admin.GetStats(ctx, &parleyv1.GetStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	want := func(ctx context.Context, conversations, messages int64, turns, watchers int32) {
		t.Helper()
		reply := stats(ctx)
		want := &parleyv1.GetStatsResponse{
			Version: "v0.0.0-test", Store: "memory", StartTime: timestamppb.New(start),
			ConversationCount: conversations, MessageCount: messages, ActiveTurnCount: turns, WatcherCount: watchers,
			DataBytes: reply.GetDataBytes(),
		}
		if diff := cmp.Diff(want, reply, protocmp.Transform()); diff != "" || (reply.GetDataBytes() > 0) != (conversations > 0) {
			t.Errorf("stats of a tenant with %d bytes (-want +got):\n%s", reply.GetDataBytes(), diff)
		}
	}
	want(a, 0, 0, 0, 0)
	for _, id := range []string{"c1", "c2", "c3"} { // One is evicted.
		if _, err := f.AppendMessages(a,
			&parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{user("1")}}); err != nil {
			t.Fatal(err)
		}
	}
	f.startChat(t, a, &parleyv1.ChatRequest{ConversationId: "c3", Content: "2"})
	_, stop, err := f.hub.Subscribe("a", "c3")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	want(b, 0, 0, 0, 0)
	want(a, 2, 3, 1, 1)
	want(withMetadata(t, "tenant", "*", "role", "admin", "parley-tenant", "a"), 2, 3, 1, 1)
	all := stats(withMetadata(t, "tenant", "*", "role", "admin"))
	if all.GetConversationCount() != 2 || all.GetEvictedTotal() != 1 || all.GetActiveTurnCount() != 1 ||
		all.GetWatcherCount() != 1 || all.GetMemoryBytes() <= 0 {
		t.Errorf("stats of all tenants = %v", all)
	}
}
