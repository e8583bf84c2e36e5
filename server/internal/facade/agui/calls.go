package agui

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// addCallDelta sends a part of a call that the model is still writing.
func (t *translation) addCallDelta(delta *parleyv1.ToolCallDelta, isNew bool) {
	i := t.writtenCall(delta.GetId())
	if t.number < t.at.number || i < 0 && !isNew {
		return
	}
	if i < 0 {
		i = t.beginCall(delta.GetId(), delta.GetName())
	}
	sent := t.at.calls[i].bytes
	text, offset := delta.GetArguments(), int(delta.GetOffset())
	if offset > sent || offset+len(text) <= sent {
		return // The complete call has all arguments. Or the client has this part.
	}
	t.sendArguments(i, text[sent-offset:])
}

// addCall sends a complete call, without the parts that were sent.
func (t *translation) addCall(call *parleyv1.ToolCall) {
	i := t.writtenCall(call.GetId())
	if i < 0 {
		i = t.beginCall(call.GetId(), call.GetName())
	}
	if sent := t.at.calls[i].bytes; sent < len(call.GetArguments()) {
		t.sendArguments(i, call.GetArguments()[sent:])
	}
	t.endCall(i)
}

// writtenCall returns the index of the call of the current message with an id that is not complete, or -1.
func (t *translation) writtenCall(id string) int {
	return slices.IndexFunc(t.at.calls, func(c openCall) bool {
		return c.id == id && c.number == t.at.number && !c.ended
	})
}

// nameOf returns the id of a call in AG-UI.
func (t *translation) nameOf(call openCall) string { return callID(t.at.turnID, call.number, call.id) }

func (t *translation) beginCall(id, name string) int {
	t.closeMessage()
	call := openCall{id: id, number: t.at.number}
	t.at.calls = append(t.at.calls, call)
	t.send(&event{
		Type: "TOOL_CALL_START", ToolCallID: t.nameOf(call), ToolCallName: name,
		ParentMessageID: answerID(t.at.turnID, t.at.number),
	})
	return len(t.at.calls) - 1
}

func (t *translation) sendArguments(i int, text string) {
	t.at.calls[i].bytes += len(text)
	t.send(&event{Type: "TOOL_CALL_ARGS", ToolCallID: t.nameOf(t.at.calls[i]), Delta: text})
}

func (t *translation) endCall(i int) {
	t.at.calls[i].ended = true
	t.send(&event{Type: "TOOL_CALL_END", ToolCallID: t.nameOf(t.at.calls[i])})
}

// addResult sends the result of a call, which is the newest one with the id.
func (t *translation) addResult(result *parleyv1.ToolResult) {
	t.closeMessage()
	call := openCall{id: result.GetCallId(), number: t.number}
	for i, c := range slices.Backward(t.at.calls) {
		if c.id == call.id && c.ended {
			call = c
			t.at.calls = slices.Delete(slices.Clone(t.at.calls), i, i+1)
			break
		}
	}
	content := result.GetContent()
	e := &event{
		Type: "TOOL_CALL_RESULT", MessageID: resultID(t.nameOf(call)), ToolCallID: t.nameOf(call),
		Content: &content, Role: "tool",
	}
	if result.GetIsError() {
		e.Metadata = map[string]any{"isError": true}
	}
	t.send(e)
}
