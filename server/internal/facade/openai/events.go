package openai

import (
	"net/http"
	"strings"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// events writes the events of a response. The sequence_number of an event is its position in the response: each event
// counts 1, and a delta as many as its text has bytes. So it is the same however the server merges the text, and a
// client can resume after any event.
type events struct {
	q        *request
	response *response
	after    int // The client has the events up to this number.
	next     int // Number of the next event.

	turn  string
	index int // Of the output item.
	text  strings.Builder
	open  bool // The item of a text has begun.
}

// Events in the form of OpenAI.
type (
	responseEvent struct {
		Type     string    `json:"type"`
		Number   int       `json:"sequence_number"`
		Response *response `json:"response"`
	}
	itemEvent struct {
		Type   string     `json:"type"`
		Number int        `json:"sequence_number"`
		Index  int        `json:"output_index"`
		Item   outputItem `json:"item"`
	}
	contentEvent struct {
		Type         string  `json:"type"`
		Number       int     `json:"sequence_number"`
		ItemID       string  `json:"item_id"`
		Index        int     `json:"output_index"`
		ContentIndex *int    `json:"content_index,omitempty"`
		Part         any     `json:"part,omitempty"`
		Delta        *string `json:"delta,omitempty"`
		Text         *string `json:"text,omitempty"`
		Name         string  `json:"name,omitempty"`
		Arguments    *string `json:"arguments,omitempty"`
		Logprobs     []any   `json:"logprobs,omitzero"`
	}
	errorEvent struct {
		Type    string  `json:"type"`
		Number  int     `json:"sequence_number"`
		Code    string  `json:"code"`
		Message string  `json:"message"`
		Param   *string `json:"param"`
	}
)

// writeEvents writes a response as a stream of its events after a number. next returns the events of the turn.
func writeEvents(q *request, r *response, after int, next func() (*parleyv1.TurnEvent, error)) error {
	header := q.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // A proxy must not buffer the events.
	q.w.WriteHeader(http.StatusOK)
	q.started = true
	ref, _ := parseResponseID(r.ID)
	e := &events{q: q, response: r, after: after, turn: ref.turn}
	e.writeResponse("response.created")
	e.writeResponse("response.in_progress")
	e.flush()
	for {
		event, err := next()
		if err != nil {
			f := faultOf(q, err)
			e.next = max(e.next, e.after+1)
			e.write("error", errorEvent{"error", e.next, f.Code, f.Message, f.Param})
			e.flush()
			return err
		}
		if e.add(event) {
			return nil
		}
	}
}

// add writes what an event of the turn says. It returns true after the last one.
func (e *events) add(event *parleyv1.TurnEvent) (last bool) {
	switch ev := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_TextDelta:
		e.addText(ev.TextDelta.GetText())
	case *parleyv1.TurnEvent_ToolResult, *parleyv1.TurnEvent_AnswerStarted:
		e.endText(completed)
	case *parleyv1.TurnEvent_Progress:
		_, _ = e.q.w.Write([]byte(": keepalive\n\n")) // Proxies close a silent connection.
	case *parleyv1.TurnEvent_Finished:
		e.finish(ev.Finished)
		last = true
	default:
		return false
	}
	e.flush()
	return last
}

func (e *events) addText(text string) {
	if !e.open {
		e.open = true
		id := outputID(messagePrefix, e.turn, e.index)
		e.writeItem("response.output_item.added", newTextItem(id, "", inProgress))
		e.writeContent("response.content_part.added", contentEvent{ItemID: id, ContentIndex: new(0), Part: newTextPart("")})
	}
	e.text.WriteString(text)
	e.writeDelta("response.output_text.delta", text, contentEvent{
		ItemID: outputID(messagePrefix, e.turn, e.index), ContentIndex: new(0), Logprobs: []any{},
	})
}

// endText ends the item of a text that has begun.
func (e *events) endText(status string) {
	if !e.open {
		return
	}
	it := newTextItem(outputID(messagePrefix, e.turn, e.index), e.text.String(), status)
	e.writeContent("response.output_text.done", contentEvent{
		ItemID: it.id, ContentIndex: new(0), Text: &it.text, Logprobs: []any{},
	})
	e.writeContent("response.content_part.done", contentEvent{
		ItemID: it.id, ContentIndex: new(0), Part: newTextPart(it.text),
	})
	e.writeItem("response.output_item.done", it)
	e.open, e.index = false, e.index+1
	e.text.Reset()
}

// finish writes the calls that wait for results, and the end of the response.
func (e *events) finish(finished *parleyv1.TurnFinished) {
	e.response.finish(finished.GetTurn(), finished.GetMessages())
	status := incomplete
	if e.index < len(e.response.Output) {
		status = e.response.Output[e.index].object.text("status")
	}
	e.endText(status)
	for _, it := range e.response.Output {
		if it.call == nil {
			continue
		}
		begun := it.call.GetArguments()
		e.writeItem("response.output_item.added", newCallItem(it.id, &parleyv1.ToolCall{
			Id: it.call.GetId(), Name: it.call.GetName(),
		}, inProgress))
		e.writeDelta("response.function_call_arguments.delta", begun, contentEvent{ItemID: it.id})
		e.writeContent("response.function_call_arguments.done", contentEvent{
			ItemID: it.id, Name: it.call.GetName(), Arguments: &begun,
		})
		e.writeItem("response.output_item.done", it)
		e.index++
	}
	e.next = max(e.next, e.after+1) // After a crash the store may have less text than the client.
	switch e.response.Status {
	case completed, failed:
		e.writeResponse("response." + e.response.Status)
	default:
		e.writeResponse("response.incomplete")
	}
}

func (e *events) writeResponse(kind string) {
	e.write(kind, responseEvent{kind, e.next, e.response})
}

func (e *events) writeItem(kind string, it outputItem) {
	e.write(kind, itemEvent{kind, e.next, e.index, it})
}

func (e *events) writeContent(kind string, c contentEvent) {
	c.Type, c.Number, c.Index = kind, e.next, e.index
	e.write(kind, c)
}

// writeDelta writes the part of a text that the client does not have.
func (e *events) writeDelta(kind, text string, c contentEvent) {
	if text == "" {
		return
	}
	first := e.next
	e.next += len(text) - 1
	if skip := e.after + 1 - first; skip > 0 && skip < len(text) {
		for skip > 0 && !utf8.RuneStart(text[skip]) {
			skip-- // The number was not that of an event.
		}
		text = text[skip:]
	}
	c.Type, c.Number, c.Index, c.Delta = kind, e.next, e.index, &text
	e.write(kind, c)
}

// write writes an event that the client does not have, and counts it.
func (e *events) write(kind string, event any) {
	e.next++
	if e.next-1 <= e.after {
		return
	}
	data := toJSON(event)
	line := make([]byte, 0, len(data)+len(kind)+len("event: \ndata: \n\n"))
	line = append(append(append(line, "event: "...), kind...), "\ndata: "...)
	_, _ = e.q.w.Write(append(append(line, data...), "\n\n"...))
}

func (e *events) flush() { _ = http.NewResponseController(e.q.w).Flush() }
