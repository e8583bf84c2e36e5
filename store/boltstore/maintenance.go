package boltstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/backup"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/fsck"
	"github.com/parleyhq/parley/store/boltstore/internal/journal"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
	"github.com/parleyhq/parley/store/internal/records"
)

// Backup implements store.Backuper. The copy is an unlinked file in the directory of the store.
func (s *Store) Backup(ctx context.Context) (*store.Backup, error) {
	if !s.backupRunning.CompareAndSwap(false, true) {
		return nil, store.ErrBackupRunning
	}
	file, size, err := s.snapshot(ctx)
	if err != nil {
		s.backupRunning.Store(false)
		return nil, fmt.Errorf("backup: %w", err)
	}
	return &store.Backup{
		ReadCloser: &backupReader{io.NewSectionReader(file, 0, size), file, &s.backupRunning}, Size: size,
	}, nil
}

// snapshot returns a copy of the file with all operations of the journal, so that the copy needs no journal.
func (s *Store) snapshot(ctx context.Context) (*os.File, int64, error) {
	if s.journal == nil {
		return backup.Snapshot(ctx, s.path, s.view, func(string) error { return nil }, 0)
	}
	unpin := func() {}
	defer func() { unpin() }()             //nolint:gocritic // It changes.
	var unfolded map[string]*overlay.Entry // for the newest transaction of view, whose state is that of the copy
	view := func(ctx context.Context, read func(*bolt.Tx) error) error {
		unpin()
		unpin = s.journal.Pin() // Only from here on: segments are used again while most of the file is copied.
		s.writer.working.Lock()
		unlock := sync.OnceFunc(s.writer.working.Unlock)
		defer unlock()
		return s.view(ctx, func(tx *bolt.Tx) (err error) {
			if unfolded, err = s.tally.pending.Freeze(tx.ID()); err != nil {
				return err
			}
			unlock()
			return read(tx)
		})
	}
	current, folding := s.tally.pending.Bytes()
	return backup.Snapshot(ctx, s.path, view, func(path string) error {
		return s.foldCopy(ctx, path, unfolded, func(d time.Duration) {
			select {
			case <-time.After(d): // The server has the other half of the processor.
			case <-ctx.Done():
			}
		})
	}, current+folding)
}

// foldCopy folds the operations of entries, from the journal of s, into the copy of the file at path. Then the copy
// needs no journal. After each step, foldCopy calls pause with the time that the step took.
func (s *Store) foldCopy(
	ctx context.Context, path string, entries map[string]*overlay.Entry, pause func(time.Duration),
) (err error) {
	db, err := boltfile.OpenLocked(path, boltfile.ReadTimeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.NoSync = true // Until the end: nothing else uses the copy.
	c := &Store{options: s.options, path: path, db: db, tally: newTally(0), journal: s.journal}
	c.writer = &writer{db: db, guard: &c.tally.guard}
	if err := db.View(func(tx *bolt.Tx) error { return c.tally.load(tx, s.options.Now()) }); err != nil {
		return err
	}
	last, _, err := boltfile.ReadJournal(db)
	if err != nil {
		return err
	}
	for key, e := range entries {
		last.Through = max(last.Through, e.Through())
		tenant, _, _ := layout.CutTenant([]byte(key))
		c.restore(key, tenant, overlay.Entry{Counts: e.Counts, Records: e.Records, Tenant: e.Tenant}, 0, e.Operations...)
	}
	if err := c.foldAllKeys(slices.Sorted(maps.Keys(entries)), func(took time.Duration) error {
		pause(took)
		return ctx.Err()
	}); err != nil {
		return err
	}
	if err := c.transact(func(t *txn) error {
		// The next journal of the copy begins after the operations that its conversations have applied.
		key := []byte(boltfile.JournalKey)
		t.put(t.meta, key, layout.Journal{Folded: last.Through, Through: last.Through}.Encode(key))
		return nil
	}); err != nil {
		return err
	}
	return db.Sync()
}

// transact runs an operation in a transaction of its own. The writer's goroutine must not run.
func (s *Store) transact(apply func(*txn) error) error {
	var t *txn
	err := s.writer.transact(func(tx *bolt.Tx) error {
		t = s.beginTxn(tx)
		if err := apply(t); err != nil {
			return err // Not with that of finish, which may be boltfile.ErrUnchanged.
		}
		return t.finish()
	})
	if err != nil && !errors.Is(err, boltfile.ErrUnchanged) {
		if t != nil {
			t.undo()
		}
		return err
	}
	s.tally.apply(t)
	return nil
}

// backupReader reads a copy. Its Close permits the next backup.
type backupReader struct {
	*io.SectionReader
	file    *os.File
	running interface{ Store(bool) }
}

// Close deletes the copy.
func (r *backupReader) Close() error {
	err := r.file.Close()
	if !errors.Is(err, os.ErrClosed) { // After the first Close, another backup may be running.
		r.running.Store(false)
	}
	return err
}

// Errors that Open, Check, CheckPages, Compact and Restore return in addition to those of the file system.
// Each is wrapped in one line that names the file, the cause, and what to do.
var (
	// ErrInUse means that another process has the file open.
	ErrInUse = boltfile.ErrInUse
	// ErrDamaged means that this package did not write the file, or that the file is no longer complete.
	ErrDamaged = boltfile.ErrDamaged
	// ErrSchema means that a version of Parley with another layout wrote the file.
	ErrSchema = boltfile.ErrSchema
	// ErrOwner means that the file belongs to another user than the process.
	ErrOwner = boltfile.ErrOwner
	// ErrExists means that the file that Restore should create exists.
	ErrExists = backup.ErrExists
)

// Checked is the result of a check.
type Checked = fsck.Checked

// CheckPages checks the pages of a store's file, see [fsck.CheckPages]. Run it in a process of its own,
// with a time limit.
func CheckPages(path string, report func(fault string)) (Checked, error) {
	return fsck.CheckPages(path, report)
}

// Check checks the pages and all records of a store's file, see [fsck.Check], and the operations in its journal.
func Check(path string, report func(fault string)) (Checked, error) {
	done, err := fsck.Check(path, report)
	if err == nil {
		err = checkJournal(path, &done, report)
	}
	return done, err
}

// checkJournal checks that the operations in the journal of a sound file can be read and applied. It adds
// the messages and records in them to the result.
func checkJournal(path string, done *Checked, report func(fault string)) (err error) {
	db, err := boltfile.OpenReadOnly(path, boltfile.ReadTimeout)
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	s := &Store{path: path, db: db, tally: newTally(0)}
	defer func() {
		if err = errors.Join(err, s.closeFiles()); err != nil {
			err = fmt.Errorf("store %s: %w", path, err)
		}
	}()
	if err := s.openJournal(true); err != nil {
		report(err.Error())
		done.Faults++
		return err
	} else if s.journal == nil {
		return nil
	}
	unfolded, err := s.tally.pending.Freeze(math.MaxInt)
	if err != nil {
		return err
	}
	var first error
	err = db.View(func(tx *bolt.Tx) error {
		r := newReader(tx, journaled{pending: s.tally.pending.View(), journal: s.journal})
		for _, key := range slices.Sorted(maps.Keys(unfolded)) {
			if err := checkEntry(&r, key); err != nil {
				report(err.Error())
				first, done.Faults = cmp.Or(first, err), done.Faults+1
			} else {
				done.Messages += unfolded[key].Counts.Messages
				done.Records += unfolded[key].Counts.Records
			}
		}
		return nil
	})
	if err == nil && first != nil {
		err = fmt.Errorf("%w: faults: %d, the first one: %w: %s", ErrDamaged, done.Faults, first, boltfile.Remedy)
	}
	return err
}

// checkEntry checks that the operations of a conversation, or those of the records of a tenant, can be read and
// applied.
func checkEntry(r *reader, key string) error {
	tenant, inner, _ := layout.CutTenant([]byte(key))
	var of scope
	if len(inner) == 0 {
		own, err := r.tenantRecords(tenant)
		if err != nil {
			return err
		}
		of = own.scope
	} else {
		at := layout.InnerKey(inner)
		rec, _, e, err := r.decode(tenant, at, r.value(tenant, at), all)
		if err != nil {
			return err
		}
		if got, want := rec.Messages.Count()+rec.InChunks(-1), rec.Conversation().GetMessageCount(); got != int(want) {
			return fmt.Errorf("conversation %q has %d messages, its header says %d", rec.Conversation().GetId(), got, want)
		}
		of = conversationScope(tenant, at, e, rec.RecordCounts())
	}
	for p := range of.pending.From("") {
		if value, err := r.pendingValue(of, p); err != nil {
			return err
		} else if value != nil {
			if _, err := records.Unmarshal(p.Key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// Compacted is the result of Compact.
type Compacted = backup.Compacted

// Compact folds the journal of the file at path, if it has one, and rewrites the file without its free pages, see
// [backup.Compact].
func Compact(path string, checked func(path string) error) (Compacted, error) {
	if err := foldClosed(path); err != nil {
		return Compacted{}, fmt.Errorf("compact: %w", err)
	}
	return backup.Compact(path, checked)
}

// foldClosed folds the journal of a file that no process has open.
func foldClosed(path string) error {
	if err := boltfile.CheckFile(path); err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	if _, unfolded, err := readJournal(path); err != nil || !unfolded {
		return err
	}
	s, err := Open(path, Options{Timeout: boltfile.ReadTimeout}) // Without a JournalBudget, Open folds the journal.
	if err != nil {
		return err
	}
	return s.Close()
}

// readJournal returns what boltfile.ReadJournal returns for the file at path.
func readJournal(path string) (j layout.Journal, unfolded bool, err error) {
	db, err := boltfile.OpenReadOnly(path, boltfile.ReadTimeout)
	if err != nil {
		return j, false, fmt.Errorf("store %s: %w", path, err)
	}
	err = errors.Join(boltfile.RecoverDamage(func() (err error) {
		j, unfolded, err = boltfile.ReadJournal(db)
		return err
	}), db.Close())
	if err != nil {
		err = fmt.Errorf("store %s: %w", path, err)
	}
	return j, unfolded, err
}

// RestoreOptions configure Restore. The zero value is usable.
type RestoreOptions = backup.RestoreOptions

// Restored is the result of Restore.
type Restored = backup.Restored

// Restore puts a copy of source at path, where Open finds it, see [backup.Restore]. The source is a backup, or the
// file of a store that no process has open. If such a file needs its journal, the directory of the journal must be
// beside it, and its operations are folded into the copy. Before that, o.Check is also called with source.
func Restore(ctx context.Context, source, path string, o RestoreOptions) (Restored, error) {
	return backup.Restore(ctx, source, path, o, func(copied string) error {
		if o.CheckPages != nil {
			if err := o.CheckPages(copied); err != nil {
				return err
			}
		}
		j, unfolded, err := readJournal(copied)
		if err != nil || !unfolded {
			return err
		}
		if err := journal.CheckExists(boltfile.JournalDir(source, j.ID)); err != nil {
			return err
		}
		if o.Check != nil {
			if err := o.Check(source); err != nil { // A fold skips damaged conversations.
				return err
			}
		}
		return foldInto(ctx, source, copied)
	})
}

// foldInto folds the journal of a sound file into a copy of the file.
func foldInto(ctx context.Context, source, copied string) (err error) {
	s := &Store{options: Options{}.withDefaults(), path: source, tally: newTally(0)}
	if s.db, err = boltfile.OpenReadOnly(source, boltfile.ReadTimeout); err != nil {
		return fmt.Errorf("store %s: %w", source, err)
	}
	defer func() { err = errors.Join(err, s.closeFiles()) }()
	if err := s.openJournal(true); err != nil {
		return err
	}
	unfolded, err := s.tally.pending.Freeze(math.MaxInt)
	if err != nil {
		return err
	}
	return s.foldCopy(ctx, copied, unfolded, func(time.Duration) {})
}

func (s *Store) closeFiles() error {
	err := s.db.Close()
	if s.journal != nil {
		err = errors.Join(err, s.journal.Close())
	}
	return err
}

// markClosed folds the journal, and writes that the store was closed in order. After a failure it does nothing. If the
// disk has no space for the mark, the next Open checks the file. If bbolt has panicked, the file is
// damaged: markClosed removes an earlier mark, so that the next Open checks the complete file. folded is
// true if there is a journal and all its operations are in the file.
func (s *Store) markClosed() (folded bool, err error) {
	if s.failed.Load() {
		return false, nil
	}
	if s.journal != nil && !s.tally.guard.Panicked.Load() {
		if err := s.foldAll(); err != nil && !boltfile.IsFull(err) {
			return false, err
		} else if err == nil {
			folded = true
		}
	}
	mark := boltfile.MarkClosed
	if s.tally.guard.Panicked.Load() {
		mark = boltfile.UnmarkClosed
	}
	err = s.writer.transact(mark)
	if errors.Is(err, boltfile.ErrUnchanged) || err != nil && boltfile.IsFull(err) {
		err = nil
	}
	return folded, err
}
