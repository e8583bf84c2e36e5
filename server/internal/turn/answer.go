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
type tooLargeError struct{ limit string }

// Error says beyond which: "is larger than 1048576 bytes".
func (e *tooLargeError) Error() string { return e.limit }

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
	events *eventLog

	mu       sync.Mutex
	messages []*parleyv1.Message
	indexes  []*storev1.MessageEvents // one a message
	// current is being written, or will be: it is open, the last of messages, once it says
	// something.
	current     *parleyv1.Message
	currentOpen bool
	text        strings.Builder // content of current
	bytes       int             // of all that is kept
	values      int             // structured data, calls and results
	calls       callTracker     // of all its messages
	changes     int             // of the messages
	pieces      int             // that the agent has sent
	// The answer was released: the messages are those of the finished event.
	released bool
}

func newAnswer(turnID string, limit int, e *eventLog) *answer {
	return &answer{turnID: turnID, limit: limit, events: e}
}

// by says who answers, before the first piece.
func (a *answer) setAgent(agent string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.startMessage(agent)
}

// next begins another message, by that agent.
func (a *answer) startMessage(agent string) {
	if a.currentOpen {
		a.current.Content = a.text.String()
	} else {
		a.moveReportBack()
	}
	a.text.Reset()
	a.currentOpen, a.current = false, &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: agent, TurnId: a.turnID}
}

// handBack gives what was reported of a current message that says nothing, as behind an
// agent's last result, to the last one that the agent has written.
func (a *answer) moveReportBack() {
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
func (a *answer) addPiece(piece *parleyv1.RespondResponse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pieces++
	switch p := piece.GetPiece().(type) {
	case *parleyv1.RespondResponse_Text:
		a.changes++
		return a.addText(strings.ToValidUTF8(p.Text, "\uFFFD"))
	case *parleyv1.RespondResponse_Progress:
		note := truncate(strings.ToValidUTF8(p.Progress.GetText(), "\uFFFD"), maxNoteBytes)
		a.events.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: note}}})
		return nil // No part of the answer.
	case nil:
		return nil // Empty, or of a kind that this server does not know.
	}
	if err := a.checkPiece(piece); err != nil {
		return err
	}
	a.changes++
	return a.addNonText(piece)
}

// addText adds to the current message, as much as the limit allows.
func (a *answer) addText(text string) error {
	var err error
	if a.bytes+len(text) > a.limit {
		text, err = truncate(text, max(0, a.limit-a.bytes)), a.tooManyBytes()
	}
	if text == "" {
		return err
	}
	if err := a.openMessage(); err != nil {
		return err
	}
	offset := a.text.Len()
	a.text.WriteString(text)
	a.bytes += len(text)
	index := a.events.addText(text, int32(offset))
	mark := a.currentIndexes()
	if mark.LastText = index; offset == 0 {
		mark.FirstText = index
	}
	return err
}

func (a *answer) tooManyBytes() error {
	return &tooLargeError{fmt.Sprintf("is larger than %d bytes", a.limit)}
}

// begin makes the current message one of the answer: it has something to say.
func (a *answer) openMessage() error {
	if a.currentOpen {
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
	a.currentOpen, a.messages, a.indexes = true, append(a.messages, a.current), append(a.indexes, mark)
	return nil
}

// mark is that of the newest message.
func (a *answer) currentIndexes() *storev1.MessageEvents { return a.indexes[len(a.indexes)-1] }

// finish ends the answer and returns its messages, and the events that told of each. Where
// it is not whole, the last message of an agent is INCOMPLETE. They may be read by others
// from now on, and are only to be changed by number.
func (a *answer) finish(complete bool) ([]*parleyv1.Message, []*storev1.MessageEvents) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.startMessage("")
	for _, m := range a.messages {
		m.Id = uuid.NewString()
	}
	if !complete {
		markIncomplete(a.messages)
	}
	return a.messages, a.indexes
}

// number gives messages what the store gave them.
func (a *answer) setStored(messages []*parleyv1.Message, numbers []*parleyv1.AppendedMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, n := range numbers {
		setStoredFields(messages[i], n)
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
	a.released, a.messages, a.indexes, a.current, a.calls = true, nil, marks, nil, callTracker{}
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
type partialAnswer struct {
	messages  []*parleyv1.Message // the last one of an agent is INCOMPLETE
	indexes   []*storev1.MessageEvents
	lastIndex int32 // index of the newest event, finished aside
	changes   int   // so far
}

// soFar copies what has arrived; nil when nothing has been added since that many changes.
func (a *answer) snapshot(since int) *partialAnswer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changes == since {
		return nil
	}
	partial := &partialAnswer{lastIndex: a.events.lastBeforeFinished(), changes: a.changes}
	if a.released {
		partial.messages, partial.indexes = a.events.finished().GetFinished().GetMessages(), a.indexes
		return partial
	}
	for i, m := range a.messages {
		partial.messages, partial.indexes = append(partial.messages, proto.CloneOf(m)), append(partial.indexes, proto.CloneOf(a.indexes[i]))
	}
	if a.currentOpen {
		partial.messages[len(partial.messages)-1].Content = a.text.String()
	}
	markIncomplete(partial.messages)
	return partial
}

// plain is what is left of an answer that the store does not take: its text.
func textOnly(messages []*parleyv1.Message, indexes []*storev1.MessageEvents) (texts []*parleyv1.Message, textIndexes []*storev1.MessageEvents) {
	for i, m := range messages {
		if m.GetContent() == "" {
			continue
		}
		texts = append(texts, &parleyv1.Message{
			Id: m.GetId(), Role: m.GetRole(), Content: m.GetContent(), Agent: strings.ToValidUTF8(m.GetAgent(), "\uFFFD"), TurnId: m.GetTurnId(),
		})
		textIndexes = append(textIndexes, &storev1.MessageEvents{
			AnswerStarted: indexes[i].GetAnswerStarted(), FirstText: indexes[i].GetFirstText(), LastText: indexes[i].GetLastText(),
		})
	}
	markIncomplete(texts)
	return texts, textIndexes
}

// cut shortens a text to so many bytes, at a rune.
func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}
