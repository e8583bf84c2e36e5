// Package boltstore stores conversations in one bbolt file, with a journal beside it.
//
// One goroutine, the writer, does all writes (writer.go). It first decides which queued operations the journal can
// take: appends to existing conversations (journaled.go), and small records (record_write.go). It writes these as one
// batch of the journal, and puts the others into one transaction of the file, in which they decide and write one after
// the other (txn.go). A second goroutine, the folder, makes the writer fold the journal into the file (fold.go) and
// move older messages of large conversations to chunks (longtails.go). Options.JournalBudget 0 means that there is no
// journal.
//
// A read that the cache cannot answer is a bbolt transaction of its own. It decodes and copies the data of
// its result, and applies the operations in the journal that the file does not contain (conversation.go).
//
// # The file
//
// The file has these buckets. Package layout defines their keys and entries, and the invariants that
// every committed state meets.
//
//	conversations  the value of each conversation: its header, turns and newest messages
//	chunks         older messages of conversations with more than 64 KiB of messages
//	ids            id of a conversation → its key
//	expiry         time → conversation that expires at this time or later
//	turns          running turns: the answer so far
//	sessions       ids of ephemeral conversations: the process that holds the id, or the delete time
//	ends           time → id of an ephemeral conversation to delete at that time
//	tenants        counts of each tenant
//	records        the records of conversations and of tenants
//	scopes         revision and counts of the own records of each tenant
//	recordends     time → record of a tenant that expires at that time
//	orphans        conversations of which chunks, records or turns are still to be removed
//	turnids        id of a turn → key of its conversation
//	turnchunks     older turns of conversations that keep more than 32
//	meta           version of the layout; "journal": the id of the journal, and which of its operations the file
//	               contains; "closed": whether the file was closed in order
//
// Package boltfile opens and creates the file, package fsck checks it, and package backup copies,
// compacts and restores it.
//
// # The journal
//
// An operation is an append or a write of records that the journal contains. A batch is the operations of one commit to
// the journal. To fold a conversation is to write it to the file with all its operations. A generation is the
// operations since the last fold of the whole journal began; it is folded when it reaches the budget. Operations that
// are not folded are pending: package overlay has them in memory, for readers and for the writer. Package journal
// writes the segments, which are the files of the journal.
//
// A fold divides a conversation with more than 64 KiB of messages outside chunks, its tail. With the journal alone, the
// tail would grow until the next fold. So the folder folds conversations with long tails earlier, several in one
// transaction, while appends continue in the journal. If a tail reaches 512 KiB, the next append is a transaction.
//
// Any transaction that writes or removes a conversation folds it, with its records. The header of each conversation
// has the index of the last operation in it, so that no operation is applied twice. The own records of a tenant are
// folded in the same way; their entry in scopes has the index.
//
// # Closing
//
// A process that closes the file in order ends with a transaction that writes the transaction's number
// to "closed". If a later transaction exists, its process was killed or the machine failed. A process with a
// journal folds it before that transaction, and removes it after it. The next journal has another id. So if a closed
// file is copied, no copy opens the journal of another copy.
//
// # Holds
//
// The number of holds of an id is only in memory. The file contains only which process holds the id.
// If that process has ended, its holds count as released at the time at which the file was opened.
// Open writes these releases. If the disk has no space for them, Sweep writes them later.
//
// # Damage
//
// A value that does not match its checksum is an error for its conversation or record only. The conversation
// can be deleted, and all other calls skip it. These cases differ:
//
//   - If its header is damaged, a delete does not know how many messages it removes, nor the size of those in
//     chunks. The counts of the tenant include them until the tenant has no conversation left.
//   - If its entry in ids is damaged, the conversation cannot be deleted, because no other entry
//     leads from the id to the conversation. Neither kind of damaged conversation is removed when it is
//     ephemeral and ends.
//   - If a chunk is damaged, reads of its messages return the error, and so do writes that remove or drop messages
//     in it, or look in it for the call of a removed result or for the newest message that is left. All other calls
//     about the conversation continue.
//   - A damaged entry in expiry stays. Its conversation is not swept, but is not found after it has
//     expired.
//   - If a chunk of turns is damaged, FindTurn fails for its turns, and ListTurns fails for the conversation. The list
//     of the tenant skips these turns.
//   - If an entry in turnids is damaged, its turn is found only with its conversation. If the turns of a conversation
//     are damaged, its deletion may leave entries in turnids. They lead to no conversation, and all calls skip them.
//   - If an operation in the journal cannot be read or applied, its conversation and the journal stay until the
//     conversation is deleted. Backups and Close return the error, and Open refuses the journal.
//   - If the value of a record is damaged, calls that read it fail. It can be written or deleted. If its head is
//     damaged, calls that write it fail, too, until its conversation is deleted.
//   - If an entry in sessions is damaged, its id counts as not ephemeral.
//   - If an entry in ends is damaged, the id stays in sessions until expiry leads to its
//     conversation, at most an hour later, or until the id is used again.
//
// A page that bbolt cannot read is store.ErrCorrupt for each call that reaches it: calls about
// conversations in the page, and deletes that would merge another page with it. A list that reaches
// the page fails, too. So does each create of a tenant at its capacity whose oldest conversation is
// in that page or beside it: the operator has to delete other conversations of that tenant to free
// space. Sweep and Purge process all other conversations and then return the error. Sweep tries the
// failed ones again an hour later. All other calls continue.
//
// If a commit shows that the list of free pages does not match the pages in use, the store fails:
// every later write is store.ErrFailed. If bbolt copies a damaged length, or runs out of stack
// because pages form a cycle, the process ends. For this reason CheckPages checks the file at the
// start.
//
// Damage within a page of ids that bbolt can still read (in a key, or in the count, length or
// position of keys) hides ids: their conversations are store.ErrNotFound. If the end of a turn is
// refused with store.ErrCorrupt, its conversation stays busy until a restart.
//
// Start at [Open].
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
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/journal"
	"github.com/parleyhq/parley/store/boltstore/internal/overlay"
)

// Options configure a store. The zero value is usable.
type Options struct {
	store.Options
	// Timeout is how long Open waits for another process to close the file; 0 is 1 s.
	Timeout time.Duration
	// JournalBudget is the size in bytes of the operations in the journal at which they are folded into the file. They
	// are folded earlier if their positions take more than an eighth of it in memory. 0 means that there is no journal:
	// each append is part of a transaction of the file.
	JournalBudget int64
	// JournalAge is the time between folds if the journal does not reach its budget before; 0 is 60 s.
	JournalAge time.Duration
	// CacheBytes is the maximum memory, in bytes, of the newest states of conversations and records that were read.
	// 0 means that there is no cache: a read is a transaction of the file unless its version is known.
	CacheBytes int
	// segmentBytes is the size of the journal's segments in tests; 0 is that of package journal.
	segmentBytes int64
	// chunkSize is the size of chunks in tests, in bytes, see record.Record.Divide; 0 is defaultChunkSize.
	chunkSize int
	// Check is called before an existing file is opened, with its path and whether the last process
	// closed it in order. If Check returns an error, Open returns it. Check should run CheckPages
	// in a process of its own. If nil, the file is opened without a check.
	Check func(path string, closed bool) error
	// OnFailure is called once, with the cause, when the store fails permanently: later writes
	// return store.ErrFailed. It must not block and must not call the store. It may be nil.
	OnFailure func(error)
	// OnCommit is called after each transaction that changed the file, and after each batch of the journal, before
	// the callers get their results. It must return quickly and must not call the store. It may be nil.
	OnCommit func(store.Commit)
}

// withDefaults returns the options with every zero replaced as their comments say.
func (o Options) withDefaults() Options {
	o.Options = o.WithDefaults()
	if o.Timeout <= 0 {
		o.Timeout = time.Second
	}
	if o.JournalAge <= 0 {
		o.JournalAge = time.Minute
	}
	if o.chunkSize <= 0 {
		o.chunkSize = defaultChunkSize
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	if o.OnCommit == nil {
		o.OnCommit = func(store.Commit) {}
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
	restoredTurns  []string // keys in ids of conversations whose turns the journal changes; only while load runs
	writer         *writer
	journal        *journal.Journal // nil if operations are not journaled
	folder         *folder          // nil if operations are not journaled
	journalCounts  journalCounts
	deferred       deferredEntries
	backupRunning  atomic.Bool  // a backup is being made or is not closed
	corruptCalls   atomic.Int64 // calls that returned store.ErrCorrupt
	failed         atomic.Bool
	closing        sync.Once
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Backuper  = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
)

// CheckSpace returns an error that matches syscall.ENOSPC if size more bytes in the directory dir would take the space
// that a store on that disk reserves for answers and deletes: a sixteenth of the disk, at most 64 MiB. Programs that
// write other files beside a store call it first.
func CheckSpace(dir string, size int) error { return boltfile.CheckBeside(dir, int64(size)) }

// Open opens the store in the file at path. If the file or its directory is missing, Open creates
// it with access for its owner only. Open checks the file before it reads any conversation. It reads
// the journal of an ended process; with JournalBudget 0 it folds and removes that journal. Errors:
// ErrInUse, ErrDamaged, ErrSchema, ErrOwner, that of Options.Check, those of the file system.
func Open(path string, o Options) (*Store, error) {
	o = o.withDefaults()
	if err := checkNoCopy(path); err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	db, err := boltfile.Open(path, o.Timeout, o.Check)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	s := &Store{options: o, path: path, db: db, pageSize: int64(db.Info().PageSize), tally: newTally(o.CacheBytes)}
	if err := s.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", path, err), s.closeFiles())
	}
	s.writer = newWriter(db, &s.tally.guard, limits{
		operations: maxQueued, bytes: maxQueuedBytes, batch: maxBatch, batchBytes: maxBatchBytes,
		quantum: sharedQuantum, sharedBatchBytes: sharedBatchBytes,
	}, s.beginTxn, s.afterCommit, s.fail)
	if s.journal != nil && o.JournalBudget == 0 {
		if err := errors.Join(s.foldAll(), s.dropJournal()); err != nil {
			return nil, errors.Join(fmt.Errorf("store %s: %w", path, err), s.closeFiles())
		}
	}
	if s.journal != nil {
		s.folder = newFolder(s)
		s.writer.start(s.writeJournal)
	} else {
		s.writer.start(nil)
	}
	return s, nil
}

// fail records that the writer has failed and calls OnFailure. It is called once.
func (s *Store) fail(err error) {
	s.failed.Store(true)
	s.options.OnFailure(err)
}

// load reads the state that is in memory: the counts, and the turns that ran when the file was last
// written. It releases the holds of ended processes.
func (s *Store) load() error {
	return boltfile.RecoverDamage(func() error {
		if err := s.db.Sync(); err != nil { // A process that was killed may have left its last commit unsynced.
			return err
		}
		if err := s.db.View(func(tx *bolt.Tx) error {
			if err := boltfile.CheckSchema(tx); err != nil {
				return err
			}
			return s.tally.load(tx, s.options.Now())
		}); err != nil {
			return err
		}
		if err := s.openJournal(false); err != nil {
			return err
		}
		if err := s.db.View(func(tx *bolt.Tx) error {
			j, done := s.journaled()
			defer done()
			s.abandonedTurns = runningTurns(tx, &s.tally.guard, newReader(tx, j), s.restoredTurns)
			s.restoredTurns = nil
			return nil
		}); err != nil {
			return err
		}
		return s.beginUse()
	})
}

// beginTxn makes the writer's transaction, which is read-only for a batch of the journal.
func (s *Store) beginTxn(tx *bolt.Tx) *txn {
	j := journaled{journal: s.journal} // The writer itself releases segments, so it need not pin them.
	if s.journal != nil {
		j.pending = s.tally.pending.View()
	}
	t := newTxn(tx, &s.options.Options, s.tally, j)
	t.chunkSize = s.options.chunkSize
	return t
}

// afterCommit runs after each commit to the file or the journal, also one without changes, before the
// callers get their results.
func (s *Store) afterCommit(t *txn) {
	s.tally.apply(t)
	if s.folder != nil {
		s.folder.tails.remove(t.folded)
	}
	if t.endsGeneration {
		s.tally.pending.End()
		s.journal.Release(t.foldedThrough)
		s.trimJournal()
	}
	if len(t.changes) > 0 {
		s.options.Observe(t.changes)
	}
	if t.commit.Operations > 0 {
		s.options.OnCommit(t.commit)
	}
}

// view runs read in a transaction. Slices from bbolt are invalid after read has returned.
func (s *Store) view(ctx context.Context, read func(*bolt.Tx) error) error {
	err := s.tally.guard.Do(func() error {
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

// read runs read in a transaction, with a reader that also sees the operations in the journal. If the
// transaction is too old for what it reads, read runs again with a new one.
func (s *Store) read(ctx context.Context, read func(*bolt.Tx, *reader) error) error {
	for {
		err := s.readOnce(ctx, read)
		if !errors.Is(err, overlay.ErrStale) {
			return err
		}
	}
}

func (s *Store) readOnce(ctx context.Context, read func(*bolt.Tx, *reader) error) error {
	j, done := s.journaled()
	defer done()
	return s.view(ctx, func(tx *bolt.Tx) error {
		r := newReader(tx, j)
		if err := read(tx, &r); err != nil {
			return err
		}
		return r.err
	})
}

// do makes the writer apply an operation, see writer.do.
func (s *Store) do(ctx context.Context, tenant string, size int, apply func(*txn) error) error {
	return s.countCorrupt(s.writer.do(ctx, tenant, size, apply))
}

// countCorrupt counts an error that is store.ErrCorrupt, and returns the error.
func (s *Store) countCorrupt(err error) error {
	if errors.Is(err, store.ErrCorrupt) {
		s.corruptCalls.Add(1)
	}
	return err
}

// Close waits for reads and for the writes that have begun, refuses the queued ones, folds the journal, and
// closes the file. If the disk has no space to fold the journal, the journal stays for the next Open.
// If the store has failed because bbolt panicked and kept its lock, the file stays open and
// locked until the process ends.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		if s.folder != nil {
			s.folder.close()
		}
		s.writer.close()
		s.tally.versions.close()
		s.tally.cache.Close()
		var folded bool
		folded, err = s.markClosed()
		if !s.writer.stuck {
			err = errors.Join(err, s.closeFiles())
		}
		if folded {
			err = errors.Join(err, s.removeJournal())
		}
	})
	if err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}
