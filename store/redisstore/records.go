package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// The records of a scope are three keys: a hash of their values (k), a hash of their states (ks), which writes read in
// place of the values, and a sorted set of their keys (kx). Those of a tenant have a fourth: their keys by expire_time.

// tenantState is what a write of the tenant's records has read. The zero value says that it has read nothing.
type tenantState struct {
	wasRead  bool
	revision string // id of the last commit of these records
	commits  string // ids of the last ones, see maxCommits
	decides  string // id of a commit that decides about locked records, see across.go
}

// read returns the argument of commit.lua.
func (t tenantState) read() string {
	switch {
	case t.decides != "":
		return "decide:" + t.decides
	case !t.wasRead:
		return "-"
	}
	return t.revision
}

// marshalState encodes the state of a record with its CRC-32C.
func marshalState(key string, s records.State) string {
	expires := ""
	if !s.ExpireTime.IsZero() {
		expires = stamp(s.ExpireTime)
	}
	text := fmt.Sprintf("%d %d %d %d %s", s.Revision, s.Counts.Records, s.Counts.RecordBytes, s.Counts.Bytes, expires)
	return fmt.Sprintf("%s %08x", text, record.Checksum([]byte(key), []byte(text)))
}

// unmarshalState decodes the state of a record. The error is store.ErrCorrupt.
func unmarshalState(key, encoded string) (s records.State, err error) {
	damaged := fmt.Errorf("%w: state of record %.128q", store.ErrCorrupt, key)
	f := strings.Split(encoded, " ")
	if len(f) != 6 {
		return s, damaged
	}
	text := strings.Join(f[:5], " ")
	if f[5] != fmt.Sprintf("%08x", record.Checksum([]byte(key), []byte(text))) {
		return s, damaged
	}
	for i, to := range []*int64{&s.Revision, &s.Counts.Records, &s.Counts.RecordBytes, &s.Counts.Bytes} {
		if *to, err = strconv.ParseInt(f[i], 10, 64); err != nil {
			return records.State{}, damaged
		}
	}
	if f[4] != "" {
		s.ExpireTime = unstamp(f[4])
	}
	return s, nil
}

// stateOf decodes the state of a record. If it is damaged, it is that of the record's value.
func (s *Store) stateOf(ctx context.Context, p space, scope, key, text string) (records.State, error) {
	state, err := unmarshalState(key, text)
	if err == nil {
		return state, nil
	}
	value, err := s.client.Do(ctx, s.client.B().Hget().Key(p.scope("k", scope)).Field(key).Build()).AsBytes()
	if err != nil && !isNil(err) {
		return records.State{}, s.fault(err)
	}
	return records.StateOf(key, value)
}

// recordInput reads what a decision about writes needs. id is the conversation; empty if there is none. If tenantOnly
// is true, all writes are of the tenant's records. The caller has entered the queue of writes of these records, if the
// store has a spread and there are any.
func (s *Store) recordInput(ctx context.Context, p space, id string, writes []*parleyv1.RecordWrite, tenantOnly bool,
) (*records.Input, tenantState, error) {
	home := s.space(p.tenant)
	commands := []rueidis.Completed{s.client.B().Hmget().Key(home.key("t")).Field("v", "rev", "own", "vs").Build()}
	var state tenantState
	for _, w := range writes {
		key := p.scope("ks", id)
		if tenantOnly || w.GetTenantScope() {
			key, state.wasRead = home.scope("ks", ""), true
		}
		commands = append(commands, s.client.B().Hget().Key(key).Field(w.GetKey()).Build())
	}
	replies := s.client.DoMulti(ctx, commands...)
	of, err := replies[0].ToArray()
	if err != nil {
		return nil, state, s.fault(err)
	}
	in := records.Tenant{Limit: s.options.Limits(p.tenant).MaxRecordBytes}
	if state.revision, _ = of[0].ToString(); state.wasRead && isLocked(state.revision) {
		return nil, state, s.settle(ctx, home)
	}
	in.Revision = number(of[1])
	in.Bytes = number(of[2])
	state.commits, _ = of[3].ToString()
	i := 0
	input, err := records.NewInput(writes, tenantOnly, in, func(tenantScope bool, key string) (records.State, error) {
		i++
		if !tenantScope && id == "" {
			return records.State{}, nil
		}
		text, err := replies[i].ToString()
		if isNil(err) {
			return records.State{}, nil
		}
		if err != nil {
			return records.State{}, s.fault(err)
		}
		if tenantScope {
			return s.stateOf(ctx, home, "", key, text)
		}
		return s.stateOf(ctx, p, id, key, text)
	})
	return input, state, err
}

// number returns the number in a reply; 0 if it is nil.
func number(m rueidis.RedisMessage) int64 {
	text, _ := m.ToString()
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// records adds the commands of edits of the records of a conversation and of the tenant.
func (b *commands) records(id, commit string, edits *records.Edits, tenant tenantState) {
	if tenant.wasRead {
		b.add("HSET", b.key("t"), "v", commit, "vs", withCommit(tenant.commits, commit))
	}
	if !edits.Any() {
		return
	}
	for _, e := range edits.All {
		scope := id
		if e.TenantScope {
			scope = ""
		}
		if e.Value == nil {
			b.add("HDEL", b.scope("k", scope), e.Key)
			b.add("HDEL", b.scope("ks", scope), e.Key)
			b.add("ZREM", b.scope("kx", scope), e.Key)
		} else {
			b.add("HSET", b.scope("k", scope), e.Key, rueidis.BinaryString(e.Value))
			b.add("HSET", b.scope("ks", scope), e.Key, marshalState(e.Key, e.After))
			b.add("ZADD", b.scope("kx", scope), "0", e.Key)
		}
		switch {
		case !e.TenantScope:
		case !e.After.ExpireTime.IsZero():
			b.add("ZADD", b.prefix+"tx", "0", b.name)
			b.add("ZADD", b.key("te"), strconv.FormatInt(e.After.ExpireTime.UnixMicro(), 10), e.Key)
		case !e.Before.ExpireTime.IsZero():
			b.add("ZREM", b.key("te"), e.Key)
		}
	}
	if edits.TenantRevision != 0 {
		b.add("HSET", b.key("t"), "rev", strconv.FormatInt(edits.TenantRevision, 10))
	}
	if n := edits.Tenant.Bytes; n != 0 {
		b.add("HINCRBY", b.key("t"), "own", strconv.FormatInt(n, 10))
	}
}

// WriteRecords implements store.Store.
func (s *Store) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	if w.ConversationID != "" {
		out, err := s.append(ctx, record.AppendOf(w), w.OnlyRemoves())
		if err != nil {
			return nil, err
		}
		return record.Written(out), nil
	}
	result, err := s.writeTenant(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("records of the tenant: %w", s.counted(err))
	}
	return result, nil
}

func (s *Store) writeTenant(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	p := s.space(w.Tenant)
	if err := s.writes.enter(ctx, p.key("t"), nil); err != nil {
		return nil, err
	}
	defer s.writes.leave(p.key("t"))
	ctx, cancel := s.writing(ctx)
	defer cancel()
	var lost []lostTenantCommit
	return again(ctx, func() (*store.WrittenRecords, error) {
		now := s.options.Now()
		in, state, err := s.recordInput(ctx, p, "", w.Writes, true)
		if err != nil {
			return nil, err
		}
		for _, l := range lost {
			made, err := madeIn(state.commits, l.id, l.revision)
			if made {
				err = s.confirm(ctx, p.key("t"), state.revision)
			}
			if made || err != nil {
				return l.result, err
			}
		}
		var first []byte
		if w.Request != nil {
			get := s.client.B().Hget().Key(p.scope("k", "")).Field(records.RequestKey(w.Request)).Build()
			if first, err = s.client.Do(ctx, get).AsBytes(); isNil(err) {
				first = nil
			} else if err != nil {
				return nil, s.fault(err)
			}
		}
		result, edits, err := records.WriteTenant(w, in, first, now)
		if err != nil || !edits.Any() {
			return result, cmp.Or(s.confirm(ctx, p.key("t"), state.revision), err)
		}
		commit := newCommit()
		err = s.commitTenant(ctx, p, commit, edits, state, w.OnlyRemoves(), now)
		if errors.Is(err, store.ErrUnavailable) {
			lost = append(lost, lostTenantCommit{commit, state.revision, result})
			return nil, fmt.Errorf("%w: %w", errMoved, err) // Read again: it may have been made.
		}
		return result, err
	})
}

// lostTenantCommit is a commit of records of a tenant that may have been made.
type lostTenantCommit struct {
	id       string
	revision string // of the records before it
	result   *store.WrittenRecords
}

// commitTenant commits edits of the records of a tenant.
func (s *Store) commitTenant(
	ctx context.Context, p space, commit string, edits *records.Edits, state tenantState, mayExceed bool, now time.Time,
) error {
	limits := s.options.Limits(p.tenant)
	elsewhere, err := s.bytesElsewhere(ctx, p)
	if err != nil {
		return err
	}
	maxBytes, script := bytesHere(limits.MaxBytes, elsewhere), s.scripts.commit
	if mayExceed {
		maxBytes, script = 0, s.scripts.free
	}
	b := newCommands(p)
	b.records("", commit, edits, state)
	args := b.recordArgs(state, maxBytes, edits.Tenant, s.server)
	reply, err := s.run(ctx, script, p, now, args...)
	if err != nil {
		return err
	}
	return withElsewhere(s.finish(p, now, reply, nil, limits), elsewhere)
}

// recordArgs returns the arguments of commit.lua for commands that change records alone, and the counts of the tenant
// by delta.
func (b *commands) recordArgs(state tenantState, maxBytes int64, delta records.Counts, server string) []string {
	return b.args("", "", "change", state.read(), "", "", "0", strconv.FormatInt(maxBytes, 10), "", "", "0",
		strconv.FormatInt(delta.Records, 10), strconv.FormatInt(delta.RecordBytes, 10),
		strconv.FormatInt(delta.Bytes, 10), server, "", "0")
}

// GetRecords implements store.Store.
func (s *Store) GetRecords(ctx context.Context, g *store.GetRecords) (store.RecordFrames, []string, error) {
	type result struct {
		found   store.RecordFrames
		omitted []string
	}
	r, err := s.readRecords(ctx, g.Tenant, g.ConversationID, func(c *scope, now time.Time) (any, error) {
		values := map[string][]byte{}
		if len(g.Keys) > 0 {
			all := c.values(g.Keys)
			for i := range all {
				values[g.Keys[i]] = all[i]
			}
		}
		found, omitted, err := records.Get(g, now, func(key string) ([]byte, error) { return values[key], nil })
		return result{found, omitted}, err
	})
	if err != nil {
		return nil, nil, err
	}
	of, _ := r.(result)
	return of.found, of.omitted, nil
}

// ListRecords implements store.Store.
func (s *Store) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	type result struct {
		found []*parleyv1.Record
		more  bool
	}
	r, err := s.readRecords(ctx, l.Tenant, l.ConversationID, func(c *scope, now time.Time) (any, error) {
		found, more, err := records.List(l, now, c.ascend, c.descend)
		return result{found, more}, err
	})
	if err != nil {
		return nil, false, err
	}
	of, _ := r.(result)
	return of.found, of.more, nil
}

// readRecords calls read with the records of a conversation or of the tenant until they are of one instant.
func (s *Store) readRecords(
	ctx context.Context, tenant, id string, read func(c *scope, now time.Time) (any, error),
) (any, error) {
	err := s.enter(ctx)
	var result any
	if err == nil {
		defer s.leave()
		result, err = again(ctx, func() (any, error) {
			now := s.options.Now()
			c, err := s.scope(ctx, s.spaceOf(tenant, id), id, now)
			if err != nil {
				return nil, err
			}
			result, err := read(c, now)
			if ended := c.ended(); ended != nil {
				return nil, ended
			}
			return result, err
		})
	}
	switch {
	case err == nil:
		return result, nil
	case id == "":
		return nil, fmt.Errorf("records of the tenant: %w", s.counted(err))
	}
	return nil, fmt.Errorf("records of conversation %q: %w", id, s.counted(err))
}

// withPrefixes returns the records of a conversation as store.Read.RecordPrefixes says.
func (s *Store) withPrefixes(
	ctx context.Context, of *conversation, prefixes []string,
) ([]*parleyv1.Record, bool, error) {
	c := &scope{store: s, ctx: ctx, p: of.space, id: of.id, revision: of.revision}
	found, more, err := records.WithPrefixes(prefixes, of.id, c.ascend)
	if ended := c.ended(); ended != nil {
		return nil, false, ended
	}
	return found, more, err
}

// copies returns the edits that make the records of a conversation those of a new one, too.
func (s *Store) copies(ctx context.Context, of *conversation, now time.Time) (*records.Edits, error) {
	c := &scope{store: s, ctx: ctx, p: of.space, id: of.id, revision: of.revision}
	edits := &records.Edits{Revision: 1}
	for key, value := range c.ascend("") {
		edit := records.Edit{Key: key}
		var err error
		if edit.Value, edit.After, err = records.Copy(key, value, edits.Revision, now); err != nil {
			return nil, err
		}
		edits.Add(edit)
	}
	return edits, c.ended()
}
