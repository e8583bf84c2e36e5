package rpc

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// scriptedAgent is an agent that answers with the pieces that a test sends.
type scriptedAgent struct {
	mu     sync.Mutex
	pieces map[string]chan string // by conversation id
}

// Commands to the agent in place of a piece.
const (
	end  = "\x00end"
	fail = "\x00fail"
)

// testTimeout is the maximum time that a test waits for an event that happens immediately.
const testTimeout = 30 * time.Second

// openScripted starts a server with a scriptedAgent.
func openScripted(t *testing.T, change func(*setup)) (*fixture, *scriptedAgent) {
	t.Helper()
	a := &scriptedAgent{pieces: make(map[string]chan string)}
	f := open(t, func(s *setup) {
		var err error
		if s.Agents, err = agent.NewSet("main", []agent.Entry{{Name: "main", Kind: "test", Agent: a}}); err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(s)
		}
	})
	return f, a
}

// input returns the channel from which the agent of a conversation receives its pieces.
func (a *scriptedAgent) input(id string) chan string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pieces[id] == nil {
		a.pieces[id] = make(chan string)
	}
	return a.pieces[id]
}

// send sends pieces to the agent of a conversation. It waits until the agent runs.
func (a *scriptedAgent) send(t *testing.T, id string, pieces ...string) {
	t.Helper()
	for _, piece := range pieces {
		select {
		case a.input(id) <- piece:
		case <-time.After(testTimeout):
			t.Fatalf("no agent is running in conversation %s", id)
		}
	}
}

// Respond yields the pieces that the test sends.
func (a *scriptedAgent) Respond(
	ctx context.Context, r *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		for {
			select {
			case piece := <-a.input(r.GetConversation().GetId()):
				switch piece {
				case end:
					return
				case fail:
					yield(nil, &agent.Error{Message: "out of order", Retryable: true})
					return
				}
				yield(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: piece}}, nil)
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

// Close does nothing.
func (*scriptedAgent) Close() error { return nil }

// stream is the stream of a turn's events.
type stream struct {
	turnID     string
	events     []*parleyv1.TurnEvent // received so far
	disconnect context.CancelFunc
	recv       func() (*parleyv1.TurnEvent, error)
}

// startChat calls Chat and waits for the first event. It fails the test if there is an error.
func (f *fixture) startChat(t *testing.T, ctx context.Context, r *parleyv1.ChatRequest) *stream {
	t.Helper()
	s, err := f.tryChat(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tryChat calls Chat and waits for the first event.
func (f *fixture) tryChat(ctx context.Context, r *parleyv1.ChatRequest) (*stream, error) {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	events, err := f.Chat(ctx, r)
	if err != nil {
		cancel()
		return nil, err
	}
	return newStream(cancel, func() (*parleyv1.TurnEvent, error) {
		reply, err := events.Recv()
		return reply.GetEvent(), err
	})
}

// resume calls ResumeTurn and waits for the first event or the end of the stream.
func (f *fixture) resume(ctx context.Context, r *parleyv1.ResumeTurnRequest) (*stream, error) {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	events, err := f.ResumeTurn(ctx, r)
	if err != nil {
		cancel()
		return nil, err
	}
	return newStream(cancel, func() (*parleyv1.TurnEvent, error) {
		reply, err := events.Recv()
		return reply.GetEvent(), err
	})
}

func newStream(disconnect context.CancelFunc, recv func() (*parleyv1.TurnEvent, error)) (*stream, error) {
	s := &stream{disconnect: disconnect, recv: recv}
	if err := s.next(); err != nil && !errors.Is(err, io.EOF) {
		disconnect()
		return nil, err
	}
	return s, nil
}

// next receives the next event.
func (s *stream) next() error {
	event, err := s.recv()
	if err == nil {
		s.events, s.turnID = append(s.events, event), event.GetTurnId()
	}
	return err
}

// until receives events until match returns true for one.
func (s *stream) until(t *testing.T, match func(*parleyv1.TurnEvent) bool) {
	t.Helper()
	for {
		if err := s.next(); err != nil {
			t.Fatalf("after %d events: %v", len(s.events), err)
		}
		if match(s.events[len(s.events)-1]) {
			return
		}
	}
}

// wait receives events until the stream ends with OK, and returns the finished event.
func (s *stream) wait(t *testing.T) *parleyv1.TurnFinished {
	t.Helper()
	for {
		switch err := s.next(); {
		case errors.Is(err, io.EOF):
			s.disconnect()
			return s.events[len(s.events)-1].GetFinished()
		case err != nil:
			t.Fatalf("after %d events: %v", len(s.events), err)
		}
	}
}

// text returns the text of the received events. It fails the test if the indexes do not ascend, or if some are
// missing before an event that is no text.
func (s *stream) text(t *testing.T) string {
	t.Helper()
	text, last := "", int32(0)
	for _, e := range s.events {
		if e.GetIndex() <= last || e.GetIndex() > last+1 && e.GetTextDelta() == nil {
			t.Errorf("event %d follows event %d", e.GetIndex(), last)
		}
		last = e.GetIndex()
		text += e.GetTextDelta().GetText()
	}
	return text
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

// contents returns the messages of a conversation as "role: content", with " …" after incomplete ones.
func (f *fixture) contents(t *testing.T, id string) []string {
	t.Helper()
	reply, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, m := range reply.GetMessages() {
		line := strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_")) + ": " + m.GetContent()
		if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
			line += " …"
		}
		lines = append(lines, line)
	}
	return lines
}
