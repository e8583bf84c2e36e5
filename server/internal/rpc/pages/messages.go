// Package pages has the pages of ListMessages and ListRecords, and their page tokens. Start at [OpenMessages] and
// [OpenRecords].
package pages

import (
	"encoding/binary"
	"slices"
	"strconv"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// MaxBytes is the maximum size in bytes of the messages or records of a page, unless a single one is larger. With a
// header, the reply stays below rules.MaxGRPCBytes.
const MaxBytes = store.MaxConversationBytes

// defaultMessages is the page size of ListMessages if the request has none, and defaultIDs that of a list of message
// ids.
const (
	defaultMessages = 20
	defaultIDs      = 100
)

// Messages is one page of ListMessages. Create it with OpenMessages.
type Messages struct {
	request *parleyv1.ListMessagesRequest
	scope   []string // of page tokens
	// ids are the message ids that the request asks for; empty means all.
	ids map[string]bool
	// last is the sequence of the previous page's last message, or 0 if there is none. After Fill, it
	// is the sequence of this page's last message.
	last int32
	// spans are the positions of the page's messages in the stored messages, and size is their size in bytes.
	spans []span
	size  int
}

// span is a part of the stored messages: the bytes from start to before end.
type span struct{ start, end int }

// OpenMessages returns the page that a request names with its page token, or the first page. The page is
// empty.
func OpenMessages(r *parleyv1.ListMessagesRequest, tenant string, c *parleyv1.Conversation) (*Messages, error) {
	// The scope contains the uid, because a later conversation with the same id has other messages.
	p := &Messages{request: r, scope: []string{
		"messages", tenant, c.GetId(), c.GetUid(),
		strconv.FormatBool(r.GetAscending()), strconv.Itoa(int(r.GetAfterSequence())),
	}, ids: make(map[string]bool, len(r.GetMessageIds()))}
	for _, id := range r.GetMessageIds() {
		p.ids[id] = true
	}
	p.scope = append(p.scope, r.GetMessageIds()...)
	if r.GetPageToken() == "" {
		return p, nil
	}
	position, err := store.OpenToken(r.GetPageToken(), p.scope...)
	if err != nil || len(position) != 4 {
		return nil, store.ErrPageToken
	}
	p.last = int32(binary.BigEndian.Uint32(position))
	return p, nil
}

// Fill adds the messages that belong to the page. It returns the token of the next page, or "" if this is
// the last page. stored are all messages of the conversation.
func (p *Messages) Fill(stored store.Frames) (nextToken string) {
	var frames []span
	at := 0
	for frame := range stored.All() {
		frames = append(frames, span{at, at + len(frame)})
		at += len(frame)
	}
	if !p.request.GetAscending() {
		slices.Reverse(frames)
	}
	left := int(p.request.GetPageSize())
	switch {
	case left == 0 && len(p.ids) > 0:
		left = defaultIDs
	case left == 0:
		left = defaultMessages
	}
	for _, frame := range frames {
		message := store.Frame(stored[frame.start:frame.end])
		sequence := message.Sequence()
		if sequence <= p.request.GetAfterSequence() || p.onEarlierPage(sequence) ||
			len(p.ids) > 0 && !p.ids[string(message.ID())] {
			continue
		}
		full := left == 0 || p.size+frame.end-frame.start > MaxBytes
		if p.size > 0 && full {
			return store.SealToken(binary.BigEndian.AppendUint32(nil, uint32(p.last)), p.scope...)
		}
		p.add(frame)
		p.last = sequence
		left--
	}
	return ""
}

// add adds a message to the page.
func (p *Messages) add(frame span) {
	p.size += frame.end - frame.start
	if n := len(p.spans); n > 0 && p.spans[n-1].end == frame.start {
		p.spans[n-1].end = frame.end
		return
	}
	p.spans = append(p.spans, frame)
}

// Slices returns the messages of the page, which are parts of the stored messages.
func (p *Messages) Slices(stored store.Frames) []store.Frames {
	messages := make([]store.Frames, len(p.spans))
	for i, s := range p.spans {
		messages[i] = stored[s.start:s.end]
	}
	return messages
}

// onEarlierPage reports whether a message was on an earlier page.
func (p *Messages) onEarlierPage(sequence int32) bool {
	switch {
	case p.last == 0:
		return false
	case p.request.GetAscending():
		return sequence <= p.last
	default:
		return sequence >= p.last
	}
}
