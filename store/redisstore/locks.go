package redisstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// tenantState is what a write of the tenant's records has read. The zero value says that it has read nothing.
type tenantState struct {
	wasRead  bool
	revision string // id of the last commit of these records, after lockMark if others of them are locked
	commits  string // ids of the last ones, see maxCommits
	pending  []*pending
	decides  string // id of a commit that decides about locked records, see across.go
}

// last returns the id of the last commit.
func (t tenantState) last() string {
	if len(t.pending) == 0 {
		return t.revision
	}
	return strings.TrimPrefix(t.revision, lockMark)
}

// after returns the revision after a commit, which leaves the locks as they are.
func (t tenantState) after(commit string) string {
	if len(t.pending) == 0 {
		return commit
	}
	return lockMark + commit
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

// locks are the locked records of a tenant, as they were read. See across.go. While there is a lock, the revision of
// the records is lockMark and the id of the last commit that has changed records or locks.
type locks struct {
	revision string
	commits  string // ids of the last commits, see maxCommits
	counter  int64  // last revision of a record
	pending  []*pending
}

// touches reports whether a change concerns a record that a call needs, and returns its key. needs is nil for a call
// that needs all records.
func (p *pending) touches(needs func(key string) bool) (key string, ok bool) {
	if len(p.Keys) == 0 {
		return "", true
	}
	for _, key := range p.Keys {
		if needs == nil || needs(string(key)) {
			return string(key), true
		}
	}
	return "", false
}

// touched reports whether one of the changes concerns a record that a call needs.
func touched(all []*pending, needs func(key string) bool) bool {
	return slices.ContainsFunc(all, func(p *pending) bool { _, ok := p.touches(needs); return ok })
}

// marshalPending encodes pending changes: one as an object, which earlier programs can read, several as an array.
func marshalPending(all []*pending) (string, error) {
	var value any = all
	if len(all) == 1 {
		value = all[0]
	}
	b, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("encode changes of records: %w", err)
	}
	return rueidis.BinaryString(b), nil
}

// unmarshalPending decodes pending changes. The error is store.ErrCorrupt.
func unmarshalPending(text string) (all []*pending, err error) {
	if strings.HasPrefix(text, "[") {
		err = json.Unmarshal([]byte(text), &all)
	} else {
		all = []*pending{new(pending)}
		err = json.Unmarshal([]byte(text), all[0])
	}
	if slices.Contains(all, nil) {
		err = errors.New("a change is missing")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: lock of the records of a tenant: %w", store.ErrCorrupt, err)
	}
	return all, nil
}

// readLocks reads the locks of the records of a tenant. There are none if the result has no pending changes.
func (s *Store) readLocks(ctx context.Context, home space) (*locks, error) {
	read := s.client.B().Hmget().Key(home.key("t")).Field("v", "vs", "rev", "lock").Build()
	f, err := s.client.Do(ctx, read).ToArray()
	if err != nil {
		return nil, s.fault(err)
	}
	l := &locks{counter: number(f[2])}
	l.revision, _ = f[0].ToString()
	l.commits, _ = f[1].ToString()
	if isLocked(l.revision) {
		text, _ := f[3].ToString()
		l.pending, err = unmarshalPending(text)
	}
	return l, err
}

// lockRecords locks the records of a change.
func (s *Store) lockRecords(ctx context.Context, t *transaction, home space, change *pending) (*locks, error) {
	l := &locks{
		revision: change.lock(), commits: withCommit(t.tenant.commits, string(change.Commit)), counter: change.Reserved,
		pending: append(slices.Clone(t.tenant.pending), change),
	}
	value, err := marshalPending(l.pending)
	if err != nil {
		return nil, err
	}
	script := s.scripts.commit
	if t.write.mayExceed {
		script = s.scripts.free
	}
	b := newCommands(home)
	b.add("HSET", home.key("t"), "v", l.revision, "vs", l.commits, "lock", value,
		"rev", strconv.FormatInt(l.counter, 10)) // With a revision, the key is not removed.
	reply, err := s.run(ctx, script, home, t.now, b.recordArgs(t.tenant, 0, records.Counts{}, s.server)...)
	if err != nil {
		return nil, err
	}
	return l, s.finish(home, t.now, reply, nil, store.Limits{})
}

// unlockRecords unlocks the records of a change, and makes the change if its commit was made. l is the last known
// state. It returns nil if another call has unlocked them.
func (s *Store) unlockRecords(ctx context.Context, home space, l *locks, change *pending, made bool) error {
	_, err := again(ctx, func() (any, error) {
		rest := slices.DeleteFunc(slices.Clone(l.pending), func(p *pending) bool {
			return bytes.Equal(p.Commit, change.Commit)
		})
		if len(rest) == len(l.pending) {
			return nil, nil
		}
		b, err := unlockCommands(home, l, rest, change, made)
		if err != nil {
			return nil, err
		}
		counts := records.Counts{}
		if made {
			counts = change.Changes
		}
		now, before := s.options.Now(), tenantState{wasRead: true, revision: l.revision}
		reply, err := s.run(ctx, s.scripts.free, home, now, b.recordArgs(before, 0, counts, s.server)...)
		if err != nil {
			return nil, err
		}
		err = s.finish(home, now, reply, nil, store.Limits{})
		if errors.Is(err, errMoved) {
			var failed error
			if l, failed = s.readLocks(ctx, home); failed != nil {
				return nil, failed
			}
		}
		return nil, err
	})
	return err
}

// unlockCommands returns the commands that remove a change from the locks, so that rest is left, and make it if made is
// set.
func unlockCommands(home space, l *locks, rest []*pending, change *pending, made bool) (*commands, error) {
	b := newCommands(home)
	if made {
		for _, word := range change.Words {
			b.words = append(b.words, string(word))
		}
	}
	next, commits, counter := strings.TrimPrefix(l.revision, lockMark), l.commits, l.counter
	isLast := l.revision == change.lock() // Neither records nor locks have changed since.
	switch {
	case len(rest) > 0:
		value, err := marshalPending(rest)
		if err != nil {
			return nil, err
		}
		b.add("HSET", home.key("t"), "lock", value)
		id := newCommit()
		next, commits = lockMark+id, withCommit(commits, id)
	case made:
		next = string(change.Commit)
		commits = withCommit(commits, next)
	case isLast:
		next, counter = string(change.Before), change.Counter
	}
	if len(rest) == 0 {
		b.add("HDEL", home.key("t"), "lock")
	}
	// The commands of the change have set them, too, to what they were at the lock.
	b.add("HSET", home.key("t"), "v", next, "vs", commits, "rev", strconv.FormatInt(counter, 10))
	return b, nil
}

// settle unlocks records that a call needs if the call that locked them will not unlock them. The caller has entered
// the queue of writes of the records of the tenant, so that no other call of this process is about to unlock them. On
// success the error is errMoved: the caller must read the records again.
func (s *Store) settle(ctx context.Context, home space, needs func(key string) bool) error {
	l, err := s.readLocks(ctx, home)
	if err != nil {
		return err
	}
	for _, change := range l.pending {
		key, ok := change.touches(needs)
		if !ok {
			continue
		}
		if change.Server != s.server && s.clock().Before(change.End) {
			live, err := s.leases(ctx, home.bucket)
			if err != nil {
				return err
			}
			if live[change.Server] {
				return fmt.Errorf("%w: %w: server %s is writing record %.128q", errMoved, store.ErrUnavailable, change.Server,
					key)
			}
		}
		made, err := s.wasCommitted(ctx, home.tenant, change)
		if err == nil {
			err = s.unlock(ctx, home, l, change, made)
		}
		switch {
		case errors.Is(err, store.ErrUnavailable) && !errors.Is(err, errMoved):
			return fmt.Errorf("record %.128q of the tenant is locked by a write of conversation %q, whose bucket %d cannot be "+
				"reached: %w", key, change.ID, s.spaceOf(home.tenant, change.ID).index, err)
		case err != nil:
			return err
		}
		break
	}
	return errMoved
}

// settleForRead is settle for a call that has not entered the queue of writes.
func (s *Store) settleForRead(ctx context.Context, home space, needs func(key string) bool) error {
	if err := s.writes.enter(ctx, home.key("t"), nil); err != nil {
		return err
	}
	defer s.writes.leave(home.key("t"))
	ctx, cancel := s.writing(ctx)
	defer cancel()
	return s.settle(ctx, home, needs)
}
