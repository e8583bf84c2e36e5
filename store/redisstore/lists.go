package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// rowPage is the number of conversations that a list reads at once.
const rowPage = 200

// List implements store.Store.
func (s *Store) List(ctx context.Context, l *store.List) (*store.Page, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	p := s.space(l.Tenant)
	total, err := s.client.Do(ctx, s.client.B().Zcard().Key(p.key("ix")).Build()).AsInt64()
	if err != nil {
		return nil, s.fault(err)
	}
	r := &rows{store: s, ctx: ctx, p: p, most: max(8, min(rowPage, l.PageSize+1)), states: map[string]record.Ephemeral{}}
	page, err := record.BuildPage(ctx, l, total, s.options.Now(), r.newest, r.oldest, r.ephemeral)
	return page, errors.Join(err, r.err)
}

// rows reads the conversations of a tenant in the order of create time.
type rows struct {
	store  *Store
	ctx    context.Context //nolint:containedctx // It is that of one list.
	p      space
	most   int // that are read at once
	states map[string]record.Ephemeral
	err    error
}

func (r *rows) ephemeral(id string) record.Ephemeral { return r.states[id] }

// newest implements record.Newest.
func (r *rows) newest(before []byte) iter.Seq2[[]byte, []byte] {
	from := "+"
	switch {
	case len(before) > record.KeySize: // It is after a key, and so it must be after that key with an id.
		from = "(" + string(before[:record.KeySize]) + "\xff"
	case before != nil:
		from = "(" + string(before)
	}
	return r.all(from, func(from string) rueidis.Completed {
		return r.store.client.B().Zrange().Key(r.p.key("ix")).Min(from).Max("-").Bylex().Rev().Limit(0, int64(r.most)).Build()
	}, before)
}

// oldest implements record.Oldest.
func (r *rows) oldest(after []byte) iter.Seq2[[]byte, []byte] {
	from := "-"
	if after != nil {
		from = "(" + string(after)
	}
	return r.all(from, func(from string) rueidis.Completed {
		return r.store.client.B().Zrange().Key(r.p.key("ix")).Min(from).Max("+").Bylex().Limit(0, int64(r.most)).Build()
	}, after)
}

// all yields the keys and the heads of conversations, page by page, without that with the key except.
func (r *rows) all(from string, next func(from string) rueidis.Completed, except []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for {
			places, err := r.store.client.Do(r.ctx, next(from)).AsStrSlice()
			if err != nil {
				r.err = r.store.fault(err)
				return
			}
			if len(places) == 0 {
				return
			}
			from = "(" + places[len(places)-1]
			for i, value := range r.heads(places) {
				key := []byte(places[i][:record.KeySize])
				if value == nil || bytes.Equal(key, except) {
					continue
				}
				if !yield(key, value) {
					return
				}
			}
			if r.err != nil || len(places) < r.most {
				return
			}
			r.most = rowPage
		}
	}
}

// heads returns the encoded heads of conversations, nil for those that do not exist any more. Those whose key is lost
// are empty, and so damaged.
func (r *rows) heads(places []string) [][]byte {
	commands := make([]rueidis.Completed, len(places))
	for i, place := range places {
		commands[i] = r.store.client.B().Hmget().Key(r.p.of("c", place[record.KeySize:])).Field("h", "e").Build()
	}
	heads := make([][]byte, len(places))
	var missing []int
	for i, reply := range r.store.client.DoMulti(r.ctx, commands...) {
		fields, err := reply.ToArray()
		if err != nil {
			r.err = r.store.fault(err)
			return nil
		}
		if fields[0].IsNil() {
			missing = append(missing, i)
			continue
		}
		heads[i], _ = fields[0].AsBytes()
		if state, err := fields[1].ToString(); err == nil {
			r.states[places[i][record.KeySize:]], _ = ephemeralOf(state)
		}
	}
	for _, i := range missing {
		score := r.store.client.Do(r.ctx, r.store.client.B().Zscore().Key(r.p.key("ix")).Member(places[i]).Build())
		if score.Error() == nil { // It was not deleted in between.
			heads[i] = []byte{}
		}
	}
	return heads
}

// Tenants implements store.Store. The order is that of the buckets, and in a bucket that of length and name.
func (s *Store) Tenants(ctx context.Context, after string, limit int) (tenants []string, next string, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, "", err
	}
	defer s.leave()
	bucket, from := 0, "-"
	if after != "" {
		index, last, _ := strings.Cut(after, " ")
		if bucket, err = strconv.Atoi(index); err != nil || bucket < 0 || bucket >= len(s.buckets) {
			return nil, "", fmt.Errorf("tenants: %w", store.ErrPageToken)
		}
		from = "(" + last
	}
	for ; bucket < len(s.buckets); bucket, from = bucket+1, "-" {
		list := s.client.B().Zrange().Key(s.buckets[bucket].prefix+"tn").Min(from).Max("+").Bylex().
			Limit(0, int64(limit-len(tenants)+1)).Build()
		names, err := s.client.Do(ctx, list).AsStrSlice()
		if err != nil {
			return nil, "", s.fault(err)
		}
		last := ""
		for _, name := range names {
			if len(tenants) == limit {
				if last == "" {
					return tenants, next, nil
				}
				return tenants, strconv.Itoa(bucket) + " " + last, nil
			}
			tenant, _, ok := cutTenant(name)
			if !ok {
				continue
			}
			tenants, last = append(tenants, tenant), name
		}
		if last != "" {
			next = strconv.Itoa(bucket) + " " + last
		}
	}
	return tenants, "", nil
}

// FindTurn implements store.Store.
func (s *Store) FindTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	found, err := s.findTurn(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("turn %q: %w", f.TurnID, s.counted(err))
	}
	return found, nil
}

func (s *Store) findTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	p, id := s.space(f.Tenant), f.ConversationID
	if id == "" {
		turn, ok := record.ParseTurnID(f.TurnID)
		if !ok {
			return nil, store.ErrTurnNotFound
		}
		begin := string(turn[:])
		find := s.client.B().Zrange().Key(p.key("ti")).Min("["+begin).Max("+").Bylex().Limit(0, 1).Build()
		members, err := s.client.Do(ctx, find).AsStrSlice()
		if err != nil {
			return nil, s.fault(err)
		}
		if len(members) == 0 || !strings.HasPrefix(members[0], begin) {
			return nil, store.ErrTurnNotFound
		}
		id = members[0][len(begin):]
	}
	return again(ctx, func() (*store.FoundTurn, error) {
		c, r, err := s.withTurns(ctx, p, id)
		if err == nil && r == nil {
			err = store.ErrNotFound
			if f.ConversationID == "" {
				err = store.ErrTurnNotFound
			}
		}
		if err != nil {
			return nil, err
		}
		found, err := r.FindTurn(f.TurnID)
		return found, s.steady(ctx, c, err)
	})
}

// withTurns reads a conversation with its turns; the record is nil if there is none.
func (s *Store) withTurns(ctx context.Context, p space, id string) (*conversation, *record.Record, error) {
	c, err := s.load(ctx, p, id, turnsPart)
	if err != nil {
		return nil, nil, err
	}
	r := c.live(s.options.Now())
	return c, r, nil
}

// steady returns errMoved in place of an error if the conversation has changed since it was read.
func (s *Store) steady(ctx context.Context, c *conversation, err error) error {
	if err == nil || !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	if moved := s.unchanged(c, s.client.Do(ctx, s.revisionCommand(c.space, c.id))); moved != nil {
		return moved
	}
	return err
}

// ListTurns implements store.Store.
func (s *Store) ListTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	page, err := s.listTurns(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("list turns: %w", s.counted(err))
	}
	return page, nil
}

func (s *Store) listTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	p := s.space(l.Tenant)
	if l.ConversationID == "" {
		return s.listTenantTurns(ctx, p, l)
	}
	return again(ctx, func() (*store.TurnPage, error) {
		c, r, err := s.withTurns(ctx, p, l.ConversationID)
		if err == nil && r == nil {
			err = fmt.Errorf("conversation %q: %w", l.ConversationID, store.ErrNotFound)
		}
		if err != nil {
			return nil, err
		}
		page, err := r.ListTurns(l)
		return page, s.steady(ctx, c, err)
	})
}

func (s *Store) listTenantTurns(ctx context.Context, p space, l *store.ListTurns) (*store.TurnPage, error) {
	before, all, err := record.TurnBefore(l)
	if err != nil {
		return nil, err
	}
	key := p.key("ti")
	if record.OnlyRunning(l) {
		key = p.key("tr")
	}
	from := "+"
	if !all {
		from = "(" + string(before[:]) // Members are longer than the id, so they are not before it.
	}
	finders, pager := map[string]*record.TurnFinder{}, record.NewTurnPager(l)
	for {
		list := s.client.B().Zrange().Key(key).Min(from).Max("-").Bylex().Rev().Limit(0, pageKeys).Build()
		members, err := s.client.Do(ctx, list).AsStrSlice()
		if err != nil {
			return nil, s.fault(err)
		}
		for _, member := range members {
			if pager.IsFull() {
				return pager.Page(), nil
			}
			var turn record.TurnID
			id := member[copy(turn[:], member):]
			f, known := finders[id]
			if !known {
				_, r, err := s.withTurns(ctx, p, id)
				if err != nil {
					return nil, err
				}
				if r != nil {
					f = record.NewTurnFinder(r)
				}
				finders[id] = f
			}
			if err := pager.Add(turn, f); err != nil {
				return nil, err
			}
		}
		if len(members) < pageKeys {
			pager.End()
			return pager.Page(), nil
		}
		from = "(" + members[len(members)-1]
	}
}
