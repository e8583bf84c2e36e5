package interactionlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/parleyhq/parley/store"
)

// errLostBefore is why entries are missing that no later process could write either.
var errLostBefore = errors.New("a process before has lost them")

// TurnOff ends the log of a directory for a process that keeps none. It adds what the last stop
// has left out, as CatchUp does, and closes the log: a later process with a log adds nothing that
// was committed while it was off. Where there is no log, or it is off already, it does nothing. It
// is to be called before anything else is written to the store.
//
// After an error, unless it is that of Open or of ctx, the log stays off all the same and what it
// lacks stays missing. Entries that cannot be written are an error, too: the next process with a
// log writes how many they are. Errors: those of Open, CatchUp, Close and of writing files.
func TurnOff(ctx context.Context, o Options, s store.Store, tenants ...string) error {
	switch c, _, err := readCheckpoint(filepath.Join(o.Dir, checkpointName)); {
	case errors.Is(err, fs.ErrNotExist), err == nil && c.Clean && c.Off:
		return nil
	}
	l, err := Open(o)
	if err != nil {
		return err
	}
	err = l.CatchUp(ctx, s, tenants...)
	err = errors.Join(err, l.Close())
	if ctx.Err() != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := &l.loss; f.missing > 0 {
		err = errors.Join(err, fmt.Errorf("interaction log: %d entries could not be written: %w", f.missing, cmp.Or(f.cause, errLostBefore)))
	}
	l.pending.saved.Clean, l.pending.saved.Off = true, true
	return errors.Join(err, l.save(true))
}
