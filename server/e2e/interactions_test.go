package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestInteractionLog runs typical uses of the log, each on its own server. The clock of a server cannot
// be set, so the test writes the entries of other days itself, or changes their dates.
func TestInteractionLog(t *testing.T) {
	t.Parallel()
	t.Run("a first conversation", firstConversation)
	t.Run("a conversation across midnight", conversationAcrossMidnight)
	t.Run("a delegation", delegation)
	t.Run("a text in seven files", textInSevenFiles)
	t.Run("yesterday's conversation", yesterdaysConversation)
	t.Run("a broken entry", brokenEntry)
}

// loggedServer is a server, the directory of its interaction log, and a client of the calls that read
// the log.
type loggedServer struct {
	*server
	parleyv1.InteractionLogServiceClient

	dir string // directory of the log's files
}

func startLogged(t *testing.T, dataDir string, flags ...string) *loggedServer {
	t.Helper()
	s := startServer(t, dataDir, flags...)
	return &loggedServer{s, parleyv1.NewInteractionLogServiceClient(s.conn), filepath.Join(dataDir, "interactions")}
}

// path returns the path of the file of a day.
func (l *loggedServer) path(day string) string { return filepath.Join(l.dir, day+".jsonl") }

// days returns the days that have a file, oldest first.
func (l *loggedServer) days(t *testing.T) (days []string) {
	t.Helper()
	paths, err := filepath.Glob(l.path("????-??-??"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		days = append(days, strings.TrimSuffix(filepath.Base(path), ".jsonl"))
	}
	return days
}

// text returns the content of all files, oldest first.
func (l *loggedServer) text(t *testing.T) string {
	t.Helper()
	text, err := l.read()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// read is like text but returns the error, so that any goroutine can call it.
func (l *loggedServer) read() (string, error) {
	paths, err := filepath.Glob(l.path("????-??-??"))
	var all strings.Builder
	for _, path := range paths {
		text, fault := os.ReadFile(path)
		all.Write(text)
		err = errors.Join(err, fault)
	}
	return all.String(), err
}

// entries returns the entries of all files, oldest first, in the form of formatInteractions.
func (l *loggedServer) entries(t *testing.T) (lines []string) {
	t.Helper()
	for text := range strings.Lines(l.text(t)) {
		var line struct {
			ConversationID string `json:"session_id"`
			Agent          string
			Content        string
			Metadata       struct {
				TurnNumber int `json:"turn_number"`
			}
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		lines = append(lines, fmt.Sprintf("%s %d %s: %s", line.ConversationID, line.Metadata.TurnNumber, line.Agent, line.Content))
	}
	return lines
}

// formatInteractions formats interactions as "conversation turn_number agent: content".
func formatInteractions(all []*parleyv1.Interaction) (lines []string) {
	for _, i := range all {
		turn := i.GetMetadata().GetFields()["turn_number"].GetNumberValue()
		lines = append(lines, fmt.Sprintf("%s %v %s: %s", i.GetConversationId(), turn, i.GetAgent(), i.GetContent()))
	}
	return lines
}

// list returns the entries of all pages of a list.
func (l *loggedServer) list(t *testing.T, r *parleyv1.ListInteractionsRequest) (lines []string, skipped int) {
	t.Helper()
	for r = proto.CloneOf(r); ; {
		page, err := l.ListInteractions(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		lines, skipped = append(lines, formatInteractions(page.GetInteractions())...), skipped+int(page.GetSkippedCount())
		if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
			return lines, skipped
		}
	}
}

// search returns the entries of all pages of a search.
func (l *loggedServer) search(t *testing.T, r *parleyv1.SearchInteractionsRequest) (lines []string, skipped int) {
	t.Helper()
	for r = proto.CloneOf(r); ; {
		page, err := l.SearchInteractions(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		lines, skipped = append(lines, formatInteractions(page.GetInteractions())...), skipped+int(page.GetSkippedCount())
		if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
			return lines, skipped
		}
	}
}

// wantEntries compares two lists of entries.
func wantEntries(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// writeDay writes the file of a day with a modification time of an hour ago, because the server does not
// index a file that was just written.
func (l *loggedServer) writeDay(t *testing.T, day string, lines ...string) {
	t.Helper()
	hourAgo := time.Now().Add(-time.Hour)
	err := os.WriteFile(l.path(day), []byte(strings.Join(lines, "")), 0o600)
	if err = errors.Join(err, os.Chtimes(l.path(day), hourAgo, hourAgo)); err != nil {
		t.Fatal(err)
	}
}

// handwrittenEntry returns an entry in the form that a person might write: at noon of a day, with spaces and
// with the keys in another order.
func handwrittenEntry(day, id string, turn int, content string) string {
	return fmt.Sprintf(`{"session_id": %q, "content": %q, "agent": "User", "role": "user", "timestamp": "%sT12:00:00Z", "metadata": {"turn_number": %d}}`+"\n",
		id, content, day, turn)
}

// dayBefore returns the date that is the given number of days before a day. All dates are in UTC.
func dayBefore(t *testing.T, day string, days int) string {
	t.Helper()
	at, err := time.Parse(time.DateOnly, day)
	if err != nil {
		t.Fatal(err)
	}
	return at.AddDate(0, 0, -days).Format(time.DateOnly)
}

// today returns the current date in UTC.
func today() string { return time.Now().UTC().Format(time.DateOnly) }

// ageOneDay moves all entries to the day before theirs.
func (l *loggedServer) ageOneDay(t *testing.T) {
	t.Helper()
	for _, day := range l.days(t) {
		before := dayBefore(t, day, 1)
		text := strings.ReplaceAll(readText(t, l.path(day)), `"timestamp":"`+day, `"timestamp":"`+before)
		if err := os.Remove(l.path(day)); err != nil {
			t.Fatal(err)
		}
		l.writeDay(t, before, text)
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// firstConversation checks that the first turn creates the directory and a readable file.
func firstConversation(t *testing.T) {
	t.Parallel()
	l := startLogged(t, filepath.Join(t.TempDir(), "data"))
	if days := l.days(t); len(days) > 0 {
		t.Errorf("log files before the first message = %q, want none", days)
	}
	ask(t, l.server, "first", "Grüße & <more> \"text\"\n")
	stored := history(t, l.server, "first").GetMessages()
	const layout = "2006-01-02T15:04:05.000000Z"
	want := fmt.Sprintf(`{"timestamp":"%s","session_id":"first","tenant":"default","agent":"User","role":"user",`+
		`"content":"Grüße & <more> \"text\"\n","metadata":{"turn_number":1,"exchange":1,"status":"complete"}}`+"\n"+
		`{"timestamp":"%s","session_id":"first","tenant":"default","agent":"echo","role":"assistant",`+
		`"content":"Grüße & <more> \"text\"\n","metadata":{"turn_number":2,"exchange":1,"turn_id":"%s","status":"complete"}}`+"\n",
		stored[0].GetCreateTime().AsTime().Format(layout), stored[1].GetCreateTime().AsTime().Format(layout),
		stored[1].GetTurnId())
	if d := cmp.Diff(want, l.text(t)); d != "" {
		t.Errorf("log file (-want +got):\n%s", d)
	}
	if day := stored[0].GetCreateTime().AsTime().Format(time.DateOnly); l.days(t)[0] != day {
		t.Errorf("days of log files = %q, want %s", l.days(t), day)
	}
}

// conversationAcrossMidnight checks that a conversation whose entries are in two files is listed as one.
func conversationAcrossMidnight(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	ask(t, l.server, "night", "before midnight")
	l.ageOneDay(t)
	yesterday := l.days(t)
	ask(t, l.server, "night", "after midnight")
	if days := l.days(t); len(days) <= len(yesterday) || !slices.Equal(days[:len(yesterday)], yesterday) {
		t.Fatalf("days of log files = %q, want new ones after %q", days, yesterday)
	}
	all := []string{
		"night 1 User: before midnight", "night 2 echo: before midnight", "night 3 User: after midnight",
		"night 4 echo: after midnight",
	}
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "night"})
	wantEntries(t, "the conversation", got, all...)
	got, _ = l.list(t, &parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: yesterday[0]}})
	wantEntries(t, "the day before", got, all[:2]...)
	slices.Reverse(all)
	for _, id := range []string{"", "night"} {
		within := &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(48 * time.Hour)}
		got, _ = l.list(t, &parleyv1.ListInteractionsRequest{Span: within, ConversationId: id})
		wantEntries(t, "within 48 h", got, all...)
	}
}

// delegatingAgent is an AgentService that passes the turn to a planner in the middle of its answer.
type delegatingAgent struct {
	parleyv1.UnimplementedAgentServiceServer
}

func (delegatingAgent) Respond(
	_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	return errors.Join(
		stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: "One for the planner."}}),
		stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "planner"}}),
		stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: "Two goals."}}),
	)
}

// delegation checks the log of a question to a coordinator, which passes the turn to a specialist and
// the later turns to another one.
func delegation(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(service, delegatingAgent{})
	go func() { _ = service.Serve(listener) }() // Serve returns after Stop.
	t.Cleanup(service.Stop)
	l := startLogged(t, t.TempDir(), agents(t, fmt.Sprintf(`
default_agent: coordinator
agents:
  coordinator: {kind: remote, address: %q}
  writer: {kind: command, command: [printf, "It is written."]}
`, listener.Addr())))

	question := chat(t, l.server, &parleyv1.ChatRequest{
		ConversationId: "d", Content: "Which goals?", Metadata: map[string]string{"user": "Ada"},
	})
	question.finish(t)
	setActiveAgent(t, l.server, &parleyv1.SetActiveAgentRequest{
		ConversationId: "d", Agent: "writer", Reason: "goals are set",
	})
	ask(t, l.server, "other", "In the meantime.")
	ask(t, l.server, "d", "Write them down.")
	want := []string{
		"d 1 Ada: Which goals?", "d 2 coordinator: One for the planner.", "d 3 planner: Two goals.",
		"d 4 User: Write them down.", "d 5 writer: It is written.",
	}
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "d"})
	wantEntries(t, "ListInteractions", got, want...)
	entries := slices.DeleteFunc(l.entries(t), func(line string) bool { return strings.HasPrefix(line, "other") })
	wantEntries(t, "log", entries, want...)
}

// textInSevenFiles checks that a search ignores case and returns the newest first, on pages of any size.
func textInSevenFiles(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	const days = 7
	start := today()
	for ago := -1; ago <= days; ago++ { // One day before and one day after the days that are searched.
		day := dayBefore(t, start, ago)
		l.writeDay(t, day, handwrittenEntry(day, "plans", 1, "Quarterly GOALS, first"), handwrittenEntry(day, "plans", 2,
			"quarterly"),
			handwrittenEntry(day, "plans", 3, "Goals quarterly"),
			handwrittenEntry(day, "plans", 4, "the quarterly goals of "+day))
	}
	for _, size := range []int32{0, 1, 3} {
		request := &parleyv1.SearchInteractionsRequest{Query: "quarterly goals", PageSize: size}
		now := today()
		page, err := l.SearchInteractions(t.Context(), request)
		got, _ := l.search(t, request)
		for now != today() { // Midnight passed during the search.
			now = today()
			got, _ = l.search(t, request)
		}
		if err != nil || size > 0 && len(page.GetInteractions()) != int(size) ||
			(page.GetNextPageToken() != "") != (size > 0) {
			t.Errorf("SearchInteractions with page size %d = %v, %v; want a full page", size, page, err)
		}
		var want []string
		for ago := range days {
			want = append(want, "plans 4 User: the quarterly goals of "+dayBefore(t, now, ago),
				"plans 1 User: Quarterly GOALS, first")
		}
		wantEntries(t, fmt.Sprint("pages of ", size), got, want...)
	}
}

// yesterdaysConversation checks that a deleted conversation is listed in order, although another one ran at
// the same time.
func yesterdaysConversation(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	var want []string
	for i := range 3 {
		for _, id := range []string{"long", "other"} {
			ask(t, l.server, id, fmt.Sprint(id, " ", i))
		}
		want = append(want, fmt.Sprintf("long %d User: long %d", 2*i+1, i),
			fmt.Sprintf("long %d echo: long %d", 2*i+2, i))
	}
	l.ageOneDay(t)
	_, err := l.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "long"})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int32{0, 1, 4} {
		got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "long", PageSize: size})
		wantEntries(t, fmt.Sprint("pages of ", size), got, want...)
	}
}

// brokenEntry checks that a broken entry is skipped with one warning and hides no other entry.
func brokenEntry(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	day := dayBefore(t, today(), 2)
	complete := handwrittenEntry(day, "b", 2, "goal two")
	l.writeDay(t, day, handwrittenEntry(day, "b", 1, "goal one"), complete[:len(complete)/2]+"\n",
		handwrittenEntry(day, "b", 3, "goal three"))
	want := []string{"b 1 User: goal one", "b 3 User: goal three"}
	for range 3 {
		for name, r := range map[string]*parleyv1.ListInteractionsRequest{
			"the conversation": {ConversationId: "b"},
			"the day":          {Span: &parleyv1.ListInteractionsRequest_Date{Date: day}},
		} {
			got, skipped := l.list(t, r)
			wantEntries(t, name, got, want...)
			if skipped != 1 {
				t.Errorf("%s: %d entries skipped, want 1", name, skipped)
			}
		}
		got, skipped := l.search(t, &parleyv1.SearchInteractionsRequest{Query: "Goal"})
		wantEntries(t, "the search", got, want[1], want[0])
		if skipped != 1 {
			t.Errorf("the search: %d entries skipped, want 1", skipped)
		}
	}
	l.terminate()
	l.wantStop(t)
	warnings, _ := l.log.Find("line of the interaction log skipped")
	if len(warnings) != 1 || warnings[0]["level"] != "WARN" || warnings[0]["file"] != l.path(day) ||
		fmt.Sprint(warnings[0]["line"]) != "2" {
		t.Errorf("warnings = %v, want one of line 2 in %s", warnings, l.path(day))
	}
}
