package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/btree"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// turnEntry leads from the id of a turn to its conversation.
type turnEntry struct {
	id           record.TurnID
	conversation string
}

func newTurnIndex() *btree.BTreeG[turnEntry] {
	return btree.NewG(degree, func(a, b turnEntry) bool { return bytes.Compare(a.id[:], b.id[:]) < 0 })
}

// turnChunks are the chunks of turns of a conversation, see record.TurnChunk. The zero value has none. They never
// change: a write makes others, which may share their memory.
type turnChunks struct {
	first int64
	lists [][]byte
}

var _ record.TurnChunkReader = turnChunks{}

// Size implements record.TurnChunkReader.
func (c turnChunks) Size(ordinal int64) int {
	list, _ := c.Turns(ordinal)
	return len(list)
}

// Turns implements record.TurnChunkReader.
func (c turnChunks) Turns(ordinal int64) ([]byte, error) {
	if i := ordinal - c.first; i >= 0 && i < int64(len(c.lists)) {
		return c.lists[i], nil
	}
	return nil, fmt.Errorf("%w: chunk %d of turns is missing", store.ErrCorrupt, ordinal)
}

// with returns the chunks after a write of a record, and the turns of the chunks that the write drops. put are the new
// chunks. The result may share memory with c and with later results of the same c, so only the last of them is valid.
func (c turnChunks) with(r *record.Record, put []record.TurnChunk) (after turnChunks, dropped [][]byte) {
	for _, p := range put {
		c.lists = append(c.lists, bytes.Clone(p.Turns)) // Those in put have the memory of the earlier value.
	}
	n := min(r.Header.GetTurnChunks().GetFirst()-c.first, int64(len(c.lists)))
	return turnChunks{first: c.first + n, lists: c.lists[n:]}, c.lists[:n]
}

// setTurns sets the chunks of turns of a new entry and how it changes the index of turns. old is the entry that it
// replaces, nil if it replaces none.
func (e *entry) setTurns(r *record.Record, old *entry, put []record.TurnChunk) {
	var before []byte
	if old != nil {
		before, e.turnChunks = old.head, old.turnChunks
	}
	var dropped [][]byte
	e.turnChunks, dropped = e.turnChunks.with(r, put)
	e.turnChange = r.ChangeOfIndex(record.IndexedTurns(before), put)
	if r.Header.GetTurnsIndexed() {
		for _, list := range dropped {
			e.turnChange.Dropped = append(e.turnChange.Dropped, record.TurnIDs(list)...)
		}
	}
}

// indexTurns applies the change of an entry that was added to the index of turns.
func (t *tenant) indexTurns(e *entry) {
	for _, id := range e.turnChange.Dropped {
		t.turns.Delete(turnEntry{id: id})
	}
	for _, id := range e.turnChange.Added {
		t.turns.ReplaceOrInsert(turnEntry{id: id, conversation: e.removal.ConversationID})
	}
	e.turnChange = record.IndexChange{}
}

// unindexTurns removes the turns of a conversation from the index of turns.
func (t *tenant) unindexTurns(e *entry) {
	ids := record.IndexedTurns(e.head)
	for _, list := range e.turnChunks.lists {
		ids = append(ids, record.TurnIDs(list)...)
	}
	for _, id := range ids {
		t.turns.Delete(turnEntry{id: id})
	}
}

// FindTurn implements store.Store.
func (s *Store) FindTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	found, err := s.findTurn(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("turn %q: %w", f.TurnID, err)
	}
	return found, nil
}

func (s *Store) findTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	conversation := f.ConversationID
	if conversation == "" {
		var err error
		if conversation, err = s.conversationOf(ctx, f); err != nil {
			return nil, err
		}
	}
	r, err := s.recordWithTurns(ctx, f.Tenant, conversation)
	if err == nil && r == nil {
		err = store.ErrNotFound
		if f.ConversationID == "" {
			err = store.ErrTurnNotFound
		}
	}
	if err != nil {
		return nil, err
	}
	return r.FindTurn(f.TurnID)
}

// conversationOf returns the id of the conversation to which the index leads from the id of a turn, or
// store.ErrTurnNotFound.
func (s *Store) conversationOf(ctx context.Context, f *store.FindTurn) (string, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return "", store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	id, ok := record.ParseTurnID(f.TurnID)
	if t := s.tenants[f.Tenant]; t != nil && ok {
		if e, ok := t.turns.Get(turnEntry{id: id}); ok {
			return e.conversation, nil
		}
	}
	return "", store.ErrTurnNotFound
}

// recordWithTurns returns the head of a conversation; nil if it does not exist or has expired.
func (s *Store) recordWithTurns(ctx context.Context, tenantName, id string) (*record.Record, error) {
	e, ephemeral, err := s.entry(ctx, tenantName, id)
	if err != nil {
		return nil, err
	}
	return e.live(s.options.Now(), ephemeral, record.UnmarshalHead)
}

// ListTurns implements store.Store.
func (s *Store) ListTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	page, err := s.listTurns(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("list turns: %w", err)
	}
	return page, nil
}

func (s *Store) listTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	if l.ConversationID == "" {
		return s.listTenantTurns(ctx, l)
	}
	r, err := s.recordWithTurns(ctx, l.Tenant, l.ConversationID)
	if err == nil && r == nil {
		err = fmt.Errorf("conversation %q: %w", l.ConversationID, store.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return r.ListTurns(l)
}

func (s *Store) listTenantTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	index, err := s.turnIndex(ctx, l)
	if err != nil {
		return nil, err
	}
	before, all, err := record.TurnBefore(l)
	if err != nil {
		return nil, err
	}
	finders, p := map[string]*record.TurnFinder{}, record.NewTurnPager(l)
	visit := func(t turnEntry) bool {
		if !all && t.id == before {
			return true
		}
		if p.IsFull() || err != nil {
			return false
		}
		f, known := finders[t.conversation]
		if !known {
			var r *record.Record
			if r, err = s.recordWithTurns(ctx, l.Tenant, t.conversation); err == nil && r != nil {
				f = record.NewTurnFinder(r)
			}
			finders[t.conversation] = f
		}
		err = errors.Join(err, p.Add(t.id, f))
		return true
	}
	if ended := descend(index, before, all, visit); ended {
		p.End()
	}
	return p.Page(), err
}

// descend visits the entries of an index up to and including an id, or all of them, the newest first, until visit
// returns false. It reports whether visit has returned true for all.
func descend(index *btree.BTreeG[turnEntry], id record.TurnID, all bool, visit func(turnEntry) bool) (ended bool) {
	ended = true
	next := func(t turnEntry) bool {
		ended = visit(t)
		return ended
	}
	if all {
		index.Descend(next)
	} else {
		index.DescendLessOrEqual(turnEntry{id: id}, next)
	}
	return ended
}

// turnIndex returns a copy of the index of a tenant that has all turns of a list.
func (s *Store) turnIndex(ctx context.Context, l *store.ListTurns) (*btree.BTreeG[turnEntry], error) {
	s.mu.Lock() // A read lock is not enough, see all.
	defer s.mu.Unlock()
	if s.closed {
		return nil, store.ErrClosed
	}
	t := s.tenants[l.Tenant]
	switch {
	case t == nil:
		return newTurnIndex(), ctx.Err()
	case record.OnlyRunning(l):
		return t.running.Clone(), ctx.Err()
	}
	return t.turns.Clone(), ctx.Err()
}
