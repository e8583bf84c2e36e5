package adk_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/adk"
	"github.com/parleyhq/parley/server/parleydtest"
)

// program is the path of parleyd: that in PARLEYD, or one that TestMain builds.
var program string

// shared is the address of a server with the store bolt, for the tests and the example that need no server of their own.
var shared string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run starts the server and runs the tests.
func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if address := os.Getenv(writerOf); address != "" {
		return 1, appendUntilKilled(ctx, address)
	}
	dir, err := os.MkdirTemp("", "parley-adk-test-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if program = os.Getenv("PARLEYD"); program == "" {
		program = filepath.Join(dir, "parleyd")
		if err := parleydtest.Build(ctx, program); err != nil {
			return 0, err
		}
	}
	server, err := parleydtest.Start(parleydtest.Command(ctx, program, filepath.Join(dir, "data"),
		"--store=bolt", "--max-conversations=0"))
	if err != nil {
		return 0, err
	}
	defer server.Kill()
	if shared, err = server.AwaitServing(); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// server is a parleyd with the store bolt that keeps its address and its data over restarts.
type server struct {
	t       testing.TB
	dir     string
	address string
	flags   []string
	process *parleydtest.Process
}

// startServer starts a server, which ends with the test.
func startServer(tb testing.TB, flags ...string) *server {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &server{t: tb, dir: tb.TempDir(), address: listener.Addr().String(), flags: flags}
	listener.Close()
	s.start()
	tb.Cleanup(func() { s.process.Kill() })
	return s
}

func (s *server) start() {
	s.t.Helper()
	flags := append([]string{"--store=bolt", "--grpc-address=" + s.address}, s.flags...)
	var err error
	if s.process, err = parleydtest.Start(parleydtest.Command(s.t.Context(), program, s.dir, flags...)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.process.AwaitServing(); err != nil {
		s.t.Fatal(err)
	}
}

// killAndRestart ends the server with SIGKILL and starts it again.
func (s *server) killAndRestart() {
	s.t.Helper()
	s.process.Kill()
	s.start()
}

// dial returns a client that is closed with the test.
func dial(tb testing.TB, address string) *client.Client {
	tb.Helper()
	c, err := client.Dial(address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

// newService returns a service with a connection of its own.
func newService(tb testing.TB, address string) session.Service {
	tb.Helper()
	return adk.NewSessionService(dial(tb, address))
}

// create creates a session.
func create(tb testing.TB, s session.Service, app, user, id string, state map[string]any) session.Session {
	tb.Helper()
	reply, err := s.Create(tb.Context(), &session.CreateRequest{AppName: app, UserID: user, SessionID: id, State: state})
	if err != nil {
		tb.Fatalf("Create(%q, %q, %q) = %v", app, user, id, err)
	}
	return reply.Session
}

// get reads a session.
func get(tb testing.TB, s session.Service, of session.Session) session.Session {
	tb.Helper()
	reply, err := s.Get(tb.Context(), &session.GetRequest{AppName: of.AppName(), UserID: of.UserID(), SessionID: of.ID()})
	if err != nil {
		tb.Fatalf("Get(%q, %q, %q) = %v", of.AppName(), of.UserID(), of.ID(), err)
	}
	return reply.Session
}

// says returns an event with a text and a change of the state.
func says(tb testing.TB, author, text string, delta map[string]any) *session.Event {
	tb.Helper()
	event := session.NewEvent(tb.Context(), "invocation")
	event.Author = author
	event.Content = genai.NewContentFromText(text, genai.Role(author))
	maps.Copy(event.Actions.StateDelta, delta)
	return event
}

// textsOf returns the texts of the events of a session.
func textsOf(of session.Session) []string {
	var texts []string
	for event := range of.Events().All() {
		texts = append(texts, event.Content.Parts[0].Text)
	}
	return texts
}

// stateOf returns the state of a session.
func stateOf(of session.Session) map[string]any {
	return maps.Collect(of.State().All())
}

// numbered returns a text for each number from 0 to n-1.
func numbered(n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprintf("event %d", i)
	}
	return texts
}
