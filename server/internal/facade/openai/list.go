package openai

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	defaultLimit = 20
	maxLimit     = 100
	maxItems     = 100 // of a request that creates items
)

// writeItems writes a page of items in the form of OpenAI.
func writeItems(q *request, items []storedItem, hasMore bool) {
	b := append(make([]byte, 0, 4<<10), `{"object":"list","data":[`...) // encoding/json would parse the items again.
	first, last := toJSON(nil), toJSON(nil)
	if len(items) > 0 {
		first, last = quote(items[0].id), quote(items[len(items)-1].id)
	}
	for i, it := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = it.appendJSON(b)
	}
	b = append(b, `],"first_id":`...)
	b = append(append(b, first...), `,"last_id":`...)
	b = append(append(b, last...), `,"has_more":`...)
	writeBody(q.w, http.StatusOK, append(strconv.AppendBool(b, hasMore), '}'))
}

// pageQuery are the parameters of a list.
type pageQuery struct {
	after     string
	limit     int
	ascending bool
}

func parsePageQuery(query url.Values) (pageQuery, error) {
	p := pageQuery{limit: defaultLimit}
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case "after":
			p.after = value
		case "limit":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxLimit {
				return p, invalid("limit", "must be a number from 1 to %d, is %.32q", maxLimit, value)
			}
			p.limit = n
		case "order":
			if value != "asc" && value != "desc" {
				return p, invalid("order", "must be asc or desc, is %.32q", value)
			}
			p.ascending = value == "asc"
		case "include", "include[]":
			if err := checkIncludes(values); err != nil {
				return p, err
			}
		default:
			return p, refuse(codeUnknown, name, "is unknown; use after, limit, order or include")
		}
	}
	return p, nil
}

// checkIncludes refuses what a client wants to be added to replies and the server does not have.
func checkIncludes(values []string) error {
	for _, value := range values {
		if value != "message.input_image.image_url" { // It is always there.
			return refuse(codeUnsupported, "include", "contains %.64q, which this server does not support", value)
		}
	}
	return nil
}

func (h *handler) createItems(q *request) error {
	body, err := parseBody(q.body, false)
	if err != nil {
		return err
	}
	if err := onlyParams(body, "items"); err != nil {
		return err
	}
	if err := onlyInclude(q.query); err != nil {
		return err
	}
	if body.get("items") == nil {
		return refuse(codeMissing, "items", "is required")
	}
	items, err := parseItems(body.get("items"), "items")
	if err != nil {
		return err
	}
	if len(items) == 0 || len(items) > maxItems {
		return invalid("items", "must have 1 to %d items, has %d", maxItems, len(items))
	}
	e := encode(items)
	reply, err := h.api.AppendMessages(q, &parleyv1.AppendMessagesRequest{
		ConversationId: storedConversationID(q.args[0]), Messages: e.messages, Records: e.records, MustExist: true,
		RequestId: q.header.Get(idempotencyKey),
	})
	if err != nil {
		return err
	}
	stored := make([]storedItem, 0, len(items))
	for i, m := range e.messages {
		m.Id, m.Sequence = reply.GetAppended()[i].GetId(), reply.GetAppended()[i].GetSequence()
		m.Native = &parleyv1.Native{Type: itemType, Value: items[i].raw}
		stored = append(stored, decode(m, nil)...)
	}
	writeItems(q, stored, false)
	return nil
}

// onlyInclude checks the query of a request that has no other parameter than include.
func onlyInclude(query url.Values) error {
	for name, values := range query {
		if name != "include" && name != "include[]" {
			return refuse(codeUnknown, name, "is unknown; use include")
		}
		if err := checkIncludes(values); err != nil {
			return err
		}
	}
	return nil
}

func (h *handler) listItems(q *request) error {
	p, err := parsePageQuery(q.query)
	if err != nil {
		return err
	}
	items, hasMore, err := h.page(q, storedConversationID(q.args[0]), p)
	if err != nil {
		return err
	}
	writeItems(q, items, hasMore)
	return nil
}

// page returns a page of the items of a conversation, and whether there are more.
func (h *handler) page(q *request, conversation string, p pageQuery) ([]storedItem, bool, error) {
	var items []storedItem // One more than the limit, if there are so many.
	from := int32(0)       // Sequence of the message of p.after.
	last := ""             // Its id in lists.
	if p.after != "" {
		after, err := h.findItem(q, conversation, p.after, "after")
		if err != nil {
			return nil, false, err
		}
		from, last = after.sequence, cmp.Or(after.listed, after.id)
	}
	// add adds the items of messages in the order of the page, and returns whether the page is full.
	skipping := p.after != ""
	add := func(messages []*parleyv1.Message) (bool, error) {
		some, err := h.itemsOf(q, conversation, messages)
		if err != nil {
			return false, err
		}
		if !p.ascending {
			some = reversedWithin(some) // The messages have the order of the page, but the items of a message do not.
		}
		for _, it := range some {
			if skipping {
				skipping = it.id != last && it.sequence == from
				if it.id == last {
					continue
				}
				if skipping {
					continue
				}
			}
			if items = append(items, it); len(items) > p.limit {
				return true, nil
			}
		}
		return false, nil
	}
	var err error
	if p.after != "" && !p.ascending {
		err = h.readBefore(q, conversation, from, p.limit, add)
	} else {
		r := &parleyv1.ListMessagesRequest{
			ConversationId: conversation, PageSize: int32(p.limit + 1), Ascending: p.ascending,
			AfterSequence: max(0, from-1),
		}
		err = h.readFrom(q, r, add)
	}
	if err != nil {
		return nil, false, err
	}
	if len(items) > p.limit {
		return items[:p.limit], true, nil
	}
	return items, false, nil
}

// reversedWithin reverses the order of the items of each message.
func reversedWithin(items []storedItem) []storedItem {
	for start := 0; start < len(items); {
		end := start + 1
		for end < len(items) && items[end].sequence == items[start].sequence {
			end++
		}
		slices.Reverse(items[start:end])
		start = end
	}
	return items
}

// readFrom reads the pages of a list until add returns true.
func (h *handler) readFrom(
	q *request, r *parleyv1.ListMessagesRequest, add func([]*parleyv1.Message) (bool, error),
) error {
	for {
		reply, err := h.api.ListMessages(q, r)
		if err != nil {
			return err
		}
		if full, err := add(reply.GetMessages()); full || err != nil {
			return err
		}
		if r.PageToken = reply.GetNextPageToken(); r.GetPageToken() == "" {
			return nil
		}
	}
}

// readBefore reads the messages up to a sequence, newest first, until add returns true. A list that begins at a
// sequence is only possible in the other direction, so each step reads the messages of a range. Removed messages
// leave gaps, so the ranges grow.
func (h *handler) readBefore(
	q *request, conversation string, last int32, limit int, add func([]*parleyv1.Message) (bool, error),
) error {
	const maxRange = 1000
	oldest := int32(1)
	for size := int32(limit + 1); last >= oldest; size = min(2*size, maxRange) {
		first := max(last-size+1, oldest)
		var messages []*parleyv1.Message
		r := &parleyv1.ListMessagesRequest{
			ConversationId: conversation, PageSize: last - first + 1, AfterSequence: first - 1, Ascending: true,
		}
		for r.PageToken = ""; ; {
			reply, err := h.api.ListMessages(q, r)
			if err != nil {
				return err
			}
			oldest = max(oldest, reply.GetOldestSequence())
			page := reply.GetMessages()
			for len(page) > 0 && page[len(page)-1].GetSequence() > last {
				page = page[:len(page)-1]
			}
			messages = append(messages, page...)
			r.PageToken = reply.GetNextPageToken()
			if r.GetPageToken() == "" || len(page) < len(reply.GetMessages()) ||
				len(page) > 0 && page[len(page)-1].GetSequence() == last {
				break
			}
		}
		slices.Reverse(messages)
		if full, err := add(messages); full || err != nil {
			return err
		}
		last = first - 1
	}
	return nil
}

func (h *handler) getItem(q *request) error {
	if err := onlyInclude(q.query); err != nil {
		return err
	}
	it, err := h.findItem(q, storedConversationID(q.args[0]), q.args[1], "item_id")
	if err != nil {
		return err
	}
	writeJSON(q.w, http.StatusOK, it)
	return nil
}

func (h *handler) deleteItem(q *request) error {
	id := storedConversationID(q.args[0])
	it, err := h.findItem(q, id, q.args[1], "item_id")
	if err != nil {
		return err
	}
	if it.shared {
		return refuse("unsupported_operation", "item_id", "names an item that is stored in one message with others: "+
			"it cannot be deleted alone")
	}
	// The messages from this one on, to know whether it is the newest.
	reply, err := h.api.ListMessages(q, &parleyv1.ListMessagesRequest{
		ConversationId: id, AfterSequence: it.sequence - 1, Ascending: true, PageSize: 2,
	})
	if err != nil {
		return err
	}
	messages := reply.GetMessages()
	if len(messages) == 0 || messages[0].GetSequence() != it.sequence {
		return notFound("item_id", "item", q.args[1])
	}
	change := &parleyv1.ClearConversationRequest{
		ConversationId: id, AfterSequence: it.sequence - 1, IfVersion: &reply.Conversation.Version,
	}
	if len(messages) > 1 {
		// Single sequences keep the results of tools with their calls. The end of a conversation may be removed anyhow.
		change = &parleyv1.ClearConversationRequest{ConversationId: id, Sequences: []int32{it.sequence}}
	}
	cleared, err := h.api.ClearConversation(q, change)
	if err != nil {
		return err
	}
	if keys := recordKeys(messages[0]); len(keys) > 0 {
		writes := make([]*parleyv1.RecordWrite, len(keys))
		for i, key := range keys {
			writes[i] = &parleyv1.RecordWrite{Key: key, Delete: true}
		}
		_, err := h.records.WriteRecords(q, &parleyv1.WriteRecordsRequest{ConversationId: id, Writes: writes})
		if err != nil {
			return err
		}
	}
	writeJSON(q.w, http.StatusOK, newConversationObject(cleared.GetConversation()))
	return nil
}

// of returns a page of items that are all known, oldest first.
func (p pageQuery) of(items []storedItem) (page []storedItem, hasMore bool, err error) {
	if !p.ascending {
		items = slices.Clone(items)
		slices.Reverse(items)
	}
	if p.after != "" {
		i := slices.IndexFunc(items, func(it storedItem) bool { return it.id == p.after })
		if i < 0 {
			return nil, false, notFound("after", "item", p.after)
		}
		items = items[i+1:]
	}
	return items[:min(p.limit, len(items))], len(items) > p.limit, nil
}
