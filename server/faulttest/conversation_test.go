package faulttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxMessages is the default limit of the messages of a conversation.
const maxMessages = 20

// conversation is a state of a conversation as clients see it, with its record and a record of the tenant. If
// version is 0, the conversation does not exist; the tenant's record may. Values are immutable.
type conversation struct {
	version, last int32
	messages      []message // stored ones
	record        storedRecord
	tenantRecord  storedRecord // It outlives the conversation.
}

// message is a message as clients see it, without id and times.
type message struct {
	sequence   int32
	role       parleyv1.Role
	incomplete bool
	content    string
}

// conversationOf returns the state that a reply contains.
func conversationOf(header *parleyv1.Conversation, messages []*parleyv1.Message) conversation {
	c := conversation{version: header.GetVersion(), last: header.GetLastSequence()}
	for _, m := range messages {
		incomplete := m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
		c.messages = append(c.messages, message{m.GetSequence(), m.GetRole(), incomplete, m.GetContent()})
	}
	return c
}

// equal reports whether a state that was read is the wanted one.
func equal(got, want conversation) bool {
	return got.version == want.version && got.last == want.last && slices.Equal(got.messages, want.messages) &&
		got.record.matches(want.record) && got.tenantRecord.matches(want.tenantRecord)
}

// diff describes the difference of two states. It cuts long contents.
func diff(got, want conversation) string {
	lines := func(c conversation) []string {
		all := []string{
			fmt.Sprintf("version %d, last sequence %d", c.version, c.last),
			fmt.Sprintf("record %v", c.record), fmt.Sprintf("record of the tenant %v", c.tenantRecord),
		}
		for _, m := range c.messages {
			all = append(all, fmt.Sprintf("%d %v incomplete=%t %.60s (%d bytes)", m.sequence, m.role, m.incomplete, m.content,
				len(m.content)))
		}
		return all
	}
	return "(-want +got)\n" + cmp.Diff(lines(want), lines(got))
}

// with returns the state after one more write, of these messages.
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

// after returns the state after a step.
func (c conversation) after(s *step) conversation {
	switch s.kind {
	case deleteStep:
		return conversation{tenantRecord: c.tenantRecord}
	case tenantStep:
		return c.withRecords(s)
	case chatStep, stalledChatStep:
		return c.asked(s).with(message{role: parleyv1.Role_ROLE_ASSISTANT, content: s.contents[0]})
	}
	var messages []message
	for _, content := range s.contents {
		messages = append(messages, userMessage(content))
	}
	return c.with(messages...).withRecords(s)
}

// asked returns the state after the user's message of a turn.
func (c conversation) asked(s *step) conversation {
	return c.with(userMessage(s.contents[0])).withRecords(s)
}

func userMessage(content string) message {
	return message{role: parleyv1.Role_ROLE_USER, content: content}
}

// isChat reports whether the step is a turn: two writes, of which a fault may leave only the first.
func (s *step) isChat() bool { return s.kind == chatStep || s.kind == stalledChatStep }

// allows returns an error if a fault must not leave the state got. ended means that a start of the
// server has ended the turns which the fault cut off.
func (p progress) allows(got conversation, ended bool) error {
	if p.pending == nil {
		if !equal(got, p.acknowledged) {
			return fmt.Errorf("without a pending step: %s", diff(got, p.acknowledged))
		}
		return nil
	}
	after := p.acknowledged.after(p.pending)
	if equal(got, after) || !p.started && equal(got, p.acknowledged) {
		return nil
	}
	if !p.pending.isChat() {
		return fmt.Errorf("with a pending %s, state is neither the previous one %s\nnor the next one %s",
			p.pending.kind, diff(got, p.acknowledged), diff(got, after))
	}
	return p.allowsTurn(got, ended)
}

// allowsTurn is allows for a turn that a fault cut off after the user's message.
func (p progress) allowsTurn(got conversation, ended bool) error {
	question := p.acknowledged.asked(p.pending)
	want := question
	if ended {
		want = question.with()
		if n := len(got.messages); n > 0 && got.messages[n-1].incomplete {
			partial := got.messages[n-1]
			want = question.with(partial)
			if !strings.HasPrefix(p.pending.contents[0], partial.content) || partial.content == "" {
				return fmt.Errorf("incomplete answer %q is not a prefix of %q", partial.content, p.pending.contents[0])
			}
		}
	}
	if !equal(got, want) {
		return errors.New("after a cut-off turn: " + diff(got, want))
	}
	return nil
}
