package faulttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxMessages is how many messages of a conversation are kept, the default.
const maxMessages = 20

// conversation is a state of one, as clients see it. The zero value is that there is none. It
// is never changed, but replaced.
type conversation struct {
	version, last int32
	messages      []message // that are kept
}

// message is what clients know of one, without id and times.
type message struct {
	sequence   int32
	role       parleyv1.Role
	incomplete bool
	words      string
}

// seen makes of a reply what it tells.
func seen(header *parleyv1.Conversation, messages []*parleyv1.Message) conversation {
	c := conversation{version: header.GetVersion(), last: header.GetLastSequence()}
	for _, m := range messages {
		incomplete := m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
		c.messages = append(c.messages, message{m.GetSequence(), m.GetRole(), incomplete, m.GetContent()})
	}
	return c
}

// same reports whether two states are one.
func same(a, b conversation) bool {
	return a.version == b.version && a.last == b.last && slices.Equal(a.messages, b.messages)
}

// difference says in what a state is not the one that it should be. Long words are cut.
func difference(got, want conversation) string {
	lines := func(c conversation) []string {
		all := []string{fmt.Sprintf("version %d, last sequence %d", c.version, c.last)}
		for _, m := range c.messages {
			all = append(all, fmt.Sprintf("%d %v incomplete=%t %.60s (%d bytes)", m.sequence, m.role, m.incomplete, m.words, len(m.words)))
		}
		return all
	}
	return "(-want +got)\n" + cmp.Diff(lines(want), lines(got))
}

// with is the state after one more write, of these messages.
func (c conversation) with(messages ...message) conversation {
	c.version++
	c.messages = slices.Clip(c.messages)
	for _, m := range messages {
		c.last++
		m.sequence = c.last
		c.messages = append(c.messages, m)
	}
	c.messages = c.messages[max(0, len(c.messages)-maxMessages):]
	return c
}

// after is the state when a step is done.
func (c conversation) after(s *step) conversation {
	switch s.kind {
	case deletes:
		return conversation{}
	case chats, stalls:
		return c.with(user(s.words[0])).with(message{role: parleyv1.Role_ROLE_ASSISTANT, words: s.words[0]})
	}
	var messages []message
	for _, words := range s.words {
		messages = append(messages, user(words))
	}
	return c.with(messages...)
}

func user(words string) message { return message{role: parleyv1.Role_ROLE_USER, words: words} }

// isChat reports whether the step is a turn: two writes, of which the first may stand alone.
func (s *step) isChat() bool { return s.kind == chats || s.kind == stalls }

// allows says what is wrong with a state that was found after a crash. Ended says that the
// turns that it cut off were ended, as a start of the server does.
func (p progress) allows(got conversation, ended bool) error {
	if p.doing == nil {
		if !same(got, p.has) {
			return fmt.Errorf("nothing was asked for since the last acknowledgement: %s", difference(got, p.has))
		}
		return nil
	}
	after := p.has.after(p.doing)
	if same(got, after) || !p.started && same(got, p.has) {
		return nil
	}
	if !p.doing.isChat() {
		return fmt.Errorf("after a half-done %s it is neither what was before %s\nnor what was to come %s",
			p.doing.kind, difference(got, p.has), difference(got, after))
	}
	return p.allowsTurn(got, ended)
}

// allowsTurn is allows for a turn that was cut off behind the user's message.
func (p progress) allowsTurn(got conversation, ended bool) error {
	question := p.has.with(user(p.doing.words[0]))
	want := question
	if ended {
		want = question.with()
		if n := len(got.messages); n > 0 && got.messages[n-1].incomplete {
			partial := got.messages[n-1]
			want = question.with(partial)
			if !strings.HasPrefix(p.doing.words[0], partial.words) || partial.words == "" {
				return fmt.Errorf("the incomplete answer %q is not the start of %q", partial.words, p.doing.words[0])
			}
		}
	}
	if !same(got, want) {
		return errors.New("after a cut-off turn: " + difference(got, want))
	}
	return nil
}
