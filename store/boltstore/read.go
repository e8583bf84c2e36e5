package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"os"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// Read implements store.Store. It decodes inside the transaction: that takes microseconds,
// and less time than to copy messages that nobody asked for.
func (s *Store) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	decode := record.Unmarshal
	if r.Newest == 0 {
		decode = record.UnmarshalHead
	}
	now := s.options.Now()
	var snapshot *store.Snapshot
	err := s.view(ctx, func(tx *bolt.Tx) error {
		c, err := find(tx, r.Tenant, r.ConversationID, decode)
		if err != nil {
			return err
		}
		if c.Expired(now) {
			return store.ErrNotFound
		}
		snapshot, err = record.Read(c, r, now)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", r.ConversationID, err)
	}
	return snapshot, nil
}

// find returns the conversation with that id, expired or not, or store.ErrNotFound.
func find(tx *bolt.Tx, tenant, id string, decode func([]byte) (*record.Record, error)) (*record.Record, error) {
	entry := idKey(tenant, id)
	b := tx.Bucket([]byte(idsBucket)).Get(entry)
	if b == nil {
		return nil, store.ErrNotFound
	}
	p, err := decodePlace(entry, b)
	if err != nil {
		return nil, err
	}
	r, err := decode(tx.Bucket([]byte(conversationsBucket)).Get(conversationKey(tenant, p.key)))
	if err != nil {
		return nil, err
	}
	return r, checkID(r, id)
}

// checkID finds entries of ids that lead to another conversation.
func checkID(r *record.Record, id string) error {
	if other := r.Conversation().GetId(); other != id {
		return fmt.Errorf("%w: its id leads to conversation %q", store.ErrCorrupt, other)
	}
	return nil
}

// List implements store.Store. The page is built inside the transaction: the headers that it
// looks at, 10,000 at most, take tens of milliseconds to decode and more memory to copy.
func (s *Store) List(ctx context.Context, l *store.List) (*store.Page, error) {
	total, now := s.tally.of(l.Tenant).conversations, s.options.Now()
	var page *store.Page
	err := s.view(ctx, func(tx *bolt.Tx) (err error) {
		page, err = record.BuildPage(l, total, now, newest(tx, l.Tenant))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list conversations: %w", err)
	}
	return page, nil
}

// newest yields a tenant's conversations, see record.Newest.
func newest(tx *bolt.Tx, tenant string) record.Newest {
	return func(before []byte) iter.Seq2[[]byte, []byte] {
		return func(yield func([]byte, []byte) bool) {
			prefix := tenantKey(tenant)
			end := append(bytes.Clone(prefix), bytes.Repeat([]byte{0xff}, record.KeySize+1)...)
			if before != nil {
				end = append(bytes.Clone(prefix), before...)
			}
			c := tx.Bucket([]byte(conversationsBucket)).Cursor()
			var k, v []byte
			if next, _ := c.Seek(end); next == nil {
				k, v = c.Last()
			} else {
				k, v = c.Prev()
			}
			for ; bytes.HasPrefix(k, prefix); k, v = c.Prev() {
				if len(k) == len(prefix)+record.KeySize && !yield(k[len(prefix):], v) {
					return
				}
			}
		}
	}
}

// abandoned is a turn that ran when the file was last written by another process.
type abandoned struct {
	tenant, id, turn string
}

// running returns the turns that run, as the conversations say. One whose conversation is
// damaged cannot be ended, nor can anything else happen to it.
func running(tx *bolt.Tx) []abandoned {
	var turns []abandoned
	c := tx.Bucket([]byte(turnsBucket)).Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		tenant, id, ok := cutTenant(k)
		if !ok {
			continue
		}
		if r, err := find(tx, tenant, string(id), record.UnmarshalHead); err == nil && r.Running() {
			turns = append(turns, abandoned{tenant, string(id), r.Conversation().GetActiveTurnId()})
		}
	}
	return turns
}

// Abandoned implements store.Store. A turn whose saved answer is damaged comes without it,
// since it has to be ended all the same.
func (s *Store) Abandoned(ctx context.Context) ([]store.Progress, error) {
	var turns []store.Progress
	var values [][]byte
	err := s.view(ctx, func(tx *bolt.Tx) error {
		for _, a := range s.abandoned {
			r, err := find(tx, a.tenant, a.id, record.UnmarshalHead)
			if err == nil && r.Conversation().GetActiveTurnId() == a.turn {
				turns = append(turns, store.Progress{Tenant: a.tenant, ConversationID: a.id, TurnID: a.turn})
				values = append(values, bytes.Clone(tx.Bucket([]byte(turnsBucket)).Get(idKey(a.tenant, a.id))))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("abandoned turns: %w", err)
	}
	for i, value := range values {
		if p, err := record.UnmarshalProgress(value); err == nil && p.TurnID == turns[i].TurnID {
			turns[i].Messages = p.Messages
		}
	}
	return turns, nil
}

// Stats implements store.Store.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	var mapped int64
	err := s.view(ctx, func(tx *bolt.Tx) error {
		mapped = tx.Size()
		return nil
	})
	if err != nil {
		return store.Stats{}, fmt.Errorf("stats: %w", err)
	}
	file, err := os.Stat(s.path)
	if err != nil {
		return store.Stats{}, fmt.Errorf("stats: %w", err)
	}
	total, expired, evicted := s.tally.all()
	pages := s.db.Stats()
	free := int64(pages.FreePageN+pages.PendingPageN) * s.pageSize
	return store.Stats{
		Conversations: total.conversations, Messages: total.messages, Bytes: total.bytes,
		FileBytes: file.Size(), FileBytesInUse: max(0, mapped-free),
		Expired: expired, Evicted: evicted,
	}, nil
}
