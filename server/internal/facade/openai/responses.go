package openai

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (h *handler) createResponse(q *request) error {
	p, err := parseParams(q.body)
	if err != nil {
		return err
	}
	if err := onlyInclude(q.query); err != nil {
		return err
	}
	started, err := h.start(q, p)
	if err != nil {
		return err
	}
	switch {
	case p.stream:
		err = writeEvents(q, started.response, -1, started.events)
	case p.background:
		writeJSON(q.w, http.StatusOK, started.response)
	default:
		err = h.writeAtEnd(q, started)
	}
	if !p.store {
		h.undo(q, func(q *request) error {
			_, err := h.api.DeleteConversation(q, &parleyv1.DeleteConversationRequest{
				ConversationId: started.ref.conversation, AllowMissing: true,
			})
			return err
		})
	}
	return err
}

// writeAtEnd waits for the end of a turn and writes the response.
func (h *handler) writeAtEnd(q *request, started *startedTurn) error {
	for {
		event, err := started.events()
		if err != nil {
			return err
		}
		if finished := event.GetFinished(); finished != nil {
			started.response.finish(finished.GetTurn(), finished.GetMessages())
			writeJSON(q.w, http.StatusOK, started.response)
			return nil
		}
	}
}

// loadTurn returns a turn with its input message, if it is kept, and the messages of its answer.
func (h *handler) loadTurn(q *request, ref turnRef) (*parleyv1.Turn, []*parleyv1.Message, error) {
	reply, err := h.api.GetTurn(q, &parleyv1.GetTurnRequest{ConversationId: ref.conversation, TurnId: ref.turn})
	if err != nil {
		return nil, nil, err
	}
	t := reply.GetTurn()
	if t.GetInputSequence() == 0 {
		return t, nil, nil // It was cancelled in the queue.
	}
	last := max(t.GetInputSequence(), t.GetLastAnswerSequence())
	messages, err := h.readRange(q, ref.conversation, t.GetInputSequence(), last)
	return t, messages, err
}

// readRange returns the kept messages of a conversation from one sequence to another.
func (h *handler) readRange(q *request, conversation string, first, last int32) ([]*parleyv1.Message, error) {
	var messages []*parleyv1.Message
	r := &parleyv1.ListMessagesRequest{
		ConversationId: conversation, AfterSequence: max(0, first-1), Ascending: true,
		PageSize: min(max(1, last-first+1), 1000),
	}
	err := h.readFrom(q, r, func(page []*parleyv1.Message) (bool, error) {
		for _, m := range page {
			if m.GetSequence() > last {
				return true, nil
			}
			messages = append(messages, m)
		}
		return len(page) > 0 && page[len(page)-1].GetSequence() == last, nil
	})
	return messages, err
}

// answerOf returns the messages of the answer among those of loadTurn. Other messages may be among them.
func answerOf(t *parleyv1.Turn, messages []*parleyv1.Message) []*parleyv1.Message {
	var answer []*parleyv1.Message
	for _, m := range messages {
		if m.GetTurnId() == t.GetId() && t.GetFirstAnswerSequence() > 0 && m.GetSequence() >= t.GetFirstAnswerSequence() {
			answer = append(answer, m)
		}
	}
	return answer
}

// inputMetadata returns the metadata of the input among the messages of loadTurn.
func inputMetadata(t *parleyv1.Turn, messages []*parleyv1.Message) map[string]string {
	if len(messages) > 0 && messages[0].GetSequence() == t.GetInputSequence() {
		return messages[0].GetMetadata()
	}
	return nil
}

// load returns a response as it is now.
func (h *handler) load(q *request, id string) (turnRef, *response, error) {
	ref, ok := parseResponseID(id)
	if !ok {
		return ref, nil, notFound("response_id", "response", id)
	}
	t, messages, err := h.loadTurn(q, ref)
	if err != nil {
		return ref, nil, err
	}
	r := newResponse(ref, t.GetAgent(), inputMetadata(t, messages))
	r.finish(t, answerOf(t, messages))
	return ref, r, nil
}

func (h *handler) getResponse(q *request) error {
	stream, after := false, -1
	for name, values := range q.query {
		value := values[len(values)-1]
		switch name {
		case "stream":
			var err error
			if stream, err = strconv.ParseBool(value); err != nil {
				return invalid("stream", "must be true or false, is %.32q", value)
			}
		case "starting_after":
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				return invalid("starting_after", "must be a sequence_number, is %.32q", value)
			}
			after = int(n)
		case "include", "include[]":
			if err := checkIncludes(values); err != nil {
				return err
			}
		case "include_obfuscation": // It does not change the answer.
		default:
			return refuse(codeUnknown, name, "is unknown; use stream, starting_after or include")
		}
	}
	ref, r, err := h.load(q, q.args[0])
	switch {
	case err != nil:
		return err
	case !stream && after >= 0:
		return invalid("starting_after", "requires stream=true")
	case !stream:
		writeJSON(q.w, http.StatusOK, r)
		return nil
	}
	// The numbers of the events are positions in the answer, so the events before starting_after are counted again.
	events, err := h.api.ResumeTurn(q, &parleyv1.ResumeTurnRequest{ConversationId: ref.conversation, TurnId: ref.turn})
	if err != nil {
		return err
	}
	first, err := events.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	r.Status, r.Output, r.Usage, r.Error, r.CompletedAt = inProgress, []outputItem{}, nil, nil, nil
	r.IncompleteDetails = nil
	return writeEvents(q, r, after, func() (*parleyv1.TurnEvent, error) {
		if event := first.GetEvent(); event != nil {
			first = nil
			return event, nil
		}
		reply, err := events.Recv()
		return reply.GetEvent(), err
	})
}

func (h *handler) cancelResponse(q *request) error {
	if _, err := parseBody(q.body, true); err != nil {
		return err
	}
	ref, ok := parseResponseID(q.args[0])
	if !ok {
		return notFound("response_id", "response", q.args[0])
	}
	_, err := h.api.CancelTurn(q, &parleyv1.CancelTurnRequest{ConversationId: ref.conversation, TurnId: ref.turn})
	if err != nil {
		return err
	}
	_, r, err := h.load(q, q.args[0])
	if err != nil {
		return err
	}
	writeJSON(q.w, http.StatusOK, r)
	return nil
}

func (h *handler) listInputItems(q *request) error {
	page, err := parsePageQuery(q.query)
	if err != nil {
		return err
	}
	ref, ok := parseResponseID(q.args[0])
	if !ok {
		return notFound("response_id", "response", q.args[0])
	}
	t, messages, err := h.loadTurn(q, ref)
	if err != nil {
		return err
	}
	last := t.GetInputSequence()
	input, err := h.readRange(q, ref.conversation, last-inputCount(inputMetadata(t, messages))+1, last)
	if err != nil {
		return err
	}
	items, err := h.itemsOf(q, ref.conversation, input)
	if err != nil {
		return err
	}
	some, hasMore, err := page.of(items)
	if err != nil {
		return err
	}
	writeItems(q, some, hasMore)
	return nil
}

func (h *handler) listModels(q *request) error {
	models, err := h.models(q)
	if err != nil {
		return err
	}
	writeJSON(q.w, http.StatusOK, struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", models})
	return nil
}

func (h *handler) getModel(q *request) error {
	models, err := h.models(q)
	if err != nil {
		return err
	}
	for _, m := range models {
		if m.ID == q.args[0] {
			writeJSON(q.w, http.StatusOK, m)
			return nil
		}
	}
	f := notFound("model", "model", q.args[0])
	f.Code = codesOf["UNKNOWN_AGENT"]
	return f
}

// model is an agent of the server. Agents have no time of creation.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func (h *handler) models(q *request) ([]model, error) {
	reply, err := h.api.ListAgents(q, &parleyv1.ListAgentsRequest{})
	models := make([]model, len(reply.GetAgents()))
	for i, a := range reply.GetAgents() {
		models[i] = model{ID: a.GetName(), Object: "model", OwnedBy: "parley"}
	}
	return models, err
}
