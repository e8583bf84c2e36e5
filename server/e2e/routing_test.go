package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// A coordinator knows a conversation only by its routing summary. These tests check that the summary is
// enough to route a message.

// summarize returns a routing summary without options.
func summarize(t *testing.T, s *server, id string) *parleyv1.RoutingSummary {
	t.Helper()
	return summarizeIn(t, s, id, 0)
}

// summarizeIn returns a routing summary of at most maxBytes.
func summarizeIn(t *testing.T, s *server, id string, maxBytes int32) *parleyv1.RoutingSummary {
	t.Helper()
	reply, err := s.GetRoutingSummary(t.Context(),
		&parleyv1.GetRoutingSummaryRequest{ConversationId: id, MaxBytes: maxBytes})
	if err != nil {
		t.Fatal(err)
	}
	return reply.GetSummary()
}

// agentMessage returns a message of an agent, with structured data given as pairs of type and value.
func agentMessage(agent, content string, data ...string) *parleyv1.Message {
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: agent, Content: content}
	for pair := range slices.Chunk(data, 2) {
		m.StructuredData = append(m.StructuredData, &parleyv1.StructuredData{
			Type: pair[0], Value: structpb.NewStringValue(pair[1]),
		})
	}
	return m
}

// summarizedMessage returns a message of an agent with a summary of its work.
func summarizedMessage(agent, summary string, data ...string) *parleyv1.Message {
	m := agentMessage(agent, "The long text.", data...)
	m.Summary = summary
	return m
}

func userMessage(content string) *parleyv1.Message { return &parleyv1.Message{Content: content} }

func TestSummaryForCoordinators(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--max-messages=8")
	add(t, s, "c", userMessage("Which prices?"), agentMessage("searcher", "These.", "removed", "with its message"))
	if got := summarize(t, s, "c").GetStructuredDataTypes(); len(got) != 1 || got[0].GetType() != "removed" {
		t.Errorf("structured data types before the message is removed = %v, want \"removed\"", got)
	}
	add(t, s, "c",
		userMessage("Which libraries?"),
		summarizedMessage("searcher", "searched for React libraries", "library_list", "older"),
		userMessage("More."), agentMessage("searcher", "Here are more of them.", "library_list", "newest", "price", "0"),
		userMessage("And why?"), agentMessage("analyst", "one two three four five six seven eight nine ten"),
		userMessage("Write it down."), summarizedMessage("writer", "wrote an essay", "essay", "Why not?"))
	got := summarize(t, s, "c")
	if d := cmp.Diff(history(t, s, "c").GetMessages()[5:], got.GetRecentMessages(), protocmp.Transform()); d != "" {
		t.Errorf("the last 3 messages with their structured data (-want +got):\n%s", d)
	}
	types := []*parleyv1.StructuredDataUse{
		{Type: "essay", Count: 1, LastSequence: 10, LastAgent: "writer"},
		{Type: "price", Count: 1, LastSequence: 6, LastAgent: "searcher"},
		{Type: "library_list", Count: 2, LastSequence: 6, LastAgent: "searcher"},
	}
	if d := cmp.Diff(types, got.GetStructuredDataTypes(), protocmp.Transform()); d != "" {
		t.Errorf("structured data types of the retained messages (-want +got):\n%s", d)
	}
	newest := agentMessage("", "", "price", "0", "library_list", "newest").GetStructuredData()
	values := []*parleyv1.ReferencedData{
		{Sequence: 6, Agent: "searcher", Data: newest[0]}, {Sequence: 6, Agent: "searcher", Data: newest[1]},
	}
	if d := cmp.Diff(values, got.GetReferencedData(), protocmp.Transform()); d != "" {
		t.Errorf("newest values of types with older messages (-want +got):\n%s", d)
	}
	const text = "searched for React libraries, library_list+price, one two three four five six seven eight, wrote an essay"
	if got.GetText() != "Previous: "+text {
		t.Errorf("text = %q, want %q", got.GetText(), "Previous: "+text)
	}

	// With "Previous: " (10 characters) and ", " (2), 230 and 258 characters make 500. They have more bytes.
	first, second := strings.Repeat("ü", 230), strings.Repeat("ß", 242)+strings.Repeat("x", 16)
	for i, test := range []struct {
		clauses []string
		want    string
	}{
		{[]string{first, second}, first + ", " + second},
		{[]string{"oldest", first, second}, first + ", " + second},
		{[]string{first + "ü", second}, second},
		{[]string{first, second, "x"}, second + ", x"},
	} {
		id := fmt.Sprint("long", i)
		for _, clause := range test.clauses {
			add(t, s, id, userMessage("?"), summarizedMessage("writer", clause))
		}
		if got := summarize(t, s, id).GetText(); got != "Previous: "+test.want {
			t.Errorf("test %d: text = %q, want %q", i, got, test.want)
		}
	}
	add(t, s, "silent", userMessage("hello?"))
	if got := summarize(t, s, "silent").GetText(); got != "" {
		t.Errorf("text without an assistant message = %q, want none", got)
	}
}

func TestFollowUpsAreRoutable(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	t.Run("yes", func(t *testing.T) {
		question := strings.Repeat("I can compare bundle sizes, speed, types. ", 250) + "Shall I?"
		add(t, s, "yes", userMessage("Which library is best?"), agentMessage("guide", "It depends."), userMessage("On what?"),
			agentMessage("comparer", question), userMessage("yes"))
		got := summarize(t, s, "yes")
		recent := got.GetRecentMessages()
		if len(recent) != 3 || recent[2].GetContent() != "yes" || recent[2].GetRole() != parleyv1.Role_ROLE_USER ||
			!got.GetAwaitingAnswer() {
			t.Fatalf("summary = %v, want the new question as last of 3 messages", got)
		}
		// The question before it is complete and names its agent.
		if m := recent[1]; m.GetContent() != question || m.GetAgent() != "comparer" ||
			m.GetRole() != parleyv1.Role_ROLE_ASSISTANT || got.GetTruncated() {
			t.Errorf("the message before it has %d bytes of %d by %q, truncated %t; want all by comparer", len(m.GetContent()),
				len(question), m.GetAgent(), got.GetTruncated())
		}
		want := []*parleyv1.AgentUse{
			{Agent: "comparer", LastSequence: 4, LastTime: recent[1].GetCreateTime()},
			{Agent: "guide", LastSequence: 2, LastTime: recent[1].GetCreateTime()},
		}
		if d := cmp.Diff(want, got.GetRecentAgents(), protocmp.Transform()); d != "" {
			t.Errorf("recent agents (-want +got):\n%s", d)
		}
	})
	t.Run("the second one", func(t *testing.T) {
		lists := make([]*parleyv1.StructuredData, 2)
		for i, names := range [][]any{{"Backbone", "Ember"}, {"Zustand", map[string]any{"name": "Jotai", "stars": 21.5}, "Redux"}} {
			value, err := structpb.NewValue(names)
			if err != nil {
				t.Fatal(err)
			}
			lists[i] = &parleyv1.StructuredData{Type: "library_list", Value: value}
		}
		searched, again := summarizedMessage("searcher", "searched for libraries"), summarizedMessage("searcher",
			"searched again")
		searched.StructuredData, again.StructuredData = lists[:1], lists[1:]
		add(t, s, "second", userMessage("Which libraries?"), searched, userMessage("Newer ones."), again,
			userMessage("Who wrote the first one?"), agentMessage("guide", "Poimandres."), userMessage("Where?"),
			agentMessage("guide", "Everywhere."), userMessage("the second one"))
		got := summarize(t, s, "second")
		want := []*parleyv1.ReferencedData{{Sequence: 4, Agent: "searcher", Data: lists[1]}}
		if d := cmp.Diff(want, got.GetReferencedData(), protocmp.Transform()); d != "" {
			t.Errorf("referenced data (-want +got):\n%s", d)
		}
		if !got.GetAwaitingAnswer() ||
			got.GetText() != "Previous: searched for libraries, searched again, Poimandres., Everywhere." {
			t.Errorf("summary = %v, want an awaited answer and the texts of 4 answers", got)
		}
	})
}

func TestToolStepsAreNotQuestions(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	calls := func(ids ...string) *parleyv1.Message {
		m := agentMessage("searcher", "")
		for _, id := range ids {
			m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: "search", Arguments: `{"q": "` + id + `"}`})
		}
		return m
	}
	result := func(id string) *parleyv1.Message {
		return &parleyv1.Message{
			Role:       parleyv1.Role_ROLE_TOOL,
			ToolResult: &parleyv1.ToolResult{CallId: id, Name: "search", Content: "found", IsError: id == "a"},
		}
	}
	cutOff := agentMessage("searcher", "I fou")
	cutOff.Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
	for _, step := range []struct {
		name    string
		batch   []*parleyv1.Message
		ask     bool
		pending string
	}{
		{"a question", []*parleyv1.Message{userMessage("Which?")}, true, ""},
		{"instructions beside it", []*parleyv1.Message{{Role: parleyv1.Role_ROLE_SYSTEM, Content: "Be brief."}}, true, ""},
		{"two calls", []*parleyv1.Message{calls("a", "b")}, false, "a b"},
		{"the result of one", []*parleyv1.Message{result("b")}, false, "a"},
		{"the failure of the other", []*parleyv1.Message{result("a")}, false, ""},
		{"a call and its result at once", []*parleyv1.Message{calls("c"), result("c")}, false, ""},
		{"a call", []*parleyv1.Message{calls("d")}, false, "d"},
		{"the user continues", []*parleyv1.Message{userMessage("Never mind. Which is best?")}, true, "d"},
		{"an incomplete answer", []*parleyv1.Message{cutOff}, false, "d"},
		{"a late result", []*parleyv1.Message{result("d")}, false, ""},
		{"the answer", []*parleyv1.Message{agentMessage("searcher", "Zustand.")}, false, ""},
		{"instructions", []*parleyv1.Message{{Role: parleyv1.Role_ROLE_SYSTEM, Content: "Be kind."}}, false, ""},
		{"the next question", []*parleyv1.Message{userMessage("Why?")}, true, ""},
	} {
		add(t, s, "c", step.batch...)
		got := summarize(t, s, "c")
		var pending []string
		for _, call := range got.GetPendingToolCalls() {
			pending = append(pending, call.GetId())
			if call.GetName() != "search" || call.GetArguments() != `{"q": "`+call.GetId()+`"}` {
				t.Errorf("%s: pending call = %v, want its name and arguments", step.name, call)
			}
		}
		if got.GetAwaitingAnswer() != step.ask || strings.Join(pending, " ") != step.pending {
			t.Errorf("%s: awaiting answer = %t with pending calls %q, want %t with %q", step.name, got.GetAwaitingAnswer(),
				pending, step.ask, step.pending)
		}
	}
}

// TestSummaryBudget limits the bytes of summaries with messages of 10 KiB.
func TestSummaryBudget(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	long := strings.Repeat("größer ", 10<<10/9)
	for i, test := range []struct {
		name     string
		newest   *parleyv1.Message
		maxBytes int32
		count    int                         // number of messages in the limited summary
		cut      func(full, cut string) bool // relation of the oldest message to its cut form, nil if it is not cut
	}{
		{"the newest is too long", userMessage(long), 2048, 1, strings.HasPrefix},
		{"the newest fits", userMessage("yes"), 2048, 2, strings.HasSuffix},
		{"two fit", userMessage("yes"), 12 << 10, 3, strings.HasSuffix},
		{"all but the referenced data", userMessage("yes"), 22 << 10, 3, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := fmt.Sprint("c", i)
			add(t, s, id, userMessage(long), agentMessage("searcher", long, "library_list", long), userMessage(long),
				agentMessage("writer", long, "essay", "short"), test.newest)
			setActiveAgent(t, s, &parleyv1.SetActiveAgentRequest{ConversationId: id, Agent: "writer", Reason: "reason"})
			full, got := summarize(t, s, id), summarizeIn(t, s, id, test.maxBytes)
			size := proto.Size(&parleyv1.RoutingSummary{
				RecentMessages: got.GetRecentMessages(), ReferencedData: got.GetReferencedData(),
			})
			if size > int(test.maxBytes) || !got.GetTruncated() || full.GetTruncated() ||
				len(got.GetRecentMessages()) != test.count {
				t.Fatalf("summary of %d messages and %d values has %d bytes, truncated %t; want %d messages in %d bytes, truncated",
					len(got.GetRecentMessages()), len(got.GetReferencedData()), size, got.GetTruncated(), test.count, test.maxBytes)
			}
			newest := full.GetRecentMessages()[3-test.count:]
			if test.cut != nil {
				content := got.GetRecentMessages()[0].GetContent()
				if !test.cut(long, content) || !utf8.ValidString(content) || size < int(test.maxBytes)-8 {
					t.Errorf("the oldest message has %d bytes in a summary of %d, want it cut to fill the limit", len(content), size)
				}
				newest[0].Content = content
			}
			if d := cmp.Diff(newest, got.GetRecentMessages(), protocmp.Transform()); d != "" {
				t.Errorf("recent messages (-want +got):\n%s", d)
			}
			if len(got.GetStructuredDataTypes()) != 2 || len(got.GetRecentAgents()) != 2 ||
				got.GetActiveAgent().GetAgent() != "writer" || len(full.GetReferencedData()) != 1 {
				t.Errorf("summary without its messages = %v, want 2 types, 2 agents and the lease", got)
			}
			// The limit never cuts the other fields.
			full.RecentMessages, full.ReferencedData, full.Truncated = got.RecentMessages, got.ReferencedData, true
			if d := cmp.Diff(full, got, protocmp.Transform()); d != "" {
				t.Errorf("fields except messages and data (-want +got):\n%s", d)
			}
		})
	}
}

func TestConditionalSummaries(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, testAgents))
	known := func(version int32, wait time.Duration) *parleyv1.GetRoutingSummaryRequest {
		return &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c", KnownVersion: &version, WaitTimeout: durationpb.New(wait), AllowMissing: true,
		}
	}
	var h *held
	version := int32(0) // the version while no conversation exists
	for _, change := range []struct {
		name string
		make func()
		want int32
	}{
		{"the creation", func() { add(t, s, "c", userMessage("hello")) }, 1},
		{"an append", func() { add(t, s, "c", agentMessage("writer", "hi")) }, 2},
		{
			"a lease", func() { setActiveAgent(t, s, &parleyv1.SetActiveAgentRequest{ConversationId: "c", Agent: "writer"}) }, 3,
		},
		{"a turn", func() { h = hold(t, s, "c") }, 4},
		{"the end of the turn", func() { h.release(t, "answer") }, 5},
		{"the deletion", func() {
			if _, err := s.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "c"}); err != nil {
				t.Error(err)
			}
		}, 0},
	} {
		start := time.Now()
		for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
			if reply, err := s.GetRoutingSummary(t.Context(), known(version, wait)); err != nil || !reply.GetNotModified() ||
				reply.GetSummary() != nil {
				t.Errorf("GetRoutingSummary before %s, waiting %v = %v, %v; want not modified", change.name, wait, reply, err)
			}
		}
		if waited := time.Since(start); waited < 20*time.Millisecond {
			t.Errorf("GetRoutingSummary before %s waited %v, want at least 20ms", change.name, waited)
		}
		woken := make(chan *parleyv1.GetRoutingSummaryResponse, 1)
		go func() {
			reply, err := s.GetRoutingSummary(t.Context(), known(version, time.Minute))
			if err != nil {
				t.Errorf("GetRoutingSummary before %s: %v", change.name, err)
			}
			woken <- reply
		}()
		awaitWatchers(t, s, 1)
		change.make()
		if got := <-woken; got.GetSummary().GetVersion() != change.want || got.GetSummary() == nil {
			t.Errorf("GetRoutingSummary during %s from version %d = %v, want version %d", change.name, version, got, change.want)
		}
		version = change.want
	}
	awaitWatchers(t, s, 0)
}

// awaitWatchers polls until this number of readers wait. No event reports that.
func awaitWatchers(t *testing.T, s *server, want int32) {
	t.Helper()
	poll, late := time.NewTicker(5*time.Millisecond), time.After(timeout)
	defer poll.Stop()
	for {
		stats, err := s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if stats.GetWatcherCount() == want {
			return
		}
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("watcher_count = %d, want %d", stats.GetWatcherCount(), want)
		}
	}
}

func TestSummariesOfMany(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	var ids, missing []string
	var want []*parleyv1.RoutingSummary
	for i := range 100 {
		id := fmt.Sprint("c", i)
		ids = append(ids, id)
		if i%3 == 1 {
			missing = append(missing, id)
			continue
		}
		add(t, s, id, userMessage("hello "+id), agentMessage("writer", "hi", "list", id))
		want = append(want, summarize(t, s, id))
	}
	got, err := s.BatchGetRoutingSummaries(t.Context(), &parleyv1.BatchGetRoutingSummariesRequest{ConversationIds: ids})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&parleyv1.BatchGetRoutingSummariesResponse{Summaries: want, MissingIds: missing}, got,
		protocmp.Transform()); d != "" {
		t.Errorf("100 summaries (-single calls +batch):\n%s", d)
	}
	for _, ids := range [][]string{append(ids, "c100"), nil} {
		_, err := s.BatchGetRoutingSummaries(t.Context(), &parleyv1.BatchGetRoutingSummariesRequest{ConversationIds: ids})
		wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	}
}

func TestSummaryOfARunningTurn(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, testAgents))
	h := hold(t, s, "c")
	got := summarize(t, s, "c")
	if turn := h.started.GetConversation().GetActiveTurnId(); got.GetActiveTurnId() != turn || turn == "" ||
		!got.GetAwaitingAnswer() || got.GetMessageCount() != 1 || got.GetText() != "" {
		t.Errorf("summary while turn %s runs = %v, want it active with one message", turn, got)
	}
	if reply, err := s.GetRoutingSummary(t.Context(),
		&parleyv1.GetRoutingSummaryRequest{ConversationId: "c", KnownVersion: new(got.GetVersion())}); err != nil || !reply.GetNotModified() {
		t.Errorf("GetRoutingSummary amid an answer = %v, %v; want not modified", reply, err)
	}
	setActiveAgent(t, s, &parleyv1.SetActiveAgentRequest{
		ConversationId: "c", Agent: "echo", IfVersion: new(got.GetVersion()),
	})
	h.release(t, "answer")
	got = summarize(t, s, "c")
	if got.GetActiveTurnId() != "" || got.GetAwaitingAnswer() || got.GetText() != "Previous: half an answer" {
		t.Errorf("summary after the turn = %v, want no active turn and the answer", got)
	}
	// The answer names the agent that sent it, even if another agent has the lease now.
	if agents := got.GetRecentAgents(); len(agents) != 1 || agents[0].GetAgent() != "hold" ||
		got.GetRecentMessages()[1].GetAgent() != "hold" || got.GetActiveAgent().GetAgent() != "echo" {
		t.Errorf("agents in the summary after the turn = %v, want hold and the leased echo", got)
	}
}
