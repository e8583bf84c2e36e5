package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/record"
)

// FindTurn implements store.Store.
func (s *Store) FindTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	var found *store.FoundTurn
	var err error
	if f.ConversationID != "" {
		err = s.readTurns(ctx, f.Tenant, func() func(*turnReader) error {
			return func(r *turnReader) error {
				c, err := r.conversation(f.ConversationID)
				if err == nil {
					found, err = c.FindTurn(f.TurnID)
				}
				return err
			}
		})
	} else if found, err = s.findTurn(ctx, f); errors.Is(err, store.ErrNotFound) {
		err = store.ErrTurnNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("turn %q: %w", f.TurnID, err)
	}
	return found, nil
}

// findTurn finds a turn by its id alone. The error may be store.ErrNotFound.
func (s *Store) findTurn(ctx context.Context, f *store.FindTurn) (found *store.FoundTurn, err error) {
	id, ok := record.ParseTurnID(f.TurnID)
	if !ok {
		// The empty transaction returns the error of a closed store or an ended context.
		return nil, cmp.Or(s.view(ctx, func(*bolt.Tx) error { return nil }), store.ErrTurnNotFound)
	}
	err = s.readTurns(ctx, f.Tenant, func() func(*turnReader) error {
		turn, pending := s.tally.pending.Turn(f.Tenant, id)
		return func(r *turnReader) error {
			if key := layout.TurnKey(f.Tenant, id); !pending {
				value := r.entryOfTurn(key)
				if value == nil {
					return store.ErrTurnNotFound
				}
				var err error
				if turn.Conversation, err = layout.DecodeTurn(key, value); err != nil {
					return err
				}
			}
			c, err := r.conversationAt(turn.Conversation)
			if err == nil {
				found, err = c.FindTurn(f.TurnID)
			}
			return err
		}
	})
	return found, err
}

// ListTurns implements store.Store.
func (s *Store) ListTurns(ctx context.Context, l *store.ListTurns) (page *store.TurnPage, err error) {
	switch {
	case l.ConversationID != "":
		err = s.readTurns(ctx, l.Tenant, func() func(*turnReader) error {
			return func(r *turnReader) error {
				c, err := r.conversation(l.ConversationID)
				if err == nil {
					page, err = c.ListTurns(l)
				}
				return err
			}
		})
	case record.OnlyRunning(l):
		page, err = s.listRunningTurns(ctx, l)
	default:
		page, err = s.listTurns(ctx, l)
	}
	if err != nil {
		return nil, fmt.Errorf("list turns: %w", err)
	}
	return page, nil
}

// listTurns returns a page of the turns of a tenant: those that the index and the journal have.
func (s *Store) listTurns(ctx context.Context, l *store.ListTurns) (page *store.TurnPage, err error) {
	before, err := turnBefore(l)
	if err != nil {
		return nil, err
	}
	err = s.readTurns(ctx, l.Tenant, func() func(*turnReader) error {
		// One more than a page checks: the additional one shows that there is a next page.
		pending := s.tally.pending.Turns(l.Tenant, before, false, record.MaxCheckedTurns+1)
		return func(r *turnReader) error {
			p := record.NewTurnPager(l)
			for next := range r.merged(before, pending) {
				if p.IsFull() {
					page = p.Page()
					return nil
				}
				if err := r.add(p, next); err != nil {
					return err
				}
			}
			p.End()
			page = p.Page()
			return nil
		}
	})
	return page, err
}

// listRunningTurns returns a page of the running turns of a tenant. It reads the ids of all of them, which are few, and
// not the index.
func (s *Store) listRunningTurns(ctx context.Context, l *store.ListTurns) (page *store.TurnPage, err error) {
	before, err := turnBefore(l)
	if err != nil {
		return nil, err
	}
	err = s.readTurns(ctx, l.Tenant, func() func(*turnReader) error {
		pending := s.tally.pending.Turns(l.Tenant, before, true, math.MaxInt)
		return func(r *turnReader) error {
			candidates := r.runningInFile(before)
			for _, t := range pending {
				candidates = append(candidates, candidate{id: t.ID, key: t.Conversation})
			}
			slices.SortFunc(candidates, func(a, b candidate) int { return bytes.Compare(b.id[:], a.id[:]) })
			candidates = slices.CompactFunc(candidates, func(a, b candidate) bool { return a.id == b.id })
			p := record.NewTurnPager(l)
			for _, c := range candidates {
				if p.IsFull() {
					page = p.Page()
					return nil
				}
				if err := r.add(p, c); err != nil {
					return err
				}
			}
			p.End()
			page = p.Page()
			return nil
		}
	})
	return page, err
}

// turnBefore returns the id before which a page of a list of a tenant begins, or nil.
func turnBefore(l *store.ListTurns) (*record.TurnID, error) {
	before, all, err := record.TurnBefore(l)
	if err != nil || all {
		return nil, err
	}
	return &before, nil
}

// readTurns calls begin, begins a transaction, and calls the result of begin in it. begin reads the turns of the
// journal. If a fold writes them to the file between the two calls, the transaction has them, too. If the transaction
// is too old for what it reads, readTurns repeats all of this.
func (s *Store) readTurns(ctx context.Context, tenant string, begin func() func(*turnReader) error) error {
	mayHaveEphemeral := s.tally.mayHaveEphemeral()
	for {
		read := begin()
		err := s.readOnce(ctx, func(tx *bolt.Tx, r *reader) error {
			turns := &turnReader{
				reader: r, tenant: tenant, store: s, finders: map[candidate]*record.TurnFinder{},
				states: readStates(tx, s.tally.epoch, mayHaveEphemeral, tenant),
			}
			return read(turns)
		})
		if !errors.Is(err, overlay.ErrStale) {
			return err
		}
	}
}

// turnReader reads turns of a tenant in one transaction.
type turnReader struct {
	*reader

	tenant  string
	store   *Store
	states  record.EphemeralStates
	finders map[candidate]*record.TurnFinder // by conversation, without turn; nil for those that cannot be read
}

// candidate is a turn that may be kept, with the inner key or the id of its conversation.
type candidate struct {
	id           record.TurnID
	key          layout.InnerKey
	conversation string // empty if key is known
}

// conversation returns the head of a conversation by its id, or store.ErrNotFound if it does not exist or has expired.
func (r *turnReader) conversation(id string) (*record.Record, error) {
	return r.live(r.find(r.tenant, id, head))
}

// conversationAt is conversation by an inner key.
func (r *turnReader) conversationAt(key layout.InnerKey) (*record.Record, error) {
	return r.live(r.findAt(r.tenant, key))
}

func (r *turnReader) live(f found, err error) (*record.Record, error) {
	if err == nil && f.record.Expired(r.store.options.Now(), r.states.Of(f.record.Conversation().GetId())) {
		err = store.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return f.record, nil
}

// add adds a turn to a page. It skips turns that are not kept, and those of damaged conversations. The error is
// overlay.ErrStale.
func (r *turnReader) add(p *record.TurnPager, c candidate) error {
	of := candidate{key: c.key, conversation: c.conversation}
	f, known := r.finders[of]
	if !known {
		var rec *record.Record
		var err error
		if c.conversation != "" {
			rec, err = r.conversation(c.conversation)
		} else {
			rec, err = r.conversationAt(c.key)
		}
		if errors.Is(err, overlay.ErrStale) {
			return err
		}
		if err == nil {
			f = record.NewTurnFinder(rec)
		}
		r.finders[of] = f
	}
	if err := p.Add(c.id, f); err != nil {
		r.store.corruptCalls.Add(1)
	}
	return nil
}

// entryOfTurn returns the value of an entry in turnids, or nil.
func (r *turnReader) entryOfTurn(key []byte) []byte {
	if r.turnIDs == nil {
		return nil
	}
	return r.turnIDs.Get(key)
}

// merged yields the turns of the index before an id and the pending turns, the newest first, each once.
func (r *turnReader) merged(before *record.TurnID, pending []overlay.Turn) func(yield func(candidate) bool) {
	return func(yield func(candidate) bool) {
		for c := range r.indexed(before) {
			for len(pending) > 0 && bytes.Compare(pending[0].ID[:], c.id[:]) >= 0 {
				next := pending[0]
				pending = pending[1:]
				if next.ID != c.id && !yield(candidate{id: next.ID, key: next.Conversation}) {
					return
				}
			}
			if !yield(c) {
				return
			}
		}
		for _, next := range pending {
			if !yield(candidate{id: next.ID, key: next.Conversation}) {
				return
			}
		}
	}
}

// indexed yields the turns of the index before an id, the newest first. It skips damaged entries.
func (r *turnReader) indexed(before *record.TurnID) func(yield func(candidate) bool) {
	return func(yield func(candidate) bool) {
		if r.turnIDs == nil {
			return
		}
		prefix := layout.TenantKey(r.tenant)
		bound := bytes.Repeat([]byte{0xff}, len(record.TurnID{})+1)
		if before != nil {
			bound = before[:]
		}
		c := r.turnIDs.Cursor()
		for k, v := seekBelow(c, prefix, bound); bytes.HasPrefix(k, prefix); k, v = c.Prev() {
			if len(k) != len(prefix)+len(record.TurnID{}) {
				continue
			}
			key, err := layout.DecodeTurn(k, v)
			if err == nil && !yield(candidate{id: record.TurnID(k[len(prefix):]), key: key}) {
				return
			}
		}
	}
}

// runningInFile returns the running turns before an id that the file has, or all if before is nil.
func (r *turnReader) runningInFile(before *record.TurnID) (all []candidate) {
	prefix, none := layout.TenantKey(r.tenant), record.TurnID{}
	c := r.tx.Bucket([]byte(layout.TurnsBucket)).Cursor()
	for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, v = c.Next() {
		id := record.ProgressTurn(v)
		if id != none && (before == nil || bytes.Compare(id[:], before[:]) < 0) {
			all = append(all, candidate{id: id, conversation: string(k[len(prefix):])})
		}
	}
	return all
}
