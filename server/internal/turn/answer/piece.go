package answer

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

// checkPiece checks a piece against the rules of the API and against the answer so far. A piece
// that breaks a rule could not be exported, imported again or answered.
func (a *Answer) checkPiece(piece *parleyv1.RespondResponse) error {
	faults, err := rules.Check(piece)
	switch {
	case err != nil:
		return err
	case len(faults) > 0:
		return ruleError(faults[0])
	}
	switch p := piece.GetPiece().(type) {
	case *parleyv1.RespondResponse_StructuredData:
		if len(a.current.GetStructuredData()) == maxMessageValues {
			return ruleError(rules.Fault{
				Field: "structured_data",
				Rule:  fmt.Sprintf("a message has at most %d values", maxMessageValues),
			})
		}
	case *parleyv1.RespondResponse_ToolCall:
		if id := p.ToolCall.GetId(); a.calls.IsOpen(id) {
			return ruleError(rules.Fault{
				Field: "tool_call.id",
				Rule:  fmt.Sprintf("%.64q is already the id of an open call of the answer", id),
			})
		}
	case *parleyv1.RespondResponse_Native:
		return checkNative(p.Native)
	case *parleyv1.RespondResponse_Record:
		return a.checkRecord(p.Record)
	case *parleyv1.RespondResponse_ToolCallDelta:
		return a.checkCallDelta(p.ToolCallDelta)
	case *parleyv1.RespondResponse_ToolResult:
		if id := p.ToolResult.GetCallId(); !a.calls.IsOpen(id) {
			return ruleError(rules.Fault{
				Field: "tool_result.call_id",
				Rule:  fmt.Sprintf("%.64q is not an open call of the answer", id),
			})
		}
	}
	return nil
}

// ruleError returns the error of an agent that broke a rule. It is not retryable, since the agent
// would break the rule again.
func ruleError(fault rules.Fault) error {
	return &agent.Error{Message: "it sent a piece that breaks an API rule: " + fault.String()}
}

// addNonText adds a piece that is neither text nor progress.
func (a *Answer) addNonText(piece *parleyv1.RespondResponse) error {
	switch p := piece.GetPiece().(type) {
	case *parleyv1.RespondResponse_Summary:
		a.current.Summary = rules.Truncate(strings.ToValidUTF8(p.Summary, "\uFFFD"), maxSummaryBytes)
		return nil
	case *parleyv1.RespondResponse_NextAgent:
		a.startMessage(rules.Truncate(strings.ToValidUTF8(p.NextAgent, "\uFFFD"), maxAgentBytes))
		return nil
	case *parleyv1.RespondResponse_Native:
		return a.addNative(p.Native)
	case *parleyv1.RespondResponse_Record:
		return a.addRecord(p.Record)
	case *parleyv1.RespondResponse_ToolCallDelta:
		return a.addCallDelta(p.ToolCallDelta)
	case *parleyv1.RespondResponse_ToolCall:
		a.bytes -= a.deltas.complete(p.ToolCall.GetId())
	}
	size := proto.Size(piece)
	fits := a.fits(size)
	if a.bytes += size; !fits {
		return a.tooManyBytes()
	}
	switch p := piece.GetPiece().(type) {
	case *parleyv1.RespondResponse_Usage:
		a.current.Usage = p.Usage
		return nil
	case *parleyv1.RespondResponse_FinishReason:
		a.current.FinishReason = p.FinishReason
		return nil
	}
	a.values++
	if a.values > MaxValues {
		return errTooManyValues
	}
	return a.addValue(piece)
}

// addValue adds structured data, a call or a result, and its event.
func (a *Answer) addValue(piece *parleyv1.RespondResponse) error {
	event, field := new(parleyv1.TurnEvent), ""
	switch p := piece.GetPiece().(type) {
	case *parleyv1.RespondResponse_StructuredData:
		event.Event, field = &parleyv1.TurnEvent_StructuredData{StructuredData: p.StructuredData}, "structured_data"
	case *parleyv1.RespondResponse_ToolCall:
		event.Event, field = &parleyv1.TurnEvent_ToolCall{ToolCall: p.ToolCall}, "tool_call"
	case *parleyv1.RespondResponse_ToolResult:
		event.Event, field = &parleyv1.TurnEvent_ToolResult{ToolResult: p.ToolResult}, "tool_result"
	}
	n := eventlog.Encode(event)
	if n.IsZero() {
		return ruleError(rules.Fault{Field: field, Rule: "is not valid UTF-8"})
	}
	if event.GetToolResult() != nil {
		return a.addResult(n, event)
	}
	if err := a.openMessage(); err != nil {
		return err
	}
	index, indexes := a.events.AddEncoded(n, event), a.currentIndexes()
	if call := event.GetToolCall(); call != nil {
		a.current.ToolCalls = append(a.current.ToolCalls, call)
		a.calls.Add(len(a.messages)-1, call)
		indexes.ToolCalls = append(indexes.ToolCalls, index)
		return nil
	}
	a.current.StructuredData = append(a.current.StructuredData, event.GetStructuredData())
	indexes.StructuredData = append(indexes.StructuredData, index)
	return nil
}

// addResult ends the current message and adds the result as a message of its own.
func (a *Answer) addResult(n eventlog.Encoded, event *parleyv1.TurnEvent) error {
	if len(a.messages) == MaxMessages {
		return errTooManyMessages
	}
	result, by := event.GetToolResult(), a.current.GetAgent()
	a.startMessage(by)
	a.calls.Resolve(result.GetCallId())
	a.messages = append(a.messages, &parleyv1.Message{
		Role: parleyv1.Role_ROLE_TOOL, ToolResult: result, Agent: by, TurnId: a.turnID,
	})
	a.indexes = append(a.indexes, &storev1.MessageEvents{ToolResult: a.events.AddEncoded(n, event)})
	return nil
}
