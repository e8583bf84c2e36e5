// Package routing sums a conversation up for a coordinator, which has to decide who gets
// the next message. It is pure; begin at Summarize. The parts are worked out in parts.go
// and, for the one line of text, in text.go, from messages that wire.go reads without
// decoding them; budget.go cuts to a budget of bytes.
package routing

import (
	"fmt"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
)

// Options says how much of the messages a summary carries.
type Options struct {
	// MessageLimit is the number of recent messages; 0 or less is none. Callers apply the
	// default.
	MessageLimit int
	// MaxBytes bounds the encoded size of recent messages and referenced data together,
	// the bytes that frame them in the summary included; 0 or less is no bound. What does
	// not fit is left out and Truncated set: referenced data first, the oldest before the
	// newer, then messages from the oldest on. Of the newest message the end is cut; see
	// cut. All else in a summary is there in full, however small MaxBytes is.
	MaxBytes int
}

// Summarize returns what a coordinator needs to know of a conversation. Header c must be
// of the same version as messages, which are all that is kept, oldest first. A nil c and
// no messages give an empty summary; store.ErrCorrupt is for messages that are none.
// Nothing that is passed in is changed, but the summary shares the lease and the times of
// c: change neither afterwards. It keeps no memory of messages.
//
// The summary is to be sent. Recent messages, as long as all of them fit, and the values
// of referenced data are in it as they are stored, as unknown fields: whoever decodes it
// finds them where they belong.
//
// A lease in c is taken as it stands; whether it has lapsed is for the caller to say.
func Summarize(c *parleyv1.Conversation, messages store.Frames, o Options) (*parleyv1.RoutingSummary, error) {
	frames, err := split(messages)
	if err != nil {
		return nil, err
	}
	older := len(frames) - min(max(o.MessageLimit, 0), len(frames))
	p := newParts()
	for i, frame := range slices.Backward(frames) {
		if err := p.add(frame, i < older); err != nil {
			return nil, err
		}
	}
	slices.Reverse(p.calls.pending)
	s := &parleyv1.RoutingSummary{
		ConversationId:      c.GetId(),
		Version:             c.GetVersion(),
		StructuredDataTypes: p.data.types,
		ReferencedData:      p.data.referenced,
		Text:                p.text.String(),
		ActiveAgent:         c.GetActiveAgent(),
		RecentAgents:        p.agents.recent,
		AwaitingAnswer:      p.question.open,
		PendingToolCalls:    p.calls.pending,
		ActiveTurnId:        c.GetActiveTurnId(),
		MessageCount:        c.GetMessageCount(),
		LastSequence:        c.GetLastSequence(),
		UpdateTime:          c.GetUpdateTime(),
		ExpireTime:          c.GetExpireTime(),
		Uid:                 c.GetUid(),
	}
	recent := store.Frames(slices.Concat(frames[older:]...))
	if o.MaxBytes <= 0 || fits(recent, s.ReferencedData, o.MaxBytes) {
		splice(s, recent)
		return s, nil
	}
	if s.RecentMessages, err = recent.Messages(); err != nil {
		return nil, err
	}
	fit(s, o.MaxBytes)
	return s, nil
}

// split returns the messages one by one.
func split(messages store.Frames) ([]store.Frame, error) {
	frames, size := make([]store.Frame, 0, 20), 0 // as many as are kept unless told otherwise
	for frame := range messages.All() {
		frames, size = append(frames, frame), size+len(frame)
	}
	if size != len(messages) {
		return nil, fmt.Errorf("%w: frame after message %d", store.ErrCorrupt, len(frames))
	}
	return frames, nil
}

// splice gives a message fields in their encoded form, tags and lengths included.
func splice(m proto.Message, encoded []byte) {
	m.ProtoReflect().SetUnknown(encoded)
}
