package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// abandonedBytes is the size of the progress of turns from which on a page of Abandoned ends.
const abandonedBytes = 1 << 20

// Abandoned implements store.Store. If the engine does not answer for some buckets, it returns the turns of the others,
// and the error only if there are none. After a bucket could not be reached, it returns none of that bucket for the
// time of a lease, see judges.
func (s *Store) Abandoned(ctx context.Context, after string) ([]store.Progress, string, error) {
	return s.abandoned(ctx, after, false)
}

// abandoned is Abandoned. If all is set, no other process uses the store, and the call fails if the engine does not
// answer for some buckets.
func (s *Store) abandoned(
	ctx context.Context, after string, all bool,
) (turns []store.Progress, next string, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, "", err
	}
	defer s.leave()
	first, from := 0, "-"
	if after != "" {
		index, last, _ := strings.Cut(after, " ")
		if first, err = strconv.Atoi(index); err != nil || first < 0 || first >= len(s.buckets) {
			return nil, "", fmt.Errorf("abandoned turns: %w", store.ErrPageToken)
		}
		from = "(" + last
	}
	p := &abandonedPage{store: s, leases: s.judgedLeases}
	if all { // No server lives beside this process.
		p.leases = s.leases
	}
	counts := make([]rueidis.Completed, len(s.buckets)-first) // Mostly no turn is running.
	for i, b := range s.buckets[first:] {
		counts[i] = s.client.B().Zcard().Key(b.prefix + "rl").Build()
	}
	var unreachable error
	for i, reply := range s.client.DoMulti(ctx, counts...) {
		n, err := reply.AsInt64()
		if err = s.fault(err); err == nil && n > 0 {
			next, err = p.addBucket(ctx, s.buckets[first+i], from)
		}
		switch {
		case errors.Is(err, store.ErrUnavailable):
			unreachable = err
		case err != nil:
			return nil, "", err
		case next != "":
			return p.turns, next, nil
		}
		from = "-"
	}
	if len(p.turns) == 0 || all && unreachable != nil {
		return nil, "", unreachable
	}
	return p.turns, "", nil
}

// abandonedPage collects turns that no live server answers.
type abandonedPage struct {
	store *Store
	// leases returns the servers that live. If it is not known which ones do, the error is errNotJudged.
	leases func(ctx context.Context, b bucket) (map[string]bool, error)
	turns  []store.Progress
	size   int // of their progress, about
}

// addBucket adds those of a bucket, from a position in {T}rl. next is the position after the page if it is full.
func (p *abandonedPage) addBucket(ctx context.Context, b bucket, from string) (next string, err error) {
	s := p.store
	for {
		list := s.client.B().Zrange().Key(b.prefix+"rl").Min(from).Max("+").Bylex().Limit(0, pageKeys).Build()
		names, err := s.client.Do(ctx, list).AsStrSlice()
		if err != nil || len(names) == 0 {
			return "", s.fault(err)
		}
		of, err := s.client.Do(ctx, s.client.B().Hmget().Key(b.prefix+"rt").Field(names...).Build()).ToArray()
		if err != nil {
			return "", s.fault(err)
		}
		live, err := p.leases(ctx, b) // After the turns: a server has a lease before it begins one.
		if errors.Is(err, errNotJudged) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		for i, name := range names {
			running, _ := of[i].ToString() // Empty if the turn has just ended.
			if len(running) < runningHead || live[running[:serverSize]] {
				continue
			}
			if err := p.add(ctx, b, name, running[runningHead:]); err != nil {
				return "", err
			}
			if p.size >= abandonedBytes || len(p.turns) >= pageKeys {
				return strconv.Itoa(b.index) + " " + name, nil
			}
		}
		from = "(" + names[len(names)-1]
	}
}

// add adds a turn with its saved progress, unless its conversation has ended and is not swept yet.
func (p *abandonedPage) add(ctx context.Context, b bucket, name, turnID string) error {
	s := p.store
	tenant, id, ok := cutTenant(name)
	if !ok {
		return nil
	}
	value, err := s.client.Do(ctx, s.client.B().Get().Key(b.prefix+"p:"+name).Build()).AsBytes()
	if err != nil && !isNil(err) {
		return s.fault(err)
	}
	found := &store.Progress{TurnID: turnID}
	if value != nil {
		if saved, err := record.UnmarshalProgress(value); err == nil && saved.TurnID == turnID {
			found = saved
		}
	}
	found.Tenant, found.ConversationID = tenant, id
	c, err := s.load(ctx, spaceIn(b, tenant), id, turnsPart)
	if err != nil && !errors.Is(err, store.ErrCorrupt) {
		return err
	}
	if err == nil && c.live(s.options.Now()) == nil {
		return nil
	}
	if err == nil && found.Events == nil {
		found.Events = c.record.Events(turnID)
	}
	p.turns, p.size = append(p.turns, *found), p.size+len(value)+100
	return nil
}
