package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/cache"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// Read implements store.Store. If the cache has all messages that it needs, Read needs no transaction, unless some ids
// are ephemeral. Otherwise it decodes inside the transaction: that takes microseconds, less than copying messages that
// the caller does not need.
func (s *Store) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	now, key := s.options.Now(), string(layout.IDKey(r.Tenant, r.ConversationID))
	var snapshot *store.Snapshot
	ephemeral, err := s.ephemeralState(ctx, r.Tenant, r.ConversationID)
	if err == nil {
		snapshot, err = s.readConversation(ctx, r, key, now, ephemeral)
	}
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", r.ConversationID, err)
	}
	return snapshot, nil
}

// readConversation returns the result of a read. key is the conversation's key in ids, ephemeral the state of its id.
func (s *Store) readConversation(ctx context.Context, r *store.Read, key string, now time.Time,
	ephemeral record.Ephemeral,
) (*store.Snapshot, error) {
	if s.tally.versions.unchanged(key, r.Known, now, ephemeral) {
		return &store.Snapshot{Unchanged: true}, nil
	}
	if state, ok := s.tally.cache.Get(key); ok {
		rec, err := record.UnmarshalHead(state.Head)
		if err != nil {
			return nil, err
		}
		rec.Messages = state.Messages
		if !rec.NeedsChunks(r) && (len(r.RecordPrefixes) == 0 || rec.RecordCounts().Records == 0) {
			return readLive(rec, rec.Tail(r), r, now, ephemeral)
		}
	}
	var fill *cache.Fill
	if r.Shared {
		fill = s.tally.cache.Fill(key)
		defer fill.Drop()
	}
	needed := all
	if r.Newest == 0 && fill == nil {
		needed = head
	}
	var snapshot *store.Snapshot
	err := s.read(ctx, func(_ *bolt.Tx, from *reader) error {
		f, err := from.find(r.Tenant, r.ConversationID, needed)
		if err != nil {
			return err
		}
		if r.Shared { // record.Read does not copy them, and they must outlive the transaction.
			if f.pending == nil || f.pending.Head == nil { // Otherwise they were joined in memory of their own.
				f.record.Messages = slices.Clone(f.record.Messages)
			}
			if err := fillCache(fill, f); err != nil {
				return err
			}
		}
		live, part := r, f.record.Tail(r)
		if f.record.NeedsChunks(r) {
			if part, err = from.chunksOf(r.Tenant, f.place.Key).Part(f.record, r); err != nil {
				return err
			}
			shared := *r
			shared.Shared, live = true, &shared // They are in new memory.
		}
		if snapshot, err = readLive(f.record, part, live, now, ephemeral); err != nil || snapshot.Unchanged {
			return err
		}
		if len(r.RecordPrefixes) > 0 {
			of := conversationScope(r.Tenant, f.place.Key, f.pending, f.record.RecordCounts())
			snapshot.Records, snapshot.MoreRecords, err = records.WithPrefixes(
				r.RecordPrefixes, r.ConversationID, from.ascend(of))
		}
		return cmp.Or(from.err, err)
	})
	return snapshot, err
}

// fillCache ends a fill with a conversation that was read with all its parts.
func fillCache(fill *cache.Fill, f found) (err error) {
	if fill == nil {
		return nil
	}
	var head []byte
	if f.pending != nil {
		head = f.pending.Head
	}
	if head == nil {
		if head, err = f.record.MarshalHead(); err != nil {
			return err
		}
	}
	fill.Put(cache.State{Head: head, Messages: f.record.Messages})
	return nil
}

// readLive returns the result of a read of a conversation, or a store.ExpiredError if it has expired.
func readLive(
	rec *record.Record, part record.Part, r *store.Read, now time.Time, ephemeral record.Ephemeral,
) (*store.Snapshot, error) {
	if err := ephemeral.NotFound(now, rec.ExpireTime(), rec.Running()); err != nil {
		return nil, err
	}
	return record.Read(rec, part, r, now)
}

// List implements store.Store. It builds the page inside the transaction: it reads at most 10,000
// headers, which take tens of milliseconds to decode and would take more memory to copy.
func (s *Store) List(ctx context.Context, l *store.List) (*store.Page, error) {
	total, now, mayHaveEphemeral := s.tally.of(l.Tenant).Conversations, s.options.Now(), s.tally.mayHaveEphemeral()
	var page *store.Page
	err := s.read(ctx, func(tx *bolt.Tx, r *reader) (err error) {
		page, err = record.BuildPage(ctx, l, total, 1, now, r.newest(l.Tenant), r.oldest(l.Tenant),
			readStates(tx, s.tally.epoch, mayHaveEphemeral, l.Tenant))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list conversations: %w", err)
	}
	return page, nil
}

// newest yields a tenant's conversations, the newest first, see record.Newest.
func (r *reader) newest(tenant string) record.Newest {
	return func(before []byte) iter.Seq2[[]byte, []byte] { return r.walk(tenant, before, descending) }
}

// oldest yields a tenant's conversations, the oldest first, see record.Oldest.
func (r *reader) oldest(tenant string) record.Oldest {
	return func(after []byte) iter.Seq2[[]byte, []byte] {
		if after == nil {
			return r.walk(tenant, nil, ascending)
		}
		return r.walk(tenant, append(bytes.Clone(after), 0), ascending) // the least key after it
	}
}

// abandonedTurn is a turn that ran when another process last wrote to the file.
type abandonedTurn struct {
	tenant, id, turn string
}

// cursor returns the position at which Abandoned continues after the turn.
func (a abandonedTurn) cursor() string { return string(layout.IDKey(a.tenant, a.id)) }

// progress returns the stored progress of the turn; r is its conversation, saved its entry in
// turns.
func (a abandonedTurn) progress(r *record.Record, saved []byte) store.Progress {
	p := store.Progress{Tenant: a.tenant, ConversationID: a.id, TurnID: a.turn}
	if s, err := record.UnmarshalProgress(saved); err == nil && s.TurnID == a.turn {
		p.Messages, p.Events = s.Messages, s.Events
	}
	if p.Events == nil {
		p.Events = r.Events(a.turn)
	}
	return p
}

// runningTurns returns the running turns according to the conversations. It skips a turn whose
// conversation is damaged, because no operation can end that turn. others are the keys in ids of conversations
// that may have a running turn without an entry in turns.
func runningTurns(tx *bolt.Tx, g *boltfile.PanicGuard, conversations reader, others []string) []abandonedTurn {
	var turns []abandonedTurn
	c := tx.Bucket([]byte(layout.TurnsBucket)).Cursor()
	keys := slices.Clone(others)
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		keys = append(keys, string(k))
	}
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		tenant, id, ok := layout.CutTenant([]byte(k))
		if !ok {
			continue
		}
		_ = g.Do(func() error {
			if f, err := conversations.find(tenant, string(id), head); err == nil && f.record.Running() {
				turns = append(turns, abandonedTurn{tenant, string(id), f.record.Conversation().GetActiveTurnId()})
			}
			return nil
		})
	}
	return turns
}

// Limits of one call of Abandoned. It returns at least one turn if one is left.
const (
	maxAbandoned      = 64
	maxAbandonedBytes = 8 << 20
)

// Abandoned implements store.Store. If the saved answer of a turn is damaged, Abandoned returns the
// turn without it, because the turn must be ended. The position is a key, and turns are in the
// order of keys: after any other string Abandoned continues at the place where that string would
// be.
func (s *Store) Abandoned(ctx context.Context, after string) (turns []store.Progress, next string, err error) {
	at, found := slices.BinarySearchFunc(s.abandonedTurns, after, func(a abandonedTurn, place string) int {
		return strings.Compare(a.cursor(), place)
	})
	if found {
		at++
	}
	now, mayHaveEphemeral := s.options.Now(), s.tally.mayHaveEphemeral()
	err = s.read(ctx, func(tx *bolt.Tx, conversations *reader) error {
		turns, next = nil, ""
		size := 0
		for i, a := range s.abandonedTurns[at:] {
			f, err := conversations.find(a.tenant, a.id, head)
			if err != nil || f.record.Conversation().GetActiveTurnId() != a.turn {
				continue
			}
			if f.record.Expired(now, readStates(tx, s.tally.epoch, mayHaveEphemeral, a.tenant).Of(a.id)) {
				continue
			}
			saved := tx.Bucket([]byte(layout.TurnsBucket)).Get(layout.IDKey(a.tenant, a.id))
			if len(turns) == maxAbandoned || len(turns) > 0 && size+len(saved) > maxAbandonedBytes {
				next = s.abandonedTurns[at+i-1].cursor()
				break
			}
			turns, size = append(turns, a.progress(f.record, saved)), size+len(saved)
		}
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("abandoned turns: %w", err)
	}
	return turns, next, nil
}

// Tenants implements store.Store. A position is the key of the last tenant that was returned.
func (s *Store) Tenants(ctx context.Context, after string, limit int) (tenants []string, next string, err error) {
	err = s.view(ctx, func(tx *bolt.Tx) error {
		c := tx.Bucket([]byte(layout.TenantsBucket)).Cursor()
		var last []byte
		for k, _ := c.Seek([]byte(after)); k != nil; k, _ = c.Next() {
			if string(k) == after {
				continue
			}
			tenant, _, ok := layout.CutTenant(k)
			if !ok {
				return fmt.Errorf("%w: key of a tenant", store.ErrCorrupt)
			}
			if c := s.tally.of(tenant); c.Conversations <= 0 && c.Records <= 0 {
				continue // It has only requests, or the journal has deletions of its last records.
			}
			if len(tenants) == limit {
				next = string(last)
				break
			}
			tenants, last = append(tenants, tenant), k
		}
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("tenants: %w", err)
	}
	return tenants, next, nil
}

// TenantStats implements store.Store.
func (s *Store) TenantStats(ctx context.Context, tenant string) (store.Stats, error) {
	if err := s.view(ctx, func(*bolt.Tx) error { return nil }); err != nil {
		return store.Stats{}, fmt.Errorf("stats of a tenant: %w", err)
	}
	c := s.tally.of(tenant)
	return store.Stats{
		Conversations: c.Conversations, Messages: c.Messages, Bytes: c.Bytes, Records: c.Records, RecordBytes: c.RecordBytes,
	}, nil
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
	free := int64(s.freePages()) * s.pageSize
	return store.Stats{
		Conversations: total.Conversations, Messages: total.Messages, Bytes: total.Bytes,
		Records: total.Records, RecordBytes: total.RecordBytes,
		FileBytes: file.Size(), FileBytesInUse: max(0, mapped-free),
		Expired: expired, Evicted: evicted, Corrupt: s.corruptCalls.Load(),
	}, nil
}

// State implements store.Inspector.
func (s *Store) State() store.State {
	state := store.State{FreePages: s.freePages(), Failed: s.failed.Load()}
	s.writer.mu.Lock()
	state.QueuedWrites, state.QueuedBytes = s.writer.queue.Len(), s.writer.queue.Bytes()
	s.writer.mu.Unlock()
	if free, size, err := boltfile.DiskSpace(s.path); err == nil && size != math.MaxInt64 {
		state.DiskFreeBytes, state.DiskBytes = free, size
	}
	if s.folder != nil {
		state.Journal = s.journalState()
	}
	if limit := s.options.CacheBytes; limit > 0 {
		c := s.tally.cache.Stats()
		state.Cache = store.CacheState{LimitBytes: int64(limit), Bytes: c.Bytes, Hits: c.Hits, Misses: c.Misses}
	}
	return state
}

// journalCounts are what the journal has done since Open, see store.JournalState.
type journalCounts struct {
	folds, foldTime, foldedConversations atomic.Int64
	bypassedFull, bypassedDisk           atomic.Int64
}

// journalState returns the state of the journal, which must exist.
func (s *Store) journalState() store.JournalState {
	c := &s.journalCounts
	state := store.JournalState{
		BudgetBytes: s.options.JournalBudget, FileBytes: s.journal.Bytes(),
		Folds: c.folds.Load(), FoldTime: time.Duration(c.foldTime.Load()), FoldedConversations: c.foldedConversations.Load(),
		BypassedFull: c.bypassedFull.Load(), BypassedDisk: c.bypassedDisk.Load(),
	}
	state.WaitingBytes, state.FoldingBytes = s.tally.pending.Bytes()
	if since := s.tally.pending.Since(); !since.IsZero() {
		state.Age = time.Since(since)
	}
	return state
}

// freePages returns the number of free pages of the file.
func (s *Store) freePages() int {
	pages := s.db.Stats()
	return pages.FreePageN + pages.PendingPageN
}
