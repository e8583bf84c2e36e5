package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// List implements store.Store.
func (s *Store) List(ctx context.Context, l *store.List) (*store.Page, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	r := s.rows(ctx, l.Tenant, max(8, min(rowPage, l.PageSize+1)))
	total, err := s.count(ctx, r.all)
	if err != nil {
		return nil, err
	}
	page, err := record.BuildPage(ctx, l, total, s.spread, s.options.Now(), r.newest, r.oldest, r.ephemeral)
	return page, errors.Join(err, r.err)
}

// count returns the number of conversations in some buckets of a tenant.
func (s *Store) count(ctx context.Context, in []space) (total int64, err error) {
	commands := make([]rueidis.Completed, len(in))
	for i, p := range in {
		commands[i] = s.client.B().Zcard().Key(p.key("ix")).Build()
	}
	for _, reply := range s.client.DoMulti(ctx, commands...) {
		n, err := reply.AsInt64()
		if err != nil {
			return 0, s.fault(err)
		}
		total += n
	}
	return total, nil
}

// Tenants implements store.Store. The order is that of the first buckets of tenants, regardless of their lanes, and
// then that of length and name: tenants whose buckets are the same are merged.
func (s *Store) Tenants(ctx context.Context, after string, limit int) (tenants []string, next string, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, "", err
	}
	defer s.leave()
	group, from := 0, "-"
	if after != "" {
		index, last, _ := strings.Cut(after, " ")
		if group, err = strconv.Atoi(index); err != nil || group < 0 || group >= s.stride() {
			return nil, "", fmt.Errorf("tenants: %w", store.ErrPageToken)
		}
		from = "(" + last
	}
	for ; group < s.stride(); group, from = group+1, "-" {
		names, err := s.tenantNames(ctx, group, from, limit-len(tenants)+1)
		if err != nil {
			return nil, "", err
		}
		last := ""
		for _, name := range names {
			if len(tenants) == limit {
				if last == "" {
					return tenants, next, nil
				}
				return tenants, strconv.Itoa(group) + " " + last, nil
			}
			tenant, _, ok := cutTenant(name)
			if !ok {
				continue
			}
			tenants, last = append(tenants, tenant), name
		}
		if last != "" {
			next = strconv.Itoa(group) + " " + last
		}
	}
	return tenants, "", nil
}

// tenantNames returns at most n names of tenants, from a position on, whose buckets are those of a group: that with its
// index and those at each stride from it.
func (s *Store) tenantNames(ctx context.Context, group int, from string, n int) ([]string, error) {
	var commands []rueidis.Completed
	for i := group; i < len(s.buckets); i += s.stride() {
		list := s.client.B().Zrange().Key(s.buckets[i].prefix+"tn").Min(from).Max("+").Bylex().Limit(0, int64(n)).Build()
		commands = append(commands, list)
	}
	var all []string
	for _, reply := range s.client.DoMulti(ctx, commands...) {
		names, err := reply.AsStrSlice()
		if err != nil {
			return nil, s.fault(err)
		}
		all = append(all, names...)
	}
	slices.Sort(all) // Each page has the first names of its bucket, so all pages together have the first names.
	all = slices.Compact(all)
	return all[:min(n, len(all))], nil
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
	p, id := s.spaceOf(f.Tenant, f.ConversationID), f.ConversationID
	if id == "" {
		turn, ok := record.ParseTurnID(f.TurnID)
		if !ok {
			return nil, store.ErrTurnNotFound
		}
		begin := string(turn[:])
		members, _, err := newMerged(ctx, s, s.spaces(f.Tenant), "ti", "["+begin, false).page(1)
		if err != nil {
			return nil, err
		}
		if len(members) == 0 || !strings.HasPrefix(members[0].text, begin) {
			return nil, store.ErrTurnNotFound
		}
		p, id = members[0].space, members[0].text[len(begin):]
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
	p := s.spaceOf(l.Tenant, l.ConversationID)
	if l.ConversationID == "" {
		return s.listTenantTurns(ctx, l)
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

func (s *Store) listTenantTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	before, all, err := record.TurnBefore(l)
	if err != nil {
		return nil, err
	}
	kind, from := "ti", "+"
	if record.OnlyRunning(l) {
		kind = "tr"
	}
	if !all {
		from = "(" + string(before[:]) // Members are longer than the id, so they are not before it.
	}
	finders, pager := map[string]*record.TurnFinder{}, record.NewTurnPager(l)
	turns := newMerged(ctx, s, s.spaces(l.Tenant), kind, from, true)
	for {
		members, more, err := turns.page(pageKeys)
		if err != nil {
			return nil, err
		}
		for _, member := range members {
			if pager.IsFull() {
				return pager.Page(), nil
			}
			var turn record.TurnID
			id := member.text[copy(turn[:], member.text):]
			f, known := finders[id]
			if !known {
				_, r, err := s.withTurns(ctx, member.space, id)
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
		if !more {
			pager.End()
			return pager.Page(), nil
		}
	}
}
