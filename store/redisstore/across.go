package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// A write of a conversation and of records of its tenant changes two buckets if the tenant has several. Its first
// script locks the records of the tenant and stores their pending change in the lock. The second script commits the
// conversation, and stores that in {T}ac. The third script makes the change of the records and unlocks them. If the
// process ends in between, the next call that finds the lock makes the change if {T}ac has the commit. Otherwise it
// stores there that the commit is dropped, which the second script then obeys, and drops the change. No call reads or
// writes locked records, so that none reads a part of the write.

// lockMark begins the revision of records of a tenant that are locked, in place of a commit. The id of the commit
// follows.
const lockMark = "!"

func isLocked(revision string) bool { return len(revision) == len(lockMark)+revisionSize }

// pending is a change of the records of a tenant, which is made only if the commit of a conversation is made. It is
// stored as JSON. Texts that may not be UTF-8 are bytes.
type pending struct {
	Server  string         `json:"server"`
	End     time.Time      `json:"end"` // of the write
	ID      string         `json:"id"`  // of the conversation
	Commit  []byte         `json:"commit"`
	Before  []byte         `json:"before"` // revision of the records
	Words   [][]byte       `json:"words"`  // commands that make the change
	Changes records.Counts `json:"changes"`
}

func (p *pending) lock() string { return lockMark + string(p.Commit) }

// isAcross reports whether the write changes records of the tenant that are in another bucket than the conversation.
func (t *transaction) isAcross() bool {
	return t.tenant.wasRead && t.store.space(t.space.tenant).index != t.index
}

// edits returns the changes of records in the commit of the conversation, and the state of the tenant's records on
// which they were decided.
func (t *transaction) edits() (*records.Edits, tenantState) {
	all := t.outcome.Records
	if !t.isAcross() {
		return all, t.tenant
	}
	return partOf(all, false), tenantState{decides: t.commit}
}

// partOf returns the edits of one scope.
func partOf(all *records.Edits, tenantScope bool) *records.Edits {
	part := new(records.Edits)
	if all == nil {
		return part
	}
	for _, e := range all.All {
		if e.TenantScope == tenantScope {
			part.Add(e)
		}
	}
	if tenantScope {
		part.TenantRevision = all.TenantRevision
	} else {
		part.Revision = all.Revision
	}
	return part
}

// errUnsent means that the commit of a conversation was not sent to the engine.
var errUnsent = errors.New("the commit was not sent")

// commitAll commits the decided write, with the arguments of the commit of the conversation.
func (s *Store) commitAll(ctx context.Context, t *transaction, args []string) error {
	if !t.isAcross() {
		return withElsewhere(s.commit(ctx, t, args), t.elsewhere)
	}
	home, part := s.space(t.space.tenant), partOf(t.outcome.Records, true)
	if err := s.checkBytes(ctx, t, part.Tenant.Bytes); err != nil {
		return fmt.Errorf("%w: %w", errUnsent, err)
	}
	change := s.pendingOf(t, home, part)
	if err := s.lockRecords(ctx, t, home, change); err != nil {
		return fmt.Errorf("%w: %w", errUnsent, err)
	}
	err := s.commit(ctx, t, args)
	if err == nil || !errors.Is(err, store.ErrUnavailable) {
		// If this fails, the next call that finds the lock unlocks the records.
		_ = s.unlock(ctx, home, change, err == nil)
	}
	return err
}

// unlock unlocks the records of a tenant, and removes the decision about their change if it was made. One that was
// dropped stays for decisionTime, because the commit may still be on its way.
func (s *Store) unlock(ctx context.Context, home space, change *pending, made bool) error {
	if err := s.unlockRecords(ctx, home, change, made); err != nil || !made {
		return err
	}
	key := s.spaceOf(home.tenant, change.ID).key("ac")
	return s.fault(s.client.Do(ctx, s.client.B().Hdel().Key(key).Field(string(change.Commit)).Build()).Error())
}

// pendingOf returns the pending change of the records of a tenant in a transaction.
func (s *Store) pendingOf(t *transaction, home space, part *records.Edits) *pending {
	b := newCommands(home)
	b.records("", t.commit, part, t.tenant)
	change := &pending{
		Server: s.server, End: s.clock().Add(s.timeout + s.leaseTime), ID: t.write.id, Commit: []byte(t.commit),
		Before: []byte(t.tenant.revision), Changes: part.Tenant,
	}
	for _, word := range b.words {
		change.Words = append(change.Words, []byte(word))
	}
	return change
}

// checkBytes checks the limit of bytes of the tenant for a write that changes two buckets. delta is the change in bytes
// of the records of the tenant.
func (s *Store) checkBytes(ctx context.Context, t *transaction, delta int64) error {
	limit := s.options.Limits(t.space.tenant).MaxBytes
	if delta += t.bytes; limit == 0 || t.write.mayExceed || delta <= 0 {
		return nil
	}
	here, err := s.client.Do(ctx, s.client.B().Hget().Key(t.key("t")).Field("b").Build()).AsInt64()
	if err != nil && !isNil(err) {
		return s.fault(err)
	}
	if after := t.elsewhere + here + delta; after > limit {
		return &store.TenantBytesError{Bytes: after, Limit: limit}
	}
	return nil
}

// lockRecords locks the records of a tenant for a change.
func (s *Store) lockRecords(ctx context.Context, t *transaction, home space, change *pending) error {
	value, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode a change of records: %w", err)
	}
	script := s.scripts.commit
	if t.write.mayExceed {
		script = s.scripts.free
	}
	b := newCommands(home)
	b.add("HSET", home.key("t"), "v", change.lock(), "lock", rueidis.BinaryString(value),
		"rev", strconv.FormatInt(t.in.Tenant.Revision, 10)) // With a revision, the key is not removed.
	reply, err := s.run(ctx, script, home, t.now, b.recordArgs(t.tenant, 0, records.Counts{}, s.server)...)
	if err != nil {
		return err
	}
	return s.finish(home, t.now, reply, nil, store.Limits{})
}

// unlockRecords unlocks the records of a tenant, and makes the change if its commit was made.
func (s *Store) unlockRecords(ctx context.Context, home space, change *pending, made bool) error {
	b, counts := newCommands(home), records.Counts{}
	b.add("HDEL", home.key("t"), "lock")
	if made {
		counts = change.Changes
		for _, word := range change.Words {
			b.words = append(b.words, string(word))
		}
	} else {
		b.add("HSET", home.key("t"), "v", string(change.Before))
	}
	now, locked := s.options.Now(), tenantState{wasRead: true, revision: change.lock()}
	reply, err := s.run(ctx, s.scripts.free, home, now, b.recordArgs(locked, 0, counts, s.server)...)
	if err != nil {
		return err
	}
	return s.finish(home, now, reply, nil, store.Limits{})
}

// settle unlocks the records of a tenant if the call that locked them will not unlock them. The caller has entered the
// queue of writes of these records, so that no other call of this process is about to unlock them. On success the error
// is errMoved: the caller must read the records again.
func (s *Store) settle(ctx context.Context, home space) error {
	read := s.client.B().Hmget().Key(home.key("t")).Field("v", "lock").Build()
	f, err := s.client.Do(ctx, read).ToArray()
	if err != nil {
		return s.fault(err)
	}
	if revision, _ := f[0].ToString(); !isLocked(revision) {
		return errMoved
	}
	change := new(pending)
	value, _ := f[1].AsBytes()
	if err := json.Unmarshal(value, change); err != nil {
		return fmt.Errorf("%w: lock of the records of a tenant: %w", store.ErrCorrupt, err)
	}
	if change.Server != s.server && s.clock().Before(change.End) {
		live, err := s.leases(ctx, home.bucket)
		if err != nil {
			return err
		}
		if live[change.Server] {
			return fmt.Errorf("%w: %w: server %s is writing the records", errMoved, store.ErrUnavailable, change.Server)
		}
	}
	made, err := s.wasCommitted(ctx, home.tenant, change)
	if err != nil {
		return err
	}
	if err := s.unlock(ctx, home, change, made); err != nil {
		return err
	}
	return errMoved
}

// decisionTime is how long a decision is kept. A commit that reaches the engine later is not refused.
const decisionTime = 24 * time.Hour

// wasCommitted decides whether the commit of a conversation is made: if it was not made yet, it never is. The decision
// is in the field of its id in {T}ac, which the commit sets, too. The first one stands.
func (s *Store) wasCommitted(ctx context.Context, tenant string, change *pending) (bool, error) {
	key, id := s.spaceOf(tenant, change.ID).key("ac"), string(change.Commit)
	dropped := s.client.B().Hsetnx().Key(key).Field(id).Value("dropped " + stamp(s.options.Now())).Build()
	isFirst, err := s.writer.Do(ctx, dropped).AsInt64()
	if err != nil {
		return false, s.fault(err)
	}
	if isFirst == 1 {
		return false, s.forgetDecisions(ctx, key)
	}
	decision, err := s.client.Do(ctx, s.client.B().Hget().Key(key).Field(id).Build()).ToString()
	if isNil(err) { // Another process has just unlocked the records.
		return false, errMoved
	}
	if err != nil {
		return false, s.fault(err)
	}
	return strings.HasPrefix(decision, "made "), nil
}

// forgetDecisions removes old decisions about conversations of a bucket. There is one for each process that has ended,
// or lost its connection, in the middle of a write.
func (s *Store) forgetDecisions(ctx context.Context, key string) error {
	all, err := s.client.Do(ctx, s.client.B().Hgetall().Key(key).Build()).AsStrMap()
	if err != nil {
		return s.fault(err)
	}
	oldest := s.options.Now().Add(-decisionTime)
	for id, decision := range all {
		_, at, _ := strings.Cut(decision, " ")
		if unstamp(at).Before(oldest) {
			if err := s.client.Do(ctx, s.client.B().Hdel().Key(key).Field(id).Build()).Error(); err != nil {
				return s.fault(err)
			}
		}
	}
	return nil
}

// settleForRead is settle for a call that has not entered the queue of writes.
func (s *Store) settleForRead(ctx context.Context, home space) error {
	if err := s.writes.enter(ctx, home.key("t"), nil); err != nil {
		return err
	}
	defer s.writes.leave(home.key("t"))
	ctx, cancel := s.writing(ctx)
	defer cancel()
	return s.settle(ctx, home)
}
