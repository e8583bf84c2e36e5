package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

// releaseOf releases all holds of ids by a server that has ended.
func (s *Store) releaseOf(ctx context.Context, p space, server string, ids []string, now time.Time) error {
	reply, err := s.run(ctx, s.scripts.release, p, now, append([]string{s.server, server, "", ""}, ids...)...)
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
	live, err := s.judgedLeases(ctx, b)
	if errors.Is(err, errNotJudged) {
		return nil // A later sweep releases them.
	}
	if err != nil {
		return err
	}
	for _, server := range servers {
		if live[server] || server == s.server {
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
			replies := s.client.DoMulti(ctx, s.client.B().Unlink().Key(b.prefix+"hc:"+server).Build(),
				s.client.B().Srem().Key(b.prefix+"hs").Member(server).Build())
			return s.fault(cmp.Or(replies[0].Error(), replies[1].Error()))
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
			if err := s.releaseOf(ctx, spaceIn(b, tenant), server, ids, s.options.Now()); err != nil {
				return err
			}
		}
	}
}
