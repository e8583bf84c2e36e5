package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// holdCall is a hold or a release of a tenant. It is made once in each bucket, also if replies are lost and the caller
// calls again.
type holdCall struct {
	hold    *store.Hold
	release bool
	parts   []holdPart // not made so far
	made    []holdPart
	refused bool // whether the engine has refused a part
}

// holdPart is the ids of a hold or a release that are in one bucket.
type holdPart struct {
	space

	ids    []string
	number string // of the part; see Store.nextHold
}

// Hold implements store.Store.
func (s *Store) Hold(ctx context.Context, h *store.Hold) error {
	if err := s.holdOrRelease(ctx, h, false); err != nil {
		return fmt.Errorf("hold %d conversations: %w", len(h.ConversationIDs), err)
	}
	return nil
}

// Release implements store.Store. A call with the same Hold, after one that failed with store.ErrUnavailable, continues
// that one.
func (s *Store) Release(ctx context.Context, h *store.Hold) error {
	if err := s.holdOrRelease(ctx, h, true); err != nil {
		return fmt.Errorf("release %d conversations: %w", len(h.ConversationIDs), err)
	}
	return nil
}

// holdOrRelease makes a call after all earlier ones of this process for the tenant. It first finishes those whose
// result is not known: the engine remembers only the last call of each tenant.
func (s *Store) holdOrRelease(ctx context.Context, h *store.Hold, release bool) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	home := s.space(h.Tenant).key("em")
	if err := s.writes.enter(ctx, home, nil); err != nil {
		return err
	}
	defer s.writes.leave(home)
	ctx, cancel := s.writing(ctx)
	defer cancel()

	failed, isMade, err := s.finishUnknown(ctx, home, h, release)
	if err == nil && !isMade {
		err = s.callOnce(ctx, home, &holdCall{hold: h, release: release, parts: s.divide(h)})
	}
	for _, c := range failed { // After the call, so that a new hold of the ids keeps their conversations.
		// If the release fails, too, the next call of the tenant continues it.
		_ = s.callOnce(ctx, home, &holdCall{hold: c.hold, release: true, parts: c.made})
	}
	return err
}

// finishUnknown makes the calls of the tenant whose result is not known. isMade reports that one of them is the call of
// h. The holds of others are returned: their callers believe that they failed. The releases of others stay, since their
// callers call again; see store.RetryRelease.
func (s *Store) finishUnknown(
	ctx context.Context, home string, h *store.Hold, release bool,
) (failed []*holdCall, isMade bool, err error) {
	var stay []*holdCall
	calls := s.unknownHolds.take(home)
	defer func() { s.unknownHolds.put(home, stay) }()
	for i, c := range calls {
		if err := s.makeCall(ctx, c); len(c.parts) > 0 {
			stay = slices.Concat(stay, failed, calls[i:])
			if isMade {
				return nil, true, nil
			}
			return nil, false, err
		}
		switch {
		case c.hold == h && c.release == release && (release || !c.refused):
			isMade = true
		case c.release:
			stay = append(stay, c)
		case len(c.made) > 0:
			failed = append(failed, c)
		}
	}
	return failed, isMade, nil
}

// callOnce makes a call, and remembers it if its result is not known.
func (s *Store) callOnce(ctx context.Context, home string, c *holdCall) error {
	if !c.release && len(c.parts) > 1 {
		// A script holds the ids of one bucket. So the limits of all buckets are checked before any id is held.
		for _, part := range c.parts {
			if err := s.holdIn(ctx, part, c.hold.DeleteAfter, store.MaxHolds/s.spread, s.options.Now()); err != nil {
				return err
			}
		}
	}
	for i := range c.parts {
		c.parts[i].number = s.nextHold()
	}
	err := s.makeCall(ctx, c)
	if len(c.parts) > 0 || c.refused && !c.release && len(c.made) > 0 {
		s.unknownHolds.put(home, append(s.unknownHolds.take(home), c))
	}
	return err
}

// makeCall makes the parts of a call that are not made yet. Parts that are refused are dropped, and those that may have
// been made stay.
func (s *Store) makeCall(ctx context.Context, c *holdCall) error {
	limit := math.MaxInt32
	if len(c.parts)+len(c.made) == 1 {
		limit = store.MaxHolds / s.spread
	}
	var errs []error
	var unknown []holdPart
	for _, part := range c.parts {
		var err error
		if c.release {
			err = s.releaseIn(ctx, part, c.hold.DeleteAfter, s.options.Now())
		} else {
			err = s.holdIn(ctx, part, c.hold.DeleteAfter, limit, s.options.Now())
		}
		switch {
		case err == nil:
			c.made = append(c.made, part)
		case errors.Is(err, store.ErrUnavailable):
			unknown = append(unknown, part)
			errs = append(errs, err)
		default:
			c.refused = true
			errs = append(errs, err)
		}
	}
	c.parts = unknown
	return joined(errs)
}

// divide returns the ids of a hold or a release by buckets, in the order of the tenant's buckets.
func (s *Store) divide(h *store.Hold) []holdPart {
	if s.spread == 1 {
		return []holdPart{{space: s.space(h.Tenant), ids: record.HoldIDs(h)}}
	}
	of := map[int][]string{}
	for _, id := range record.HoldIDs(h) {
		index := s.spaceOf(h.Tenant, id).index
		of[index] = append(of[index], id)
	}
	var parts []holdPart
	for _, p := range s.spaces(h.Tenant) {
		if ids := of[p.index]; len(ids) > 0 {
			parts = append(parts, holdPart{space: p, ids: ids})
		}
	}
	return parts
}

// holdIn makes the part of a hold in a bucket, if its tenant then has at most limit ephemeral ids there. If it has no
// number, it only checks that.
func (s *Store) holdIn(
	ctx context.Context, p holdPart, after time.Duration, limit int, now time.Time,
) error {
	args := []string{s.server, p.number, strconv.FormatInt(int64(after), 10), strconv.Itoa(limit)}
	reply, err := s.runOnce(ctx, s.scripts.hold, p.space, now, append(args, p.ids...)...)
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
	_, err = s.told(p.space, now, reply[1], reply[2])
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

// releaseIn makes the part of a release in a bucket.
func (s *Store) releaseIn(ctx context.Context, p holdPart, after time.Duration, now time.Time) error {
	args := []string{s.server, s.server, p.number, strconv.FormatInt(int64(after), 10)}
	reply, err := s.runOnce(ctx, s.scripts.release, p.space, now, append(args, p.ids...)...)
	if err != nil {
		return err
	}
	if made, _ := reply[0].AsInt64(); made < 0 { // Its reply was lost.
		s.awaitTold(ctx, p.bucket)
		return nil
	}
	_, err = s.told(p.space, now, reply[0], reply[1])
	return err
}

// unknownHolds are the calls whose result is not known, by tenant. Each caller has entered the tenant's turnstile.
type unknownHolds struct {
	mu    sync.Mutex
	calls map[string][]*holdCall
}

// take returns the calls of a tenant and removes them.
func (u *unknownHolds) take(home string) []*holdCall {
	u.mu.Lock()
	defer u.mu.Unlock()
	calls := u.calls[home]
	delete(u.calls, home)
	return calls
}

// put sets the calls of a tenant that has none.
func (u *unknownHolds) put(home string, calls []*holdCall) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case len(calls) == 0:
	case u.calls == nil:
		u.calls = map[string][]*holdCall{home: calls}
	default:
		u.calls[home] = calls
	}
}
