package redisstore

import (
	"cmp"
	"context"
	"errors"
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
	p := s.space(h.Tenant)
	if err := s.writes.enter(ctx, p.key("em"), nil); err != nil {
		return err
	}
	defer s.writes.leave(p.key("em"))
	ctx, cancel := s.writing(ctx)
	defer cancel()
	now := s.options.Now()
	args := []string{
		s.server, s.nextHold(), strconv.FormatInt(int64(h.DeleteAfter), 10), strconv.Itoa(store.MaxHolds),
	}
	reply, err := s.runOnce(ctx, s.scripts.hold, p, now, append(args, record.HoldIDs(h)...)...)
	if err != nil {
		return err
	}
	switch result, err := reply[0].ToString(); {
	case err != nil:
		return err
	case result == "many":
		return store.ErrTooManyHolds
	case result == "made": // Its reply was lost.
		s.awaitTold(ctx, p.bucket)
		return nil
	}
	_, err = s.told(p, now, reply[1], reply[2])
	return err
}

// nextHold returns the number of a hold or release of this process. Those of a tenant follow one another, so that the
// number of the last one that was made shows for each whether it was made.
func (s *Store) nextHold() string { return strconv.FormatInt(s.holds.Add(1), 10) }

// runOnce runs a script again if its reply was lost. The script must find out whether it was made.
func (s *Store) runOnce(
	ctx context.Context, script *rueidis.Lua, p space, now time.Time, args ...string,
) ([]rueidis.RedisMessage, error) {
	return again(ctx, func() ([]rueidis.RedisMessage, error) {
		reply, err := s.run(ctx, script, p, now, args...)
		if errors.Is(err, store.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", errMoved, err)
		}
		return reply, err
	})
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, h *store.Hold) error {
	err := s.releaseOwn(ctx, h)
	if err != nil {
		return fmt.Errorf("release %d conversations: %w", len(h.ConversationIDs), err)
	}
	return nil
}

func (s *Store) releaseOwn(ctx context.Context, h *store.Hold) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	p := s.space(h.Tenant)
	if err := s.writes.enter(ctx, p.key("em"), nil); err != nil {
		return err
	}
	defer s.writes.leave(p.key("em"))
	ctx, cancel := s.writing(ctx)
	defer cancel()
	now := s.options.Now()
	args := []string{s.server, s.server, s.nextHold(), strconv.FormatInt(int64(h.DeleteAfter), 10)}
	reply, err := s.runOnce(ctx, s.scripts.release, p, now, append(args, record.HoldIDs(h)...)...)
	if err != nil {
		return err
	}
	if made, _ := reply[0].AsInt64(); made < 0 { // Its reply was lost.
		s.awaitTold(ctx, p.bucket)
		return nil
	}
	_, err = s.told(p, now, reply[0], reply[1])
	return err
}

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
	live, err := s.leases(ctx, b)
	if err != nil {
		return err
	}
	for _, server := range servers {
		if live[server] || server == s.server { // This process lives, also if it could not renew its lease.
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
			if err := s.releaseOf(ctx, s.space(tenant), server, ids, s.options.Now()); err != nil {
				return err
			}
		}
	}
}
