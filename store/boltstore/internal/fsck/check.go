// Package fsck checks a store's file: its pages, its records, and whether they meet the invariants of
// package layout. It reads the file directly, not through a store, and changes nothing. Start at [Check].
package fsck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// Checked is what Check read, and the number of faults that it found.
type Checked struct {
	// Bytes is the size of the file, Pages the number of pages that are or were in use.
	// Conversations, Messages and Records count those in the pages.
	Bytes, Pages, Conversations, Messages, Records int64
	// Faults is the number of reported faults.
	Faults int64
}

// CheckPages checks the pages of a store's file: they must form a tree, and each page must belong
// to one place. It calls report for each fault. It returns ErrDamaged if it found a fault, and
// otherwise the errors of Check.
//
// Damaged pages may end the process or make CheckPages run forever, so run it in a process of its
// own, with a time limit. No other process may have the file open as a store.
func CheckPages(path string, report func(fault string)) (Checked, error) {
	return check(path, report, false)
}

// Check checks the pages as CheckPages does. If the pages are sound, it also checks every record
// and the invariants of package layout. It changes nothing. Errors: ErrInUse, ErrSchema,
// ErrDamaged (also if there was any fault), those of the file system.
func Check(path string, report func(fault string)) (Checked, error) {
	return check(path, report, true)
}

// preload makes the kernel read all of a file into its cache. Reading from start to end takes a
// fraction of the time that reading page by page takes.
func preload(path string) error {
	f, err := boltfile.OpenExisting(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	for buffer := make([]byte, 1<<20); err == nil; {
		_, err = f.Read(buffer)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

func check(path string, report func(fault string), records bool) (done Checked, err error) {
	info, err := boltfile.CheckReadOnly(path)
	if err == nil && records {
		err = preload(path)
	}
	if err != nil {
		return done, fmt.Errorf("store %s: %w", path, err)
	}
	db, err := boltfile.OpenReadOnly(path, boltfile.ReadTimeout)
	if err != nil {
		return done, fmt.Errorf("store %s: %w", path, err)
	}
	c := &checker{report: report, Checked: Checked{Bytes: info.Size()}}
	err = boltfile.RecoverDamage(func() error {
		return db.View(func(tx *bolt.Tx) error {
			c.tx, c.epoch, c.Pages = tx, layout.Epoch{Tx: tx.ID(), At: time.Now()}, tx.Size()/int64(db.Info().PageSize)
			if err := c.checkElements(path); err != nil || c.Faults > 0 {
				return err // Data in damaged pages cannot be trusted.
			}
			for fault := range tx.Check() {
				c.addFault("%s", strings.TrimPrefix(fault.Error(), "panic: "))
			}
			if c.Faults > 0 {
				return nil
			}
			if err := boltfile.CheckSchema(tx); err != nil {
				return err
			}
			if records {
				c.records()
			}
			return nil
		})
	})
	if err == nil && c.Faults > 0 {
		err = fmt.Errorf("%w: faults: %d, the first one: %s: %s", boltfile.ErrDamaged, c.Faults, c.first, boltfile.Remedy)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return c.Checked, fmt.Errorf("store %s: %w", path, err)
	}
	return c.Checked, nil
}

// checker checks one state of a file.
type checker struct {
	Checked

	tx      *bolt.Tx
	epoch   layout.Epoch
	report  func(fault string)
	first   string                   // first fault, its first line
	counts  map[string]layout.Counts // what tenants should contain, as far as the conversations show
	damaged map[string]error         // conversations, by key, whose fault was not reported yet
	scopes  map[string]layout.Counts // what the records of each scope show, by the prefix of their keys

	turnEntries int64 // number of entries in turnids that must exist
}

func (c *checker) addFault(format string, args ...any) {
	fault := fmt.Sprintf(format, args...)
	c.Faults++
	if c.Faults == 1 {
		c.first, _, _ = strings.Cut(fault, "\n")
	}
	c.report(fault)
}

// CheckRecords checks the entries of all buckets in a transaction and calls report for each fault. e
// separates the holds of this process from those of ended processes.
func CheckRecords(tx *bolt.Tx, e layout.Epoch, report func(fault string)) Checked {
	c := &checker{tx: tx, epoch: e, report: report}
	c.records()
	return c.Checked
}

// records checks the entries of all buckets.
func (c *checker) records() {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	c.counts, c.damaged, c.scopes = map[string]layout.Counts{}, map[string]error{}, map[string]layout.Counts{}
	c.each(layout.RecordsBucket, c.record)
	c.each(layout.OrphansBucket, c.orphan)
	c.each(layout.ConversationsBucket, c.conversation)
	c.each(layout.IDsBucket, c.id)
	for key, err := range c.damaged {
		c.addFault("conversation with key %x, to which no id leads: %v", key, err)
	}
	c.each(layout.ExpiryBucket, c.expiry)
	c.each(layout.TurnsBucket, c.turn)
	c.checkScopes()
	c.each(layout.RecordEndsBucket, c.recordEnd)
	c.each(layout.TenantsBucket, c.tenant)
	for tenant, want := range c.counts { // checker.tenant removed those that tenants contains.
		if want != (layout.Counts{}) {
			c.addFault("tenant %q: it has %d conversations, %d records and no counts", tenant, want.Conversations, want.Records)
		}
	}
	c.each(layout.SessionsBucket, c.ephemeral)
	c.each(layout.EndsBucket, c.deletion)
	c.each(layout.ChunksBucket, c.chunk)
	c.each(layout.TurnChunksBucket, c.turnChunk)
	c.checkTurnIDs()
}

// each calls check for all entries of a bucket. Files of the first versions lack some buckets.
func (c *checker) each(name string, check func(key, value []byte)) {
	if b := c.tx.Bucket([]byte(name)); b != nil {
		_ = b.ForEach(func(key, value []byte) error {
			check(key, value)
			return nil
		})
	}
}

// get returns an entry of a bucket, or nil if there is none.
func (c *checker) get(bucket string, key []byte) []byte {
	if b := c.tx.Bucket([]byte(bucket)); b != nil {
		return b.Get(key)
	}
	return nil
}

func (c *checker) conversation(key, value []byte) {
	tenant, rest, ok := layout.CutTenant(key)
	if !ok || len(rest) != record.KeySize {
		c.addFault("conversations: %x is not the key of a conversation", key)
		return
	}
	c.Conversations++
	found := layout.Counts{Conversations: 1, Bytes: int64(len(value))}
	of := layout.ConversationScope(tenant, layout.InnerKey(rest))
	found = found.Plus(c.scopes[string(of)])
	if r, err := record.Unmarshal(value); err != nil {
		c.damaged[string(key)] = err // Its entry in ids may show which conversation it is.
	} else {
		if err := c.checkCounts(of, r.RecordCounts()); err != nil {
			c.addFault("conversation %q of tenant %q: %v", r.Conversation().GetId(), tenant, err)
		}
		found.Messages = int64(r.Conversation().GetMessageCount())
		found.Bytes += int64(r.InChunkBytes())
		if err := c.checkConversation(tenant, layout.InnerKey(rest), r); err != nil {
			c.addFault("conversation %q of tenant %q: %v", r.Conversation().GetId(), tenant, err)
		}
	}
	delete(c.scopes, string(of))
	c.Messages += found.Messages
	c.counts[tenant] = c.counts[tenant].Plus(found)
}

// checkConversation checks a conversation and the entries that must exist for it.
func (c *checker) checkConversation(tenant string, key layout.InnerKey, r *record.Record) error {
	if err := c.checkTurns(tenant, key, r); err != nil {
		return err
	}
	last, err := c.checkChunks(layout.ConversationKey(tenant, key), r)
	if err != nil {
		return err
	}
	if err := checkContents(r, last); err != nil {
		return err
	}
	head := r.Conversation()
	if created := int64(binary.BigEndian.Uint64(key[:])); created != head.GetCreateTime().AsTime().UnixNano() {
		return fmt.Errorf("its key has create time %d", created)
	}
	id := layout.IDKey(tenant, head.GetId())
	b := c.get(layout.IDsBucket, id)
	if b == nil {
		return errors.New("it has no entry in ids")
	}
	p, err := layout.DecodePlace(id, b)
	switch {
	case err != nil:
		return err
	case p.Key != key:
		return fmt.Errorf("its entry in ids leads to key %x, but its key is %x", p.Key, key)
	}
	entry := layout.ExpiryKey(p.Minute, tenant, key)
	d, ok := layout.DecodeDue(entry, c.get(layout.ExpiryBucket, entry))
	state := c.epoch.StateOf(id, c.get(layout.SessionsBucket, id))
	switch {
	case !ok:
		return fmt.Errorf("its entry in expiry, minute %d, is missing or damaged", p.Minute)
	case layout.MinuteOf(d.At) != p.Minute:
		return fmt.Errorf("its entry in expiry has nanosecond %d, which is not in minute %d", d.At, p.Minute)
	case !r.Running() && state.IsZero() && d.At > layout.Nanosecond(r.ExpireTime()):
		return fmt.Errorf("it would be swept %d ns late", d.At-layout.Nanosecond(r.ExpireTime()))
	}
	return c.checkTurn(r, c.get(layout.TurnsBucket, id))
}

// checkTurn checks the entry of a conversation in turns.
func (c *checker) checkTurn(r *record.Record, value []byte) error {
	if !r.Running() {
		if value != nil {
			return errors.New("no turn runs, but it has an entry in turns")
		}
		return nil
	}
	if value == nil {
		return errors.New("a turn runs, but it has no entry in turns")
	}
	progress, err := record.UnmarshalProgress(bytes.Clone(value))
	if err != nil {
		return err
	}
	if running := r.Conversation().GetActiveTurnId(); progress.TurnID != running {
		return fmt.Errorf("turn %q runs, but its entry in turns is of turn %q", running, progress.TurnID)
	}
	return nil
}

// checkContents checks the contents of a record: the number and order of its messages, and that
// each list of events belongs to a stored turn, at most one list a turn. last is the newest message in its chunks.
func checkContents(r *record.Record, last int32) error {
	messages := int32(r.InChunks(-1))
	for frame := range r.Messages.All() {
		sequence := frame.Sequence()
		if sequence <= last {
			return fmt.Errorf("message %d follows message %d", sequence, last)
		}
		messages, last = messages+1, sequence
	}
	if want := r.Conversation().GetMessageCount(); messages != want {
		return fmt.Errorf("it has %d messages, but its header says %d", messages, want)
	}
	stored, err := r.AllTurns()
	if err != nil {
		return err
	}
	turns := map[string]bool{}
	for _, t := range stored.GetTurns() {
		turns[t.GetId()] = true
	}
	for _, e := range stored.GetEvents() {
		if !turns[e.GetTurnId()] {
			return fmt.Errorf("it has events of turn %q, which is not stored or has other events", e.GetTurnId())
		}
		delete(turns, e.GetTurnId()) // A turn has events at most once.
	}
	return nil
}
