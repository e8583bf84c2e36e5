package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/chunks"
	"github.com/parleyhq/parley/store/boltstore/internal/journal"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
)

// reader reads conversations in one transaction of bbolt, as they are after the operations in the journal.
// The store reads all values of conversations with its methods value and walk. Only package fsck reads
// the values directly.
type reader struct {
	tx                 *bolt.Tx
	conversations, ids *bolt.Bucket
	records, scopes    *bolt.Bucket // nil in a file without records

	turnIDs, turnChunks *bolt.Bucket // nil in a file without indexed turns and without chunks of turns
	transaction         int
	staged              map[string]*overlay.Entry // of the batch that is being decided, by key; nil if there is none
	err                 error                     // overlay.ErrStale if walk ended early, or that of a record
	edits               editsCache
	journaled
}

// journaled is what the journal adds to the file. The zero value adds nothing.
type journaled struct {
	pending overlay.View
	journal *journal.Journal
}

// journaled returns what the journal adds to a transaction that begins later. The caller calls done when
// the transaction has ended.
func (s *Store) journaled() (j journaled, done func()) {
	if s.journal == nil {
		return journaled{}, func() {}
	}
	done = s.journal.Pin() // Before the view: no segment that the view needs is written again.
	return journaled{pending: s.tally.pending.View(), journal: s.journal}, done
}

func newReader(tx *bolt.Tx, j journaled) reader {
	r := reader{
		tx:            tx,
		conversations: tx.Bucket([]byte(layout.ConversationsBucket)), ids: tx.Bucket([]byte(layout.IDsBucket)),
		records: tx.Bucket([]byte(layout.RecordsBucket)), scopes: tx.Bucket([]byte(layout.ScopesBucket)),
		transaction: tx.ID(), journaled: j,
	}
	r.openTurnBuckets(tx)
	return r
}

// parts are the parts of a record that a reader needs.
type parts int

const (
	head  parts = iota // all but data and messages
	sized              // all, perhaps with sizes in place of the messages
	all                // all; messages in chunks are read separately
)

// value returns the value of a conversation in the file, or nil if there is none. It is valid until the
// transaction ends or writes.
func (r *reader) value(tenant string, key layout.InnerKey) []byte {
	return r.conversations.Get(layout.ConversationKey(tenant, key))
}

// chunksOf returns the chunks of a conversation.
func (r *reader) chunksOf(tenant string, key layout.InnerKey) chunks.Set {
	return chunks.Of(r.tx, layout.ConversationKey(tenant, key))
}

// setChunks makes a record with chunks read them.
func (r *reader) setChunks(rec *record.Record, conversation []byte) {
	if rec.Header.GetTurnChunks() != nil {
		rec.TurnChunks = turnChunks{bucket: r.turnChunks, conversation: bytes.Clone(conversation)}
	}
	if rec.Divided() {
		rec.Chunks = chunks.Of(r.tx, bytes.Clone(conversation)) // The copy keeps the key of others off the heap.
	}
}

// decode returns the parts of a conversation whose value in the file is base, its size as record.Record.Size counts it,
// and its entry, which is nil if the file has all its operations. Errors: overlay.ErrStale, store.ErrCorrupt.
func (r *reader) decode(tenant string, key layout.InnerKey, base []byte, p parts) (
	rec *record.Record, size int, e *overlay.Entry, err error,
) {
	conversation := layout.ConversationKey(tenant, key)
	if e, err = r.entry(conversation); err != nil {
		return nil, 0, nil, err
	}
	switch {
	case e == nil && p == head:
		rec, err = record.UnmarshalHead(base)
	case e == nil:
		rec, err = record.Unmarshal(base)
	default:
		if rec, err = r.decodePending(conversation, base, e, p); err != nil {
			size = len(base) + int(e.Counts.Bytes-e.Counts.RecordBytes)
			if inFile, damage := record.Unmarshal(base); damage == nil {
				err, size = fmt.Errorf("%w: %w", errUnreadable, err), size+inFile.InChunkBytes()
			}
			return nil, size, e, err
		}
		if size = e.Size; size == 0 {
			size = rec.Size()
		}
		return rec, size, e, nil
	}
	if err != nil {
		return nil, len(base), nil, err
	}
	r.setChunks(rec, conversation)
	return rec, len(base) + rec.InChunkBytes(), nil, nil
}

// entry returns the entry of a conversation or of the records of a tenant, or nil if the file has all operations. The
// error may be overlay.ErrStale.
func (r *reader) entry(key []byte) (*overlay.Entry, error) {
	if e := r.staged[string(key)]; e != nil {
		return e, nil
	}
	return r.pending.Get(key, r.transaction)
}

// decodePending returns the parts of a conversation after the operations of an entry. If it returns the head only, the
// record has the sizes of its messages.
func (r *reader) decodePending(conversation, base []byte, e *overlay.Entry, p parts) (*record.Record, error) {
	if e.Head == nil {
		return r.replay(conversation, base, e)
	}
	rec, err := record.Unmarshal(e.Head)
	if err != nil {
		return nil, err
	}
	r.setChunks(rec, conversation)
	rec.Sizes = new(e.Sizes)
	if p != all {
		return rec, nil
	}
	if rec.Messages, err = r.messages(base, e, rec.TailBytes()); err != nil {
		return nil, err
	}
	rec.Sizes = nil
	return rec, nil
}

// replay applies the operations of an entry to the record in the file.
func (r *reader) replay(conversation, base []byte, e *overlay.Entry) (*record.Record, error) {
	rec, err := record.Unmarshal(base)
	if err != nil {
		return nil, err
	}
	r.setChunks(rec, conversation)
	for _, o := range e.Operations {
		if o.Index <= rec.Header.GetApplied() {
			continue
		}
		op, err := r.operation(o)
		if err == nil {
			err = record.Replay(rec, o.Index, op)
		}
		if err != nil {
			return nil, err
		}
	}
	return rec, nil
}

// messages returns the retained messages that are not in chunks: of those in the value and in the operations,
// the newest that have size bytes.
func (r *reader) messages(base []byte, e *overlay.Entry, size int) (store.Frames, error) {
	inFile, applied, err := record.MessagesIn(base)
	if err != nil {
		return nil, err
	}
	frames, missing := make(store.Frames, size), size // The newest are read first: earlier ones may not be retained.
	add := func(f store.Frames) {
		n := min(len(f), missing)
		missing -= n
		copy(frames[missing:], f[len(f)-n:])
	}
	buffer := make([]byte, 4<<10) // Most operations fit.
	for _, o := range slices.Backward(e.Operations) {
		if missing == 0 || o.Index <= applied {
			break
		}
		op, _, err := r.operationInfo(o, buffer)
		if err != nil {
			return nil, err
		}
		add(op.Messages)
	}
	add(inFile)
	if missing > 0 {
		return nil, fmt.Errorf("%w: file and journal lack %d bytes of its messages", store.ErrCorrupt, missing)
	}
	return frames, nil
}

// errUnreadable means that the file has a conversation in a sound state, to which its operations in the journal cannot
// be applied. The error is also store.ErrCorrupt.
var errUnreadable = errors.New("the journal cannot be read")

// operation reads an operation from the journal.
func (r *reader) operation(o overlay.Operation) (*storev1.Operation, error) {
	b, err := r.journal.Read(o.Place, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	op := new(storev1.Operation)
	if err := proto.Unmarshal(b, op); err != nil {
		return nil, fmt.Errorf("%w: operation %d of the journal: %w", store.ErrCorrupt, o.Index, err)
	}
	return op, nil
}

// direction is the order in which walk yields conversations.
type direction bool

const (
	ascending  direction = true  // oldest first
	descending direction = false // newest first
)

// walk yields the inner keys and values of a tenant's conversations. Only the head of a value is up to date: its
// messages are those in the file, or there are none. Ascending, walk yields those from bound on, descending those
// below bound. If bound is nil, it yields all. It skips keys of the wrong length. Keys and values are valid until the
// transaction ends or writes. If an operation in the journal is damaged, the value is empty. If the transaction is
// too old, walk ends and sets r.err to overlay.ErrStale.
func (r *reader) walk(tenant string, bound []byte, d direction) iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		prefix := layout.TenantKey(tenant)
		c := r.conversations.Cursor()
		seek, next := seekFrom, c.Next
		if d == descending {
			seek, next = seekBelow, c.Prev
		}
		k, v := seek(c, prefix, bound)
		for ; bytes.HasPrefix(k, prefix); k, v = next() {
			if len(k) != len(prefix)+record.KeySize {
				continue
			}
			v = r.headValue(k, v)
			if r.err != nil || !yield(k[len(prefix):], v) {
				return
			}
		}
	}
}

// headValue returns the value of a conversation for walk. base is that in the file.
func (r *reader) headValue(key, base []byte) []byte {
	e, err := r.pending.Get(key, r.transaction)
	switch {
	case e == nil:
		return base
	case e.Head != nil:
		return e.Head
	case err != nil:
		r.err = err
		return nil
	}
	rec, err := r.replay(key, base, e)
	if err != nil {
		return nil
	}
	value, err := rec.MarshalHead()
	if err != nil {
		return nil
	}
	return value
}

// seekFrom moves a cursor to the first key from prefix and bound on.
func seekFrom(c *bolt.Cursor, prefix, bound []byte) (key, value []byte) {
	return c.Seek(append(bytes.Clone(prefix), bound...))
}

// seekBelow moves a cursor to the last key with the prefix that is below prefix and bound. If bound is
// nil, it moves to the last key with the prefix.
func seekBelow(c *bolt.Cursor, prefix, bound []byte) (key, value []byte) {
	if bound == nil {
		bound = bytes.Repeat([]byte{0xff}, record.KeySize+1)
	}
	if k, _ := c.Seek(append(bytes.Clone(prefix), bound...)); k == nil {
		return c.Last()
	}
	return c.Prev()
}

// place returns the position of the conversation with that id. The bool is false if the id has no entry
// in ids.
func (r *reader) place(tenant, id string) (p layout.Place, ok bool, err error) {
	entry := layout.IDKey(tenant, id)
	value := r.ids.Get(entry)
	if value == nil {
		return p, false, nil
	}
	p, err = layout.DecodePlace(entry, value)
	return p, true, err
}

// found is a conversation that was read. The zero value means that no conversation was found.
type found struct {
	exists  bool
	place   layout.Place
	record  *record.Record // nil if it is damaged
	size    int            // see record.Record.Size
	pending *overlay.Entry // nil if the file has all operations
}

// find returns the conversation with that id, whether it has expired or not, or store.ErrNotFound. With
// store.ErrCorrupt it returns the place and size if these are certainly those of the conversation, and
// otherwise the zero value.
func (r *reader) find(tenant, id string, parts parts) (found, error) {
	p, ok, err := r.place(tenant, id)
	if !ok {
		return found{}, store.ErrNotFound
	}
	if err != nil {
		return found{}, err
	}
	value := r.value(tenant, p.Key)
	if value == nil {
		return found{}, fmt.Errorf("%w: its id has no record", store.ErrCorrupt)
	}
	rec, size, e, err := r.decode(tenant, p.Key, value, parts)
	if err != nil {
		return found{exists: true, place: p, size: size, pending: e}, err
	}
	if other := rec.Conversation().GetId(); other != id {
		return found{}, fmt.Errorf("%w: its id leads to conversation %q", store.ErrCorrupt, other)
	}
	return found{exists: true, place: p, record: rec, size: size, pending: e}, nil
}

// findAt returns the head of the conversation with that inner key, or store.ErrNotFound.
func (r *reader) findAt(tenant string, key layout.InnerKey) (found, error) {
	value := r.value(tenant, key)
	if value == nil {
		return found{}, store.ErrNotFound
	}
	rec, size, e, err := r.decode(tenant, key, value, head)
	if err != nil {
		return found{}, err
	}
	id := rec.Conversation().GetId()
	p, ok, err := r.place(tenant, id)
	if !ok || err != nil || p.Key != key {
		return found{}, fmt.Errorf("%w: conversation %q is not where its id leads", store.ErrCorrupt, id)
	}
	return found{exists: true, place: p, record: rec, size: size, pending: e}, nil
}
