package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// setActiveAgent sets the active agent of a conversation, or ends its lease.
func setActiveAgent(t *testing.T, s *server, r *parleyv1.SetActiveAgentRequest) *parleyv1.Conversation {
	t.Helper()
	reply, err := s.SetActiveAgent(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return reply.GetConversation()
}

// header returns the header of a conversation.
func header(t *testing.T, s *server, id string) *parleyv1.Conversation {
	t.Helper()
	reply, err := s.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	return reply.GetConversation()
}

// The agents answer with their names; guide is the default.
const namedAgents = `
default_agent: guide
agents:
  guide: {kind: command, command: [echo, guide]}
  writer: {kind: command, command: [echo, writer]}
  analyst: {kind: command, command: [echo, analyst]}
`

// TestLease passes a conversation from agent to agent.
func TestLease(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, namedAgents))
	wantAgent := func(want, asked string) {
		t.Helper()
		k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "continue", Agent: asked})
		turn := k.finish(t).GetTurn()
		if k.text != want+"\n" || turn.GetAgent() != want || k.finished.GetMessages()[0].GetAgent() != want {
			t.Errorf("answer = %q in %v, want one of %s", k.text, turn, want)
		}
	}
	set := func(agent string) {
		t.Helper()
		before := header(t, s, "c")
		after := setActiveAgent(t, s, &parleyv1.SetActiveAgentRequest{
			ConversationId: "c", Agent: agent, Reason: "because " + agent,
		})
		want := &parleyv1.ActiveAgent{Agent: agent, Reason: "because " + agent, StartTime: after.GetUpdateTime()}
		if agent == "" {
			want = nil
		}
		// The call is not an append, so the expiry is unchanged.
		if after.GetVersion() != before.GetVersion()+1 || !proto.Equal(after.GetExpireTime(), before.GetExpireTime()) {
			t.Errorf("SetActiveAgent = %v after %v, want the next version and the same expiry", after, before)
		}
		for name, got := range map[string]*parleyv1.ActiveAgent{
			"reply": after.GetActiveAgent(), "summary": summarize(t, s, "c").GetActiveAgent(),
			"header": header(t, s, "c").GetActiveAgent(),
		} {
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Errorf("lease in the %s (-want +got):\n%s", name, d)
			}
		}
	}
	wantAgent("guide", "")
	set("writer")
	wantAgent("writer", "") // The lease's agent answers each turn.
	wantAgent("writer", "")
	wantAgent("analyst", "analyst") // A request may name another agent.
	wantAgent("writer", "")         // The lease is unchanged.
	if lease := summarize(t, s, "c").GetActiveAgent(); lease.GetAgent() != "writer" ||
		lease.GetReason() != "because writer" {
		t.Errorf("lease after four turns = %v, want the writer's", lease)
	}
	set("analyst")
	wantAgent("analyst", "")
	set("")
	wantAgent("guide", "")
	var recent []string
	for _, use := range summarize(t, s, "c").GetRecentAgents() {
		recent = append(recent, fmt.Sprint(use.GetAgent(), use.GetLastSequence()))
	}
	if want := []string{"guide14", "analyst12", "writer10"}; !slices.Equal(recent, want) {
		t.Errorf("recent agents %q, want %q", recent, want)
	}
	for i, m := range history(t, s, "c").GetMessages() {
		if answer := i%2 == 1; answer != (m.GetAgent() != "") || answer && m.GetContent() != m.GetAgent()+"\n" {
			t.Errorf("message %d = %q by %q, want the name of its agent", i+1, m.GetContent(), m.GetAgent())
		}
	}

	// Chat refuses a leased agent that is not configured. A coordinator may know it.
	set("elsewhere")
	before := history(t, s, "c")
	err := firstError(s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "hello", RequestId: "r"}))
	if metadata := wantError(t, err, codes.FailedPrecondition, "AGENT_NOT_CONFIGURED"); !strings.Contains(err.Error(),
		"elsewhere") || metadata["known_agents"] != "analyst, echo, guide, writer" {
		t.Errorf("Chat = %v with %v, want the agent \"elsewhere\" and the known agents", err, metadata)
	}
	if d := cmp.Diff(before, history(t, s, "c"), protocmp.Transform()); d != "" {
		t.Errorf("history before (-) and after (+) a refused turn:\n%s", d)
	}
	wantAgent("writer", "writer")
}

func TestLeaseIsChecked(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	add(t, s, "c", userMessage("hello"))
	for _, test := range []struct {
		name    string
		request *parleyv1.SetActiveAgentRequest
		code    codes.Code
		reason  string
	}{
		{
			"an agent of 129 bytes", &parleyv1.SetActiveAgentRequest{Agent: strings.Repeat("ü", 64) + "x"},
			codes.InvalidArgument, "INVALID_REQUEST",
		},
		{
			"a reason of 1025 bytes", &parleyv1.SetActiveAgentRequest{Agent: "a", Reason: strings.Repeat("x", 1025)},
			codes.InvalidArgument, "INVALID_REQUEST",
		},
		{
			"a duration of 0", &parleyv1.SetActiveAgentRequest{Agent: "a", LeaseDuration: durationpb.New(0)},
			codes.InvalidArgument, "INVALID_REQUEST",
		},
		{
			"more than 366 days",
			&parleyv1.SetActiveAgentRequest{Agent: "a", LeaseDuration: durationpb.New(366*24*time.Hour + 1)},
			codes.InvalidArgument, "INVALID_REQUEST",
		},
		{
			"no such conversation", &parleyv1.SetActiveAgentRequest{ConversationId: "missing", Agent: "a"}, codes.NotFound,
			"CONVERSATION_NOT_FOUND",
		},
		{
			"another version", &parleyv1.SetActiveAgentRequest{Agent: "a", IfVersion: new(int32(7))}, codes.Aborted,
			"VERSION_MISMATCH",
		},
	} {
		if test.request.ConversationId == "" {
			test.request.ConversationId = "c"
		}
		_, err := s.SetActiveAgent(t.Context(), test.request)
		t.Run(test.name, func(t *testing.T) { wantError(t, err, test.code, test.reason) })
	}
	if got := summarize(t, s, "c"); got.GetActiveAgent() != nil || got.GetVersion() != 1 {
		t.Errorf("GetRoutingSummary after refused calls = %v, want no lease and version 1", got)
	}
	most := &parleyv1.SetActiveAgentRequest{
		ConversationId: "c", Agent: strings.Repeat("ü", 64), Reason: strings.Repeat("x", 1024),
		LeaseDuration: durationpb.New(366 * 24 * time.Hour), IfVersion: new(int32(1)),
	}
	if got := setActiveAgent(t, s, most).GetActiveAgent(); got.GetAgent() != most.Agent ||
		got.GetReason() != most.Reason ||
		got.GetLeaseExpireTime().AsTime().Sub(got.GetStartTime().AsTime()) != 366*24*time.Hour {
		t.Errorf("SetActiveAgent with the longest lease = %v, want it unchanged", got)
	}
}

func TestLeaseExpires(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, namedAgents))
	add(t, s, "c", userMessage("hello"))
	leased := setActiveAgent(t, s, &parleyv1.SetActiveAgentRequest{
		ConversationId: "c", Agent: "writer", LeaseDuration: durationpb.New(time.Second),
	})
	end := leased.GetActiveAgent().GetLeaseExpireTime().AsTime()
	if start := leased.GetActiveAgent().GetStartTime().AsTime(); end.Sub(start) != time.Second {
		t.Fatalf("SetActiveAgent = %v, want a lease of 1s", leased)
	}
	// The test and the server use the same clock.
	if shown := summarize(t, s, "c"); shown.GetActiveAgent() == nil && time.Until(end) > 0 {
		t.Errorf("no lease %v before its end: %v", time.Until(end), shown)
	}
	for time.Until(end) > 0 {
		<-time.After(time.Until(end))
	}
	got, conversation := summarize(t, s, "c"), header(t, s, "c")
	if got.GetActiveAgent() != nil || conversation.GetActiveAgent() != nil {
		t.Errorf("lease after its end = %v, %v; want none", got.GetActiveAgent(), conversation.GetActiveAgent())
	}
	if v := leased.GetVersion(); got.GetVersion() != v || conversation.GetVersion() != v ||
		!proto.Equal(got.GetUpdateTime(), leased.GetUpdateTime()) {
		t.Errorf("header after the end of the lease = %v, want it unchanged except for the lease: %v", conversation, leased)
	}
	list, err := s.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || list.GetConversations()[0].GetConversation().GetActiveAgent() != nil {
		t.Errorf("ListConversations = %v, %v; want no lease", list, err)
	}
	if answer := ask(t, s, "c", "continue"); answer != "guide\n" {
		t.Errorf("answer after the lease = %q, want %q", answer, "guide\n")
	}
}

// TestTwoCoordinators: two coordinators set the active agent for the same version. One succeeds, and the
// other receives VERSION_MISMATCH.
func TestTwoCoordinators(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	add(t, s, "c", userMessage("hello"))
	for round := range 50 {
		version := summarize(t, s, "c").GetVersion()
		var errs [2]error
		var both sync.WaitGroup
		for i := range errs {
			both.Go(func() {
				_, errs[i] = s.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{
					ConversationId: "c", Agent: fmt.Sprint("agent", i), Reason: strconv.Itoa(round), IfVersion: &version,
				})
			})
		}
		both.Wait()
		winner := slices.Index(errs[:], nil)
		if winner < 0 {
			t.Fatalf("round %d: both calls failed: %v", round, errs)
		}
		if metadata := wantError(t, errs[1-winner], codes.Aborted, "VERSION_MISMATCH"); metadata["current_version"] != strconv.Itoa(int(version+1)) {
			t.Errorf("round %d: metadata of the error = %v, want current_version %d", round, metadata, version+1)
		}
		got := summarize(t, s, "c")
		if got.GetVersion() != version+1 || got.GetActiveAgent().GetAgent() != fmt.Sprint("agent", winner) ||
			got.GetActiveAgent().GetReason() != strconv.Itoa(round) {
			t.Fatalf("round %d: agent %d set after version %d, summary = %v", round, winner, version, got)
		}
	}
}

func TestLeaseSurvivesARestart(t *testing.T) {
	t.Parallel()
	dataDir, config := t.TempDir(), agents(t, namedAgents)
	s := startServer(t, dataDir, config)
	want := make(map[string]*parleyv1.Conversation)
	for id, duration := range map[string]*durationpb.Duration{"bounded": durationpb.New(time.Hour), "unbounded": nil} {
		add(t, s, id, userMessage("hello"))
		want[id] = setActiveAgent(t, s, &parleyv1.SetActiveAgentRequest{
			ConversationId: id, Agent: "writer", Reason: "reason", LeaseDuration: duration,
		})
	}
	for _, end := range []string{"killed", "stopped"} {
		if end == "killed" {
			s.kill()
		} else {
			s.terminate()
			s.wantStop(t)
		}
		s = startServer(t, dataDir, config)
		for id, c := range want {
			if d := cmp.Diff(c, header(t, s, id), protocmp.Transform()); d != "" {
				t.Errorf("%s, %s (-before +after):\n%s", id, end, d)
			}
			if d := cmp.Diff(c.GetActiveAgent(), summarize(t, s, id).GetActiveAgent(), protocmp.Transform()); d != "" {
				t.Errorf("%s, %s: lease in the summary (-before +after):\n%s", id, end, d)
			}
		}
	}
	if answer := ask(t, s, "bounded", "continue"); answer != "writer\n" {
		t.Errorf("answer after two restarts = %q, want %q", answer, "writer\n")
	}
}
