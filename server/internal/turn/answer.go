package turn

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/google/uuid"
	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"google.golang.org/protobuf/proto"
)

// tooLargeError is the cause of a turn whose answer grew beyond a limit.
type tooLargeError struct{ beyond string }

// Error says beyond which: "is larger than 1048576 bytes".
func (e *tooLargeError) Error() string { return e.beyond }

var (
	errTooManyMessages = &tooLargeError{fmt.Sprintf("has more than %d messages", maxAnswerMessages)}
	errTooManyValues   = &tooLargeError{fmt.Sprintf("has more than %d values, calls and results", maxAnswerValues)}
)

// The limits of Message.summary and Message.agent, and of a note.
const (
	maxSummaryBytes = 500
	maxAgentBytes   = 128
	maxNoteBytes    = 1 << 10
)

// The bounds of one turn: so many messages fit a finished event, and so many values, calls
// and results have indexes that a conversation can carry along for its newest turns.
const (
	maxAnswerMessages = 100
	maxAnswerValues   = 1000
)

// maxMessageValues is the limit of Message.structured_data.
const maxMessageValues = 64

// answer is what an agent has said so far: the messages of the turn and the events that
// tell of them. The agent's pieces come from one goroutine; progress is read by another.
type answer struct {
	turnID string
	limit  int
	events *events

	mu       sync.Mutex
	messages []*parleyv1.Message
	marks    []*storev1.MessageEvents // one a message
	// current is being written, or will be: it is open, the last of messages, once it says
	// something.
	current *parleyv1.Message
	open    bool
	text    strings.Builder // content of current
	bytes   int             // of all that is kept
	values  int             // structured data, calls and results
	calls   calls           // of all its messages
	changes int             // of the messages
	pieces  int             // that the agent has sent
	// The answer was released: the messages are those of the finished event.
	released bool
}

func newAnswer(turnID string, limit int, e *events) *answer {
	return &answer{turnID: turnID, limit: limit, events: e}
}

// by says who answers, before the first piece.
func (a *answer) by(agent string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next(agent)
}

// next begins another message, by that agent.
func (a *answer) next(agent string) {
	if a.open {
		a.current.Content = a.text.String()
	} else {
		a.handBack()
	}
	a.text.Reset()
	a.open, a.current = false, &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: agent, TurnId: a.turnID}
}

// handBack gives what was reported of a current message that says nothing, as behind an
// agent's last result, to the last one that the agent has written.
func (a *answer) handBack() {
	for _, m := range slices.Backward(a.messages) {
		if m.GetRole() != parleyv1.Role_ROLE_ASSISTANT {
			continue
		}
		if m.GetAgent() == a.current.GetAgent() {
			m.Summary = cmp.Or(a.current.GetSummary(), m.GetSummary())
			m.FinishReason = cmp.Or(a.current.GetFinishReason(), m.GetFinishReason())
			m.Usage = cmp.Or(a.current.GetUsage(), m.GetUsage())
		}
		return
	}
}

// add takes the next piece. At the limit it keeps what fits and returns a tooLargeError; of a
// piece that breaks a rule it keeps nothing and returns an agent.Error. Text, which is most
// of what comes, is not held to any rule.
func (a *answer) add(piece *parleyv1.RespondResponse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pieces++
	switch p := piece.GetPiece().(type) {
	case *parleyv1.RespondResponse_Text:
		a.changes++
		return a.addText(strings.ToValidUTF8(p.Text, "\uFFFD"))
	case *parleyv1.RespondResponse_Progress:
		note := cut(strings.ToValidUTF8(p.Progress.GetText(), "\uFFFD"), maxNoteBytes)
		a.events.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: note}}})
		return nil // No part of the answer.
	case nil:
		return nil // Empty, or of a kind that this server does not know.
	}
	if err := a.check(piece); err != nil {
		return err
	}
	a.changes++
	return a.addOther(piece)
}

// addText adds to the current message, as much as the limit allows.
func (a *answer) addText(text string) error {
	var err error
	if a.bytes+len(text) > a.limit {
		text, err = cut(text, max(0, a.limit-a.bytes)), a.tooManyBytes()
	}
	if text == "" {
		return err
	}
	if err := a.begin(); err != nil {
		return err
	}
	offset := a.text.Len()
	a.text.WriteString(text)
	a.bytes += len(text)
	index := a.events.addText(text, int32(offset))
	mark := a.mark()
	if mark.LastText = index; offset == 0 {
		mark.FirstText = index
	}
	return err
}

func (a *answer) tooManyBytes() error {
	return &tooLargeError{fmt.Sprintf("is larger than %d bytes", a.limit)}
}

// begin makes the current message one of the answer: it has something to say.
func (a *answer) begin() error {
	if a.open {
		return nil
	}
	if len(a.messages) == maxAnswerMessages {
		return errTooManyMessages
	}
	mark := new(storev1.MessageEvents)
	if len(a.messages) > 0 {
		mark.AnswerStarted = a.events.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_AnswerStarted{
			AnswerStarted: &parleyv1.AnswerStarted{Agent: a.current.GetAgent()},
		}})
	}
	a.open, a.messages, a.marks = true, append(a.messages, a.current), append(a.marks, mark)
	return nil
}

// mark is that of the newest message.
func (a *answer) mark() *storev1.MessageEvents { return a.marks[len(a.marks)-1] }

// finish ends the answer and returns its messages, and the events that told of each. Where
// it is not whole, the last message of an agent is INCOMPLETE. They may be read by others
// from now on, and are only to be changed by number.
func (a *answer) finish(whole bool) ([]*parleyv1.Message, []*storev1.MessageEvents) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next("")
	for _, m := range a.messages {
		m.Id = uuid.NewString()
	}
	if !whole {
		markIncomplete(a.messages)
	}
	return a.messages, a.marks
}

// number gives messages what the store gave them.
func (a *answer) number(messages []*parleyv1.Message, numbers []*parleyv1.AppendedMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, n := range numbers {
		number(messages[i], n)
	}
}

// hasOpenCalls reports whether a call of the answer is open, whichever agent made it.
func (a *answer) hasOpenCalls() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.calls.open) > 0
}

// release releases the messages and the state that made them, once there is a finished event, which
// has the stored messages in encoded form. marks are the marks of those messages.
func (a *answer) release(marks []*storev1.MessageEvents) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.released, a.messages, a.marks, a.current, a.calls = true, nil, marks, nil, calls{}
	a.text.Reset()
}

// markIncomplete marks the last message of an agent as cut off.
func markIncomplete(messages []*parleyv1.Message) {
	for _, m := range slices.Backward(messages) {
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
			return
		}
	}
}

// soFar is an answer as far as it has arrived.
type soFar struct {
	messages []*parleyv1.Message // the last one of an agent is INCOMPLETE
	marks    []*storev1.MessageEvents
	last     int32 // index of the newest event, finished aside
	changes  int   // so far
}

// soFar copies what has arrived; nil when nothing has been added since that many changes.
func (a *answer) soFar(since int) *soFar {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changes == since {
		return nil
	}
	so := &soFar{last: a.events.told(), changes: a.changes}
	if a.released {
		so.messages, so.marks = a.events.finished().GetFinished().GetMessages(), a.marks
		return so
	}
	for i, m := range a.messages {
		so.messages, so.marks = append(so.messages, proto.CloneOf(m)), append(so.marks, proto.CloneOf(a.marks[i]))
	}
	if a.open {
		so.messages[len(so.messages)-1].Content = a.text.String()
	}
	markIncomplete(so.messages)
	return so
}

// plain is what is left of an answer that the store does not take: its text.
func plain(messages []*parleyv1.Message, marks []*storev1.MessageEvents) (texts []*parleyv1.Message, textMarks []*storev1.MessageEvents) {
	for i, m := range messages {
		if m.GetContent() == "" {
			continue
		}
		texts = append(texts, &parleyv1.Message{
			Id: m.GetId(), Role: m.GetRole(), Content: m.GetContent(), Agent: strings.ToValidUTF8(m.GetAgent(), "\uFFFD"), TurnId: m.GetTurnId(),
		})
		textMarks = append(textMarks, &storev1.MessageEvents{
			AnswerStarted: marks[i].GetAnswerStarted(), FirstText: marks[i].GetFirstText(), LastText: marks[i].GetLastText(),
		})
	}
	markIncomplete(texts)
	return texts, textMarks
}

// cut shortens a text to so many bytes, at a rune.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}
