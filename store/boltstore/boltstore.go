// Package boltstore keeps conversations in one bbolt file. Begin with [Open].
//
// A read is a bbolt transaction of its own, which decodes and copies what it needs. Writes
// are operations for one goroutine, which takes whatever is waiting into one transaction
// (writer.go), where they decide and write one after the other (txn.go).
//
// # The file
//
// A conversation is one value under a key that begins with its create time, so that the
// order of lists and of evictions is the order of the keys. All else is small, and either
// leads to that key or is counted.
//
//	meta
//	├── "schema"                      → version of this layout, 4 bytes
//	└── "closed"                      → number of the transaction that wrote this, 8 bytes
//	tenants
//	└── <tenant>                      → conversations, messages, bytes, CRC-32C
//	conversations
//	└── <tenant><inner key>           → the conversation, see package record
//	ids
//	└── <tenant><conversation id>     → inner key, minute, CRC-32C
//	expiry
//	└── <minute><tenant><inner key>   → nanosecond, CRC-32C
//	turns
//	└── <tenant><conversation id>     → the answer so far and its events, see package record
//	sessions
//	└── <tenant><conversation id>     → DeleteAfter in ns, delete time in ns or holder, CRC-32C
//	ends
//	└── <second><tenant><conversation id> → nanosecond, CRC-32C
//
//	<tenant>     length as a uvarint, name: no tenant's keys begin with those of another
//	<inner key>  create time in ns, 8 bytes; a number that tells equal times apart, 4 bytes
//	<minute>     since 1970, 4 bytes; so is <second>
//	<nanosecond> since 1970, 8 bytes
//
// Integers are big-endian, checksums are of key and value. Files of the first versions have
// no sessions, no ends, and schema 1: the first write adds both and sets schema 2. These hold of every committed state:
//
//   - A conversation has one entry in ids and one in expiry, ids says in which minute.
//   - The nanosecond in expiry falls into its minute and is not later than the
//     conversation's expire_time, unless a turn runs or it is session memory. It may be
//     earlier: an append leaves the entry alone, and the sweeper, when the nanosecond has
//     come, moves it.
//   - A conversation has an entry in turns exactly while a turn runs on it.
//   - An id has an entry in sessions while it is session memory, and then until it is swept
//     or taken again. While somebody holds it there is, instead of a delete time, the number
//     of the transaction at which that process opened the file, negated; from then on it has
//     a conversation, and one entry in ends, with the same nanosecond.
//   - tenants agrees with conversations, and has no entry for a tenant without any.
//
// A process that ends in order closes the file with a transaction that writes its own number
// to "closed": where that is not the newest, the process was killed, or the machine failed.
//
// How many hold an id is in memory only. What another process holds, by its number, was held
// when that process ended, and counts as released when the file was opened. Open writes so;
// where there is no space Sweep does, later.
//
// A record that does not match its checksum is an error for its conversation alone: it can
// be deleted, and everything else steps over it. If its header is damaged, deleting it
// cannot tell how many messages go; the count of its tenant keeps them until the tenant
// has no conversation left. Where its entry in ids is damaged the conversation cannot be
// deleted either, for nothing else tells where it lies. Neither goes when its session memory
// ends. An entry of expiry that is damaged stays, and its conversation is not swept, but is
// not found either once it has expired. Where an entry of sessions is damaged its id is like
// any other. Where one of ends is, the id stays in sessions until expiry leads to its
// conversation, an hour later at most, or the id is taken again.
//
// A page that bbolt cannot read is store.ErrCorrupt for each call that meets it: calls about
// conversations in the page, and deletes that would merge a page with it. A list that reaches the page
// fails as well, and so does each create of a tenant at its capacity whose oldest conversation lies there
// or beside it; the operator has to delete other conversations of that tenant to make space. Sweep and Purge do what they can, and
// return the error; Sweep tries the rest again an hour later. All other calls continue. If a commit shows that the list of free pages does not match the pages in use, the
// store fails: every later write is store.ErrFailed. If bbolt copies a length that is damaged, or runs
// out of stack because pages lead in a circle, the process ends: that is why CheckPages checks the file
// at the start.
//
// Damage within a page of ids that bbolt can still read, in a key or in the count, length or place of
// keys, hides ids: their conversations are store.ErrNotFound. A turn whose end is refused with
// store.ErrCorrupt keeps its conversation busy until a restart.
package boltstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/parleyhq/parley/store"
)

// What Open may answer beside errors of the file system. Each comes wrapped, in one line
// that names the file and the cause, and what to do about it.
var (
	// ErrInUse: another process holds the file.
	ErrInUse = errors.New("file is in use")
	// ErrDamaged: the file is not one that this package wrote, or no longer whole.
	ErrDamaged = errors.New("file is damaged")
	// ErrSchema: the file was written by a version of Parley with another layout.
	ErrSchema = errors.New("file has another layout")
	// ErrOwner: the file is of another user than the process.
	ErrOwner = errors.New("file is of another user")
)

// Options of a store. The zero value is usable.
type Options struct {
	store.Options
	// Timeout is how long Open waits for another process to let go of the file; 0 is 1 s.
	Timeout time.Duration
	// Check is called ahead of opening a file that is there already, with its path and whether
	// the last process closed it in order. Its error ends Open. It is to run CheckPages, in a
	// process of its own. Nil: the file is opened unseen.
	Check func(path string, closed bool) error
	// OnFailure is told, once, why the store has failed for good: from then on writes
	// return store.ErrFailed. It must not block and must not call the store. Nil: nobody
	// wants to know.
	OnFailure func(error)
}

// withDefaults returns the options with every zero replaced as their comments say.
func (o Options) withDefaults() Options {
	o.Options = o.WithDefaults()
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	return o
}

// Store is a [store.Store] in a bbolt file.
type Store struct {
	options        Options
	path           string
	db             *bolt.DB
	pageSize       int64
	tally          *tally
	abandonedTurns []abandonedTurn
	writer         *writer
	deferred       deferredEntries
	backupRunning  atomic.Bool  // one is under way
	corruptCalls   atomic.Int64 // see counted
	failed         atomic.Bool
	closing        sync.Once
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Backuper = (*Store)(nil)
)

// Open opens the store in the file at path, and makes the file and its directory when they
// are missing, readable for their owner only. It checks the file before it reads any
// conversation. Errors: ErrInUse, ErrDamaged, ErrSchema, ErrOwner, that of Options.Check, those
// of the file system.
func Open(path string, o Options) (*Store, error) {
	o = o.withDefaults()
	db, err := openFile(path, o)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	s := &Store{options: o, path: path, db: db, pageSize: int64(db.Info().PageSize), tally: newTally()}
	if err := s.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", path, err), db.Close())
	}
	s.writer = newWriter(db, &s.tally.guard, limits{
		operations: maxQueued, bytes: maxQueuedBytes, batch: maxBatch, batchBytes: maxBatchBytes,
	}, s.beginTxn, s.afterCommit, s.fail)
	return s, nil
}

// fail is told once why the writer has given up.
func (s *Store) fail(err error) {
	s.failed.Store(true)
	s.options.OnFailure(err)
}

// load reads what is kept in memory: the counts, and which turns ran when the file was last
// written. It releases the session memory that was held then.
func (s *Store) load() error {
	return recoverDamage(func() error {
		if err := s.db.View(func(tx *bolt.Tx) error {
			if err := checkSchema(tx); err != nil {
				return err
			}
			if err := s.tally.load(tx, s.options.Now()); err != nil {
				return err
			}
			s.abandonedTurns = runningTurns(tx, &s.tally.guard)
			return nil
		}); err != nil {
			return err
		}
		return s.releaseStaleAtOpen()
	})
}

// begin starts the writer's transaction.
func (s *Store) beginTxn(tx *bolt.Tx) *txn { return newTxn(tx, &s.options.Options, s.tally) }

// committed follows a commit, also one of nothing, ahead of the answers to those whose
// writes it holds.
func (s *Store) afterCommit(t *txn) {
	s.tally.apply(t)
	if len(t.changes) > 0 {
		s.options.Observe(t.changes)
	}
}

// view reads in a transaction. What lies behind the slices of bbolt is gone when read
// returns.
func (s *Store) view(ctx context.Context, read func(*bolt.Tx) error) error {
	err := s.tally.guard.do(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return read(tx)
		})
	})
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return store.ErrClosed
	}
	return s.countCorrupt(err)
}

// do has the writer apply an operation, see writer.do.
func (s *Store) do(ctx context.Context, size int, apply func(*txn) error) error {
	return s.countCorrupt(s.writer.do(ctx, size, apply))
}

// counted counts an error that is of damage.
func (s *Store) countCorrupt(err error) error {
	if errors.Is(err, store.ErrCorrupt) {
		s.corruptCalls.Add(1)
	}
	return err
}

// Close waits for the writes that were begun and for reads, refuses those that wait, and
// closes the file. If the store has failed because bbolt panicked and kept its lock, the file stays
// open and locked until the process ends.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		s.writer.close()
		s.tally.versions.close()
		err = s.markClosed()
		if !s.writer.stuck {
			err = errors.Join(err, s.db.Close())
		}
	})
	if err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}

// markClosed notes that all is well. Where it cannot, for want of space, the next Open looks
// at the file; so it must after a failure. If bbolt has panicked the file is damaged: a note that it
// has from before is removed, so that the next Open takes the time to look at all of it.
func (s *Store) markClosed() error {
	if s.failed.Load() {
		return nil
	}
	note := markClosed
	if s.tally.guard.panicked.Load() {
		note = unmarkClosed
	}
	err := s.writer.transact(note)
	if errors.Is(err, errUnchanged) || err != nil && isFull(err) {
		return nil
	}
	return err
}
