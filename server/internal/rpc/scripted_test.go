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

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// scripted is an agent that says what the test has it say, conversation by conversation.
type scripted struct {
	mu    sync.Mutex
	words map[string]chan string
}

// What a script holds beside words.
const (
	end  = "\x00end"
	fail = "\x00fail"
)

// patience is how long a test waits for what has to come at once.
const patience = 30 * time.Second

// openScripted opens a server whose agent is scripted.
func openScripted(t *testing.T, change func(*setup)) (*fixture, *scripted) {
	t.Helper()
	a := &scripted{words: make(map[string]chan string)}
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

// to is where a conversation's agent gets its words from.
func (a *scripted) to(id string) chan string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.words[id] == nil {
		a.words[id] = make(chan string)
	}
	return a.words[id]
}

// say has the agent of a conversation say words, each a piece, once it is at work.
func (a *scripted) say(t *testing.T, id string, words ...string) {
	t.Helper()
	for _, word := range words {
		select {
		case a.to(id) <- word:
		case <-time.After(patience):
			t.Fatalf("nobody is at work in %s", id)
		}
	}
}

func (a *scripted) Respond(ctx context.Context, r *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		for {
			select {
			case word := <-a.to(r.GetConversation().GetId()):
				switch word {
				case end:
					return
				case fail:
					yield(nil, &agent.Error{Message: "out of order", Retryable: true})
					return
				}
				yield(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: word}}, nil)
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

func (*scripted) Close() error { return nil }

// stream is the events of a turn as they come.
type stream struct {
	turnID string
	events []*parleyv1.TurnEvent
	leave  context.CancelFunc
	recv   func() (*parleyv1.TurnEvent, error)
}

// begin calls Chat and waits for the first event.
func (f *fixture) begin(t *testing.T, ctx context.Context, r *parleyv1.ChatRequest) *stream {
	t.Helper()
	s, err := f.try(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// try is begin, or the error that comes instead.
func (f *fixture) try(ctx context.Context, r *parleyv1.ChatRequest) (*stream, error) {
	ctx, leave := context.WithTimeout(ctx, patience)
	events, err := f.Chat(ctx, r)
	if err != nil {
		leave()
		return nil, err
	}
	return newStream(leave, func() (*parleyv1.TurnEvent, error) {
		reply, err := events.Recv()
		return reply.GetEvent(), err
	})
}

// resume calls ResumeTurn and waits for the first event, or for the end.
func (f *fixture) resume(ctx context.Context, r *parleyv1.ResumeTurnRequest) (*stream, error) {
	ctx, leave := context.WithTimeout(ctx, patience)
	events, err := f.ResumeTurn(ctx, r)
	if err != nil {
		leave()
		return nil, err
	}
	return newStream(leave, func() (*parleyv1.TurnEvent, error) {
		reply, err := events.Recv()
		return reply.GetEvent(), err
	})
}

func newStream(leave context.CancelFunc, recv func() (*parleyv1.TurnEvent, error)) (*stream, error) {
	s := &stream{leave: leave, recv: recv}
	if err := s.next(); err != nil && !errors.Is(err, io.EOF) {
		leave()
		return nil, err
	}
	return s, nil
}

// next takes the next event.
func (s *stream) next() error {
	event, err := s.recv()
	if err == nil {
		s.events, s.turnID = append(s.events, event), event.GetTurnId()
	}
	return err
}

// until takes events up to one of which ok holds.
func (s *stream) until(t *testing.T, ok func(*parleyv1.TurnEvent) bool) {
	t.Helper()
	for {
		if err := s.next(); err != nil {
			t.Fatalf("after %d events: %v", len(s.events), err)
		}
		if ok(s.events[len(s.events)-1]) {
			return
		}
	}
}

// drain takes what there is to the end, which is OK, and returns the last event's turn.
func (s *stream) drain(t *testing.T) *parleyv1.TurnFinished {
	t.Helper()
	for {
		switch err := s.next(); {
		case errors.Is(err, io.EOF):
			s.leave()
			return s.events[len(s.events)-1].GetFinished()
		case err != nil:
			t.Fatalf("after %d events: %v", len(s.events), err)
		}
	}
}

// text is what was said, checked for gaps and doubles.
func (s *stream) text(t *testing.T) string {
	t.Helper()
	text, last := "", int32(0)
	for _, e := range s.events {
		if e.GetIndex() <= last {
			t.Errorf("event %d follows %d", e.GetIndex(), last)
		}
		last = e.GetIndex()
		text += e.GetTextDelta().GetText()
	}
	return text
}

// contents are the messages of a conversation, as "role: content", with a mark where one is
// cut off.
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
