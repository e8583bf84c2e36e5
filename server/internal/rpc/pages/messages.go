// Package pages has the pages of ListMessages, ListRecords and ListTurns, and their page tokens. Start at
// [ListMessages], [OpenRecords] and [OpenTurns].
package pages

import (
	"encoding/binary"
	"slices"
	"strconv"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// MaxBytes is the maximum size of the messages or records on a page. With a header, a reply stays below
// rules.MaxGRPCBytes.
const MaxBytes = store.MaxMessageBytes

// Defaults of page_size for messages: of any id, and with message_ids.
const (
	defaultMessages = 20
	defaultIDs      = 100
)

// Messages is a page of messages.
type Messages struct {
	// Conversation is the header.
	Conversation *parleyv1.Conversation
	// OldestSequence is the sequence of the oldest stored message. If there is none, it is that of the next message.
	OldestSequence int32
	// Messages are in the order of the request.
	Messages []store.Frames
	// NextToken is the token of the next page; empty if this is the last one.
	NextToken string
}

// ListMessages returns the page that a request asks for. read reads the conversation of the request. A page of any
// messages takes one read, and another one with a page token. With message_ids, ListMessages reads up to MaxBytes of
// messages at a time until the page is full; then the next page may be empty. Errors: store.ErrPageToken, those of
// read.
func ListMessages(
	r *parleyv1.ListMessagesRequest, tenant string, read func(*store.Read) (*store.Snapshot, error),
) (*Messages, error) {
	w := &messageWalk{request: r, tenant: tenant, ids: make(map[string]bool, len(r.GetMessageIds()))}
	for _, id := range r.GetMessageIds() {
		w.ids[id] = true
	}
	w.left = int(r.GetPageSize())
	switch {
	case w.left == 0 && len(w.ids) > 0:
		w.left = defaultIDs
	case w.left == 0:
		w.left = defaultMessages
	}
	if r.GetPageToken() != "" {
		header := w.query(0)
		header.WithOldestSequence = false
		snapshot, err := read(header)
		if err != nil {
			return nil, err
		}
		if err := w.open(snapshot.Conversation); err != nil {
			return nil, err
		}
	}
	return w.walk(read)
}

// messageWalk collects the messages of a page.
type messageWalk struct {
	request *parleyv1.ListMessagesRequest
	tenant  string
	// ids are the message ids that the request asks for; empty means all.
	ids map[string]bool
	// at is the sequence of the last message that was read, or 0 before the first. Reads continue after it.
	at int32
	// last is that of the last message on this page or an earlier one, or 0 if there is none.
	last int32
	// left is the number of messages that the page may still have, size the size of those that it has.
	left, size int
	page       Messages
}

// scope returns what page tokens are valid for. It contains the uid, because a later conversation with the same id has
// other messages.
func (w *messageWalk) scope(c *parleyv1.Conversation) []string {
	r := w.request
	return append([]string{
		"messages", w.tenant, c.GetId(), c.GetUid(),
		strconv.FormatBool(r.GetAscending()), strconv.Itoa(int(r.GetAfterSequence())),
	}, r.GetMessageIds()...)
}

// open sets the position of the page token.
func (w *messageWalk) open(c *parleyv1.Conversation) error {
	w.page.Conversation = c
	position, err := store.OpenToken(w.request.GetPageToken(), w.scope(c)...)
	if err != nil || len(position) != 4 {
		return store.ErrPageToken
	}
	w.last = int32(binary.BigEndian.Uint32(position))
	w.at = w.last
	return nil
}

// query returns the next read, of at most newest messages.
func (w *messageWalk) query(newest int) *store.Read {
	r := w.request
	q := &store.Read{
		Tenant: w.tenant, ConversationID: r.GetConversationId(), After: r.GetAfterSequence(), Newest: newest,
		MaxBytes: MaxBytes, Oldest: r.GetAscending(), WithOldestSequence: w.page.OldestSequence == 0,
	}
	switch {
	case w.at == 0:
	case r.GetAscending():
		q.After = max(q.After, w.at)
	default:
		q.Before = w.at
	}
	return q
}

// walk reads until the page is full.
func (w *messageWalk) walk(read func(*store.Read) (*store.Snapshot, error)) (*Messages, error) {
	for {
		newest := -1
		if len(w.ids) == 0 {
			newest = w.left
		}
		snapshot, err := read(w.query(newest))
		if err != nil {
			return nil, err
		}
		if before := w.page.Conversation; before != nil && before.GetUid() != snapshot.Conversation.GetUid() {
			return nil, store.ErrNotFound // Another conversation has the id now.
		}
		w.page.Conversation = snapshot.Conversation
		if w.page.OldestSequence == 0 {
			w.page.OldestSequence = snapshot.OldestSequence
		}
		if w.page.OldestSequence == 0 {
			w.page.OldestSequence = snapshot.Conversation.GetLastSequence() + 1
		}
		more := w.take(snapshot.Messages)
		if more || snapshot.MoreMessages && (len(w.ids) == 0 || w.left == 0) {
			w.page.NextToken = store.SealToken(
				binary.BigEndian.AppendUint32(nil, uint32(w.last)), w.scope(snapshot.Conversation)...)
			return &w.page, nil
		}
		if !snapshot.MoreMessages {
			return &w.page, nil
		}
	}
}

// take adds messages to the page. It returns true if the page lacks one of them that the request asks for.
func (w *messageWalk) take(messages store.Frames) (more bool) {
	var frames []store.Frame
	for frame := range messages.All() {
		frames = append(frames, frame)
	}
	if !w.request.GetAscending() {
		slices.Reverse(frames)
	}
	for _, frame := range frames {
		w.at = frame.Sequence()
		if len(w.ids) > 0 && !w.ids[string(frame.ID())] {
			continue
		}
		if w.left == 0 || w.size > 0 && w.size+len(frame) > MaxBytes {
			return true
		}
		part := store.Frames(frame)
		if len(w.ids) > 0 {
			part = slices.Clone(part) // It must not keep the others in memory.
		}
		w.page.Messages = append(w.page.Messages, part)
		w.last, w.left, w.size = w.at, w.left-1, w.size+len(frame)
	}
	return false
}
