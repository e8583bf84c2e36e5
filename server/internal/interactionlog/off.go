package interactionlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// ErrOff reports that a server was started without an interaction log.
var ErrOff = errors.New("the interaction log is off")

// errLostBefore is the reason for missing entries that no later process could write either.
var errLostBefore = errors.New("a previous process lost them")

// TurnOff turns the log of a directory off, for a process that writes no log. It adds the entries that
// the last stop has left out, as CatchUp does, and closes the log. A later process with a log adds no
// entries for messages that were committed while it was off. If there is no log, or it is off already,
// TurnOff does nothing. Call it before anything else is written to the store.
//
// After an error, except that of Open or of ctx, the log is off all the same and its missing entries stay
// missing. Entries that could not be written are an error, too. The next process with a log writes a loss
// entry for them. Errors: those of Open, CatchUp, Close and of writing files.
func TurnOff(ctx context.Context, o Options, s store.Store) error {
	switch c, _, err := readCheckpoint(filepath.Join(o.Dir, checkpointName)); {
	case errors.Is(err, fs.ErrNotExist), err == nil && c.Clean && c.Off:
		return nil
	}
	l, err := Open(o)
	if err != nil {
		return err
	}
	err = l.CatchUp(ctx, s)
	err = errors.Join(err, l.Close())
	if ctx.Err() != nil {
		return err
	}
	l.writer.mu.Lock()
	defer l.writer.mu.Unlock()
	if loss := &l.writer.loss; loss.missing > 0 {
		cause := cmp.Or(loss.cause, errLostBefore)
		err = errors.Join(err, fmt.Errorf("interaction log: %d entries could not be written: %w", loss.missing, cause))
	}
	l.writer.pending.saved.Clean, l.writer.pending.saved.Off = true, true
	return errors.Join(err, l.writer.save(true))
}

// excludeCommittedWhileOff excludes the messages that were committed while the log was off and are dated
// after the clock.
func (l *Log) excludeCommittedWhileOff(ctx context.Context, s store.Store, since time.Time) error {
	c, err := l.newCatchUp(s, since)
	if err == nil {
		err = c.eachConversation(ctx, func(_ context.Context, tenant string, h *parleyv1.Conversation) error {
			l.writer.mu.Lock()
			defer l.writer.mu.Unlock()
			until := h.GetLastAppendTime().AsTime()
			return l.writer.addExclusion(exclusion{
				Tenant: tenant, ID: h.GetId(), UID: h.GetUid(), Sequence: h.GetLastSequence(), Until: until,
			})
		})
	}
	// If ctx has ended, the next start repeats this. After another error the log is on all the same.
	if ctx.Err() == nil {
		l.writer.mu.Lock()
		defer l.writer.mu.Unlock()
		l.writer.pending.saved.Off = false
		err = errors.Join(err, l.writer.save(true))
	}
	if err != nil {
		return fmt.Errorf("interaction log: exclude messages committed while it was off: %w", err)
	}
	return nil
}

// startWithoutCatchUp ends the state in which the log may lack entries of the last stop, without adding any.
func (l *Log) startWithoutCatchUp(off, needed bool) error {
	if needed {
		l.writer.finishCatchUp(0)
		l.options.Log.Warn("interaction log may lack the last entries before an unclean stop")
		return l.sync()
	}
	if !off {
		return nil
	}
	l.writer.mu.Lock()
	defer l.writer.mu.Unlock()
	l.writer.pending.saved.Off = false
	return l.writer.save(true)
}
