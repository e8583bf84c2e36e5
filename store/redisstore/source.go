package redisstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// Source is a store that is open to be copied. It changes only leases: it has its own, so that no server can open the
// store. It implements store.CopySource.
type Source struct {
	store *Store
	held  map[string]time.Time // by tenant and id: when ephemeral conversations that a server has held are deleted
}

var _ store.CopySource = (*Source)(nil)

// OpenSource opens a store to copy it. Options.Exclusive has no effect: no other process may use the store. Errors are
// those of Open, and that there is no store.
func OpenSource(ctx context.Context, o Options) (*Source, error) {
	now := o.WithDefaults().Now()
	o.Now = func() time.Time { return now } // No conversation expires between the copies of its parts.
	o.Exclusive = true
	source := &Source{held: map[string]time.Time{}}
	var err error
	source.store, err = open(ctx, o, func(s *Store, ctx context.Context, o *Options) error {
		return source.start(ctx, s, o)
	})
	if err != nil {
		return nil, err
	}
	return source, nil
}

// start checks engine and schema, and takes leases. It reads which ids are held: those holds have ended, because no
// server runs.
func (c *Source) start(ctx context.Context, s *Store, o *Options) error {
	if _, err := s.checkEngine(ctx); err != nil {
		return err
	}
	text, err := s.client.Do(ctx, s.client.B().Get().Key(s.schemaKey()).Build()).ToString()
	if isNil(err) {
		return fmt.Errorf("the engine has no store %q: name another engine, database or prefix", s.prefix)
	} else if err != nil {
		return s.fault(err)
	}
	found, err := readSchema(s.schemaKey(), text, o)
	if err != nil {
		return err
	}
	s.setLayout(found)
	if err := s.claim(ctx, true); err != nil {
		return err
	}
	if err := s.renew(ctx); err != nil {
		return err
	}
	for _, b := range s.buckets {
		if err := c.readHolds(ctx, s, b); err != nil {
			return err
		}
	}
	return nil
}

// readHolds reads the holds of a bucket.
func (c *Source) readHolds(ctx context.Context, s *Store, b bucket) error {
	servers, err := s.client.Do(ctx, s.client.B().Smembers().Key(b.prefix+"hs").Build()).AsStrSlice()
	if err != nil {
		return s.fault(err)
	}
	now := s.options.Now()
	for _, server := range servers {
		holds, err := s.client.Do(ctx, s.client.B().Hgetall().Key(b.prefix+"ho:"+server).Build()).AsStrMap()
		if err != nil {
			return s.fault(err)
		}
		for name, hold := range holds {
			_, after, _ := strings.Cut(hold, " ")
			ns, err := strconv.ParseInt(after, 10, 64)
			if err != nil {
				return fmt.Errorf("%w: hold %q", store.ErrCorrupt, name)
			}
			if end := now.Add(time.Duration(ns)); end.After(c.held[name]) {
				c.held[name] = end
			}
		}
	}
	return nil
}

// AllTenants implements store.CopySource. No list has the tenants without conversations and records, so it also
// searches for their keys.
func (c *Source) AllTenants(ctx context.Context) ([]string, error) {
	if err := c.store.enter(ctx); err != nil {
		return nil, err
	}
	defer c.store.leave()
	return c.store.allTenants(ctx)
}

func (s *Store) allTenants(ctx context.Context) ([]string, error) {
	all := map[string]bool{}
	for _, b := range s.buckets {
		names := s.client.B().Zunion().Numkeys(2).Key(b.prefix+"tn", b.prefix+"tx").Build()
		listed, err := s.client.Do(ctx, names).AsStrSlice()
		if err != nil {
			return nil, s.fault(err)
		}
		for _, name := range listed {
			if tenant, _, ok := cutTenant(name); ok {
				all[tenant] = true
			}
		}
	}
	err := s.scan(ctx, "t:*", func(_, rest string) {
		name, isTenant := strings.CutPrefix(rest, "t:")
		if tenant, left, ok := cutTenant(name); isTenant && ok && left == "" {
			all[tenant] = true
		}
	})
	return slices.Sorted(maps.Keys(all)), err
}

// scanCount is about how many keys of the engine one command of a scan reads.
const scanCount = 1000

// scan calls found with the keys of all buckets that match a pattern after a brace, and with what follows their tag.
// The caller must check what follows, since ids may contain braces. found may get a key more than once.
func (s *Store) scan(ctx context.Context, pattern string, found func(key, rest string)) error {
	begin := s.prefix + ":{"
	escaped := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(begin)
	for address, node := range s.client.Nodes() {
		info, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			return fmt.Errorf("engine at %s: %w", address, s.fault(err))
		}
		if parseInfo(info)["role"] == "slave" {
			continue
		}
		for cursor := uint64(0); ; {
			next := node.B().Scan().Cursor(cursor).Match(escaped + "*}" + pattern).Count(scanCount).Build()
			page, err := node.Do(ctx, next).AsScanEntry()
			if err != nil {
				return s.fault(err)
			}
			for _, key := range page.Elements {
				if _, rest, ok := strings.Cut(strings.TrimPrefix(key, begin), "}"); ok && strings.HasPrefix(key, begin) {
					found(key, rest)
				}
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	return nil
}

// List implements store.CopySource.
func (c *Source) List(ctx context.Context, l *store.List) (*store.Page, error) {
	return c.store.List(ctx, l)
}

// Abandoned implements store.CopySource.
func (c *Source) Abandoned(ctx context.Context, after string) ([]store.Progress, string, error) {
	return c.store.abandoned(ctx, after, true)
}

// CopyConversation implements store.CopySource.
func (c *Source) CopyConversation(ctx context.Context, tenant, id string) (*store.ConversationCopy, error) {
	found, err := c.copyConversation(ctx, tenant, id)
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	return found, nil
}

func (c *Source) copyConversation(ctx context.Context, tenant, id string) (*store.ConversationCopy, error) {
	s := c.store
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	of, err := s.load(ctx, s.spaceOf(tenant, id), id, requestsPart, turnsPart, promptPart)
	if err != nil {
		return nil, err
	}
	now := s.options.Now()
	if of.ephemeral.Held {
		of.ephemeral = record.Ephemeral{DeleteTime: now}
		if end, ok := c.held[of.name+id]; ok {
			of.ephemeral.DeleteTime = end
		}
	}
	r := of.live(now)
	if r == nil {
		return nil, store.ErrNotFound
	}
	messages, err := s.elements(ctx, of, 0, of.count()-1)
	if err != nil {
		return nil, err
	}
	return r.Copy(tenant, messages, of.ephemeral)
}

// CopyRecords implements store.CopySource.
func (c *Source) CopyRecords(ctx context.Context, tenant, id, after string) (*store.RecordCopies, error) {
	copies := &store.RecordCopies{Tenant: tenant, ConversationID: id}
	_, err := c.store.readRecords(ctx, tenant, id, func(of *scope, now time.Time) (any, error) {
		if id == "" {
			get := c.store.client.B().Hget().Key(of.p.key("t")).Field("rev").Build()
			revision, err := c.store.client.Do(ctx, get).AsInt64()
			if err != nil && !rueidis.IsRedisNil(err) {
				return nil, c.store.fault(err)
			}
			copies.Revision = revision
		}
		var err error
		copies.Records, copies.More, err = records.Copies(of.ascend, after, now)
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	return copies, nil
}

// Close implements store.CopySource.
func (c *Source) Close() error { return c.store.Close() }
