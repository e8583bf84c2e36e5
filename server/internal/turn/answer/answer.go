// Package answer collects the pieces of an agent into the messages of a turn.
//
// An [Answer] checks each piece, adds it to a message and appends its event to the event log. Records are
// part of no message; the answer collects them. It limits the size of the answer. For each message it
// records the indexes of its events, so that a stored turn can be replayed under the same indexes.
//
// Start at [Answer].
package answer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/server/internal/turn/history"
)

// Answer is the answer of an agent as far as it has arrived: the messages of the turn and the
// indexes of their events. One goroutine adds pieces; others may read at the same time.
type Answer struct {
	turnID string
	limit  int
	events *eventlog.Log

	mu       sync.Mutex
	messages []*parleyv1.Message
	indexes  []*storev1.MessageEvents // one for each message
	// current is the message to which the next piece belongs. If currentOpen is set, it is the last
	// of messages. It is opened by its first text or value.
	current     *parleyv1.Message
	currentOpen bool
	text        strings.Builder // content of current
	deltas      deltas          // reasoning and unfinished calls of current
	bytes       int             // size of everything that is stored
	values      int             // number of values, calls and results
	calls       history.Calls   // of all messages
	records     records
	changes     int // number of changes of the messages
	pieces      int // number of pieces that the agent has sent
	// released is set by Release: the messages are those of the finished event.
	released bool
}

// New returns an empty answer of a turn. limit is the maximum size in bytes. The events of the answer
// are appended to e.
func New(turnID string, limit int, e *eventlog.Log) *Answer {
	return &Answer{turnID: turnID, limit: limit, events: e}
}

// SetAgent sets the agent that answers. Call it before the first piece.
func (a *Answer) SetAgent(agent string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.startMessage(agent)
}

// startMessage starts another message of this agent.
func (a *Answer) startMessage(agent string) {
	if a.currentOpen {
		a.current.Content, a.current.Reasoning = a.text.String(), a.deltas.reasoning.String()
	}
	if a.isCutOff() {
		a.currentOpen, a.messages, a.indexes = false, a.messages[:len(a.messages)-1], a.indexes[:len(a.indexes)-1]
		a.deltas.cutOff = true
	}
	if !a.currentOpen {
		a.moveReportBack()
	}
	a.text.Reset()
	for _, call := range a.deltas.calls {
		a.bytes -= call.arguments.Len() // It is cut off, and not part of the answer.
	}
	a.deltas.startMessage()
	a.currentOpen, a.current = false, &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: agent, TurnId: a.turnID}
}

// moveReportBack moves summary, finish reason and usage of a current message without content to the
// last message of the same agent. Agents report these after their last tool result.
func (a *Answer) moveReportBack() {
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

// Add adds the next piece. If the piece exceeds a limit, Add adds the part that fits and
// returns a TooLargeError. A native form that does not fit is left out instead, see NativeDropped. If
// the piece breaks a rule, Add adds nothing and returns an agent.Error.
// Text and reasoning, the most frequent kinds, are not checked against rules.
func (a *Answer) Add(piece *parleyv1.RespondResponse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pieces++
	switch p := piece.GetPiece().(type) {
	case *parleyv1.RespondResponse_Text:
		a.changes++
		return a.addText(strings.ToValidUTF8(p.Text, "\uFFFD"))
	case *parleyv1.RespondResponse_Reasoning:
		a.changes++
		return a.addReasoning(strings.ToValidUTF8(p.Reasoning, "\uFFFD"))
	case *parleyv1.RespondResponse_Progress:
		note := rules.Truncate(strings.ToValidUTF8(p.Progress.GetText(), "\uFFFD"), MaxNoteBytes)
		a.events.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: note}}})
		return nil // A progress text is not part of the answer.
	case nil:
		return nil // The piece is empty or of a kind that this server does not know.
	}
	if err := a.checkPiece(piece); err != nil {
		return err
	}
	a.changes++
	return a.addNonText(piece)
}

// addText adds text to the current message, up to the limit.
func (a *Answer) addText(text string) error {
	var err error
	if !a.fits(len(text)) {
		text, err = rules.Truncate(text, max(0, a.limit-a.bytes)), a.tooManyBytes()
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
	index := a.events.AddText(text, int32(offset))
	indexes := a.currentIndexes()
	a.addToRun(index, len(text), false, offset)
	if indexes.LastText = index; offset == 0 {
		indexes.FirstText = index
	}
	return err
}

func (a *Answer) tooManyBytes() error {
	return &TooLargeError{fmt.Sprintf("is larger than %d bytes", a.limit)}
}

// openMessage adds the current message to the answer, since it has content now.
func (a *Answer) openMessage() error {
	if a.currentOpen {
		return nil
	}
	if len(a.messages) == MaxMessages {
		return errTooManyMessages
	}
	indexes := new(storev1.MessageEvents)
	if len(a.messages) > 0 || a.deltas.cutOff { // Readers have events of an earlier message.
		indexes.AnswerStarted = a.events.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_AnswerStarted{
			AnswerStarted: &parleyv1.AnswerStarted{Agent: a.current.GetAgent()},
		}})
	}
	a.currentOpen, a.messages, a.indexes = true, append(a.messages, a.current), append(a.indexes, indexes)
	return nil
}

// currentIndexes returns the event indexes of the newest message.
func (a *Answer) currentIndexes() *storev1.MessageEvents { return a.indexes[len(a.indexes)-1] }

// Finish ends the answer and returns its messages and the indexes of their events. If the answer is
// not complete, the last message of an agent is INCOMPLETE. Other goroutines may read the messages
// from now on; only SetIncomplete and SetStored may change them.
func (a *Answer) Finish(complete bool) ([]*parleyv1.Message, []*storev1.MessageEvents) {
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

// SetIncomplete marks the answer as incomplete after Finish, because its records could not be stored.
func (a *Answer) SetIncomplete() {
	a.mu.Lock()
	defer a.mu.Unlock()
	markIncomplete(a.messages)
}

// SetStored sets the fields that the store assigned to messages.
func (a *Answer) SetStored(messages []*parleyv1.Message, numbers []*parleyv1.AppendedMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, n := range numbers {
		SetStoredFields(messages[i], n)
	}
}

// Pieces returns the number of pieces that the agent has sent.
func (a *Answer) Pieces() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pieces
}

// HasOpenCalls reports whether a call of the answer has no result, regardless of the agent that
// made it.
func (a *Answer) HasOpenCalls() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls.HasOpen()
}

// Release releases the messages, since the finished event has them in encoded form. indexes are the
// event indexes of these messages.
func (a *Answer) Release(indexes []*storev1.MessageEvents) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.released, a.messages, a.indexes, a.current, a.calls = true, nil, indexes, nil, history.Calls{}
	a.records = records{}
	a.text.Reset()
	a.deltas.startMessage()
}

// markIncomplete sets the last message of an agent to INCOMPLETE.
func markIncomplete(messages []*parleyv1.Message) {
	for _, m := range slices.Backward(messages) {
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
			return
		}
	}
}

// Partial is a copy of an answer as far as it has arrived.
type Partial struct {
	Messages []*parleyv1.Message // the last message of an agent is INCOMPLETE
	Indexes  []*storev1.MessageEvents
	// Calls has one delta for each call that the agent is writing, with its index. If the current message has
	// nothing else, it is not in Messages, and Calls begins with its answer_started event.
	Calls     []*parleyv1.TurnEvent
	LastIndex int32 // index of the newest event before a finished event
	Changes   int   // Answer.changes at the time of the copy
}

// Snapshot copies the answer as far as it has arrived. It returns nil if the answer has not changed
// since it had this number of changes.
func (a *Answer) Snapshot(since int) *Partial {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changes == since {
		return nil
	}
	partial := &Partial{LastIndex: a.events.LastBeforeFinished(), Changes: a.changes}
	if a.released {
		partial.Messages, partial.Indexes = a.events.Finished().GetFinished().GetMessages(), a.indexes
		return partial
	}
	messages := a.messages
	if a.isCutOff() {
		messages = messages[:len(messages)-1]
		if index := a.indexes[len(messages)].GetAnswerStarted(); index > 0 {
			partial.Calls = append(partial.Calls, &parleyv1.TurnEvent{Index: index, Event: &parleyv1.TurnEvent_AnswerStarted{
				AnswerStarted: &parleyv1.AnswerStarted{Agent: a.current.GetAgent()},
			}})
		}
	}
	for i, m := range messages {
		partial.Messages, partial.Indexes = append(partial.Messages, proto.CloneOf(m)),
			append(partial.Indexes, proto.CloneOf(a.indexes[i]))
	}
	if a.currentOpen && len(messages) == len(a.messages) {
		last := partial.Messages[len(partial.Messages)-1]
		last.Content, last.Reasoning = a.text.String(), a.deltas.reasoning.String()
	}
	partial.Calls = append(partial.Calls, a.deltas.unfinishedCalls()...)
	markIncomplete(partial.Messages)
	return partial
}

// TextOnly returns the text of an answer that the store refused.
func TextOnly(
	messages []*parleyv1.Message, indexes []*storev1.MessageEvents,
) (texts []*parleyv1.Message, textIndexes []*storev1.MessageEvents) {
	for i, m := range messages {
		if m.GetContent() == "" {
			continue
		}
		texts = append(texts, &parleyv1.Message{
			Id: m.GetId(), Role: m.GetRole(), Content: m.GetContent(), Agent: strings.ToValidUTF8(m.GetAgent(), "\uFFFD"),
			TurnId: m.GetTurnId(),
		})
		textIndexes = append(textIndexes, &storev1.MessageEvents{
			AnswerStarted: indexes[i].GetAnswerStarted(), FirstText: indexes[i].GetFirstText(),
			LastText: indexes[i].GetLastText(), Deltas: textRuns(indexes[i].GetDeltas()),
		})
	}
	markIncomplete(texts)
	return texts, textIndexes
}

// SetStoredFields sets the fields of a message that the store assigned.
func SetStoredFields(m *parleyv1.Message, n *parleyv1.AppendedMessage) {
	m.Sequence, m.Exchange, m.CreateTime = n.GetSequence(), n.GetExchange(), n.GetCreateTime()
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
		m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
}
