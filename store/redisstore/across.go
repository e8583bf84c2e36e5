package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// A write of a conversation and of records of its tenant changes two buckets if the tenant has several. Its first
// script locks these records and stores their pending change in the lock. The second script commits the conversation,
// and stores that in {T}ac. The third script makes the change of the records and unlocks them. If the process ends in
// between, the next call that needs one of the records makes the change if {T}ac has the commit. Otherwise it stores
// there that the commit is dropped, which the second script then obeys, and drops the change. No call reads or writes
// locked records, so that none reads a part of the write. The other records of the tenant can be read and written, see
// locks.go: while the bucket of the conversation cannot be reached, the locked records stay locked.

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
	// Keys of the locked records. A lock of an earlier program has none, and concerns all records.
	Keys [][]byte `json:"keys"`
	// Counter is the last revision of a record of the tenant before the write, and Reserved that of the write.
	Counter  int64 `json:"counter"`
	Reserved int64 `json:"reserved"`
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
	locked, err := s.lockRecords(ctx, t, home, change)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnsent, err)
	}
	err = s.commit(ctx, t, args)
	if err == nil || !errors.Is(err, store.ErrUnavailable) {
		// If this fails, the next call that needs the records unlocks them.
		_ = s.unlock(ctx, home, locked, change, err == nil)
	}
	return err
}

// unlock unlocks the records of a change, and removes the decision about the change if it was made. One that was
// dropped stays for decisionTime, because the commit may still be on its way.
func (s *Store) unlock(ctx context.Context, home space, l *locks, change *pending, made bool) error {
	if err := s.unlockRecords(ctx, home, l, change, made); err != nil || !made {
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
		Counter: t.in.Tenant.Revision, Reserved: cmp.Or(part.TenantRevision, t.in.Tenant.Revision),
	}
	for _, e := range part.All {
		change.Keys = append(change.Keys, []byte(e.Key))
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
