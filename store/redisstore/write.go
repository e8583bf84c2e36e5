package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// write is a write of one conversation, and of records.
type write struct {
	tenant, id string
	// with are the parts that the decision needs, and messages says that it needs the messages.
	with     []part
	messages bool
	// records are the writes of records that the decision needs to know the states of.
	records []*parleyv1.RecordWrite
	// source is a conversation whose records are copied; see store.Create.RecordsOf.
	source string
	// mayExceed says that the tenant may have more bytes than its limit afterwards.
	mayExceed bool
	// imports says that a new conversation must not push out others.
	imports bool
	// replaces says that the conversation may be damaged, since the write deletes it.
	replaces bool
	// deleteTime makes the new conversation an ephemeral one that is deleted at this time. The zero time does not.
	deleteTime time.Time
	queued     func()
	decide     func(in *input) (*record.Outcome, error)
}

// input is what a decision is about.
type input struct {
	old     *record.Record // nil if there is none, or it has ended or is damaged
	damaged *conversation  // nil if it is not
	held    bool           // whether the id is held
	records *records.Input
	source  *conversation // nil without write.source
	now     time.Time
}

// Create implements store.Store.
func (s *Store) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	id := c.Conversation.GetId()
	history, err := record.NewHistory(c.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	w := write{tenant: c.Tenant, id: id, with: []part{promptPart, requestsPart}, source: c.RecordsOf}
	w.decide = func(in *input) (*record.Outcome, error) {
		if in.old != nil || in.source == nil {
			return record.Create(in.old, c, history, records.Counts{}, uuid.NewString(), in.now, &s.options)
		}
		source := in.source.live(in.now)
		if c.RecordsOfUID != "" && (source == nil || source.Conversation().GetUid() != c.RecordsOfUID) {
			return nil, store.ErrNotFound
		}
		var counts records.Counts
		if source != nil {
			counts = source.RecordCounts()
		}
		out, err := record.Create(nil, c, history, counts, uuid.NewString(), in.now, &s.options)
		if err == nil && source != nil {
			out.Records, err = s.copies(ctx, in.source, in.now)
		}
		return out, err
	}
	return resultOf(s.writeOne(ctx, &w))
}

// resultOf returns the result of an outcome.
func resultOf(out *record.Outcome, err error) (*store.Result, error) {
	if err != nil {
		return nil, err
	}
	return out.Result, nil
}

// Append implements store.Store.
func (s *Store) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	return resultOf(s.append(ctx, a, a.MayExceed()))
}

func (s *Store) append(ctx context.Context, a *store.Append, mayExceed bool) (*record.Outcome, error) {
	drafts, err := record.NewDrafts(a.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", a.ConversationID, err)
	}
	w := write{
		tenant: a.Tenant, id: a.ConversationID, messages: a.ReplaceAfter != nil, records: a.Records, mayExceed: mayExceed,
		queued: a.Queued,
	}
	if a.Request != nil {
		w.with = append(w.with, requestsPart)
	}
	if a.Begin != nil || a.End != nil {
		w.with = append(w.with, turnsPart)
	}
	w.decide = func(in *input) (*record.Outcome, error) {
		return record.Append(in.old, a, drafts, in.records, uuid.NewString(), in.now, &s.options)
	}
	return s.writeOne(ctx, &w)
}

// Update implements store.Store.
func (s *Store) Update(ctx context.Context, u *store.Update) (*store.Result, error) {
	return resultOf(s.writeOne(ctx, &write{
		tenant: u.Tenant, id: u.ConversationID, with: []part{promptPart, requestsPart, turnsPart},
		messages: u.KeepThrough != nil || len(u.Sequences) > 0, mayExceed: u.OnlyRemoves(),
		decide: func(in *input) (*record.Outcome, error) { return record.Update(in.old, u, in.now, &s.options) },
	}))
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, d *store.Delete) error {
	_, err := s.writeOne(ctx, &write{
		tenant: d.Tenant, id: d.ConversationID, replaces: d.IfVersion == nil,
		decide: func(in *input) (*record.Outcome, error) {
			if in.damaged != nil {
				return &record.Outcome{Changes: []store.Change{in.damaged.deleted(in.now)}}, nil
			}
			return record.Delete(in.old, d, in.now)
		},
	})
	return err
}

// Import implements store.Store.
func (s *Store) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	id := i.Conversation.GetId()
	history, err := record.NewHistory(i.Messages)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	return resultOf(s.writeOne(ctx, &write{
		tenant: i.Tenant, id: id, imports: true, replaces: i.Overwrite,
		decide: func(in *input) (*record.Outcome, error) {
			out, err := record.Import(in.old, i, history, uuid.NewString(), in.now, in.held, &s.options)
			if err == nil && in.damaged != nil {
				out.Changes = append([]store.Change{in.damaged.deleted(in.now)}, out.Changes...)
			}
			return out, err
		},
	}))
}

// writeOne makes a write after all earlier ones of this process to the same conversation.
func (s *Store) writeOne(ctx context.Context, w *write) (*record.Outcome, error) {
	out, err := s.writeInTurn(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", w.id, s.counted(err))
	}
	return out, nil
}

func (s *Store) writeInTurn(ctx context.Context, w *write) (*record.Outcome, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	p := s.spaceOf(w.tenant, w.id)
	if err := s.writes.enter(ctx, p.of("", w.id), w.queued); err != nil {
		return nil, err
	}
	defer s.writes.leave(p.of("", w.id))
	if s.spread > 1 && records.HasTenantScope(w.records) {
		home := s.space(w.tenant)
		if err := s.writes.enter(ctx, home.key("t"), nil); err != nil {
			return nil, err
		}
		defer s.writes.leave(home.key("t"))
	}
	ctx, cancel := s.writing(ctx)
	defer cancel()
	a := &attempt{write: w, space: p}
	return again(ctx, func() (*record.Outcome, error) { return s.try(ctx, a) })
}

// changedSince returns errMoved in place of an error if the conversation has changed since it was read: then what was
// read may not have been of one instant.
func (s *Store) changedSince(ctx context.Context, t *transaction, err error) error {
	if !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	if moved := s.unchanged(t.old, s.client.Do(ctx, s.revisionCommand(t.space, t.write.id))); moved != nil {
		return moved
	}
	return err
}

// transaction is one attempt of a write: what was read, and what it commits.
type transaction struct {
	write *write
	space

	store  *Store
	now    time.Time
	commit string // id of the commit
	old    *conversation
	// damaged says that old is damaged, and that the write may replace it.
	damaged bool
	chunks  *chunkReader // of old; nil if there is none
	aside   int          // messages of old that are counted aside
	source  *conversation
	in      *records.Input
	tenant  tenantState
	added   int64  // conversations added to the bucket so far
	number  uint32 // of a new conversation
	// elsewhere is the number of bytes of the tenant in its other buckets. bytes is the change of bytes in this bucket.
	elsewhere, bytes int64

	// What the decision changes in old, as it was before.
	live          bool // also of a damaged one, which the write replaces
	runningBefore string
	indexedBefore bool
	firstChunk    int64 // of turns

	outcome *record.Outcome
}

func (t *transaction) input() *input {
	in := &input{old: t.old.live(t.now), held: t.old.ephemeral.Held, records: t.in, source: t.source, now: t.now}
	if t.damaged {
		in.damaged = t.old
	}
	return in
}

// addedCommand returns the command that reads the number of conversations added to a bucket.
func (s *Store) addedCommand(b bucket) rueidis.Completed {
	return s.client.B().Hget().Key(b.prefix + "st").Field("a").Build()
}

// readFor reads what a write needs.
func (s *Store) readFor(ctx context.Context, a *attempt) (*transaction, error) {
	w, p := a.write, a.space
	t := &transaction{write: w, space: p, store: s, now: s.options.Now(), commit: newCommit()}
	load := s.loadCommand(p, w.id, w.with...)
	added := s.addedCommand(p.bucket)
	held := s.client.B().Hget().Key(p.key("em")).Field(w.id).Build()
	replies := s.client.DoMulti(ctx, load, added, held)
	var err error
	t.old, err = s.decode(ctx, p, w.id, replies[0], w.with...)
	if t.damaged = w.replaces && t.old != nil && errors.Is(err, store.ErrCorrupt); err != nil && !t.damaged {
		return nil, err
	}
	t.added, _ = replies[1].AsInt64()
	t.number = uint32((int(t.added)+1)*s.spread + s.lane(p.bucket))
	if t.old.record == nil {
		state, _ := replies[2].ToString()
		t.old.ephemeral, _ = ephemeralOf(state)
		t.live = t.damaged
	} else {
		t.aside = int(t.old.record.Header.GetChunks().GetMessages())
		t.chunks = &chunkReader{ctx: ctx, store: s, conversation: t.old, aside: t.aside}
		t.old.record.Chunks = t.chunks
		t.live = t.old.live(t.now) != nil
		t.runningBefore = t.old.record.Conversation().GetActiveTurnId()
		t.indexedBefore = t.old.record.Header.GetTurnsIndexed()
		t.firstChunk = t.old.record.Header.GetTurnChunks().GetFirst()
	}
	if w.messages && t.old.record != nil {
		n := len(t.old.extra.sizes)
		if t.old.record.Messages, err = s.elements(ctx, t.old, t.old.count()-n, t.old.count()-1); err != nil {
			return nil, err
		}
		t.old.record.Sizes = nil
	}
	if w.source != "" {
		if t.source, err = s.load(ctx, s.spaceOf(w.tenant, w.source), w.source); err != nil {
			return nil, err
		}
	}
	if len(w.records) > 0 {
		own := ""
		if t.old.live(t.now) != nil {
			own = w.id
		}
		if t.in, t.tenant, err = s.recordInput(ctx, p, own, w.records, false); err != nil {
			return nil, err
		}
	}
	if !w.mayExceed {
		if t.elsewhere, err = s.bytesElsewhere(ctx, p); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func newCommit() string {
	var id [revisionSize]byte
	_, _ = rand.Read(id[:]) // It never fails.
	return string(id[:])
}

// mode returns the mode of the commit, see commit.lua.
func (t *transaction) mode() string {
	switch {
	case t.outcome.Record == nil:
		return "delete"
	case t.live && !t.write.imports:
		return "change"
	case t.live:
		return "overwrite"
	case t.write.imports:
		return "import"
	}
	return "create"
}

// commit commits what was decided, and tells its changes.
func (s *Store) commit(ctx context.Context, t *transaction, args []string) error {
	script := s.scripts.commit
	if t.outcome.Record == nil || t.write.mayExceed {
		script = s.scripts.free
	}
	reply, err := s.run(ctx, script, t.space, t.now, args...)
	if err != nil {
		return err
	}
	return s.finish(t.space, t.now, reply, t.outcome.Changes, s.options.Limits(t.space.tenant))
}

// finish reads the reply of commit.lua and tells the changes of the commit.
func (s *Store) finish(
	p space, now time.Time, reply []rueidis.RedisMessage, changes []store.Change, limits store.Limits,
) error {
	result, err := reply[0].ToString()
	if err != nil {
		return err
	}
	switch result {
	case "moved":
		return errMoved
	case "full":
		return store.ErrFull
	case "bytes":
		return &store.TenantBytesError{Bytes: number(reply[1]), Limit: limits.MaxBytes}
	}
	at, err := readNumbered(reply[1])
	if err != nil {
		return err
	}
	removed, err := removals(p, now, reply[2])
	if err != nil {
		return err
	}
	s.countRemovals(removed)
	if at.number > 0 {
		s.teller.tell(p.index, at, append(removed, changes...))
	}
	return nil
}
