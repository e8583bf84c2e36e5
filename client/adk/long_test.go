package adk_test

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/agent/llmagent"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/adk"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// script is a model that answers with the text of the last message and the number of messages that it got.
type script struct{}

func (script) Name() string { return "script" }

func (script) GenerateContent(
	_ context.Context, request *model.LLMRequest, _ bool,
) iter.Seq2[*model.LLMResponse, error] {
	last := request.Contents[len(request.Contents)-1]
	text := fmt.Sprintf("answer to %s, message %d", last.Parts[0].Text, len(request.Contents))
	return func(yield func(*model.LLMResponse, error) bool) {
		yield(&model.LLMResponse{Content: genai.NewContentFromText(text, genai.RoleModel)}, nil)
	}
}

// TestTurnsOfARunner makes 300 turns of a real agent. A new runner, with a connection of its own, takes over after
// every 50 turns. The model gets the complete history in each turn.
func TestTurnsOfARunner(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute: left out with -short")
	}
	t.Parallel()
	const turns, perRunner = 300, 50
	address := startServer(t).address
	helper, err := llmagent.New(llmagent.Config{Name: "helper", Model: script{}, OutputKey: "last"})
	if err != nil {
		t.Fatal(err)
	}
	for start := 0; start < turns; start += perRunner {
		r, err := runner.New(runner.Config{
			AppName: "runner", Agent: helper, SessionService: newService(t, address), AutoCreateSession: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := start; i < start+perRunner; i++ {
			message := genai.NewContentFromText(fmt.Sprintf("question %d", i), genai.RoleUser)
			var answer string
			for event, err := range r.Run(t.Context(), "anna", "1", message, agent.RunConfig{}) {
				if err != nil {
					t.Fatalf("turn %d: %v", i, err)
				}
				answer = event.Content.Parts[0].Text
			}
			if want := fmt.Sprintf("answer to question %d, message %d", i, 2*i+1); answer != want {
				t.Fatalf("turn %d = %q, want %q", i, answer, want)
			}
		}
	}
	reply, err := newService(t, address).Get(t.Context(), &session.GetRequest{AppName: "runner", UserID: "anna", SessionID: "1"})
	if err != nil || reply.Session.Events().Len() != 2*turns {
		t.Fatalf("Get = %v, %v, want %d events", reply, err, 2*turns)
	}
	last := fmt.Sprintf("answer to question %d, message %d", turns-1, 2*turns-1)
	if got := stateOf(reply.Session)["last"]; got != last {
		t.Errorf("state of the output key = %v, want %s", got, last)
	}
}

// TestManyEvents appends 1500 events and reads all of them, the newest, and those since a time.
func TestManyEvents(t *testing.T) {
	t.Parallel()
	const events = 1500
	s := newService(t, startServer(t).address)
	of := create(t, s, "many", "anna", "1", nil)
	want := numbered(events)
	for i, text := range want {
		if err := s.AppendEvent(t.Context(), of, says(t, "user", text, map[string]any{"n": i + 1})); err != nil {
			t.Fatalf("AppendEvent %d = %v", i, err)
		}
	}
	if got := textsOf(of); !slices.Equal(got, want) {
		t.Errorf("the session of the writer has %d events, want %d in order", len(got), events)
	}
	read := get(t, s, of)
	if got := textsOf(read); !slices.Equal(got, want) {
		t.Errorf("Get = %d events, want %d in order", len(got), events)
	}
	if got := stateOf(read)["n"]; got != float64(events) {
		t.Errorf("state = %v, want %d", got, events)
	}
	for _, test := range []struct{ newest, from, want int }{
		{1, -1, 1},
		{20, -1, 20},
		{1200, -1, 1200},
		{5000, -1, events},
		{0, 1400, 100},
		{30, 1400, 30},
		{300, 1400, 100},
		{0, 10, events - 10},
	} {
		request := &session.GetRequest{AppName: "many", UserID: "anna", SessionID: "1", NumRecentEvents: test.newest}
		if test.from >= 0 {
			request.After = of.Events().At(test.from).Timestamp
		}
		reply, err := s.Get(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if got := textsOf(reply.Session); !slices.Equal(got, want[events-test.want:]) {
			t.Errorf("Get of %d events from %d = %d events, want the newest %d", test.newest, test.from, len(got), test.want)
		}
	}
}

// TestManySessions creates 1001 sessions and lists them: of a user in the order of their updates, and of the app.
func TestManySessions(t *testing.T) {
	t.Parallel()
	const sessions = 1001
	s := newService(t, startServer(t, "--max-conversations=5000").address)
	for i := range sessions {
		create(t, s, "listed", fmt.Sprintf("user %d", i%2), fmt.Sprint(i), map[string]any{"n": i, fmt.Sprintf("user:%d", i%2): i})
	}
	for _, test := range []struct {
		user string
		want int
	}{{"", sessions}, {"user 0", 501}, {"user 1", 500}, {"user 2", 0}} {
		reply, err := s.List(t.Context(), &session.ListRequest{AppName: "listed", UserID: test.user})
		if err != nil || len(reply.Sessions) != test.want {
			t.Fatalf("List(%q) = %d sessions, %v, want %d", test.user, len(reply.Sessions), err, test.want)
		}
		for i, one := range reply.Sessions {
			n := i
			if test.user != "" {
				n = 2*i + map[string]int{"user 0": 0, "user 1": 1}[test.user]
			}
			if state := stateOf(one); one.ID() != fmt.Sprint(n) || state["n"] != float64(n) || len(state) != 2 {
				t.Fatalf("session %d of %q = %q with the state %v, want %d", i, test.user, one.ID(), state, n)
			}
		}
	}
}

// TestServerKilledBetweenAppends kills the server after every few appends. The caller's session continues.
func TestServerKilledBetweenAppends(t *testing.T) {
	t.Parallel()
	const events = 40
	server := startServer(t)
	s := newService(t, server.address)
	of := create(t, s, "killed", "anna", "1", nil)
	for i, text := range numbered(events) {
		delta := map[string]any{"n": i, "app:n": i, "user:n": i}
		if err := s.AppendEvent(t.Context(), of, says(t, "user", text, delta)); err != nil {
			t.Fatalf("AppendEvent %d = %v", i, err)
		}
		if i%8 == 7 {
			server.killAndRestart()
		}
	}
	server.killAndRestart()
	checkKilled(t, get(t, newService(t, server.address), of), events)
}

// checkKilled checks that a session has all events, and the state of the last one in all scopes.
func checkKilled(t *testing.T, read session.Session, events int) {
	t.Helper()
	if got := textsOf(read); !slices.Equal(got, numbered(events)) {
		t.Errorf("events = %q, want %d in order", got, events)
	}
	for _, key := range []string{"n", "app:n", "user:n"} {
		if got := stateOf(read)[key]; got != float64(events-1) {
			t.Errorf("state %s = %v, want %d", key, got, events-1)
		}
	}
}

// TestServerKilledDuringAppends kills the server at any moment. The caller repeats what failed with UNAVAILABLE. Each
// event is stored once, with its state.
func TestServerKilledDuringAppends(t *testing.T) {
	t.Parallel()
	const events, kills = 120, 5
	server := startServer(t)
	s := newService(t, server.address)
	of := create(t, s, "killed", "anna", "1", nil)
	progress := make(chan int)
	var killer sync.WaitGroup
	killer.Go(func() {
		for i := range progress {
			if i%(events/kills) == 3 {
				server.killAndRestart()
			}
		}
	})
	for i, text := range numbered(events) {
		event := says(t, "user", text, map[string]any{"n": i, "app:n": i, "user:n": i})
		progress <- i
		err := s.AppendEvent(t.Context(), of, event)
		for ; status.Code(err) == codes.Unavailable; err = s.AppendEvent(t.Context(), of, event) {
			t.Logf("append %d is repeated after %v", i, err)
		}
		if err != nil {
			t.Fatalf("AppendEvent %d = %v", i, err)
		}
	}
	close(progress)
	killer.Wait()
	checkKilled(t, get(t, newService(t, server.address), of), events)
}

// TestLostReplies drops the replies of appends that the server has executed. The caller repeats the call, with the same
// session, and continues. Nothing is stored twice. If another program appended in between, the session is stale.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	var dropping bool
	drop := func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, request, reply, conn, opts...)
		if dropping && method == parleyv1.ConversationService_AppendMessages_FullMethodName && err == nil {
			dropping = false
			return status.Error(codes.Unavailable, "the test lost the reply")
		}
		return err
	}
	c, err := client.Dial(shared, grpc.WithChainUnaryInterceptor(drop))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, other := adk.NewSessionService(c), newService(t, shared)
	of := create(t, s, "lost", "anna", "1", nil)
	for i, text := range numbered(10) {
		event := says(t, "user", text, map[string]any{"n": i, "app:n": i, "user:n": i, "temp:t": 1})
		dropping = true
		if err := s.AppendEvent(t.Context(), of, event); status.Code(err) != codes.Unavailable {
			t.Fatalf("AppendEvent %d = %v, want UNAVAILABLE", i, err)
		}
		if i == 9 {
			late := get(t, other, of)
			if err := other.AppendEvent(t.Context(), late, says(t, "user", "other", nil)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.AppendEvent(t.Context(), of, event); err != nil {
			t.Fatalf("repeated AppendEvent %d = %v", i, err)
		}
	}
	if err := s.AppendEvent(t.Context(), of, says(t, "user", "late", nil)); status.Code(err) != codes.Aborted {
		t.Errorf("AppendEvent after that of another program = %v, want ErrStaleSession", err)
	}
	want := append(numbered(10), "other")
	if got := textsOf(get(t, s, of)); !slices.Equal(got, want) {
		t.Errorf("events = %q, want %q", got, want)
	}
}

// writerOf is the environment variable that makes the test program a writer: the address of its server.
const writerOf = "PARLEY_ADK_TEST_WRITER"

// appendUntilKilled appends events with their numbers, from that of the session's state. It returns only with an error.
func appendUntilKilled(ctx context.Context, address string) error {
	c, err := client.Dial(address)
	if err != nil {
		return err
	}
	defer c.Close()
	s := adk.NewSessionService(c)
	reply, err := s.Get(ctx, &session.GetRequest{AppName: "writer", UserID: "anna", SessionID: "1"})
	if err != nil {
		return err
	}
	for n := reply.Session.Events().Len(); ; n++ {
		event := session.NewEvent(ctx, "invocation")
		event.Author, event.Content = "user", genai.NewContentFromText(fmt.Sprintf("event %d", n), genai.RoleUser)
		event.Actions.StateDelta = map[string]any{"n": n, "app:n": n, "user:n": n}
		if err := s.AppendEvent(ctx, reply.Session, event); err != nil {
			return err
		}
	}
}

// TestClientKilledDuringAppends kills programs that append. The next one continues. No event is without its state.
func TestClientKilledDuringAppends(t *testing.T) {
	t.Parallel()
	address := startServer(t).address
	s := newService(t, address)
	read := create(t, s, "writer", "anna", "1", nil)
	for range 4 {
		writer := exec.CommandContext(t.Context(), os.Args[0])
		writer.Env = append(os.Environ(), writerOf+"="+address)
		writer.Stderr = os.Stderr
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		for until := read.Events().Len() + 10; read.Events().Len() < until; {
			read = get(t, s, read)
		}
		if err := writer.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := writer.Wait(); err == nil || writer.ProcessState.Exited() {
			t.Fatalf("the writer ended with %v before it was killed", err)
		}
		read = get(t, s, read)
		checkKilled(t, read, read.Events().Len())
	}
}
