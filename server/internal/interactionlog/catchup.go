package interactionlog

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
	"github.com/parleyhq/parley/store"
)

const (
	// maxCatchUpKeys is the maximum number of messages that one pass over the files searches for.
	// Each takes about 40 bytes of memory.
	maxCatchUpKeys = 4 << 20
	// catchUpBytes is the size in bytes of the messages that are added in one batch.
	catchUpBytes = 8 << 20
	// catchUpRows is the number of conversations in one page of the store's list.
	catchUpRows = 1000
	// catchUpTenants is the number of tenants in one page of the store's list.
	catchUpTenants = 1000
	// progressEvery is the interval at which CatchUp logs its progress.
	progressEvery = time.Second
)

// CatchUp adds entries for messages that the log lacks because the previous process did not stop
// cleanly. It adds a message if all of these are true:
//
//   - The store retains it, in a conversation of any tenant.
//   - It was committed after the time up to which the log is known to be complete.
//   - It was not copied by a fork, imported or erased.
//   - The log has no later message of its conversation. An entry that is missing before a later one
//     was lost, as a loss entry reports, or removed by hand, and stays missing.
//
// It adds no entries of removals, and none of messages that were removed, because the store does not retain them.
//
// After a clean stop CatchUp does nothing. With Options.Shared it adds nothing, and logs that after an unclean stop.
// To a log that is new or was off it adds nothing. It lists the store once and excludes messages that are dated after
// the clock, as it excludes imported ones.
// Call it before anything else is written to the store or the log. After an error or a crash, the next
// start adds the rest. No entry is added twice.
//
// CatchUp lists the store once. For every maxCatchUpKeys messages that it searches for, it reads each
// file of the days in question at most once, from its end, until no message is missing. If a crash
// has lost no entry, it reads what was written in the last two minutes. The server must wait for it,
// since an entry must not follow a later one of its conversation. It logs its progress every second.
//
// Errors: those of the store, of reading files, and of ctx.
func (l *Log) CatchUp(ctx context.Context, s store.Store) error {
	l.writer.mu.Lock()
	p := &l.writer.pending
	since, needed, off, before := p.saved.CompleteUntil, p.needsCatchUp, p.saved.Off, l.writer.lost.Load()
	l.writer.mu.Unlock()
	if l.options.Shared {
		return l.startWithoutCatchUp(off, needed)
	}
	if off {
		return l.excludeCommittedWhileOff(ctx, s, since)
	}
	if !needed {
		return nil
	}
	c, err := l.newCatchUp(s, since)
	if err == nil {
		err = c.run(ctx)
	}
	if err != nil {
		return fmt.Errorf("interaction log: catch up: %w", err)
	}
	l.writer.finishCatchUp(c.added)
	if c.leftOut > 0 {
		l.options.Log.Info("interaction log: entries stay missing because later entries of their conversations exist",
			"count", c.leftOut)
	}
	if c.added > 0 {
		l.options.Log.Info("interaction log: missing entries added after an unclean stop",
			"count", int64(c.added)-(l.writer.lost.Load()-before), "since", since)
	}
	return l.sync()
}

// finishCatchUp ends the state in which the log may lack entries without a record of them. CatchUp
// has retried added of the entries that the previous process lost.
func (w *writer) finishCatchUp(added int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, loss := &w.pending, &w.loss
	if left := p.previousLoss.lost - int64(added); left > 0 {
		loss.missing += left
		loss.since = p.previousLoss.since
	}
	p.previousLoss.lost, p.needsCatchUp = 0, false
	p.dirChanged = true // The next sync then writes the checkpoint.
}

// catchUp is the state of one call of Log.CatchUp.
type catchUp struct {
	log   *Log
	store store.Store
	since time.Time
	// exclusions has the messages that were imported or erased.
	exclusions map[exclusion]exclusion
	seed       maphash.Seed

	// unverified has the conversations whose messages may have no entries. missing has the keys of
	// those messages for which no file read so far has an entry.
	unverified  []unverifiedConversation
	missing     map[uint64]struct{}
	first, last dayfile.Day // range of days of the unverified messages

	additions []addition // messages to add
	bytes     int
	added     int
	leftOut   int // messages that stay without an entry

	progress progress
}

// unverifiedConversation is a conversation with the keys of those of its messages that are dated
// after the time up to which the log is complete, in order.
type unverifiedConversation struct {
	tenant, id string
	keys       []uint64
}

// addition is a message without an entry, to be added.
type addition struct {
	change store.Change
	order  time.Time // position in the file: not before that of an earlier message of its conversation
}

// entryKey identifies the entry of a message.
type entryKey struct {
	tenant, conversationID string
	turn                   int32
	micros                 int64 // the message's time in microseconds since 1970
}

// newCatchUp returns a catchUp for the messages that were committed since a time.
func (l *Log) newCatchUp(s store.Store, since time.Time) (*catchUp, error) {
	exclusions, err := l.writer.exclusions()
	if err != nil {
		return nil, err
	}
	return &catchUp{
		log: l, store: s, since: since, exclusions: exclusions, seed: maphash.MakeSeed(), missing: make(map[uint64]struct{}),
		progress: progress{log: l, due: l.options.Now().Add(progressEvery)},
	}, nil
}

func (c *catchUp) run(ctx context.Context) error {
	if err := c.eachConversation(ctx, c.collectKeys); err != nil {
		return err
	}
	return c.flush(ctx)
}

// visitConversation is called with a conversation of a tenant.
type visitConversation func(ctx context.Context, tenant string, h *parleyv1.Conversation) error

// visitMessage is called with a message, the time of its commit and the key of its entry.
type visitMessage func(key uint64, at time.Time, frame store.Frame)

// eachConversation visits those of all tenants' conversations that have messages since c.since.
func (c *catchUp) eachConversation(ctx context.Context, visit visitConversation) error {
	for after := ""; ; {
		tenants, next, err := c.store.Tenants(ctx, after, catchUpTenants)
		if err != nil {
			return err
		}
		for _, tenant := range tenants {
			if err := c.eachOfTenant(ctx, tenant, visit); err != nil {
				return err
			}
		}
		if after = next; after == "" {
			return nil
		}
	}
}

// eachOfTenant visits those of one tenant's conversations that have messages since c.since.
func (c *catchUp) eachOfTenant(ctx context.Context, tenant string, visit visitConversation) error {
	list := &store.List{Tenant: tenant, PageSize: catchUpRows, OldestFirst: true}
	for {
		page, err := c.store.List(ctx, list)
		if err != nil {
			return err
		}
		for _, entry := range page.Entries {
			h := entry.GetConversation()
			c.progress.countConversation()
			if h.GetLastAppendTime().AsTime().Before(c.since) {
				continue
			}
			if err := visit(ctx, tenant, h); err != nil {
				return err
			}
		}
		if list.PageToken = page.NextPageToken; list.PageToken == "" {
			return nil
		}
	}
}

// collectKeys adds the messages of a conversation to those that are searched for in the files.
func (c *catchUp) collectKeys(ctx context.Context, tenant string, h *parleyv1.Conversation) error {
	id := h.GetId()
	s := unverifiedConversation{tenant: tenant, id: id}
	err := c.eachMessage(ctx, tenant, id, func(key uint64, at time.Time, _ store.Frame) {
		d := dayfile.DayOf(at)
		if len(c.missing) == 0 {
			c.first, c.last = d, d
		}
		c.first, c.last = min(c.first, d), max(c.last, d)
		s.keys = append(s.keys, key)
		c.missing[key] = struct{}{}
	})
	if err != nil {
		return err
	}
	if len(s.keys) > 0 {
		c.unverified = append(c.unverified, s)
	}
	if len(c.missing) >= maxCatchUpKeys {
		return c.flush(ctx)
	}
	return nil
}

// eachMessage visits the messages of a conversation that should have entries but may have none.
func (c *catchUp) eachMessage(ctx context.Context, tenant, id string, visit visitMessage) error {
	snapshot, err := c.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Newest: -1})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil // The conversation has expired since it was listed.
	case errors.Is(err, store.ErrCorrupt):
		c.log.options.Log.Warn("interaction log: conversation not compared with the store",
			"tenant", tenant, "conversation_id", id, "error", err)
		return nil
	case err != nil:
		return err
	}
	h := snapshot.Conversation
	imported := c.exclusions[exclusion{Tenant: tenant, ID: id, UID: h.GetUid()}]
	lastCopied := max(h.GetForkedFrom().GetSequence(), imported.Sequence)
	erased := c.exclusions[exclusion{Tenant: tenant, ID: id}].Erased
	var m store.Fields
	for frame := range snapshot.Messages.All() {
		err := m.Read(frame)
		if err != nil {
			return fmt.Errorf("message of conversation %q: %w", id, err)
		}
		at, err := m.Time()
		if err != nil {
			return fmt.Errorf("message of conversation %q: %w", id, err)
		}
		if m.Sequence <= lastCopied || at.Before(c.since) || !at.After(erased) {
			continue
		}
		visit(c.key(entryKey{tenant, id, m.Sequence, at.UnixMicro()}), at, frame)
	}
	return nil
}

func (c *catchUp) key(k entryKey) uint64 { return maphash.Comparable(c.seed, k) }

// flush adds the missing entries of the unverified conversations.
func (c *catchUp) flush(ctx context.Context) error {
	if err := c.findEntries(ctx); err != nil {
		return err
	}
	for _, s := range c.unverified {
		from := len(s.keys)
		for from > 0 && c.isMissing(s.keys[from-1]) {
			from--
		}
		for _, key := range s.keys[:from] { // The files have a later entry of the conversation.
			if c.isMissing(key) {
				delete(c.missing, key)
				c.leftOut++
			}
		}
		if from == len(s.keys) {
			continue
		}
		if err := c.collectAdditions(ctx, s); err != nil {
			return err
		}
	}
	c.writeAdditions()
	c.unverified, c.missing = nil, make(map[uint64]struct{})
	return nil
}

func (c *catchUp) isMissing(key uint64) bool {
	_, missing := c.missing[key]
	return missing
}

// collectAdditions collects the messages of a conversation whose entries are missing.
func (c *catchUp) collectAdditions(ctx context.Context, s unverifiedConversation) error {
	var order time.Time
	err := c.eachMessage(ctx, s.tenant, s.id, func(key uint64, at time.Time, frame store.Frame) {
		if at.After(order) {
			order = at
		}
		if !c.isMissing(key) {
			return
		}
		c.additions = append(c.additions, addition{
			change: store.Change{
				Tenant: s.tenant, ConversationID: s.id, Kind: parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED,
				Time: at, Message: slices.Clone(frame),
			},
			order: order,
		})
		c.bytes += len(frame)
	})
	if c.bytes >= catchUpBytes {
		c.writeAdditions()
	}
	return err
}

// writeAdditions writes entries for the collected messages of all conversations, ordered by time.
func (c *catchUp) writeAdditions() {
	slices.SortStableFunc(c.additions, func(a, b addition) int { return a.order.Compare(b.order) })
	changes := make([]store.Change, 0, len(c.additions))
	for i := range c.additions {
		changes = append(changes, c.additions[i].change)
	}
	c.log.Committed(changes)
	c.added += len(changes)
	c.additions, c.bytes = nil, 0
}

// findEntries deletes the keys of messages that have an entry in the files from c.missing. It reads
// the newest file first.
func (c *catchUp) findEntries(ctx context.Context) error {
	if len(c.missing) == 0 {
		return nil
	}
	days, err := dayfile.Days(c.log.options.Dir, c.first, c.last)
	if err != nil {
		return err
	}
	c.progress.setFiles(c.log.options.Dir, days)
	for _, d := range slices.Backward(days) {
		if err := c.findEntriesOfDay(ctx, d); err != nil || len(c.missing) == 0 {
			return err
		}
	}
	return nil
}

// findEntriesOfDay does the same for the file of one day, from its end.
func (c *catchUp) findEntriesOfDay(ctx context.Context, d dayfile.Day) error {
	f, err := dayfile.OpenRead(c.log.options.Dir, d.FileName())
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	since := entry.AppendTimestamp(nil, c.since.UTC())
	s := &scan.Section{
		File: &progressFile{File: f, progress: &c.progress, before: c.progress.read},
		Size: f.Size, End: f.Size, Backward: true,
		Filter: func(text []byte) bool {
			h, ok := entry.ParseHead(text)
			return !ok || string(h.Timestamp) >= string(since)
		},
	}
	for raw, err := range c.log.scanner.Lines(ctx, s, true) {
		if err != nil {
			return err
		}
		e, err := raw.Parse()
		if err != nil {
			continue
		}
		turn := e.Interaction.GetMetadata().GetFields()["turn_number"].GetNumberValue()
		stamp := e.Interaction.GetTimestamp().AsTime().UnixMicro()
		delete(c.missing, c.key(entryKey{e.Tenant, e.Interaction.GetConversationId(), int32(turn), stamp}))
		if len(c.missing) == 0 {
			return nil
		}
	}
	return nil
}
