package faulttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// client is a caller with a conversation of its own. It does one thing after the other and
// knows what must be left of it, whenever the machine goes.
type client struct {
	id     string
	random *rand.Rand
	steps  int
	state  progress
	// noted is told of every change of state, if it is set: of a step before it is sent, of an
	// acknowledgement when it has come.
	noted func(progress)
}

// progress is how far a client is.
type progress struct {
	has     conversation // as it was last acknowledged
	doing   *step        // what was asked for since; nil: nothing
	started bool         // the user's message of doing, a chat, was acknowledged
}

// step is something that a client does.
type step struct {
	kind    kind
	request string // its id
	words   []string
}

// kind of a step.
type kind string

const (
	creates kind = "create"
	appends kind = "append"
	chats   kind = "chat"
	stalls  kind = "stall" // a chat whose agent does not come to an end
	deletes kind = "delete"
)

// newClients makes clients that do the same whenever the seed is the same.
func newClients(n int, seed uint64) []*client {
	all := make([]*client, n)
	for i := range all {
		all[i] = &client{id: fmt.Sprint("c", i), random: rand.New(rand.NewPCG(seed, uint64(i)))}
	}
	return all
}

// run does one step after the other until one fails, and returns the error. Each
// acknowledgement is told.
func (c *client) run(ctx context.Context, s *server, acknowledged func()) error {
	for {
		if err := c.do(ctx, s, c.next()); err != nil {
			return err
		}
		acknowledged()
	}
}

// next chooses a step.
func (c *client) next() *step {
	c.steps++
	s := &step{request: fmt.Sprint(c.id, "-", c.steps)}
	switch n := c.random.IntN(100); {
	case c.state.has.version == 0 && n < 50:
		s.kind = creates
	case c.state.has.version != 0 && n < 5:
		s.kind = deletes
	case n < 80:
		s.kind = appends
		for range 1 + c.random.IntN(3) {
			s.words = append(s.words, c.words())
		}
	default:
		s.kind, s.words = chats, []string{c.words()}
	}
	return s
}

// words are some that no other message has. Now and then they are many.
func (c *client) words() string {
	length := 10 + c.random.IntN(700)
	if c.random.IntN(20) == 0 {
		length = 20_000
	}
	text := strings.Builder{}
	fmt.Fprintf(&text, "%s step %d:", c.id, c.steps)
	for text.Len() < length {
		fmt.Fprintf(&text, " %x", c.random.Uint64())
	}
	return text.String()
}

// do does a step, and notes what is acknowledged of it.
func (c *client) do(ctx context.Context, s *server, doing *step) error {
	c.note(progress{has: c.state.has, doing: doing})
	if err := c.send(ctx, s, doing); err != nil {
		return fmt.Errorf("%s: %s: %w", c.id, doing.kind, err)
	}
	c.note(progress{has: c.state.has.after(doing)})
	return nil
}

func (c *client) note(p progress) {
	c.state = p
	if c.noted != nil {
		c.noted(p)
	}
}

// send sends a step, which may have been sent before, and returns when it was done. An
// answer that is wrong is an error too.
func (c *client) send(ctx context.Context, s *server, doing *step) (err error) {
	switch doing.kind {
	case creates:
		_, err = s.CreateConversation(ctx, &parleyv1.CreateConversationRequest{
			Conversation: &parleyv1.Conversation{Id: c.id}, RequestId: doing.request,
		})
	case appends:
		r := &parleyv1.AppendMessagesRequest{ConversationId: c.id, RequestId: doing.request}
		for _, words := range doing.words {
			r.Messages = append(r.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: words})
		}
		var reply *parleyv1.AppendMessagesResponse
		if reply, err = s.AppendMessages(ctx, r); err != nil {
			break
		}
		for i, m := range reply.GetAppended() {
			if want := c.state.has.last + int32(i) + 1; m.GetSequence() != want {
				return fmt.Errorf("a message got sequence %d, want %d", m.GetSequence(), want)
			}
		}
	case chats, stalls:
		err = c.chat(ctx, s, doing)
	case deletes:
		_, err = s.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{ConversationId: c.id, AllowMissing: true})
	}
	return err
}

// chat says something and reads the answer to its end.
func (c *client) chat(ctx context.Context, s *server, doing *step) error {
	r := &parleyv1.ChatRequest{ConversationId: c.id, Content: doing.words[0], RequestId: doing.request}
	if doing.kind == stalls {
		r.Agent = stallingAgent
	}
	stream, err := s.Chat(ctx, r)
	for finished := false; err == nil; {
		var reply *parleyv1.ChatResponse
		reply, err = stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && finished:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("the stream ends without finished")
		case err != nil:
		case reply.GetEvent().GetStarted() != nil && !c.state.started:
			c.note(progress{has: c.state.has, doing: doing, started: true})
		case reply.GetEvent().GetFinished() != nil:
			finished = true
		}
	}
	return err
}

// recover is for a server that was started again after it went: what is there must be what
// was acknowledged, with what was asked for since or without; and that, asked for again, is
// done, but only once. It returns what was left of that, in a word.
func (c *client) recover(ctx context.Context, s *server) (left string, err error) {
	got, err := observe(ctx, s, c.id)
	if err != nil {
		return "", err
	}
	if err := c.state.allows(got, true); err != nil {
		return "", err
	}
	doing, want := c.state.doing, c.state.has
	if doing == nil {
		return "nothing under way", nil
	}
	left = "nothing left"
	if after := want.after(doing); same(got, after) {
		left, want = "done", after
	} else if same(got, want) {
		want = after
	} else {
		left, want = "cut off", got // It stays so.
	}
	if err := c.send(ctx, s, doing); err != nil {
		return "", fmt.Errorf("%s again: %w", doing.kind, err)
	}
	c.note(progress{has: want})
	if got, err = observe(ctx, s, c.id); err == nil && !same(got, want) {
		err = fmt.Errorf("%s was sent again: %s", doing.kind, difference(got, want))
	}
	return left, err
}

// observe reads a conversation from a server.
func observe(ctx context.Context, s *server, id string) (conversation, error) {
	reply, err := s.ListMessages(ctx, &parleyv1.ListMessagesRequest{ConversationId: id, PageSize: 1000, Ascending: true})
	if status.Code(err) == codes.NotFound {
		return conversation{}, nil
	}
	if err != nil {
		return conversation{}, err
	}
	return seen(reply.GetConversation(), reply.GetMessages()), nil
}

// recoverAll has every client look at what the server has, and returns all that is wrong.
func recoverAll(t *testing.T, s *server, clients []*client) error {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	var faults []error
	var ids []string
	messages := 0
	for _, c := range clients {
		left, err := c.recover(ctx, s)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", c.id, err))
		} else {
			counts.add(t, "steps under way at a fault: "+left, 1)
		}
		if c.state.has.version != 0 {
			ids, messages = append(ids, c.id), messages+len(c.state.has.messages)
		}
	}
	list, err := s.ListConversations(ctx, &parleyv1.ListConversationsRequest{PageSize: 1000})
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	var listed []string
	for _, entry := range list.GetConversations() {
		listed = append(listed, entry.GetConversation().GetId())
		if turn := entry.GetConversation().GetActiveTurnId(); turn != "" {
			faults = append(faults, fmt.Errorf("turn %s of %s runs", turn, entry.GetConversation().GetId()))
		}
	}
	slices.Sort(ids)
	slices.Sort(listed)
	if !slices.Equal(ids, listed) {
		faults = append(faults, fmt.Errorf("listed are %q, want %q", listed, ids))
	}
	stats, err := s.GetStats(ctx, &parleyv1.GetStatsRequest{})
	if err != nil {
		return errors.Join(append(faults, err)...)
	}
	if stats.GetConversationCount() != int64(len(ids)) || stats.GetMessageCount() != int64(messages) {
		faults = append(faults, fmt.Errorf("counted are %v, want %d conversations with %d messages", stats, len(ids), messages))
	}
	return errors.Join(faults...)
}
