package openai

import (
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// findItem returns the item with an id. param names the id in the error. If several messages have the id, it is the
// newest.
func (h *handler) findItem(q *request, conversation, id, param string) (storedItem, error) {
	ids := []string{}
	if len(id) <= maxItemID {
		ids = append(ids, id)
	}
	if message, _, ok := parseItemID(id); ok && len(message) <= maxItemID && message != id {
		ids = append(ids, message)
	}
	if len(ids) > 0 {
		reply, err := h.api.ListMessages(q, &parleyv1.ListMessagesRequest{ConversationId: conversation, MessageIds: ids})
		if err != nil {
			return storedItem{}, err
		}
		items, err := h.itemsOf(q, conversation, reply.GetMessages())
		if err != nil {
			return storedItem{}, err
		}
		for _, it := range items { // The newest message first.
			if it.id == id {
				return it, nil
			}
		}
	}
	return h.findOutput(q, conversation, id, param)
}

// findOutput returns the item that a response has as output under an id.
func (h *handler) findOutput(q *request, conversation, id, param string) (storedItem, error) {
	turn, index, ok := parseOutputID(id)
	if !ok {
		return storedItem{}, notFound(param, "item", id)
	}
	t, messages, err := h.loadTurn(q, turnRef{conversation, turn})
	if err != nil {
		return storedItem{}, notFound(param, "item", id)
	}
	output := outputOf(t.GetId(), answerOf(t, messages))
	if index >= len(output) || output[index].id != id {
		return storedItem{}, notFound(param, "item", id)
	}
	it := output[index].storedItem
	for _, m := range messages {
		if m.GetSequence() != it.sequence {
			continue
		}
		for _, listed := range decode(m, nil) {
			if listed.text("type") == it.text("type") && listed.text("call_id") == it.text("call_id") {
				it.listed = listed.id
			}
		}
	}
	return it, nil
}
