package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// eventWatch is the stream of a watch with turn events.
type eventWatch struct {
	stream grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]
	seen   []string // descriptions of all changes
}

// watchEvents starts a watch with turn events of all conversations.
func watchEvents(t *testing.T, ctx context.Context, by parleyv1.ConversationServiceClient) *eventWatch {
	t.Helper()
	stream, err := by.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{IncludeTurnEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	return &eventWatch{stream: stream}
}

// watchAllServers starts a watch with turn events of all conversations that begins without a GAP. On a slow machine, a
// watch may begin before all other servers send their events.
func watchAllServers(t *testing.T, ctx context.Context, by parleyv1.ConversationServiceClient) *eventWatch {
	t.Helper()
	for ctx.Err() == nil {
		if w := watchEvents(t, ctx, by); w.next(t) == "HEARTBEAT" {
			return w
		}
	}
	t.Fatal("each watch began with a GAP")
	return nil
}

// next receives the next change and returns its description.
func (w *eventWatch) next(t *testing.T) string {
	t.Helper()
	response, err := w.stream.Recv()
	if err != nil {
		t.Fatalf("watch ended after %q: %v", w.seen, err)
	}
	c := response.GetChange()
	text := strings.TrimPrefix(c.GetKind().String(), "CHANGE_KIND_")
	if id := c.GetConversationId(); id != "" {
		text += " " + id
	}
	switch e := c.GetTurnEvent(); {
	case e.GetStarted() != nil:
		text += " started"
	case e.GetTextDelta() != nil:
		text += " text " + e.GetTextDelta().GetText()
	case e.GetFinished() != nil:
		state := e.GetFinished().GetTurn().GetState().String()
		text += " finished " + strings.TrimPrefix(state, "TURN_STATE_")
	case e.GetProgress() != nil:
		return w.next(t) // On a slow machine, there may be several.
	}
	w.seen = append(w.seen, text)
	return text
}

// want receives the next changes.
func (w *eventWatch) want(t *testing.T, want ...string) {
	t.Helper()
	for _, text := range want {
		if got := w.next(t); got != text {
			t.Fatalf("change %d of %q = %s, want %s", len(w.seen), w.seen, got, text)
		}
	}
}

// until receives changes up to one of the given ones. It returns this change, and those before it without heartbeats.
func (w *eventWatch) until(t *testing.T, last ...string) (before []string, found string) {
	t.Helper()
	for {
		text := w.next(t)
		if slices.Contains(last, text) {
			return before, text
		}
		if text != "HEARTBEAT" {
			before = append(before, text)
		}
	}
}

// wantEventsAfterGap runs turns at a server until there is no GAP any more, and checks the events of the last one.
func (w *eventWatch) wantEventsAfterGap(t *testing.T, at *server) {
	t.Helper()
	w.until(t, "GAP")
	for i := range 100 {
		id := fmt.Sprint("after", i)
		ask(t, at, id, "hello")
		before, found := w.until(t, "TURN "+id+" finished COMPLETED", "GAP")
		if found == "GAP" {
			continue // The stream was opened after the beginning of the turn.
		}
		want := []string{"TURN " + id + " started", "TURN " + id + " text hello"}
		if got := eventsOf(before, id); !slices.Equal(got, want) {
			t.Errorf("events = %q, want %q", got, want)
		}
		return
	}
	t.Error("each turn was followed by a GAP")
}

// eventsOf returns the changes of a list that are events of turns in a conversation, or GAPs.
func eventsOf(all []string, id string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(text string) bool {
		return text != "GAP" && !strings.HasPrefix(text, "TURN "+id+" ")
	})
}

// TestServersTurnEvents: watchers of any server receive the events of turns of all servers, each once and in order,
// from the first heartbeat on. The finished event follows the message of the answer.
func TestServersTurnEvents(t *testing.T) {
	t.Parallel()
	servers := startServers(t, redistest.Start(t), 3)
	watches := make([]*eventWatch, 2)
	for i := range watches {
		watches[i] = watchAllServers(t, timeLimited(t), servers[i])
	}
	for i, s := range servers {
		id := fmt.Sprint("c", i)
		for _, content := range []string{"one", "two"} {
			ask(t, s, id, content)
			for n, w := range watches {
				end := "TURN " + id + " finished COMPLETED"
				got, _ := w.until(t, end)
				// The message of the answer may come before the text, because it comes from the store.
				events, want := eventsOf(got, id), []string{"TURN " + id + " started", "TURN " + id + " text " + content}
				if !slices.Equal(events, want) || !slices.Contains(got, "MESSAGE_APPENDED "+id) {
					t.Errorf("watch at server %d of a turn at server %d = %q, %s, want %q", n, i, got, end, want)
				}
				if first := slices.Index(got, "MESSAGE_APPENDED "+id); !slices.Contains(got[first+1:], "MESSAGE_APPENDED "+id) {
					t.Errorf("changes before %s = %q, want the message of the answer", end, got)
				}
			}
		}
	}
	for i, want := range []int32{1, 1, 0} {
		stats, err := servers[i].GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if got := stats.GetWatcherCount(); err != nil || got != want {
			t.Errorf("watchers of server %d = %d, %v, want %d: other servers do not count", i, got, err, want)
		}
	}
}

// TestServersTurnEventsOfKilled: when a server was killed, watchers at all other servers receive a GAP, and the end of
// the turn of that server, whichever server ends it.
func TestServersTurnEventsOfKilled(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	servers := startServers(t, engine, 3)
	watches := []*eventWatch{
		watchAllServers(t, timeLimited(t), servers[0]), watchAllServers(t, timeLimited(t), servers[1]),
	}
	hold(t, servers[2], "c")
	for i, w := range watches {
		if before, _ := w.until(t, "TURN c text half an "); !slices.Equal(eventsOf(before, "c"), []string{"TURN c started"}) {
			t.Errorf("events at server %d before the text = %q, want the start of the turn", i, before)
		}
	}
	awaitSaved(t, engine, 1)
	servers[2].kill()
	for i, w := range watches {
		before, _ := w.until(t, "TURN c finished INTERRUPTED")
		gaps := slices.Compact(eventsOf(before, "c")) // The second one follows when the server loses its lease.
		if !slices.Equal(gaps, []string{"GAP"}) || before[len(before)-1] != "MESSAGE_APPENDED c" {
			t.Errorf("changes at server %d between the kill and the end = %q, want a GAP and the answer", i, before)
		}
	}
	ask(t, servers[1], "d", "hello")
	if got, _ := watches[0].until(t, "TURN d finished COMPLETED"); !slices.Contains(got, "TURN d text hello") {
		t.Errorf("events of another server = %q, want those of d", got)
	}
}

// pause stops a server and waits until all its threads are stopped.
func pause(t *testing.T, s *server) {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, ticker := timeLimited(t), time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		states, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.process.Process.Pid))
		isStopped := func(path string) bool {
			stat, err := os.ReadFile(path)
			return err != nil || strings.Contains(string(stat), ") T ") // A thread may have ended.
		}
		if err == nil && !slices.ContainsFunc(states, func(path string) bool { return !isStopped(path) }) {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatal("the server still runs")
		}
	}
}

// TestServersTurnEventsOfPaused: a watch begins although another server does not answer, with a GAP. When that server
// continues, its events are received after another GAP.
func TestServersTurnEventsOfPaused(t *testing.T) {
	t.Parallel()
	servers := startServers(t, redistest.Start(t), 2)
	pause(t, servers[1])
	const within = 10 * time.Second // Mostly 1 s.
	began := time.Now()
	w := watchEvents(t, timeLimited(t), servers[0])
	w.want(t, "GAP", "HEARTBEAT")
	if took := time.Since(began); took > within {
		t.Errorf("the first heartbeat took %v, want at most %v", took, within)
	}
	if err := servers[1].process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.wantEventsAfterGap(t, servers[1])
}

// TestServersTurnEventsOfNew: a server that starts after a watch sends its events, after a GAP.
func TestServersTurnEventsOfNew(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	w := watchEvents(t, timeLimited(t), startServers(t, engine, 1)[0])
	w.want(t, "HEARTBEAT")
	w.wantEventsAfterGap(t, startServers(t, engine, 1)[0])
}

// TestServersTurnEventsOfStopping: a server that stops sends all events of its turns first. The watcher receives no
// GAP.
func TestServersTurnEventsOfStopping(t *testing.T) {
	t.Parallel()
	servers := startServersWith(t, redistest.Start(t), 3, agents(t, testAgents), "--stop-grace=0s")
	w := watchAllServers(t, timeLimited(t), servers[0])
	hold(t, servers[1], "c")
	servers[1].terminate()
	servers[1].wantStop(t)
	before, _ := w.until(t, "TURN c finished INTERRUPTED")
	if got, want := eventsOf(before, "c"), []string{"TURN c started", "TURN c text half an "}; !slices.Equal(got, want) {
		t.Errorf("events before the end = %q, want %q", got, want)
	}
	ask(t, servers[2], "d", "hello")
	if after, _ := w.until(t, "TURN d finished COMPLETED"); slices.Contains(after, "GAP") {
		t.Errorf("changes after the end = %q, want no GAP", after)
	}
}

// TestServersTurnEventsSignIn: a watcher receives the events of its tenant only, and continues to receive them, after a
// GAP, when the credentials of another watcher of the tenant are no longer valid.
func TestServersTurnEventsSignIn(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	acme := []string{
		files.createToken(t, "--tenant=acme", "--role=writer"), files.createToken(t, "--tenant=acme", "--role=writer"),
	}
	other := files.createToken(t, "--tenant=globex", "--role=writer")
	servers := startServersWith(t, redistest.Start(t), 2, agents(t, testAgents),
		append(files.ServerFlags(), "--peer-ca-file="+files.CAFile)...)
	a, b := secureClient(t, files, servers[0], false), secureClient(t, files, servers[1], false)
	watches := make([]*eventWatch, len(acme))
	for i, token := range acme {
		watches[i] = watchAllServers(t, withToken(timeLimited(t), token), a)
	}
	stranger := watchAllServers(t, withToken(timeLimited(t), other), a)
	chatAs := func(token, id string) {
		untilFinished(t, streamOf(b.Chat(withToken(timeLimited(t), token), &parleyv1.ChatRequest{
			ConversationId: id, Content: "hello",
		})))
	}
	chatAs(acme[1], "c")
	for _, w := range watches {
		w.until(t, "TURN c finished COMPLETED")
	}
	revokeToken(t, files.SignIn, 0) // The stream to the other server uses this token.
	hangUp(t, servers[1], 1)
	watches[1].until(t, "GAP")
	watches[1].until(t, "GAP") // The first GAP comes when the stream ends, the second one when it is open again.
	chatAs(acme[1], "d")
	if got, _ := watches[1].until(t, "TURN d finished COMPLETED"); !slices.Contains(got, "TURN d text hello") {
		t.Errorf("changes = %q, want the events of the turn", got)
	}
	chatAs(other, "e")
	stranger.until(t, "TURN e finished COMPLETED")
	for _, text := range stranger.seen {
		if text != "HEARTBEAT" && text != "GAP" && !strings.Contains(text, " e") {
			t.Errorf("the watcher of another tenant received %s", text)
		}
	}
}

// TestServersTurnEventsOfOtherTenant: if the settings of another server give a watcher's credentials another tenant, the
// watcher receives nothing of that tenant.
func TestServersTurnEventsOfOtherTenant(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	token := files.createToken(t, "--tenant=acme", "--role=writer")
	tokens, err := os.ReadFile(files.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	others := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(others, bytes.ReplaceAll(tokens, []byte("acme"), []byte("globex")), 0o600); err != nil {
		t.Fatal(err)
	}
	engine, flags := redistest.Start(t), append(files.ServerFlags(), "--peer-ca-file="+files.CAFile)
	a := secureClient(t, files, startServersWith(t, engine, 1, agents(t, testAgents), flags...)[0], false)
	b := secureClient(t, files, startServersWith(t, engine, 1, agents(t, testAgents),
		append(flags, "--auth-token-file="+others)...)[0], false)
	ctx := withToken(timeLimited(t), token)
	w := watchEvents(t, ctx, a)
	w.until(t, "GAP") // The other server refuses to send its events.
	for id, by := range map[string]parleyv1.ConversationServiceClient{"of globex": b, "of acme": a} {
		untilFinished(t, streamOf(by.Chat(ctx, &parleyv1.ChatRequest{ConversationId: id, Content: "hello"})))
	}
	w.until(t, "TURN of acme finished COMPLETED")
	untilFinished(t, streamOf(a.Chat(ctx, &parleyv1.ChatRequest{ConversationId: "last", Content: "hello"})))
	w.until(t, "TURN last finished COMPLETED")
	for _, text := range w.seen {
		if strings.Contains(text, "of globex") {
			t.Errorf("a watcher of acme received %s", text)
		}
	}
}
