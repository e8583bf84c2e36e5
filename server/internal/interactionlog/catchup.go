package interactionlog

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// maxSought is the maximum of messages that one walk over the files searches for. Each takes
	// about 40 bytes of memory.
	maxCatchUpKeys = 4 << 20
	// catchUpBytes is the size in bytes of the messages that are added at a time.
	catchUpBytes = 8 << 20
	// catchUpRows is how many conversations are listed at a time.
	catchUpRows = 1000
	// progressEvery is how often CatchUp reports its progress.
	progressEvery = time.Second
)

// CatchUp adds lines for messages that the log lacks because the process before did not come to
// its end: those that the tenants' conversations in the store still keep, that were committed
// since the log was last known to be whole, and that were not forked, imported or erased. Nothing
// comes behind a later message of its conversation: what the log lacks ahead of one was lost, as
// a line of it says, or removed by hand, and stays so. After a clean stop it does nothing. For a
// log that is new, or was off, it adds nothing, but lists the store once for messages that are dated
// after the clock: they are remembered like imported ones. It is to be called before anything else is written to the store or the
// log. When it fails, or is killed, the next start does what is left; nothing is added twice.
//
// It lists the store once, and reads each file of the days since then at most once for every
// maxSought messages that it looks for, from its end, until nothing is missing any more: after a
// kill that has cost nothing, what was written in the last two minutes. A server waits for it, since an entry that is added must not follow a later
// one of its conversation, and it reports its progress every second.
//
// Errors: those of the store, of reading files, and of ctx.
func (l *Log) CatchUp(ctx context.Context, s store.Store, tenants ...string) error {
	l.mu.Lock()
	since, unsure, off, before := l.pending.saved.CompleteUntil, l.pending.needsCatchUp, l.pending.saved.Off, l.lost.Load()
	l.mu.Unlock()
	if off {
		return l.excludeWhileOff(ctx, s, since, tenants)
	}
	if !unsure {
		return nil
	}
	c, err := l.newCatchUp(s, since)
	if err == nil {
		err = c.run(ctx, tenants)
	}
	if err != nil {
		return fmt.Errorf("interaction log: catch up: %w", err)
	}
	l.finishCatchUp(c.added)
	if c.leftOut > 0 {
		l.options.Log.Info("interaction log: entries stay missing, since later entries of their conversations exist", "count", c.leftOut)
	}
	if c.added > 0 {
		l.options.Log.Info("interaction log: lines added that the last stop had left out",
			"count", int64(c.added)-(l.lost.Load()-before), "since", since)
	}
	return l.sync()
}

// turnedOn remembers which of the messages that have come without a log are dated after the clock.
func (l *Log) excludeWhileOff(ctx context.Context, s store.Store, since time.Time, tenants []string) error {
	c, err := l.newCatchUp(s, since)
	if err == nil {
		err = c.eachConversation(ctx, tenants, func(_ context.Context, tenant string, h *parleyv1.Conversation) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			until := h.GetLastAppendTime().AsTime()
			return l.addExclusion(exclusion{Tenant: tenant, ID: h.GetId(), UID: h.GetUid(), Sequence: h.GetLastSequence(), Until: until})
		})
	}
	if ctx.Err() == nil { // Else the next start does it. After another error messages come all the same.
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pending.saved.Off = false
		err = errors.Join(err, l.save(true))
	}
	if err != nil {
		return fmt.Errorf("interaction log: note messages from before: %w", err)
	}
	return nil
}

// caughtUp ends the time in which the log may lack more than it knows. Of the lines that the
// process before had lost so many were tried again.
func (l *Log) finishCatchUp(added int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, f := &l.pending, &l.loss
	if left := p.previousLoss.lost - int64(added); left > 0 {
		f.missing += left
		f.since = p.previousLoss.since
	}
	p.previousLoss.lost, p.needsCatchUp = 0, false
	p.dirChanged = true // So that the checkpoint is written.
}

// catchUp is a call of Log.CatchUp under way.
type catchUp struct {
	log   *Log
	store store.Store
	since time.Time
	// imports says which messages came from elsewhere, or were erased.
	exclusions map[exclusion]exclusion
	seed       maphash.Seed

	// suspects are conversations whose messages may have no entries. missing has the keys of those
	// messages that no file read so far has an entry of.
	unverified  []unverifiedConversation
	missing     map[uint64]struct{}
	first, last day // range of days of the suspects' messages

	additions []addition // messages to add
	bytes     int
	added     int
	leftOut   int // messages that stay without an entry

	progress progress
}

// suspect is a conversation with the keys of its messages since the time up to which the log is
// complete, in order.
type unverifiedConversation struct {
	tenant, id string
	keys       []uint64
}

// candidate is a message without an entry.
type addition struct {
	change store.Change
	order  time.Time // where it is added: never ahead of an earlier message of its conversation
}

// lineKey tells the line of a message from all others.
type entryKey struct {
	tenant, conversationID string
	turn                   int32
	micros                 int64 // its time, since 1970
}

// newCatchUp returns a catchUp for the messages committed since a time.
func (l *Log) newCatchUp(s store.Store, since time.Time) (*catchUp, error) {
	imports, err := l.exclusions()
	if err != nil {
		return nil, err
	}
	return &catchUp{
		log: l, store: s, since: since, exclusions: imports, seed: maphash.MakeSeed(), missing: make(map[uint64]struct{}),
		progress: progress{log: l, due: l.options.Now().Add(progressEvery)},
	}, nil
}

func (c *catchUp) run(ctx context.Context, tenants []string) error {
	if err := c.eachConversation(ctx, tenants, c.collectKeys); err != nil {
		return err
	}
	return c.flush(ctx)
}

// visit is called with a conversation of a tenant.
type visitConversation func(ctx context.Context, tenant string, h *parleyv1.Conversation) error

// each visits the tenants' conversations that have messages since then.
func (c *catchUp) eachConversation(ctx context.Context, tenants []string, visit visitConversation) error {
	for _, tenant := range tenants {
		if err := c.eachOfTenant(ctx, tenant, visit); err != nil {
			return err
		}
	}
	return nil
}

// tenant does that for one of them.
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

// conversation has the messages of a conversation looked for in the files.
func (c *catchUp) collectKeys(ctx context.Context, tenant string, h *parleyv1.Conversation) error {
	id := h.GetId()
	s := unverifiedConversation{tenant: tenant, id: id}
	err := c.eachMessage(ctx, tenant, id, func(key uint64, at time.Time, _ store.Frame) {
		d := dayOf(at)
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

// messages visits the messages of a conversation that should have entries and may have none.
func (c *catchUp) eachMessage(ctx context.Context, tenant, id string, visit func(key uint64, at time.Time, frame store.Frame)) error {
	snapshot, err := c.store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Newest: -1})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil // It has just expired.
	case errors.Is(err, store.ErrCorrupt):
		c.log.options.Log.Warn("interaction log: cannot tell what it lacks of a conversation",
			"tenant", tenant, "conversation_id", id, "error", err)
		return nil
	case err != nil:
		return err
	}
	h := snapshot.Conversation
	lastImported := max(h.GetForkedFrom().GetSequence(), c.exclusions[exclusion{Tenant: tenant, ID: id, UID: h.GetUid()}].Sequence)
	erased := c.exclusions[exclusion{Tenant: tenant, ID: id}].Erased
	var m message
	for frame := range snapshot.Messages.All() {
		if err := m.decode(frame.Body()); err != nil {
			return fmt.Errorf("message of conversation %q: %w", id, err)
		}
		at := time.Unix(m.seconds, m.nanos)
		if m.sequence <= lastImported || at.Before(c.since) || !at.After(erased) {
			continue
		}
		visit(c.key(entryKey{tenant, id, m.sequence, at.UnixMicro()}), at, frame)
	}
	return nil
}

func (c *catchUp) key(k entryKey) uint64 { return maphash.Comparable(c.seed, k) }

// flush adds the missing entries of the suspects.
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

// add collects the messages of a conversation whose entries are missing.
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

// write appends the entries of the collected messages of all conversations, in the order of time.
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

// strike deletes from c.missing the keys of messages that have an entry in the files. It reads the
// newest file first.
func (c *catchUp) findEntries(ctx context.Context) error {
	if len(c.missing) == 0 {
		return nil
	}
	days, err := c.log.reader.days(c.first, c.last)
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

// strikeDay does the same for the file of one day, from its end.
func (c *catchUp) findEntriesOfDay(ctx context.Context, d day) error {
	r := c.log.reader
	f, err := r.openToRead(d.fileName())
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	since := appendTimestamp(nil, c.since.UTC())
	s := &section{
		file: &progressFile{openedFile: f, progress: &c.progress, before: c.progress.read}, size: f.size, end: f.size, backward: true,
		filter: func(text []byte) bool {
			h, ok := parseHead(text)
			return !ok || string(h.timestamp) >= string(since)
		},
	}
	for at, err := range r.scanLines(ctx, s, true) {
		if err != nil {
			return err
		}
		l, err := parseRaw(at)
		if err != nil {
			continue
		}
		turn := l.interaction.GetMetadata().GetFields()["turn_number"].GetNumberValue()
		stamp := l.interaction.GetTimestamp().AsTime().UnixMicro()
		delete(c.missing, c.key(entryKey{l.tenant, l.interaction.GetConversationId(), int32(turn), stamp}))
		if len(c.missing) == 0 {
			return nil
		}
	}
	return nil
}
