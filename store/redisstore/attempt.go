package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// attempt is a write with its commits whose reply was lost.
type attempt struct {
	*write
	space

	lost []lostCommit
}

// lostCommit is a commit that may have been made.
type lostCommit struct {
	id       string
	revision string // of the conversation before it; empty if there was none
	added    int64  // conversations added to the bucket before it
	uid      string // of the conversation that it creates, changes or deletes
	mode     string // see commit.lua
	outcome  *record.Outcome
}

// try reads, decides and commits. The error is errMoved if the conversation has changed in between.
func (s *Store) try(ctx context.Context, a *attempt) (*record.Outcome, error) {
	t, err := s.readFor(ctx, a)
	if err != nil {
		return nil, err
	}
	for _, lost := range a.lost {
		if made, err := s.wasMade(ctx, t, &lost); err != nil {
			return nil, err
		} else if made {
			if err := s.confirm(ctx, a.of("c", a.id), t.old.revision); err != nil {
				return nil, err
			}
			s.awaitTold(ctx, a.bucket)
			return lost.outcome, nil
		}
	}
	out, err := a.decide(t.input())
	if err != nil { // A refusal may be due to an earlier attempt of the caller.
		return nil, cmp.Or(s.confirm(ctx, a.of("c", a.id), t.old.revision), s.changedSince(ctx, t, err))
	}
	if out.Result != nil && out.Result.Replayed && !t.old.read[turnsPart] { // The result may have a turn.
		a.with = append(a.with, turnsPart)
		return nil, errMoved
	}
	if out.Record == nil && len(out.Changes) == 0 {
		return out, s.confirm(ctx, a.of("c", a.id), t.old.revision)
	}
	t.outcome = out
	command, err := t.command()
	if err != nil {
		return nil, s.changedSince(ctx, t, err)
	}
	err = s.commitAll(ctx, t, command)
	if errors.Is(err, store.ErrUnavailable) {
		if !errors.Is(err, errUnsent) {
			a.lost = append(a.lost, t.lost())
		}
		return nil, fmt.Errorf("%w: %w", errMoved, err) // Read again: it may have been made.
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// lost returns the commit of the transaction after its reply was lost.
func (t *transaction) lost() lostCommit {
	l := lostCommit{id: t.commit, revision: t.old.revision, added: t.added, mode: t.mode(), outcome: t.outcome}
	if t.outcome.Record == nil {
		l.uid = t.outcome.Changes[0].UID
	} else {
		l.uid = t.outcome.Record.Conversation().GetUid()
	}
	return l
}

// wasMade reports whether a lost commit was made. t has what was read afterwards. If that does not show it, the error
// is store.ErrUnavailable.
func (s *Store) wasMade(ctx context.Context, t *transaction, l *lostCommit) (bool, error) {
	now, uid := t.old, ""
	if now.record != nil {
		uid = now.record.Conversation().GetUid()
	}
	switch {
	case l.revision != "" && now.revision == l.revision:
		return false, nil
	case l.mode == "delete":
		return now.revision == "" || uid != "" && uid != l.uid, nil
	case l.mode == "change" && uid == l.uid:
		return madeIn(now.extra.commits, l.id, l.revision)
	case uid == l.uid:
		return true, nil
	case l.mode != "change":
		return s.wasAdded(ctx, t.bucket, l)
	}
	return false, fmt.Errorf("%w: the conversation was removed, which hides whether the write was made",
		store.ErrUnavailable)
}

// maxAdded is the number of conversations added to a bucket whose commits it remembers at least. It is a number of
// commit.lua, too.
const maxAdded = 1000

// wasAdded reports whether a commit has added a conversation to a bucket. The conversation need not exist any more. If
// the bucket may have forgotten the commit, the error is store.ErrUnavailable.
func (s *Store) wasAdded(ctx context.Context, b bucket, l *lostCommit) (bool, error) {
	replies := s.client.DoMulti(ctx,
		s.client.B().Lrange().Key(b.prefix+"cr").Start(0).Stop(-1).Build(),
		s.addedCommand(b)) // After the list, so that it is not lower than at the time of the list.
	commits, err := replies[0].AsStrSlice()
	if err != nil {
		return false, s.fault(err)
	}
	added, err := replies[1].AsInt64()
	switch {
	case err != nil && !isNil(err):
		return false, s.fault(err)
	case slices.Contains(commits, l.id):
		return true, nil
	case added-l.added <= maxAdded:
		return false, nil
	}
	return false, fmt.Errorf("%w: %d later conversations hide whether the write was made", store.ErrUnavailable, maxAdded)
}

// madeIn reports whether a commit was made, from the newest commits that are remembered and the newest one before it.
func madeIn(commits, id, before string) (bool, error) {
	switch {
	case hasCommit(commits, id):
		return true, nil
	case hasCommit(commits, before), len(commits) < maxCommits*revisionSize:
		return false, nil
	}
	return false, fmt.Errorf("%w: %d later commits hide whether the write was made", store.ErrUnavailable, maxCommits)
}
