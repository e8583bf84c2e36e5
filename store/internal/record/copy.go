package record

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/store"
)

// Joined makes the messages in chunks part of the other messages of the record, for a copy. The record must have its
// other messages. If a chunk is missing or damaged, the error is store.ErrCorrupt.
func (r *Record) Joined() error { return r.joinAfter(0) }

// Copy returns the record in a form that a store of another kind can keep. messages are all retained ones. The copy
// shares no memory with the record, except that of messages. If messages or turns are missing, the error is
// store.ErrCorrupt.
func (r *Record) Copy(tenant string, messages store.Frames, s Ephemeral) (*store.ConversationCopy, error) {
	c := r.Conversation()
	if got := messages.Count(); got != int(c.GetMessageCount()) {
		return nil, fmt.Errorf("%w: it has %d messages, its header says %d", store.ErrCorrupt, got, c.GetMessageCount())
	}
	var turns []byte
	chunks := r.Header.GetTurnChunks()
	for ordinal := chunks.GetFirst(); ordinal < chunks.GetNext(); ordinal++ {
		list, err := r.TurnChunks.Turns(ordinal)
		if err != nil {
			return nil, err
		}
		turns = append(turns, list...)
	}
	header := proto.CloneOf(r.Header)
	header.Number, header.Applied, header.Chunks, header.TurnChunks, header.TurnsIndexed = 0, 0, nil, nil, false
	return &store.ConversationCopy{
		Tenant: tenant, Header: header, SystemPrompt: slices.Clone(r.Prompt), Requests: slices.Clone(r.Requests),
		Turns: append(turns, r.Turns...), Messages: messages, DeleteTime: s.DeleteTime,
	}, nil
}

// FromCopy returns a new record that keeps a copy. history is c.Messages as NewHistory decoded it. The record has no
// number, and is not divided. If parts of the copy do not match, the error is store.ErrCorrupt.
func FromCopy(c *store.ConversationCopy, history *History) (*Record, error) {
	header := c.Header.GetConversation()
	switch {
	case header.GetId() == "" || c.Header.GetTenant() != c.Tenant:
		return nil, fmt.Errorf("%w: a header of tenant %.80q", store.ErrCorrupt, c.Header.GetTenant())
	case history.count != int(header.GetMessageCount()):
		return nil, fmt.Errorf("%w: it has %d messages, its header says %d", store.ErrCorrupt, history.count,
			header.GetMessageCount())
	}
	if _, err := unmarshalTurns(c.Turns); err != nil {
		return nil, err
	}
	r := &Record{
		Header: proto.CloneOf(c.Header), Prompt: c.SystemPrompt, Requests: c.Requests, Turns: c.Turns,
		Data: history.data, Messages: history.frames,
	}
	r.Header.TurnsIndexed = len(TurnIDs(c.Turns)) > 0
	return r, nil
}
