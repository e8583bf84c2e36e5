package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// copyMark begins the text of the schema key of a store that is being made as a copy of another one. Open refuses it.
const copyMark = "copy "

// ErrNotEmpty means that the store that should become a copy has data.
var ErrNotEmpty = errors.New("the store is not empty")

// Target is a store that is being made as a copy of another one. It implements store.CopyTarget.
type Target struct {
	store  *Store
	schema string // text of the schema key after Finish
}

var _ store.CopyTarget = (*Target)(nil)

// OpenTarget begins a store as a copy of another one. It first removes an unfinished copy of an earlier process.
// Options.Exclusive has no effect: no other process may use the store. Errors are those of Open, and ErrNotEmpty.
func OpenTarget(ctx context.Context, o Options) (*Target, error) {
	o.Exclusive = true
	target := new(Target)
	var err error
	target.store, err = open(ctx, o, func(s *Store, ctx context.Context, o *Options) error {
		return target.start(ctx, s, o)
	})
	if err != nil {
		return nil, err
	}
	return target, nil
}

// start checks the engine, takes the lease of the first bucket, and marks the store as a copy before anything else.
func (t *Target) start(ctx context.Context, s *Store, o *Options) error {
	// The first bucket is the same for each number of buckets. Another process may have finished a copy before the claim.
	s.buckets = newBuckets(s.prefix, 1)
	if err := s.claim(ctx, true); err != nil {
		return err
	}
	key := s.schemaKey()
	text, err := s.client.Do(ctx, s.client.B().Get().Key(key).Build()).ToString()
	if err != nil && !isNil(err) {
		return s.fault(err)
	}
	switch { // No other process uses the store from here on.
	case strings.HasPrefix(text, copyMark):
		if err := s.erase(ctx); err != nil {
			return err
		}
	default: // The schema alone may be lost.
		if err := s.checkEmpty(ctx, text, o); err != nil {
			return err
		}
	}
	if err := s.client.Do(ctx, s.client.B().Del().Key(key).Build()).Error(); err != nil {
		return s.fault(err)
	}
	err = s.start(ctx, o) // It has the lease already, and makes the schema.
	if err == nil {
		t.schema = layout{len(s.buckets), s.spread}.String()
		err = s.fault(s.client.Do(ctx, s.client.B().Set().Key(key).Value(copyMark+t.schema).Build()).Error())
	}
	if err != nil { // For example because the memory of the engine is full.
		removed := s.client.Do(context.WithoutCancel(ctx), s.client.B().Del().Key(key).Build()).Error()
		return errors.Join(err, s.fault(removed))
	}
	return nil
}

// checkEmpty checks that a store with this schema, which may be empty, has no data.
func (s *Store) checkEmpty(ctx context.Context, schema string, o *Options) error {
	if schema != "" {
		found, err := readSchema(s.schemaKey(), schema, o)
		if err != nil {
			return err
		}
		s.buckets = newBuckets(s.prefix, found.buckets)
	}
	tenants, err := s.allTenants(ctx)
	if err == nil && len(tenants) > 0 {
		return fmt.Errorf("%w: %q has data of %d tenants, the first one %.80q: name another prefix, database or engine",
			ErrNotEmpty, s.prefix, len(tenants), tenants[0])
	}
	return err
}

// erasePage is the number of keys that erase removes at once.
const erasePage = 500

// erase removes all keys of buckets, except those of leases.
func (s *Store) erase(ctx context.Context) error {
	var keys []rueidis.Completed
	var failed error
	remove := func() {
		for _, reply := range s.client.DoMulti(ctx, keys...) {
			failed = errors.Join(failed, s.fault(reply.Error()))
		}
		keys = keys[:0]
	}
	err := s.scan(ctx, "*", func(key, rest string) {
		if rest == "ls" || rest == "la" || failed != nil {
			return
		}
		if keys = append(keys, s.client.B().Unlink().Key(key).Build()); len(keys) == erasePage {
			remove()
		}
	})
	remove()
	return errors.Join(err, failed)
}

// PutConversation implements store.CopyTarget.
func (t *Target) PutConversation(ctx context.Context, c *store.ConversationCopy) error {
	id := c.Header.GetConversation().GetId()
	history, err := record.NewHistory(c.Messages)
	if err != nil {
		return fmt.Errorf("conversation %q: %w", id, err)
	}
	_, err = t.store.writeOne(ctx, &write{
		tenant: c.Tenant, id: id, imports: true, deleteTime: c.DeleteTime,
		decide: func(in *input) (*record.Outcome, error) {
			if in.old != nil {
				return nil, store.ErrConversationExists
			}
			r, err := record.FromCopy(c, history)
			return &record.Outcome{Record: r, Result: new(store.Result)}, err
		},
	})
	return err
}

// PutRecords implements store.CopyTarget.
func (t *Target) PutRecords(ctx context.Context, c *store.RecordCopies) error {
	err := t.putRecords(ctx, c)
	if err != nil {
		return fmt.Errorf("records of conversation %q of tenant %q: %w", c.ConversationID, c.Tenant, err)
	}
	return nil
}

func (t *Target) putRecords(ctx context.Context, c *store.RecordCopies) error {
	s := t.store
	edits, err := records.FromCopies(c)
	if err != nil {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	ctx, cancel := s.writing(ctx)
	defer cancel()
	p, now := s.spaceOf(c.Tenant, c.ConversationID), s.options.Now()
	b := newCommands(p)
	b.records(c.ConversationID, "", edits, tenantState{})
	if c.Revision > 0 {
		b.add("HSET", b.key("t"), "rev", fmt.Sprint(c.Revision))
	}
	args := b.recordArgs(tenantState{}, 0, edits.Conversation.Plus(edits.Tenant), s.server)
	reply, err := s.run(ctx, s.scripts.commit, p, now, args...)
	if err != nil {
		return err
	}
	return s.finish(p, now, reply, nil, store.Limits{})
}

// SaveProgress implements store.CopyTarget.
func (t *Target) SaveProgress(ctx context.Context, p *store.Progress) error {
	return t.store.SaveProgress(ctx, p)
}

// Stats implements store.CopyTarget.
func (t *Target) Stats(ctx context.Context) (store.Stats, error) { return t.store.Stats(ctx) }

// Finish implements store.CopyTarget.
func (t *Target) Finish(ctx context.Context) error {
	set := t.store.client.B().Set().Key(t.store.schemaKey()).Value(t.schema).Build()
	err := t.store.fault(t.store.writer.Do(ctx, set).Error())
	return errors.Join(err, t.store.Close())
}

// Discard implements store.CopyTarget.
func (t *Target) Discard(ctx context.Context) error {
	err := t.store.erase(ctx)
	if err == nil {
		err = t.store.fault(t.store.client.Do(ctx, t.store.client.B().Del().Key(t.store.schemaKey()).Build()).Error())
	}
	return errors.Join(err, t.store.Close())
}
