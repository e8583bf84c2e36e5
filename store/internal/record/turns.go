package record

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// turnsInChunk is the number of turns in a chunk of turns, and the number that is dropped at once if a conversation
	// keeps more than store.DefaultMaxTurns.
	turnsInChunk = 16
	// maxHeadTurns is the maximum number of turns in the value of a conversation after DivideTurns. If there are more,
	// DivideTurns moves the oldest to chunks, and keeps at least store.DefaultMaxTurns. Each append writes the value, so
	// it must be small.
	maxHeadTurns = store.DefaultMaxTurns + turnsInChunk
	// MaxUndividedTurns is the maximum number of turns in the value of a conversation that a store has in memory and has
	// not divided yet. It is the limit of store.Snapshot.Turns.
	MaxUndividedTurns = store.DefaultMaxTurns + 63
)

// applyTurn begins or ends a turn as the append requires, and returns the turn after that.
func (r *Record) applyTurn(a *store.Append, appended []*parleyv1.AppendedMessage,
	now time.Time,
) (*parleyv1.Turn, error) {
	c := r.Conversation()
	var t *parleyv1.Turn
	switch {
	case a.Begin != nil:
		t = &parleyv1.Turn{
			Id: a.Begin.GetId(), ConversationId: c.GetId(), RequestId: a.Begin.GetRequestId(), Agent: a.Begin.GetAgent(),
			State: parleyv1.TurnState_TURN_STATE_RUNNING, InputSequence: a.Begin.GetInputSequence(),
			CreateTime: proto.CloneOf(a.Begin.GetCreateTime()),
		}
		if t.CreateTime == nil {
			t.CreateTime = timestamppb.New(now)
		}
		if len(appended) > 0 {
			t.InputSequence = appended[len(appended)-1].GetSequence()
		}
		c.ActiveTurnId = t.GetId()
	case a.End != nil:
		t = r.findTurn(a.End.GetId())
		if t == nil {
			t = &parleyv1.Turn{Id: a.End.GetId(), ConversationId: c.GetId()}
		}
		t.State, t.Error, t.FinishTime = a.End.GetState(), proto.CloneOf(a.End.GetError()), timestamppb.New(now)
		if len(appended) > 0 {
			t.FirstAnswerSequence, t.LastAnswerSequence = appended[0].GetSequence(), appended[len(appended)-1].GetSequence()
		}
		c.ActiveTurnId = ""
	default:
		return nil, nil //nolint:nilnil // The append neither begins nor ends a turn.
	}
	return t, r.putTurn(t, a.Events)
}

// putTurn stores a turn as the newest one in place of its earlier form, and drops the oldest. Its events follow it, so
// that they are dropped together with it. If events is nil, the earlier events stay.
func (r *Record) putTurn(t *parleyv1.Turn, events *storev1.TurnEvents) error {
	encoded := findItem(r.Turns, eventsField, t.GetId())
	if events != nil {
		own := proto.CloneOf(events)
		own.TurnId, own.ConversationVersion = t.GetId(), r.Conversation().GetVersion()
		var err error
		if encoded, err = proto.Marshal(own); err != nil {
			return fmt.Errorf("encode events: %w", err)
		}
	}
	turn, err := proto.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode turn: %w", err)
	}
	turns := appendItem(removeItem(r.Turns, t.GetId()), turnsField, turn)
	if encoded != nil {
		turns = appendItem(turns, eventsField, encoded)
	}
	r.Turns = turns
	if _, ok := ParseTurnID(t.GetId()); ok {
		r.Header.TurnsIndexed = true
	}
	r.dropTurns()
	return nil
}

// maxTurns returns the number of turns that the conversation keeps. It may keep more, see dropTurns.
func (r *Record) maxTurns() int {
	if n := r.Conversation().GetRetention().GetMaxTurns(); n > 0 {
		return int(n)
	}
	return store.DefaultMaxTurns
}

// dropTurns drops the oldest turns above maxTurns. If maxTurns is at most store.DefaultMaxTurns, it drops all of them.
// Otherwise it drops them turnsInChunk at a time, whether they are in a chunk already or not, so that up to
// turnsInChunk-1 more are kept. Therefore the dropped turns do not depend on when a store divides the conversation, and
// a replayed operation drops the same turns.
func (r *Record) dropTurns() {
	limit, head := r.maxTurns(), countItems(r.Turns, turnsField)
	if c := r.Header.GetTurnChunks(); c != nil {
		for c.GetFirst() < c.GetNext() && head+turnsInChunk*int(c.GetNext()-c.GetFirst()-1) >= limit {
			c.Bytes -= int64(r.TurnChunks.Size(c.GetFirst()))
			c.First++
		}
		if c.GetFirst() < c.GetNext() {
			return
		}
		c.Bytes = 0 // Damage of a chunk may have left some.
	}
	excess := head - limit
	if limit > store.DefaultMaxTurns {
		excess -= excess % turnsInChunk
	}
	r.Turns = r.Turns[sizeOfFirst(r.Turns, excess):]
}

// TurnChunk is older turns of a conversation, with their events, that a store keeps as a value of its own.
type TurnChunk struct {
	// Ordinal of the chunk in its conversation. Those of newer chunks are higher.
	Ordinal int64
	// Turns is storev1.Turns in wire form.
	Turns []byte
}

// TurnChunkReader reads the chunks of turns of one conversation.
type TurnChunkReader interface {
	// Size returns the length of TurnChunk.Turns of a chunk; 0 if it is missing.
	Size(ordinal int64) int
	// Turns returns TurnChunk.Turns of a chunk. If it is missing or damaged, the error is store.ErrCorrupt.
	Turns(ordinal int64) ([]byte, error)
}

// DivideTurns moves the oldest turns into chunks if maxTurns is above store.DefaultMaxTurns, so that a write of the
// conversation need not write them again. The store calls DivideTurns before Marshal. It stores the returned chunks,
// and removes the chunks before Header.TurnChunks.First.
func (r *Record) DivideTurns() (put []TurnChunk) {
	if r.maxTurns() <= store.DefaultMaxTurns {
		return nil
	}
	head := countItems(r.Turns, turnsField)
	if head <= maxHeadTurns {
		return nil
	}
	for ; head >= maxHeadTurns; head -= turnsInChunk {
		n := sizeOfFirst(r.Turns, turnsInChunk)
		turns := r.Turns[:n:n]
		r.Turns = r.Turns[n:]
		if r.Header.GetTurnChunks() == nil {
			r.Header.TurnChunks = new(storev1.TurnChunks)
		}
		c := r.Header.GetTurnChunks()
		put = append(put, TurnChunk{Ordinal: c.GetNext(), Turns: turns})
		c.Next, c.Bytes = c.GetNext()+1, c.GetBytes()+int64(n)
		if len(TurnIDs(turns)) > 0 { // An earlier version, which did not index turns, may have written them.
			r.Header.TurnsIndexed = true
		}
	}
	return put
}

// MustDivideTurns reports whether the record has so many turns that a store must divide it before the next one.
func (r *Record) MustDivideTurns() bool {
	return r.maxTurns() > store.DefaultMaxTurns && countItems(r.Turns, turnsField) >= MaxUndividedTurns
}

// findTurn returns the turn with that id if it is in the value of the conversation, or nil.
func (r *Record) findTurn(id string) *parleyv1.Turn {
	item, t := findItem(r.Turns, turnsField, id), new(parleyv1.Turn)
	if item == nil || proto.Unmarshal(item, t) != nil {
		return nil
	}
	return t
}

// Events returns the stored events of a turn that is not in a chunk, or nil.
func (r *Record) Events(turnID string) *storev1.TurnEvents {
	item, events := findItem(r.Turns, eventsField, turnID), new(storev1.TurnEvents)
	if item == nil || proto.Unmarshal(item, events) != nil {
		return nil
	}
	return events
}

// AllTurns decodes the stored turns that are not in chunks, and their events, oldest first.
func (r *Record) AllTurns() (*storev1.Turns, error) { return unmarshalTurns(r.Turns) }

func unmarshalTurns(list []byte) (*storev1.Turns, error) {
	turns := new(storev1.Turns)
	if err := proto.Unmarshal(list, turns); err != nil {
		return nil, fmt.Errorf("%w: turns: %w", store.ErrCorrupt, err)
	}
	return turns, nil
}

// TurnID is the id of a turn that stores index: a UUID of version 7. The zero value is no id.
type TurnID [16]byte

// ParseTurnID returns the id of a turn in binary form. ok is false, and the id zero, unless it is a UUID of version 7
// in its canonical form.
func ParseTurnID[T ~string | ~[]byte](text T) (id TurnID, ok bool) {
	if len(text) != 36 || text[14] != '7' {
		return TurnID{}, false
	}
	at := 0
	for i := range len(text) {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if text[i] != '-' {
				return TurnID{}, false
			}
			continue
		}
		digit := text[i] - '0'
		if digit > 9 {
			if digit = text[i] - 'a' + 10; digit < 10 || digit > 15 {
				return TurnID{}, false
			}
		}
		id[at/2] |= digit << (4 * (1 - at%2))
		at++
	}
	if id[8]&0xc0 != 0x80 {
		return TurnID{}, false
	}
	return id, true
}

// String returns the canonical form of the id.
func (i TurnID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", i[:4], i[4:6], i[6:8], i[8:10], i[10:])
}

// TurnIDs returns the ids in storev1.Turns in wire form that stores index, in the order of the turns.
func TurnIDs(turns []byte) (ids []TurnID) {
	for item := range itemsOf(turns, turnsField) {
		if id, ok := ParseTurnID(itemID(item)); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// TurnsWithIDs returns storev1.Turns in wire form. Its turns have these ids and no other fields.
func TurnsWithIDs(ids []TurnID) (turns []byte) {
	for _, id := range ids {
		turns = appendItem(turns, turnsField, appendItem(nil, idField, []byte(id.String())))
	}
	return turns
}

// IndexedTurns returns the ids of the turns in a value of Record.Marshal that an index of turns contains. It does not
// check the value: of a damaged one, it returns what it can read.
func IndexedTurns(value []byte) []TurnID {
	header, turns, ok := turnsIn(value)
	if !ok {
		return nil
	}
	for number, whole := range fields(header) {
		if number == indexedField && whole[len(whole)-1] != 0 {
			return TurnIDs(turns)
		}
	}
	return nil
}

// IndexChange is how an index of turns changes when a conversation is written.
type IndexChange struct {
	// Added and Dropped are the ids of the turns.
	Added, Dropped []TurnID
}

// ChangeOfIndex returns how an index of turns changes when r is written. indexed are the IndexedTurns of the value of
// the conversation before the write, none if the conversation is new. put is the result of r.DivideTurns. The turns in
// dropped chunks are not in the result: the caller reads their ids from these chunks.
func (r *Record) ChangeOfIndex(indexed []TurnID, put []TurnChunk) (c IndexChange) {
	if !r.Header.GetTurnsIndexed() {
		return c
	}
	var after []TurnID
	for _, chunk := range put {
		after = append(after, TurnIDs(chunk.Turns)...)
	}
	after = append(after, TurnIDs(r.Turns)...)
	if slices.Equal(indexed, after) {
		return c
	}
	had := make(map[TurnID]bool, len(indexed))
	for _, id := range indexed {
		had[id] = true
	}
	for _, id := range after {
		if !had[id] {
			c.Added = append(c.Added, id)
		}
		delete(had, id)
	}
	for _, id := range indexed {
		if had[id] {
			c.Dropped = append(c.Dropped, id)
		}
	}
	return c
}
