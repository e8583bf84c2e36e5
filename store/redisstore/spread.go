package redisstore

import (
	"context"
	"errors"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

// A bucket of a tenant with several buckets may exceed its share of the capacity by a quarter, and by a constant for
// small capacities, because ids are spread unevenly. The sweep removes the conversations above the capacity of the
// tenant.
const (
	shareNumerator, shareDenominator = 5, 4
	shareExtra                       = 32
)

// share returns the maximum number of conversations in one bucket of a tenant with a capacity.
func (s *Store) share(capacity int) int {
	if s.spread == 1 || capacity == 0 {
		return capacity
	}
	return int(int64(capacity)*shareNumerator/int64(shareDenominator*s.spread)) + shareExtra
}

// sweepExcess removes the conversations of a tenant that exceed its capacity in all its buckets together, the oldest
// first, at most limit. It returns the number of removed conversations.
func (s *Store) sweepExcess(ctx context.Context, tenant string, limit int) (removed int, err error) {
	ctx, cancel := s.writing(ctx)
	defer cancel()
	all, now := s.spaces(tenant), s.options.Now()
	commands := make([]rueidis.Completed, len(all))
	for i, p := range all {
		commands[i] = s.client.B().Zcard().Key(p.key("ix")).Build()
	}
	counts, total := make([]int, len(all)), 0
	for i, reply := range s.client.DoMulti(ctx, commands...) {
		n, err := reply.AsInt64()
		if err != nil {
			return 0, s.fault(err)
		}
		counts[i], total = int(n), total+int(n)
	}
	capacity := s.options.Limits(tenant).MaxConversations // It may have changed since the caller read it.
	excess := min(limit, total-capacity)
	if capacity == 0 || excess <= 0 {
		return 0, nil
	}
	of := map[int]int{} // how many of the oldest are in each bucket
	for oldest := newMerged(ctx, s, all, "ev", "-", false); excess > 0; {
		page, more, err := oldest.page(min(excess, rowPage))
		if err != nil {
			return 0, err
		}
		for _, m := range page {
			of[m.index]++
		}
		if excess -= len(page); !more {
			break
		}
	}
	for i, p := range all {
		n := of[p.index]
		if n == 0 {
			continue
		}
		gone, err := s.runSweep(ctx, p, n, counts[i]-n, now)
		if removed += gone; err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// bytesElsewhere returns the bytes of a tenant with a limit of bytes in its other buckets. For a tenant without a limit
// it returns 0.
func (s *Store) bytesElsewhere(ctx context.Context, p space) (total int64, err error) {
	if s.spread == 1 || s.options.Limits(p.tenant).MaxBytes == 0 {
		return 0, nil
	}
	var commands []rueidis.Completed
	for _, other := range s.spaces(p.tenant) {
		if other.index != p.index {
			commands = append(commands, s.client.B().Hget().Key(other.key("t")).Field("b").Build())
		}
	}
	for _, reply := range s.client.DoMulti(ctx, commands...) {
		n, err := reply.AsInt64()
		if err != nil && !isNil(err) {
			return 0, s.fault(err)
		}
		total += n
	}
	return total, nil
}

// bytesHere returns the limit of bytes of a tenant for one bucket, given the bytes of the others. 0 means no limit.
func bytesHere(limit, elsewhere int64) int64 {
	if limit == 0 {
		return 0
	}
	return max(1, limit-elsewhere)
}

// withElsewhere adds the bytes of other buckets to the error of a limit of bytes.
func withElsewhere(err error, elsewhere int64) error {
	if full, ok := errors.AsType[*store.TenantBytesError](err); ok {
		full.Bytes += elsewhere
	}
	return err
}
