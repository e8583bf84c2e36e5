package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// told reads a reply with the place of a change, 0 for none, and the removed conversations, and passes the change on.
func (s *Store) told(p space, now time.Time, place, list rueidis.RedisMessage) (int, error) {
	at, err := readNumbered(place)
	if err != nil {
		return 0, err
	}
	removed, err := removals(p, now, list)
	if err != nil || at.number == 0 {
		return 0, err
	}
	s.countRemovals(removed)
	s.teller.tell(p.index, at, removed)
	return len(removed), nil
}

// Sweep implements store.Store. It sweeps the buckets that can be reached even if others cannot.
func (s *Store) Sweep(ctx context.Context, limit int) (more bool, err error) {
	if err := s.enter(ctx); err != nil {
		return false, err
	}
	defer s.leave()
	var errs []error
	if err := s.sweepHolds(ctx); err != nil {
		errs = append(errs, err)
	}
	lists := make([]rueidis.Completed, len(s.buckets))
	for i, b := range s.buckets {
		lists[i] = s.client.B().Zunion().Numkeys(2).Key(b.prefix+"tn", b.prefix+"tx").Build()
	}
	left := limit
	crowded := map[string]bool{} // tenants that may exceed their capacity in all their buckets together
	for i, list := range s.client.DoMulti(ctx, lists...) {
		names, err := list.AsStrSlice()
		if err != nil {
			errs = append(errs, s.fault(err))
			continue
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			tenant, _, ok := cutTenant(name)
			if !ok {
				continue
			}
			n, err := s.sweepTenant(ctx, spaceIn(s.buckets[i], tenant), left, crowded)
			if left -= n; left <= 0 {
				return true, nil
			}
			if err != nil {
				errs = append(errs, s.counted(err))
				break
			}
		}
	}
	for tenant := range crowded {
		n, err := s.sweepExcess(ctx, tenant, left)
		if left -= n; left <= 0 {
			return true, nil
		}
		if err != nil {
			errs = append(errs, s.counted(err))
		}
	}
	return false, joined(errs)
}

// sweepHolds releases what servers that have ended have held.
func (s *Store) sweepHolds(ctx context.Context) error {
	ctx, cancel := s.writing(ctx)
	defer cancel()
	return s.releaseAbandoned(ctx)
}

// sweepTenant removes at most limit conversations and records of a tenant in one of its buckets, and returns their
// number. If the tenant has several buckets, and more than its share of the capacity in this one, the tenant is added
// to crowded.
func (s *Store) sweepTenant(ctx context.Context, p space, limit int, crowded map[string]bool) (int, error) {
	ctx, cancel := s.writing(ctx)
	defer cancel()
	now, capacity := s.options.Now(), s.options.Limits(p.tenant).MaxConversations
	due := s.client.DoMulti(ctx,
		s.client.B().Zrange().Key(p.key("ex")).Min("0").Max("0").Withscores().Build(),
		s.client.B().Zrange().Key(p.key("ed")).Min("0").Max("0").Withscores().Build(),
		s.client.B().Zrange().Key(p.key("te")).Min("0").Max("0").Withscores().Build(),
		s.client.B().Zcard().Key(p.key("ix")).Build())
	isDue := func(reply rueidis.RedisResult) (bool, error) {
		scores, err := reply.AsZScores()
		if err != nil {
			return false, s.fault(err)
		}
		return len(scores) > 0 && int64(scores[0].Score) <= now.UnixMicro(), nil
	}
	expired, err := isDue(due[0])
	deleted, err2 := isDue(due[1])
	ofRecords, err3 := isDue(due[2])
	count, err4 := due[3].AsInt64()
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return 0, err
	}
	n := 0
	if ofRecords {
		n, err = s.sweepRecords(ctx, p, limit, now) // The error does not concern the conversations.
	}
	above := capacity > 0 && count*int64(s.spread) > int64(capacity)
	if s.spread > 1 {
		if above { // Otherwise the tenant exceeds its capacity only if another bucket has more than its share.
			crowded[p.tenant] = true
		}
		above, capacity = false, noCapacity
	}
	if !expired && !deleted && !above && !ofRecords || n >= limit {
		return n, err
	}
	if capacity == 0 {
		capacity = noCapacity
	}
	removed, err2 := s.runSweep(ctx, p, limit-n, capacity, now)
	return n + removed, errors.Join(err, err2)
}

// noCapacity is the argument of sweep.lua for no capacity.
const noCapacity = -1

// runSweep removes from a bucket at most limit conversations of a tenant that have ended or exceed the capacity. It
// returns their number.
func (s *Store) runSweep(ctx context.Context, p space, limit, capacity int, now time.Time) (int, error) {
	reply, err := s.run(ctx, s.scripts.sweep, p, now, s.server, strconv.Itoa(limit), strconv.Itoa(capacity))
	if err != nil {
		return 0, err
	}
	return s.told(p, now, reply[0], reply[1])
}

// sweepRecords removes at most limit records of a tenant that have expired, and returns how many.
func (s *Store) sweepRecords(ctx context.Context, p space, limit int, now time.Time) (int, error) {
	if err := s.writes.enter(ctx, p.key("t"), nil); err != nil {
		return 0, err
	}
	defer s.writes.leave(p.key("t"))
	return again(ctx, func() (int, error) {
		list := s.client.B().Zrange().Key(p.key("te")).Min("-inf").Max(strconv.FormatInt(now.UnixMicro(), 10)).Byscore().
			Limit(0, int64(min(limit, pageKeys))).Build()
		keys, err := s.client.Do(ctx, list).AsStrSlice()
		if err != nil {
			return 0, s.fault(err)
		}
		writes := make([]*parleyv1.RecordWrite, len(keys))
		for i, key := range keys {
			writes[i] = &parleyv1.RecordWrite{Key: key}
		}
		in, state, err := s.recordInput(ctx, p, "", writes, true)
		if err != nil || in == nil {
			return 0, err
		}
		edits := new(records.Edits)
		for i, key := range keys {
			if before := in.Before[i]; before.Expired(now) {
				edits.Add(records.Edit{TenantScope: true, Key: key, Before: before})
			}
		}
		if !edits.Any() {
			return 0, nil
		}
		return len(edits.All), s.commitTenant(ctx, p, newCommit(), edits, state, true, now)
	})
}

// Purge implements store.Store. Each step deletes one conversation.
func (s *Store) Purge(ctx context.Context, q *store.Purge) (store.Purged, error) {
	var purged store.Purged
	if err := s.enter(ctx); err != nil {
		return purged, err
	}
	r := s.rows(ctx, q.Tenant, rowPage)
	now := s.options.Now()
	cut := now.Add(-q.InactiveFor)
	var ids []string
	for _, value := range r.oldest(nil) {
		head, err := record.UnmarshalHead(value)
		if err != nil {
			continue
		}
		c := head.Conversation()
		if !head.Expired(now, r.states[c.GetId()]) && !c.GetLastAppendTime().AsTime().After(cut) {
			ids = append(ids, c.GetId())
		}
	}
	s.leave()
	if r.err != nil {
		return purged, r.err
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return purged, err
		}
		done := true
		if !q.DryRun {
			var err error
			if done, err = s.purge(ctx, q, id, cut); err != nil {
				return purged, err
			}
		}
		if done {
			purged.Count++
			if len(purged.SampleIDs) < store.MaxSampleIDs {
				purged.SampleIDs = append(purged.SampleIDs, id)
			}
		}
	}
	return purged, ctx.Err()
}

// purge deletes a conversation if it still exists and is still inactive, and reports whether it did.
func (s *Store) purge(ctx context.Context, q *store.Purge, id string, cut time.Time) (done bool, err error) {
	_, err = s.writeOne(ctx, &write{
		tenant: q.Tenant, id: id,
		decide: func(in *input) (*record.Outcome, error) {
			done = in.old != nil && !in.old.Conversation().GetLastAppendTime().AsTime().After(cut)
			if !done {
				return new(record.Outcome), nil
			}
			out, err := record.Delete(in.old, &store.Delete{Tenant: q.Tenant, ConversationID: id}, in.now)
			if err == nil {
				out.Changes[0].Time = in.now
			}
			return out, err
		},
	})
	return done, err
}

// SaveProgress implements store.Store.
func (s *Store) SaveProgress(ctx context.Context, q *store.Progress) error {
	err := s.saveProgress(ctx, q)
	if err != nil {
		return fmt.Errorf("conversation %q: %w", q.ConversationID, err)
	}
	return nil
}

func (s *Store) saveProgress(ctx context.Context, q *store.Progress) error {
	value, err := record.MarshalProgress(q)
	if err != nil {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	ctx, cancel := s.writing(ctx)
	defer cancel()
	p := s.spaceOf(q.Tenant, q.ConversationID)
	all := []string{p.prefix, p.name, stamp(s.options.Now()), q.ConversationID, q.TurnID, rueidis.BinaryString(value)}
	saved, err := s.exec(ctx, s.writer, s.scripts.progress, p, all).AsInt64()
	if err != nil {
		return s.fault(err)
	}
	if saved == 0 {
		return fmt.Errorf("turn %q: %w", q.TurnID, store.ErrTurnEnded)
	}
	return nil
}
