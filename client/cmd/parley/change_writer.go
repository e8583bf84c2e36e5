package main

import (
	"fmt"
	"io"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// Characters of a message in its line.
	maxInLine = 200
	// As wide as the time that the first line of an answer begins with.
	indent = "         "
)

// colour is how a terminal is told of one.
type colour string

const (
	plain  colour = ""
	bold   colour = "\x1b[1m"
	dim    colour = "\x1b[2m"
	red    colour = "\x1b[31m"
	green  colour = "\x1b[32m"
	yellow colour = "\x1b[33m"
	cyan   colour = "\x1b[36m"

	endColour = "\x1b[0m"
)

// changeLines writes changes for people: a line each, but for the text of an answer, which
// goes on in its line as it comes.
type changeLines struct {
	*app

	watched []string // The conversations that were asked for; none: all.
	answer  string   // Turn whose text the line under way is; empty: there is no such line.
	held    string   // Line feeds behind that text, not written before more of it comes.
}

// show writes what a change says to people; heartbeats say nothing.
func (l *changeLines) show(change *parleyv1.ConversationChange) error {
	if delta := change.GetTurnEvent().GetTextDelta(); delta != nil {
		return l.showText(change, delta.GetText())
	}
	what, in := l.describe(change)
	if what == "" {
		return nil
	}
	if err := l.end(); err != nil {
		return err
	}
	_, err := io.WriteString(l.out, l.head(change)+l.painted(in, oneLine(what))+"\n")
	return err
}

// showText writes the next piece of an answer: in the line of the piece before, unless
// something else has come between.
func (l *changeLines) showText(change *parleyv1.ConversationChange, text string) error {
	var line string
	if turn := change.GetTurnEvent().GetTurnId(); l.answer != turn {
		if err := l.end(); err != nil {
			return err
		}
		l.answer = turn
		line = l.head(change) + l.painted(green, "answer: ")
	}
	text = l.held + text
	rest := strings.TrimRight(text, "\n")
	l.held = text[len(rest):]
	_, err := io.WriteString(l.out, line+l.printable(strings.ReplaceAll(rest, "\n", "\n"+indent)))
	return err
}

// end ends the line that an answer is in, if one is.
func (l *changeLines) end() error {
	if l.answer == "" {
		return nil
	}
	l.answer, l.held = "", ""
	_, err := fmt.Fprintln(l.out)
	return err
}

// head is how the line of a change begins: when, and where.
func (l *changeLines) head(change *parleyv1.ConversationChange) string {
	at := l.now()
	if change.GetTime() != nil {
		at = change.GetTime().AsTime().In(at.Location())
	}
	head := l.painted(dim, at.Format("15:04:05")) + " "
	if id := change.GetConversationId(); id != "" {
		head += l.painted(bold, oneLine(id)) + " "
	}
	return head
}

// painted returns s in a colour where there are colours.
func (a *app) painted(in colour, s string) string {
	if in == plain || !a.outTerminal || a.getenv("NO_COLOR") != "" {
		return s
	}
	return string(in) + s + endColour
}

// describe says a change in words, and in which colour; empty: there is nothing to say.
func (l *changeLines) describe(change *parleyv1.ConversationChange) (string, colour) {
	c := change.GetConversation()
	switch change.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT:
		return "", plain
	case parleyv1.ChangeKind_CHANGE_KIND_GAP:
		return "changes are missing here; see how things are now with: " + l.remedy(), yellow
	case parleyv1.ChangeKind_CHANGE_KIND_CREATED:
		return describeCreation(c), green
	case parleyv1.ChangeKind_CHANGE_KIND_UPDATED:
		what := fmt.Sprintf("updated to version %d", change.GetVersion())
		if lease := activeAgent(c.GetActiveAgent()); lease != "" {
			what += ", active agent " + lease
		}
		return what, plain
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
		return describeMessage(change.GetMessage()), colourOf(change.GetMessage().GetRole())
	case parleyv1.ChangeKind_CHANGE_KIND_CLEARED:
		return "cleared, " + count(int(c.GetMessageCount()), "message") + " left", yellow
	case parleyv1.ChangeKind_CHANGE_KIND_DELETED, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
		return kindName(change.GetKind()), red
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		return "evicted to make room for another one", red
	case parleyv1.ChangeKind_CHANGE_KIND_TURN:
		return describeStep(change.GetTurnEvent()), dim
	default: // Of a later version.
		return kindName(change.GetKind()), plain
	}
}

// remedy is what to do about changes that are missing.
func (l *changeLines) remedy() string {
	if len(l.watched) == 1 {
		return l.self() + " show " + l.watched[0]
	}
	return l.self() + " list --order updated"
}

func describeCreation(c *parleyv1.Conversation) string {
	what := "created"
	if origin := c.GetForkedFrom(); origin != nil {
		what = fmt.Sprintf("forked from %s at %d", origin.GetConversationId(), origin.GetSequence())
	}
	if c.GetTitle() != "" {
		what += ": " + c.GetTitle()
	}
	return what
}

// describeMessage says a message in one line, its end cut off where that would be long.
func describeMessage(m *parleyv1.Message) string {
	head := fmt.Sprintf("message %d %s", m.GetSequence(), roleName(m.GetRole()))
	if m.GetAgent() != "" {
		head += " " + m.GetAgent()
	}
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
		head += ", incomplete"
	}
	var parts []string
	if m.GetContent() != "" {
		parts = append(parts, m.GetContent())
	}
	for _, data := range m.GetStructuredData() {
		parts = append(parts, describeData(data))
	}
	for _, call := range m.GetToolCalls() {
		parts = append(parts, describeCall(call))
	}
	if m.GetToolResult() != nil {
		parts = append(parts, describeResult(m.GetToolResult()))
	}
	for _, file := range m.GetAttachments() {
		parts = append(parts, "attachment: "+file.GetUri())
	}
	return head + ": " + short(oneLine(strings.Join(parts, "; ")), maxInLine)
}

func colourOf(role parleyv1.Role) colour {
	switch role {
	case parleyv1.Role_ROLE_USER:
		return cyan
	case parleyv1.Role_ROLE_ASSISTANT:
		return green
	default:
		return plain
	}
}

// describeStep says a step of a turn, text aside; empty: there is nothing to say.
func describeStep(event *parleyv1.TurnEvent) string {
	switch step := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_Started:
		return "the turn started; " + step.Started.GetAgent() + " answers"
	case *parleyv1.TurnEvent_AnswerStarted:
		return step.AnswerStarted.GetAgent() + " answers"
	case *parleyv1.TurnEvent_Finished:
		end := view{turn: step.Finished.GetTurn()}
		if failure := end.failure(); failure != nil {
			return failure.Error()
		}
		if end.waits() {
			return "the turn waits for the results of its tool calls"
		}
		return "the turn completed"
	default:
		return beside(event, &view{})
	}
}

func kindName(kind parleyv1.ChangeKind) string {
	return strings.ToLower(strings.TrimPrefix(kind.String(), "CHANGE_KIND_"))
}
