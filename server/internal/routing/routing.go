// Package routing computes the summary of a conversation with which a coordinator decides which
// agent receives the next message. It has no state and no side effects.
//
// The file message.go reads messages without decoding them. The files collectors.go and text.go compute
// the parts of a summary from them. The file budget.go truncates a summary to a byte budget. Start at
// [Summarize].
package routing

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Options limit how much of the messages a summary contains.
type Options struct {
	// MessageLimit is the maximum number of recent messages. If it is 0 or less, the summary has
	// none. Callers apply the default.
	MessageLimit int
	// MaxBytes limits the encoded size of recent messages and referenced data together, with their
	// tags and length prefixes. If it is 0 or less, there is no limit.
	//
	// Summarize removes what exceeds the limit, and sets Truncated: first referenced data, the oldest
	// first, then messages, the oldest first. It truncates the newest message at its end, see
	// truncateEnd. The other fields of a summary are always complete.
	MaxBytes int
}

// Summarize returns the routing summary of a conversation. c is its header. messages are all its
// stored messages, the oldest first, at the same version as c. If c is nil and there are no messages,
// the summary is empty. If messages cannot be decoded, Summarize returns store.ErrCorrupt.
//
// Summarize does not change its arguments. The summary shares the lease and the times with c, so
// neither must be changed afterwards. It does not reference the memory of messages.
//
// The recent messages have neither a native form nor reasoning, which are not for coordinators. An answer that was cut
// off before it said anything is skipped, as if it were not stored.
//
// The summary is meant to be sent. If all recent messages fit, it contains them in their stored form,
// as unknown fields; the same holds for the values of referenced data. A receiver decodes them as
// the regular fields that they are.
//
// Summarize copies the lease in c without checking whether it has expired. Callers check that.
func Summarize(c *parleyv1.Conversation, messages store.Frames, o Options) (*parleyv1.RoutingSummary, error) {
	frames, err := split(messages)
	if err != nil {
		return nil, err
	}
	collected := newCollectors(min(max(o.MessageLimit, 0), len(frames)))
	for _, frame := range slices.Backward(frames) {
		if err := collected.add(frame); err != nil {
			return nil, err
		}
	}
	slices.Reverse(collected.recent)
	slices.Reverse(collected.calls.pending)
	s := &parleyv1.RoutingSummary{
		ConversationId:      c.GetId(),
		Version:             c.GetVersion(),
		StructuredDataTypes: collected.data.types,
		ReferencedData:      collected.data.referenced,
		Text:                collected.text.String(),
		ActiveAgent:         c.GetActiveAgent(),
		RecentAgents:        collected.agents.recent,
		AwaitingAnswer:      collected.question.open,
		PendingToolCalls:    collected.calls.pending,
		ActiveTurnId:        c.GetActiveTurnId(),
		MessageCount:        c.GetMessageCount(),
		LastSequence:        c.GetLastSequence(),
		UpdateTime:          c.GetUpdateTime(),
		ExpireTime:          c.GetExpireTime(),
		Uid:                 c.GetUid(),
	}
	recent := store.Frames(slices.Concat(collected.recent...)).WithoutNative()
	if o.MaxBytes <= 0 || fits(recent, s.ReferencedData, o.MaxBytes) {
		setEncoded(s, recent)
		return s, nil
	}
	if s.RecentMessages, err = recent.Messages(); err != nil {
		return nil, err
	}
	fit(s, o.MaxBytes)
	return s, nil
}

// split returns the frames of the messages. It returns store.ErrCorrupt if bytes remain after the
// last frame.
func split(messages store.Frames) ([]store.Frame, error) {
	frames, size := make([]store.Frame, 0, 20), 0 // 20 messages are the default retention.
	for frame := range messages.All() {
		frames, size = append(frames, frame), size+len(frame)
	}
	if size != len(messages) {
		return nil, fmt.Errorf("%w: frame after message %d", store.ErrCorrupt, len(frames))
	}
	return frames, nil
}

// setEncoded sets fields of a message that are already encoded, with tags and lengths. The message
// holds them as unknown fields.
func setEncoded(m proto.Message, encoded []byte) {
	m.ProtoReflect().SetUnknown(encoded)
}
