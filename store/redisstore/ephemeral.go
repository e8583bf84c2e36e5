package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// Hold implements store.Store.
func (s *Store) Hold(ctx context.Context, h *store.Hold) error {
	err := s.hold(ctx, h)
	if err != nil {
		return fmt.Errorf("hold %d conversations: %w", len(h.ConversationIDs), err)
	}
	return nil
}

func (s *Store) hold(ctx context.Context, h *store.Hold) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	ctx, cancel := s.writing(ctx)
	defer cancel()
	p, now := s.space(h.Tenant), s.options.Now()
	args := []string{s.server, strconv.FormatInt(int64(h.DeleteAfter), 10), strconv.Itoa(store.MaxHolds)}
	reply, err := s.run(ctx, s.scripts.hold, p, now, append(args, record.HoldIDs(h)...)...)
	if err != nil {
		return err
	}
	if result, err := reply[0].ToString(); err != nil {
		return err
	} else if result == "many" {
		return store.ErrTooManyHolds
	}
	_, err = s.told(p, now, reply[1], reply[2])
	return err
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, h *store.Hold) error {
	err := s.enter(ctx)
	if err == nil {
		defer s.leave()
		writing, cancel := s.writing(ctx)
		defer cancel()
		after := strconv.FormatInt(int64(h.DeleteAfter), 10)
		err = s.release(writing, s.space(h.Tenant), s.server, after, record.HoldIDs(h), s.options.Now())
	}
	if err != nil {
		return fmt.Errorf("release %d conversations: %w", len(h.ConversationIDs), err)
	}
	return nil
}

// release runs release.lua.
func (s *Store) release(ctx context.Context, p space, server, after string, ids []string, now time.Time) error {
	reply, err := s.run(ctx, s.scripts.release, p, now, append([]string{s.server, server, after}, ids...)...)
	if err != nil {
		return err
	}
	_, err = s.told(p, now, reply[0], reply[1])
	return err
}

// releasePage is the number of ids that are released at once.
const releasePage = 500

// releaseAbandoned releases what servers without a lease have held, in the buckets that can be reached.
func (s *Store) releaseAbandoned(ctx context.Context) error {
	commands := make([]rueidis.Completed, len(s.buckets))
	for i, b := range s.buckets {
		commands[i] = s.client.B().Smembers().Key(b.prefix + "hs").Build()
	}
	var errs []error
	for i, reply := range s.client.DoMulti(ctx, commands...) {
		servers, err := reply.AsStrSlice()
		if err = s.fault(err); err == nil && len(servers) > 0 {
			err = s.releaseWithoutLease(ctx, s.buckets[i], servers)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return joined(errs)
}

// releaseWithoutLease releases what those of the servers have held in a bucket that have no lease.
func (s *Store) releaseWithoutLease(ctx context.Context, b bucket, servers []string) error {
	live, err := s.leases(ctx, b)
	if err != nil {
		return err
	}
	for _, server := range servers {
		if live[server] {
			continue
		}
		if err := s.releaseAll(ctx, b, server); err != nil {
			return err
		}
	}
	return nil
}

// releaseAll releases all that a server has held in a bucket.
func (s *Store) releaseAll(ctx context.Context, b bucket, server string) error {
	holds := b.prefix + "ho:" + server
	for {
		page, err := s.client.Do(ctx, s.client.B().Hrandfield().Key(holds).Count(releasePage).Build()).AsStrSlice()
		if err != nil && !isNil(err) {
			return s.fault(err)
		}
		if len(page) == 0 {
			return s.fault(s.client.Do(ctx, s.client.B().Srem().Key(b.prefix+"hs").Member(server).Build()).Error())
		}
		byTenant := map[string][]string{}
		for _, name := range page {
			tenant, id, ok := cutTenant(name)
			if !ok {
				return fmt.Errorf("%w: hold %q", store.ErrCorrupt, name)
			}
			byTenant[tenant] = append(byTenant[tenant], id)
		}
		for tenant, ids := range byTenant {
			if err := s.release(ctx, s.space(tenant), server, "", ids, s.options.Now()); err != nil {
				return err
			}
		}
	}
}
