package layout

import (
	"encoding/binary"
	"fmt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// The buckets of turns, described in the package comment.
const (
	TurnIDsBucket    = "turnids"
	TurnChunksBucket = "turnchunks"
)

// TurnKey returns the key of a turn in turnids.
func TurnKey(tenant string, id record.TurnID) []byte { return append(TenantKey(tenant), id[:]...) }

// EncodeTurn returns the value of the entry with that key in turnids. The entry leads to a conversation.
func EncodeTurn(key []byte, conversation InnerKey) []byte {
	return seal(key, append(make([]byte, 0, len(conversation)+4), conversation[:]...))
}

// DecodeTurn decodes an entry of turnids. If it is damaged, the error is store.ErrCorrupt.
func DecodeTurn(key, value []byte) (conversation InnerKey, err error) {
	b, ok := unseal(key, value, record.KeySize)
	if !ok {
		return InnerKey{}, fmt.Errorf("%w: entry of the id of a turn", store.ErrCorrupt)
	}
	return InnerKey(b), nil
}

// TurnChunkKey returns the key of a chunk of turns. conversation is the key of the conversation in conversations.
func TurnChunkKey(conversation []byte, ordinal int64) []byte {
	b := append(make([]byte, 0, len(conversation)+SequenceSize), conversation...)
	return binary.BigEndian.AppendUint64(b, uint64(ordinal))
}

// OrdinalOf returns the ordinal in the key of a chunk of turns, which must have at least SequenceSize bytes.
func OrdinalOf(turnChunkKey []byte) int64 {
	return int64(binary.BigEndian.Uint64(turnChunkKey[len(turnChunkKey)-SequenceSize:]))
}

// EncodeTurnChunk returns the value of a chunk of turns, see record.TurnChunk.Turns.
func EncodeTurnChunk(key, turns []byte) []byte {
	return seal(key, append(make([]byte, 0, len(turns)+4), turns...))
}

// TurnsOf returns the turns in the value of a chunk without a check.
func TurnsOf(value []byte) []byte { return value[:max(0, len(value)-4)] }

// DecodeTurnChunk returns the turns in the value of a chunk. If it is missing or damaged, the error is
// store.ErrCorrupt.
func DecodeTurnChunk(key, value []byte) (turns []byte, err error) {
	turns, ok := unseal(key, value, len(value)-4)
	if value == nil || !ok {
		return nil, fmt.Errorf("%w: chunk of turns", store.ErrCorrupt)
	}
	return turns, nil
}
