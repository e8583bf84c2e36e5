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

// TestInteractionLog is what people do with the log, each story on a server of its own. The
// clock of a server cannot be set: what was said on other days is written by hand, or moved.
func TestInteractionLog(t *testing.T) {
	t.Parallel()
	t.Run("a first conversation", firstConversation)
	t.Run("a conversation over midnight", conversationOverMidnight)
	t.Run("a delegation", delegation)
	t.Run("a text over seven files", textOverSevenFiles)
	t.Run("yesterday's session", yesterdaysSession)
	t.Run("a broken line", brokenLine)
}

// loggedServer is a server and the log of what is said on it: its files, and the calls that
// read them.
type loggedServer struct {
	*server
	parleyv1.InteractionLogServiceClient

	dir string // of the files
}

func startLogged(t *testing.T, dataDir string, flags ...string) *loggedServer {
	t.Helper()
	s := startServer(t, dataDir, flags...)
	return &loggedServer{s, parleyv1.NewInteractionLogServiceClient(s.conn), filepath.Join(dataDir, "interactions")}
}

// path is that of the file of a day.
func (l *loggedServer) path(day string) string { return filepath.Join(l.dir, day+".jsonl") }

// days are those that have a file, oldest first.
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

// text is that of all files, oldest first.
func (l *loggedServer) text(t *testing.T) string {
	t.Helper()
	text, err := l.read()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// read is text for any goroutine.
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

// filed are the lines of all files, oldest first, in the form of told.
func (l *loggedServer) filed(t *testing.T) (lines []string) {
	t.Helper()
	for text := range strings.Lines(l.text(t)) {
		var line struct {
			SessionID string `json:"session_id"`
			Agent     string
			Content   string
			Metadata  struct {
				TurnNumber int `json:"turn_number"`
			}
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		lines = append(lines, fmt.Sprintf("%s %d %s: %s", line.SessionID, line.Metadata.TurnNumber, line.Agent, line.Content))
	}
	return lines
}

// told are interactions as "conversation turn_number agent: content".
func told(all []*parleyv1.Interaction) (lines []string) {
	for _, i := range all {
		turn := i.GetMetadata().GetFields()["turn_number"].GetNumberValue()
		lines = append(lines, fmt.Sprintf("%s %v %s: %s", i.GetConversationId(), turn, i.GetAgent(), i.GetContent()))
	}
	return lines
}

// list returns what all pages of a list tell.
func (l *loggedServer) list(t *testing.T, r *parleyv1.ListInteractionsRequest) (lines []string, skipped int) {
	t.Helper()
	for r = proto.CloneOf(r); ; {
		page, err := l.ListInteractions(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		lines, skipped = append(lines, told(page.GetInteractions())...), skipped+int(page.GetSkippedCount())
		if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
			return lines, skipped
		}
	}
}

// search returns what all pages of a search tell.
func (l *loggedServer) search(t *testing.T, r *parleyv1.SearchInteractionsRequest) (lines []string, skipped int) {
	t.Helper()
	for r = proto.CloneOf(r); ; {
		page, err := l.SearchInteractions(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		lines, skipped = append(lines, told(page.GetInteractions())...), skipped+int(page.GetSkippedCount())
		if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
			return lines, skipped
		}
	}
}

// wantLines compares lines that there are with those that there should be.
func wantLines(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// put writes the file of a day by hand, as of an hour ago: one that was just written gets no
// index yet.
func (l *loggedServer) put(t *testing.T, day string, lines ...string) {
	t.Helper()
	hourAgo := time.Now().Add(-time.Hour)
	err := os.WriteFile(l.path(day), []byte(strings.Join(lines, "")), 0o600)
	if err = errors.Join(err, os.Chtimes(l.path(day), hourAgo, hourAgo)); err != nil {
		t.Fatal(err)
	}
}

// byHand is a line as people write it: from noon of a day, with spaces, and with keys in
// another order.
func byHand(day, session string, turn int, content string) string {
	return fmt.Sprintf(`{"session_id": %q, "content": %q, "agent": "User", "role": "user", "timestamp": "%sT12:00:00Z", "metadata": {"turn_number": %d}}`+"\n",
		session, content, day, turn)
}

// dayBefore is so many days before a day, in UTC as all of them.
func dayBefore(t *testing.T, day string, days int) string {
	t.Helper()
	at, err := time.Parse(time.DateOnly, day)
	if err != nil {
		t.Fatal(err)
	}
	return at.AddDate(0, 0, -days).Format(time.DateOnly)
}

// today is the day in UTC.
func today() string { return time.Now().UTC().Format(time.DateOnly) }

// ageOneDay makes all that was said until now a day older.
func (l *loggedServer) ageOneDay(t *testing.T) {
	t.Helper()
	for _, day := range l.days(t) {
		before := dayBefore(t, day, 1)
		text := strings.ReplaceAll(readText(t, l.path(day)), `"timestamp":"`+day, `"timestamp":"`+before)
		if err := os.Remove(l.path(day)); err != nil {
			t.Fatal(err)
		}
		l.put(t, before, text)
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

// firstConversation makes the directory, and the file that a person reads.
func firstConversation(t *testing.T) {
	t.Parallel()
	l := startLogged(t, filepath.Join(t.TempDir(), "data"))
	if days := l.days(t); len(days) > 0 {
		t.Errorf("before anybody said a word there are files of %q", days)
	}
	say(t, l.server, "first", "Grüße & <more> \"words\"\n")
	kept := history(t, l.server, "first").GetMessages()
	const layout = "2006-01-02T15:04:05.000000Z"
	want := fmt.Sprintf(`{"timestamp":"%s","session_id":"first","tenant":"default","agent":"User","role":"user",`+
		`"content":"Grüße & <more> \"words\"\n","metadata":{"turn_number":1,"exchange":1,"status":"complete"}}`+"\n"+
		`{"timestamp":"%s","session_id":"first","tenant":"default","agent":"echo","role":"assistant",`+
		`"content":"Grüße & <more> \"words\"\n","metadata":{"turn_number":2,"exchange":1,"turn_id":"%s","status":"complete"}}`+"\n",
		kept[0].GetCreateTime().AsTime().Format(layout), kept[1].GetCreateTime().AsTime().Format(layout), kept[1].GetTurnId())
	if d := cmp.Diff(want, l.text(t)); d != "" {
		t.Errorf("the file (-want +got):\n%s", d)
	}
	if day := kept[0].GetCreateTime().AsTime().Format(time.DateOnly); l.days(t)[0] != day {
		t.Errorf("there are files of %q, want %s", l.days(t), day)
	}
}

// conversationOverMidnight lies in two files, and is one.
func conversationOverMidnight(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	say(t, l.server, "night", "before midnight")
	l.ageOneDay(t)
	yesterday := l.days(t)
	say(t, l.server, "night", "after midnight")
	if days := l.days(t); len(days) <= len(yesterday) || !slices.Equal(days[:len(yesterday)], yesterday) {
		t.Fatalf("there are files of %q, of the day before %q", days, yesterday)
	}
	all := []string{"night 1 User: before midnight", "night 2 echo: before midnight", "night 3 User: after midnight", "night 4 echo: after midnight"}
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "night"})
	wantLines(t, "the conversation", got, all...)
	got, _ = l.list(t, &parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: yesterday[0]}})
	wantLines(t, "the day before", got, all[:2]...)
	slices.Reverse(all)
	for _, id := range []string{"", "night"} {
		within := &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(48 * time.Hour)}
		got, _ = l.list(t, &parleyv1.ListInteractionsRequest{Span: within, ConversationId: id})
		wantLines(t, "within 48 h", got, all...)
	}
}

// coordinating is an AgentService that hands over to a planner in the middle of its answer.
type coordinating struct {
	parleyv1.UnimplementedAgentServiceServer
}

func (coordinating) Respond(_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse]) error {
	return errors.Join(
		stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: "One for the planner."}}),
		stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "planner"}}),
		stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: "Two goals."}}),
	)
}

// delegation is a user's question to a coordinator, who hands over to a specialist within the
// turn, and to another one for those that follow.
func delegation(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(service, coordinating{})
	go func() { _ = service.Serve(listener) }() // until Stop
	t.Cleanup(service.Stop)
	l := startLogged(t, t.TempDir(), agents(t, fmt.Sprintf(`
default_agent: coordinator
agents:
  coordinator: {kind: remote, address: %q}
  writer: {kind: command, command: [printf, "It is written."]}
`, listener.Addr())))

	question := chat(t, l.server, &parleyv1.ChatRequest{ConversationId: "d", Content: "Which goals?", Metadata: map[string]string{"user": "Ada"}})
	question.end(t)
	lease(t, l.server, &parleyv1.SetActiveAgentRequest{ConversationId: "d", Agent: "writer", Reason: "goals are set"})
	say(t, l.server, "other", "Meanwhile.")
	say(t, l.server, "d", "Write them down.")
	want := []string{
		"d 1 Ada: Which goals?", "d 2 coordinator: One for the planner.", "d 3 planner: Two goals.",
		"d 4 User: Write them down.", "d 5 writer: It is written.",
	}
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "d"})
	wantLines(t, "the session", got, want...)
	filed := slices.DeleteFunc(l.filed(t), func(line string) bool { return strings.HasPrefix(line, "other") })
	wantLines(t, "in the file", filed, want...)
}

// textOverSevenFiles is found newest first, in capitals or not, on pages of any size.
func textOverSevenFiles(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	const days = 7
	begun := today()
	for ago := -1; ago <= days; ago++ { // One too many at either end.
		day := dayBefore(t, begun, ago)
		l.put(t, day, byHand(day, "plans", 1, "Quarterly GOALS, first"), byHand(day, "plans", 2, "quarterly"),
			byHand(day, "plans", 3, "Goals quarterly"), byHand(day, "plans", 4, "the quarterly goals of "+day))
	}
	for _, size := range []int32{0, 1, 3} {
		request := &parleyv1.SearchInteractionsRequest{Query: "quarterly goals", PageSize: size}
		now := today()
		page, err := l.SearchInteractions(t.Context(), request)
		got, _ := l.search(t, request)
		for now != today() { // Midnight has come meanwhile.
			now = today()
			got, _ = l.search(t, request)
		}
		if err != nil || size > 0 && len(page.GetInteractions()) != int(size) || (page.GetNextPageToken() != "") != (size > 0) {
			t.Errorf("the first page of %d: %v, %v", size, page, err)
		}
		var want []string
		for ago := range days {
			want = append(want, "plans 4 User: the quarterly goals of "+dayBefore(t, now, ago), "plans 1 User: Quarterly GOALS, first")
		}
		wantLines(t, fmt.Sprint("pages of ", size), got, want...)
	}
}

// yesterdaysSession is replayed in order, though it was one of two at the same time, and the
// conversation is no more.
func yesterdaysSession(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	var want []string
	for i := range 3 {
		for _, id := range []string{"session", "other"} {
			say(t, l.server, id, fmt.Sprint(id, " ", i))
		}
		want = append(want, fmt.Sprintf("session %d User: session %d", 2*i+1, i), fmt.Sprintf("session %d echo: session %d", 2*i+2, i))
	}
	l.ageOneDay(t)
	if _, err := l.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "session"}); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int32{0, 1, 4} {
		got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "session", PageSize: size})
		wantLines(t, fmt.Sprint("pages of ", size), got, want...)
	}
}

// brokenLine costs nothing but itself, and one warning.
func brokenLine(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	day := dayBefore(t, today(), 2)
	whole := byHand(day, "b", 2, "goal two")
	l.put(t, day, byHand(day, "b", 1, "goal one"), whole[:len(whole)/2]+"\n", byHand(day, "b", 3, "goal three"))
	want := []string{"b 1 User: goal one", "b 3 User: goal three"}
	for range 3 {
		for name, r := range map[string]*parleyv1.ListInteractionsRequest{
			"the session": {ConversationId: "b"},
			"the day":     {Span: &parleyv1.ListInteractionsRequest_Date{Date: day}},
		} {
			got, skipped := l.list(t, r)
			wantLines(t, name, got, want...)
			if skipped != 1 {
				t.Errorf("%s: %d lines skipped, want 1", name, skipped)
			}
		}
		got, skipped := l.search(t, &parleyv1.SearchInteractionsRequest{Query: "Goal"})
		wantLines(t, "the search", got, want[1], want[0])
		if skipped != 1 {
			t.Errorf("the search: %d lines skipped, want 1", skipped)
		}
	}
	l.terminate()
	l.wantStop(t)
	warnings, _ := l.log.find("line of the interaction log skipped")
	if len(warnings) != 1 || warnings[0]["level"] != "WARN" || warnings[0]["file"] != l.path(day) || fmt.Sprint(warnings[0]["line"]) != "2" {
		t.Errorf("warnings: %v; want one, of line 2 in %s", warnings, l.path(day))
	}
}
