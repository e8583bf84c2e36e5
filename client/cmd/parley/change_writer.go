package main

import (
	"fmt"
	"io"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// maxInLine limits the characters of a message in its line.
	maxInLine = 200
	// indent has the width of the time at the beginning of the first line of an answer.
	indent = "         "
)

// colour is the escape sequence of a colour or style.
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

// changeWriter prints changes for people, one on each line. The text of an answer continues its line as it
// arrives.
type changeWriter struct {
	*app

	watched []string // The watched conversations; empty for all.
	answer  string   // The turn whose text is in the current line; empty if there is no such line.
	pending string   // Line feeds after that text, which are written only before further text.
}

// show prints a change. Heartbeats print nothing.
func (l *changeWriter) show(change *parleyv1.ConversationChange) error {
	if delta := change.GetTurnEvent().GetTextDelta(); delta != nil {
		return l.showText(change, delta.GetText())
	}
	text, in := l.describe(change)
	if text == "" {
		return nil
	}
	if err := l.end(); err != nil {
		return err
	}
	_, err := io.WriteString(l.out, l.head(change)+l.coloured(in, oneLine(text))+"\n")
	return err
}

// showText prints the next piece of an answer. It continues the line of the previous piece unless other changes
// were printed in between.
func (l *changeWriter) showText(change *parleyv1.ConversationChange, text string) error {
	var line string
	if turn := change.GetTurnEvent().GetTurnId(); l.answer != turn {
		if err := l.end(); err != nil {
			return err
		}
		l.answer = turn
		line = l.head(change) + l.coloured(green, "answer: ")
	}
	text = l.pending + text
	rest := strings.TrimRight(text, "\n")
	l.pending = text[len(rest):]
	_, err := io.WriteString(l.out, line+l.printable(strings.ReplaceAll(rest, "\n", "\n"+indent)))
	return err
}

// end ends the current line of an answer, if there is one.
func (l *changeWriter) end() error {
	if l.answer == "" {
		return nil
	}
	l.answer, l.pending = "", ""
	_, err := fmt.Fprintln(l.out)
	return err
}

// head returns the beginning of the line of a change: its time and conversation.
func (l *changeWriter) head(change *parleyv1.ConversationChange) string {
	at := l.now()
	if change.GetTime() != nil {
		at = change.GetTime().AsTime().In(at.Location())
	}
	head := l.coloured(dim, at.Format("15:04:05")) + " "
	if id := change.GetConversationId(); id != "" {
		head += l.coloured(bold, oneLine(id)) + " "
	}
	return head
}

// coloured returns s in a colour if the output supports colours.
func (a *app) coloured(in colour, s string) string {
	if in == plain || !a.outTerminal || a.getenv("NO_COLOR") != "" {
		return s
	}
	return string(in) + s + endColour
}

// describe returns the text of a change and its colour. The text is "" if there is nothing to print.
func (l *changeWriter) describe(change *parleyv1.ConversationChange) (string, colour) {
	c := change.GetConversation()
	switch change.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT:
		return "", plain
	case parleyv1.ChangeKind_CHANGE_KIND_GAP:
		return "changes are missing here; see the current state with: " + l.gapHint(), yellow
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
		return describeRemoval(change.GetRemoved()) + ", " + count(int(c.GetMessageCount()), "message") + " left", yellow
	case parleyv1.ChangeKind_CHANGE_KIND_DELETED, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
		return kindName(change.GetKind()), red
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		return "evicted at capacity", red
	case parleyv1.ChangeKind_CHANGE_KIND_TURN:
		return describeStep(change.GetTurnEvent()), dim
	case parleyv1.ChangeKind_CHANGE_KIND_RECORD:
		return describeRecord(change.GetRecord()), plain
	default: // A kind of a later version of the server.
		return kindName(change.GetKind()), plain
	}
}

// gapHint returns the command that shows the current state after a gap.
func (l *changeWriter) gapHint() string {
	if len(l.watched) == 1 {
		return l.programCommand() + " show " + argument(l.watched[0])
	}
	return l.programCommand() + " list --order updated"
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

// describeRemoval says which messages were removed. An old server does not report them.
func describeRemoval(removed *parleyv1.RemovedMessages) string {
	if removed.GetCount() == 0 {
		return "cleared"
	}
	what := "cleared " + count(int(removed.GetCount()), "message")
	if removed.GetAfterSequence() > 0 {
		what += fmt.Sprintf(" after %d", removed.GetAfterSequence())
	}
	return what
}

// describeRecord says which record was written or deleted.
func describeRecord(record *parleyv1.RecordChange) string {
	what := "written"
	if record.GetDeleted() {
		what = "deleted"
	}
	return fmt.Sprintf("record %s %s, revision %d", record.GetKey(), what, record.GetRevision())
}

// describeMessage describes a message in one line of limited length.
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

// describeStep describes an event of a turn other than text. It returns "" if there is nothing to print.
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
		if end.awaitsToolResults() {
			return "the turn waits for the results of its tool calls"
		}
		return "the turn completed"
	default:
		return describeEvent(event, &view{})
	}
}

func kindName(kind parleyv1.ChangeKind) string {
	return strings.ToLower(strings.TrimPrefix(kind.String(), "CHANGE_KIND_"))
}
