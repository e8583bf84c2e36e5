package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The answers of these tests have answerPieces pieces. The events of such a turn have the indexes from 1
// (started) to lastIndex (finished); piece i has the index i+1.
const (
	answerPieces = 50
	lastIndex    = answerPieces + 2
)

// answerPiece returns a text with characters of several bytes, because offsets count bytes.
func answerPiece(i int) string { return fmt.Sprintf("Stück %d … ", i) }

func completeAnswer() string {
	var b strings.Builder
	for i := range answerPieces {
		b.WriteString(answerPiece(i + 1))
	}
	return b.String()
}

// The agent puppet sends what the test writes to the named pipe whose path is the user's message. On each
// run it adds a line to the file path.runs.
const puppetAgents = `
agents:
  puppet:
    kind: command
    command: [sh, -c, 'while read -r line; do last=$line; done; pipe=${last#\[USER\]: }; echo run >>"$pipe.runs"; exec cat "$pipe"']
`

// puppet is the test's end of that pipe.
type puppet struct {
	path string // path of the pipe, sent as the user's message
	pipe *os.File
}

// newPuppet creates the pipe in a directory. The file of runs stays in that directory.
func newPuppet(t *testing.T, dir, name string) *puppet {
	t.Helper()
	p := &puppet{path: filepath.Join(dir, name)}
	if err := syscall.Mkfifo(p.path, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Opening the pipe ends an agent that waits at it; removing it stops one that starts late.
		if f, err := os.OpenFile(p.path, os.O_RDWR, 0); err == nil {
			os.Remove(p.path)
			f.Close()
		}
	})
	return p
}

// start returns when the agent has opened the pipe.
func (p *puppet) start(t *testing.T) {
	t.Helper()
	opened := make(chan error, 1)
	go func() {
		var err error
		p.pipe, err = os.OpenFile(p.path, os.O_WRONLY, 0)
		opened <- err
	}()
	select {
	case err := <-opened:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(timeout):
		t.Fatalf("the agent has not opened the pipe within %v", timeout)
	}
	t.Cleanup(func() { p.pipe.Close() })
}

// send makes the agent send the pieces of the answer from one number to another.
func (p *puppet) send(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if _, err := p.pipe.WriteString(answerPiece(i)); err != nil {
			t.Fatalf("piece %d: %v", i, err)
		}
	}
}

// finish makes the agent exit.
func (p *puppet) finish() { p.pipe.Close() }

// wantRuns checks the number of runs of the agent for this message.
func (p *puppet) wantRuns(t *testing.T, want int) {
	t.Helper()
	data, err := os.ReadFile(p.path + ".runs")
	if runs := strings.Count(string(data), "run\n"); runs != want || err != nil && want > 0 {
		t.Errorf("the agent ran %d times (%v), want %d", runs, err, want)
	}
}

// singleConn is a client on its own TCP connection.
type singleConn struct {
	parleyv1.ConversationServiceClient
	tcp net.Conn
}

func newSingleConn(t *testing.T, s *server) *singleConn {
	t.Helper()
	tcp, err := net.Dial("tcp", s.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	// The dialer returns the only connection, so that the client cannot reconnect after breakConn.
	dial := func(context.Context, string) (net.Conn, error) { return tcp, nil }
	conn, err := grpc.NewClient(s.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); tcp.Close() })
	return &singleConn{parleyv1.NewConversationServiceClient(conn), tcp}
}

// breakConn resets the connection.
func (w *singleConn) breakConn() { reset(w.tcp) }

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}

// eventStream receives the events of a call one at a time.
type eventStream struct {
	next   func() (*parleyv1.TurnEvent, error)
	events []*parleyv1.TurnEvent
}

func streamOf[R any, P interface {
	*R
	GetEvent() *parleyv1.TurnEvent
}](call grpc.ServerStreamingClient[R], err error) *eventStream {
	return &eventStream{next: func() (*parleyv1.TurnEvent, error) {
		if err != nil {
			return nil, err
		}
		response, err := call.Recv()
		return P(response).GetEvent(), err
	}}
}

// timeLimited returns a context that ends after the test's time limit for one call.
func timeLimited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return ctx
}

func resume(t *testing.T, by parleyv1.ConversationServiceClient, id, turn string, after int) *eventStream {
	t.Helper()
	return streamOf(by.ResumeTurn(timeLimited(t), &parleyv1.ResumeTurnRequest{
		ConversationId: id, TurnId: turn, AfterIndex: int32(after),
	}))
}

// receive receives the next n events. An event of which texts were merged counts as those texts.
func (e *eventStream) receive(t *testing.T, n int) {
	t.Helper()
	for n > 0 {
		event, err := e.next()
		if err != nil {
			t.Fatalf("after %d events: %v, want another event", len(e.events), err)
		}
		if len(e.events) == 0 {
			n--
		} else {
			n -= int(event.GetIndex() - e.lastIndex())
		}
		e.events = append(e.events, event)
	}
}

// lastIndex returns the index of the last event, 0 if there is none.
func (e *eventStream) lastIndex() int32 {
	if len(e.events) == 0 {
		return 0
	}
	return e.events[len(e.events)-1].GetIndex()
}

// follows reports whether an event can follow the one with an index. Only texts that were merged leave indexes
// out.
func follows(event *parleyv1.TurnEvent, index int32) bool {
	return event.GetIndex() == index+1 || event.GetIndex() > index && event.GetTextDelta() != nil
}

// mergeTexts returns events as a late reader receives them: texts that follow one another are one event.
func mergeTexts(events []*parleyv1.TurnEvent) (merged []*parleyv1.TurnEvent) {
	for _, e := range events {
		if n := len(merged); n > 0 && e.GetTextDelta() != nil && merged[n-1].GetTextDelta() != nil {
			text := merged[n-1].GetTextDelta().GetText() + e.GetTextDelta().GetText()
			merged[n-1] = proto.CloneOf(merged[n-1])
			merged[n-1].Index, merged[n-1].GetTextDelta().Text = e.GetIndex(), text
			continue
		}
		merged = append(merged, e)
	}
	return merged
}

// drain receives all remaining events. It returns nil if the stream ends with EOF, and else its error.
func (e *eventStream) drain() error {
	for {
		event, err := e.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		e.events = append(e.events, event)
	}
}

// textOf returns the text of all deltas.
func textOf(events []*parleyv1.TurnEvent) string {
	var b strings.Builder
	for _, event := range events {
		b.WriteString(event.GetTextDelta().GetText())
	}
	return b.String()
}

// wantCompleteTurn checks that these are all events of a turn with the answer of p, that no text is missing or
// doubled, and that the same answer is stored.
func wantCompleteTurn(t *testing.T, s *server, id string, p *puppet, events []*parleyv1.TurnEvent) {
	t.Helper()
	at, last := 0, int32(0)
	for _, event := range events {
		if !follows(event, last) || event.GetTurnId() != events[0].GetTurnId() {
			t.Fatalf("after event %d: %v, want the next index and the same turn", last, event)
		}
		last = event.GetIndex()
		if delta := event.GetTextDelta(); int(delta.GetOffset()) != at && delta != nil {
			t.Errorf("event %d has offset %d, want %d", last, delta.GetOffset(), at)
		}
		at += len(event.GetTextDelta().GetText())
	}
	wantAnswer(t, s, id, p, events)
}

// wantAnswer checks the complete answer, which may be replayed in fewer events.
func wantAnswer(t *testing.T, s *server, id string, p *puppet, events []*parleyv1.TurnEvent) {
	t.Helper()
	if len(events) < 2 || events[0].GetStarted() == nil {
		t.Fatalf("events = %v, want started first", events)
	}
	if got := textOf(events); got != completeAnswer() {
		t.Errorf("text =\n%q, want\n%q", got, completeAnswer())
	}
	finished := events[len(events)-1].GetFinished()
	if finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Fatalf("last event = %v, want finished with COMPLETED", events[len(events)-1])
	}
	stored := history(t, s, id).GetMessages()
	if got := contents(stored); got != "USER "+p.path+"\nASSISTANT "+completeAnswer()+"\n" {
		t.Errorf("stored messages =\n%s, want the question and the complete answer", got)
	}
	if d := cmp.Diff(stored[1:], finished.GetMessages(), protocmp.Transform()); d != "" {
		t.Errorf("the answer as stored (-) and as sent (+):\n%s", d)
	}
	p.wantRuns(t, 1)
}
