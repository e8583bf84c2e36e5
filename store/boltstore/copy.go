package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// Source is a store's file, with its journal, that is open to be copied. It is only read. It implements
// store.CopySource.
type Source struct{ store *Store }

var _ store.CopySource = (*Source)(nil)

// OpenSource opens the store in the file at path to copy it. Until it is closed, no process can open it as a store.
// CheckPages should have checked the file. Errors: ErrInUse, ErrDamaged, ErrSchema, those of the file system.
func OpenSource(path string) (*Source, error) {
	_, err := boltfile.CheckReadOnly(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("store %s: %w: name the data directory of a server", path, fs.ErrNotExist)
	}
	now := time.Now()
	// No conversation expires between the copies of its parts.
	o := Options{Options: store.Options{Now: func() time.Time { return now }}}
	s := &Store{options: o.withDefaults(), path: path, tally: newTally(0)}
	if err == nil {
		s.db, err = boltfile.OpenReadOnly(path, boltfile.ReadTimeout)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	if err := boltfile.RecoverDamage(s.loadReadOnly); err != nil {
		return nil, errors.Join(fmt.Errorf("store %s: %w", path, err), s.closeFiles())
	}
	return &Source{store: s}, nil
}

// loadReadOnly reads the state that is in memory, as load does, and changes nothing.
func (s *Store) loadReadOnly() error {
	if err := s.db.View(func(tx *bolt.Tx) error {
		if err := boltfile.CheckSchema(tx); err != nil {
			return err
		}
		return s.tally.load(tx, s.options.Now())
	}); err != nil {
		return err
	}
	if err := s.openJournal(true); err != nil {
		return err
	}
	return s.db.View(func(tx *bolt.Tx) error {
		j, done := s.journaled()
		defer done()
		s.abandonedTurns = runningTurns(tx, &s.tally.guard, newReader(tx, j), s.restoredTurns)
		return nil
	})
}

// AllTenants implements store.CopySource.
func (s *Source) AllTenants(ctx context.Context) ([]string, error) {
	all := map[string]bool{}
	err := s.store.view(ctx, func(tx *bolt.Tx) error {
		for _, name := range []string{layout.TenantsBucket, layout.ScopesBucket} {
			b := tx.Bucket([]byte(name))
			if b == nil {
				continue // A file without records has no scopes.
			}
			if err := b.ForEach(func(key, _ []byte) error {
				tenant, _, ok := layout.CutTenant(key)
				if !ok {
					return fmt.Errorf("%w: key of a tenant", store.ErrCorrupt)
				}
				all[tenant] = true
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(all)), err
}

// List implements store.CopySource.
func (s *Source) List(ctx context.Context, l *store.List) (*store.Page, error) {
	return s.store.List(ctx, l)
}

// Abandoned implements store.CopySource.
func (s *Source) Abandoned(ctx context.Context, after string) ([]store.Progress, string, error) {
	return s.store.Abandoned(ctx, after)
}

// CopyConversation implements store.CopySource.
func (s *Source) CopyConversation(ctx context.Context, tenant, id string) (c *store.ConversationCopy, err error) {
	now := s.store.options.Now()
	err = s.store.read(ctx, func(tx *bolt.Tx, r *reader) error {
		f, err := r.find(tenant, id, all)
		if err != nil {
			return err
		}
		state := readStates(tx, s.store.tally.epoch, s.store.tally.mayHaveEphemeral(), tenant).Of(id)
		if f.record.Expired(now, state) {
			return store.ErrNotFound
		}
		if err := f.record.Joined(); err != nil {
			return err
		}
		c, err = f.record.Copy(tenant, slices.Clone(f.record.Messages), state)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("conversation %q: %w", id, err)
	}
	return c, nil
}

// CopyRecords implements store.CopySource.
func (s *Source) CopyRecords(ctx context.Context, tenant, id, after string) (*store.RecordCopies, error) {
	c, now := &store.RecordCopies{Tenant: tenant, ConversationID: id}, s.store.options.Now()
	err := s.store.readRecords(ctx, tenant, id, now, func(r *reader, of scope) (err error) {
		if id == "" {
			own, err := r.tenantRecords(tenant)
			if err != nil {
				return err
			}
			c.Revision = own.state.Revision
		}
		c.Records, c.More, err = records.Copies(r.ascend(of), after, now)
		return err
	})
	if err != nil {
		return nil, recordsError(id, err)
	}
	return c, nil
}

// Close implements store.CopySource.
func (s *Source) Close() error { return s.store.closeFiles() }

// Target is a store's file that is being made as a copy of another store. It implements store.CopyTarget. Until Finish
// it has another name.
type Target struct {
	store *Store
	path  string // after Finish
}

var _ store.CopyTarget = (*Target)(nil)

// copySuffix is the suffix of the name of a Target before Finish.
const copySuffix = ".migration"

// OpenTarget begins a store's file at path, which must not exist, as a copy of another store. It first removes an
// unfinished copy of an earlier process. Errors: ErrExists, ErrInUse, those of the file system.
func OpenTarget(path string) (*Target, error) {
	if err := boltfile.MakeDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	if err := checkTarget(path); err != nil {
		return nil, fmt.Errorf("store %s: %w", path, err)
	}
	s, err := Open(path+copySuffix, Options{})
	if err != nil {
		return nil, err
	}
	s.db.NoSync = true // Until the end: before it, the file is removed after a failure.
	return &Target{store: s, path: path}, nil
}

// checkTarget checks that there is no store at path, and removes an unfinished copy of an ended process.
func checkTarget(path string) (err error) {
	dir, err := boltfile.LockDir(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := checkMissing(path); err != nil {
		return err
	}
	if _, err := os.Lstat(path + copySuffix); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	db, err := boltfile.OpenLocked(path+copySuffix, boltfile.ReadTimeout)
	switch {
	case err == nil:
		err = db.Close()
	case errors.Is(err, ErrDamaged): // Its process was killed.
		err = nil
	}
	if err != nil { // ErrInUse: its process still copies.
		return err
	}
	return os.Remove(path + copySuffix)
}

// checkNoCopy returns an error if path does not exist because a migration to it has not finished.
func checkNoCopy(path string) error {
	_, missing := os.Lstat(path)
	_, err := os.Lstat(path + copySuffix)
	if errors.Is(missing, fs.ErrNotExist) && err == nil {
		return fmt.Errorf("%s is an unfinished copy: run parleyd migrate again, which starts over, or remove it",
			path+copySuffix)
	}
	return nil
}

func checkMissing(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%w: name an empty data directory, or move the file away", ErrExists)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// PutConversation implements store.CopyTarget.
func (t *Target) PutConversation(ctx context.Context, c *store.ConversationCopy) error {
	id := c.Header.GetConversation().GetId()
	history, err := record.NewHistory(c.Messages)
	if err == nil && len(c.Tenant)+len(id) > layout.MaxNames {
		err = fmt.Errorf("tenant and conversation id are %d bytes long, %d at most", len(c.Tenant)+len(id), layout.MaxNames)
	}
	if err == nil {
		err = t.store.do(ctx, c.Tenant, len(c.Messages)+len(c.Turns), func(t *txn) error {
			return t.putCopy(c, history)
		})
	}
	if err != nil {
		return fmt.Errorf("conversation %q: %w", id, err)
	}
	return nil
}

// putCopy writes a conversation of another store.
func (t *txn) putCopy(c *store.ConversationCopy, history *record.History) error {
	r, err := record.FromCopy(c, history)
	if err != nil {
		return err
	}
	id := r.Conversation().GetId()
	switch old, err := t.load(c.Tenant, id, head); {
	case err != nil:
		return err
	case old != nil:
		return store.ErrConversationExists
	}
	number, err := t.number()
	if err != nil {
		return err
	}
	r.SetNumber(number)
	e, err := t.encode(c.Tenant, r)
	if err != nil {
		return err
	}
	if err := t.checkSpace(e.Written); err != nil {
		return err
	}
	t.create(c.Tenant, r, e, nil, nil)
	if !c.DeleteTime.IsZero() {
		t.putEphemeral(c.Tenant, id, layout.EphemeralEntry{}.Release(c.DeleteTime, 0))
	}
	return nil
}

// PutRecords implements store.CopyTarget.
func (t *Target) PutRecords(ctx context.Context, c *store.RecordCopies) error {
	edits, err := records.FromCopies(c)
	if err != nil {
		return recordsError(c.ConversationID, err)
	}
	err = t.store.do(ctx, c.Tenant, editSize(edits), func(t *txn) error {
		if err := t.checkSpace(editSize(edits)); err != nil {
			return err
		}
		if c.ConversationID == "" {
			return t.putTenantCopies(c.Tenant, edits)
		}
		of, err := t.load(c.Tenant, c.ConversationID, head)
		if err == nil && of == nil {
			err = store.ErrNotFound
		}
		if err == nil {
			t.editConversation(of, nil, edits)
		}
		return err
	})
	return recordsError(c.ConversationID, err)
}

// putTenantCopies writes records of a tenant, and the counter of their revisions also if there are none.
func (t *txn) putTenantCopies(tenant string, edits *records.Edits) error {
	own, err := t.loadTenantRecords(tenant)
	if err != nil {
		return err
	}
	if edits.Any() {
		t.editRecords(scope{}, own, edits)
		return nil
	}
	t.makeRecordBuckets()
	own.state.Revision = max(own.state.Revision, edits.TenantRevision)
	t.addTenantRecords(own, records.Counts{})
	return nil
}

// SaveProgress implements store.CopyTarget.
func (t *Target) SaveProgress(ctx context.Context, p *store.Progress) error {
	return t.store.SaveProgress(ctx, p)
}

// Stats implements store.CopyTarget.
func (t *Target) Stats(ctx context.Context) (store.Stats, error) { return t.store.Stats(ctx) }

// Finish implements store.CopyTarget. It gives the file its name, unless there is a file with that name now.
func (t *Target) Finish(context.Context) error {
	err := t.store.db.Sync()
	t.store.db.NoSync = false // No write is running. Close writes that the file was closed in order.
	if err = errors.Join(err, t.store.Close()); err == nil {
		err = t.rename()
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", t.path, err)
	}
	return nil
}

func (t *Target) rename() (err error) {
	dir, err := boltfile.LockDir(t.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := checkMissing(t.path); err != nil {
		return err
	}
	return errors.Join(os.Rename(t.path+copySuffix, t.path), dir.Sync())
}

// Discard implements store.CopyTarget.
func (t *Target) Discard(context.Context) error {
	return errors.Join(t.store.Close(), boltfile.RemoveIfExists(t.path+copySuffix))
}
