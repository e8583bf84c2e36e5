package turn

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"google.golang.org/protobuf/proto"
)

// errTooLarge is the cause of a turn whose answer grew beyond its limit.
var errTooLarge = errors.New("answer too large")

// maxSummaryBytes is the limit of Message.summary.
const maxSummaryBytes = 500

// answer is what an agent has said so far: the messages of the turn and the events that
// tell of them. The agent's pieces come from one goroutine; progress is read by another.
type answer struct {
	turnID string
	limit  int
	events *events

	mu       sync.Mutex
	messages []*parleyv1.Message
	// open: the last message is still being written.
	open bool
	// agent writes the next message.
	agent  string
	text   strings.Builder
	bytes  int
	pieces int
}

func newAnswer(turnID, agent string, limit int, e *events) *answer {
	return &answer{turnID: turnID, agent: agent, limit: limit, events: e}
}

// add takes the next piece. At the limit it keeps what fits and returns errTooLarge.
func (a *answer) add(piece *parleyv1.RespondResponse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pieces++
	if text, ok := piece.GetPiece().(*parleyv1.RespondResponse_Text); ok {
		return a.addText(strings.ToValidUTF8(text.Text, "\uFFFD"))
	}
	a.bytes += proto.Size(piece)
	if a.bytes > a.limit {
		return errTooLarge
	}
	switch p := piece.GetPiece().(type) {
	case *parleyv1.RespondResponse_StructuredData:
		m := a.current()
		m.StructuredData = append(m.StructuredData, p.StructuredData)
		a.emit(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_StructuredData{StructuredData: p.StructuredData}})
	case *parleyv1.RespondResponse_ToolCall:
		m := a.current()
		m.ToolCalls = append(m.ToolCalls, p.ToolCall)
		a.emit(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolCall{ToolCall: p.ToolCall}})
	case *parleyv1.RespondResponse_ToolResult:
		a.close()
		a.messages = append(a.messages, &parleyv1.Message{
			Role: parleyv1.Role_ROLE_TOOL, ToolResult: p.ToolResult, Agent: a.agent, TurnId: a.turnID,
		})
		a.emit(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolResult{ToolResult: p.ToolResult}})
	case *parleyv1.RespondResponse_Summary:
		a.current().Summary = cut(strings.ToValidUTF8(p.Summary, "\uFFFD"), maxSummaryBytes)
	case *parleyv1.RespondResponse_Usage:
		a.current().Usage = p.Usage
	case *parleyv1.RespondResponse_FinishReason:
		a.current().FinishReason = p.FinishReason
	case *parleyv1.RespondResponse_Progress:
		a.emit(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: p.Progress}})
	case *parleyv1.RespondResponse_NextAgent:
		a.close()
		a.agent = p.NextAgent
	}
	return nil
}

// addText adds to the current message, as much as the limit allows.
func (a *answer) addText(text string) error {
	var err error
	if a.bytes+len(text) > a.limit {
		text, err = cut(text, max(0, a.limit-a.bytes)), errTooLarge
	}
	if text == "" {
		return err
	}
	a.current()
	offset := a.text.Len()
	a.text.WriteString(text)
	a.bytes += len(text)
	a.emit(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{
		TextDelta: &parleyv1.TextDelta{Text: text, Offset: int32(offset)},
	}})
	return err
}

// current is the message that is being written; it opens one if there is none.
func (a *answer) current() *parleyv1.Message {
	if !a.open {
		a.open = true
		if len(a.messages) > 0 {
			a.emit(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_AnswerStarted{AnswerStarted: &parleyv1.AnswerStarted{Agent: a.agent}}})
		}
		a.messages = append(a.messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: a.agent, TurnId: a.turnID})
	}
	return a.messages[len(a.messages)-1]
}

// close ends the current message.
func (a *answer) close() {
	if a.open {
		a.messages[len(a.messages)-1].Content = a.text.String()
		a.text.Reset()
		a.open = false
	}
}

func (a *answer) emit(event *parleyv1.TurnEvent) {
	event.TurnId = a.turnID
	a.events.add(event)
}

// finish ends the answer and returns its messages; those that say nothing are left out. A
// cut-off answer's last message is INCOMPLETE.
func (a *answer) finish(whole bool) []*parleyv1.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	cutOff := a.open && !whole
	a.close()
	if cutOff {
		a.messages[len(a.messages)-1].Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
	}
	a.messages = slices.DeleteFunc(a.messages, silent)
	return a.messages
}

// progress copies what has arrived, marked as cut off, and says whether anything has been
// added since that many pieces.
func (a *answer) progress(since int) (messages []*parleyv1.Message, pieces int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pieces == since {
		return nil, since
	}
	for i, m := range a.messages {
		m = proto.CloneOf(m)
		if a.open && i == len(a.messages)-1 {
			m.Content, m.Status = a.text.String(), parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
		}
		if !silent(m) {
			messages = append(messages, m)
		}
	}
	return messages, a.pieces
}

// silent reports whether a message of an answer says nothing.
func silent(m *parleyv1.Message) bool {
	return m.GetContent() == "" && len(m.GetStructuredData()) == 0 && len(m.GetToolCalls()) == 0 && m.GetToolResult() == nil
}

// unanswered reports whether a call in these messages has no result among them.
func unanswered(messages []*parleyv1.Message) bool {
	open := make(map[string]bool)
	for _, m := range messages {
		for _, call := range m.GetToolCalls() {
			open[call.GetId()] = true
		}
		delete(open, m.GetToolResult().GetCallId())
	}
	return len(open) > 0
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
