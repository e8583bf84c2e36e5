package rpc

import (
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
