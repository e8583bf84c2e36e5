package interactionlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// catchUpBytes is how much of messages is looked for in the files at a time.
	catchUpBytes = 8 << 20
	// catchUpRows is how many conversations are listed at a time.
	catchUpRows = 1000
)

// CatchUp adds lines for messages that the log lacks because the process before did not come to
// its end: those that the tenants' conversations in the store still keep, that were committed
// since the log was last known to be whole, and that were not forked, imported or erased. Nothing
// comes behind a later message of its conversation: what the log lacks ahead of one was lost, as
// a line of it says, or removed by hand, and stays so. After a clean stop, and for a log that is
// new, it does nothing. It is to be called before anything else is written to the store or the
// log. When it fails, or is killed, the next start does what is left; nothing is added twice.
// Errors: those of the store, of reading files, and of ctx.
func (l *Log) CatchUp(ctx context.Context, s store.Store, tenants ...string) error {
	l.mu.Lock()
	since, unsure, before := l.pending.saved.Whole, l.pending.unsure, l.lost.Load()
	l.mu.Unlock()
	if !unsure {
		return nil
	}
	imports, err := l.imports()
	if err != nil {
		return fmt.Errorf("interaction log: catch up: %w", err)
	}
	c := &catchUp{log: l, store: s, since: since, imports: imports}
	for _, tenant := range tenants {
		if err := c.tenant(ctx, tenant); err != nil {
			return fmt.Errorf("interaction log: catch up: %w", err)
		}
	}
	if err := c.flush(ctx); err != nil {
		return fmt.Errorf("interaction log: catch up: %w", err)
	}
	l.caughtUp(c.added)
	if c.added > 0 {
		l.options.Log.Info("interaction log: lines added that the last stop had left out",
			"count", int64(c.added)-(l.lost.Load()-before), "since", since)
	}
	return l.sync()
}

// caughtUp ends the time in which the log may lack more than it knows. Of the lines that the
// process before had lost so many were tried again.
func (l *Log) caughtUp(added int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, f := &l.pending, &l.failing
	if left := p.missing.lost - int64(added); left > 0 {
		f.lost += left
		f.since = p.missing.since
	}
	p.missing.lost, p.unsure = 0, false
	p.renamed = true // So that the checkpoint is written.
}

// catchUp is a call of Log.CatchUp under way.
type catchUp struct {
	log   *Log
	store store.Store
	since time.Time
	// imports says which messages came from elsewhere, or were erased.
	imports map[imported]foreign
	// found is what the files may lack, in the order of the conversations' sequences.
	found []candidate
	bytes int
	added int
}

// candidate is a message that the log may lack.
type candidate struct {
	change store.Change
	line   lineKey
	order  time.Time // where it is added: never ahead of an earlier message of its conversation
}

// lineKey tells the line of a message from all others.
type lineKey struct {
	tenant, sessionID string
	turn              int32
	micros            int64 // its time, since 1970
}

// tenant looks at the conversations of a tenant.
func (c *catchUp) tenant(ctx context.Context, tenant string) error {
	list := &store.List{Tenant: tenant, PageSize: catchUpRows, OldestFirst: true}
	for {
		page, err := c.store.List(ctx, list)
		if err != nil {
			return err
		}
		for _, entry := range page.Entries {
			if h := entry.GetConversation(); !h.GetLastAppendTime().AsTime().Before(c.since) {
				if err := c.conversation(ctx, tenant, h.GetId()); err != nil {
					return err
				}
			}
		}
		if list.PageToken = page.NextPageToken; list.PageToken == "" {
			return nil
		}
	}
}

// conversation looks at the messages of a conversation.
func (c *catchUp) conversation(ctx context.Context, tenant, id string) error {
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
	foreign := max(h.GetForkedFrom().GetSequence(), c.imports[imported{Tenant: tenant, ID: id, UID: h.GetUid()}].sequence)
	erased := c.imports[imported{Tenant: tenant, ID: id}].erased
	var order time.Time
	for frame := range snapshot.Messages.All() {
		m, err := frame.Message()
		if err != nil {
			return err
		}
		at := m.GetCreateTime().AsTime()
		if m.GetSequence() <= foreign || at.Before(c.since) || !at.After(erased) {
			continue
		}
		if at.After(order) {
			order = at
		}
		c.found = append(c.found, candidate{
			change: store.Change{
				Tenant: tenant, ConversationID: id, Kind: parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED,
				Time: at, Message: slices.Clone(frame),
			},
			line:  lineKey{tenant, id, m.GetSequence(), at.UnixMicro()},
			order: order,
		})
		c.bytes += len(frame)
	}
	if c.bytes >= catchUpBytes {
		return c.flush(ctx)
	}
	return nil
}

// flush adds what was found and is not in the files.
func (c *catchUp) flush(ctx context.Context) error {
	if len(c.found) == 0 {
		return nil
	}
	missing := make(map[lineKey]bool, len(c.found))
	first, last := dayOf(c.found[0].change.Time), dayOf(c.found[0].change.Time)
	for i := range c.found {
		d := dayOf(c.found[i].change.Time)
		first, last = min(first, d), max(last, d)
		missing[c.found[i].line] = true
	}
	days, err := c.log.reader.days(first, last)
	if err != nil {
		return err
	}
	for _, d := range days {
		if err := c.strike(ctx, d, missing); err != nil {
			return err
		}
	}
	c.passOver(missing)
	slices.SortStableFunc(c.found, func(a, b candidate) int { return a.order.Compare(b.order) })
	changes := make([]store.Change, 0, len(missing))
	for i := range c.found {
		if missing[c.found[i].line] {
			changes = append(changes, c.found[i].change)
		}
	}
	c.log.Committed(changes)
	c.added += len(changes)
	c.found, c.bytes = nil, 0
	return nil
}

// passOver takes out of what is missing what has a later message of its conversation in the
// files.
func (c *catchUp) passOver(missing map[lineKey]bool) {
	passed := 0
	var behind lineKey // the conversation of which a later message has a line
	for _, f := range slices.Backward(c.found) {
		switch {
		case !missing[f.line]:
			behind = f.line
		case f.line.tenant == behind.tenant && f.line.sessionID == behind.sessionID:
			delete(missing, f.line)
			passed++
		}
	}
	if passed > 0 {
		c.log.options.Log.Info("interaction log: lines stay missing, since later ones of their conversations are there", "count", passed)
	}
}

// strike takes out of what is missing what has a line in the file of a day.
func (c *catchUp) strike(ctx context.Context, d day, missing map[lineKey]bool) error {
	r := c.log.reader
	f, err := r.openToRead(d.fileName())
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	since := appendTimestamp(nil, c.since.UTC())
	s := &stretch{file: f, size: f.size, end: f.size, wants: func(text []byte) bool {
		h, ok := parseHead(text)
		return !ok || string(h.timestamp) >= string(since)
	}}
	var buffer []byte
	for at, err := range r.scan(ctx, s, true) {
		if err == nil && at.long {
			at, err = readLine(s.file, s.size, at.from, &buffer)
		}
		if err != nil {
			return err
		}
		if l, err := read(at); err == nil {
			turn := l.interaction.GetMetadata().GetFields()["turn_number"].GetNumberValue()
			stamp := l.interaction.GetTimestamp().AsTime().UnixMicro()
			delete(missing, lineKey{l.tenant, l.interaction.GetConversationId(), int32(turn), stamp})
		}
	}
	return nil
}
