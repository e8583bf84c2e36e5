package boltstore

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

	"github.com/parleyhq/parley/store/internal/record"
)

// readTimeout is how long a reader of a file waits for a process that has it open as a store.
const readTimeout = time.Second

// Checked is what Check read, and the number of faults that it found.
type Checked struct {
	// Bytes is the size of the file, Pages the number of pages that are or were in use.
	// Conversations and Messages count those in the pages.
	Bytes, Pages, Conversations, Messages int64
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
// and the invariants of the package comment. It changes nothing. Errors: ErrInUse, ErrSchema,
// ErrDamaged (also if there was any fault), those of the file system.
func Check(path string, report func(fault string)) (Checked, error) {
	return check(path, report, true)
}

// preload makes the kernel read all of a file into its cache. Reading from start to end takes a
// fraction of the time that reading page by page takes.
func preload(path string) error {
	f, err := openExisting(path, os.O_RDONLY, 0)
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
	info, err := checkReadOnly(path)
	if err == nil && records {
		err = preload(path)
	}
	if err != nil {
		return done, fmt.Errorf("store %s: %w", path, err)
	}
	db, err := readFile(path, readTimeout)
	if err != nil {
		return done, fmt.Errorf("store %s: %w", path, err)
	}
	c := &checker{report: report, Checked: Checked{Bytes: info.Size()}}
	err = recoverDamage(func() error {
		return db.View(func(tx *bolt.Tx) error {
			c.tx, c.epoch, c.Pages = tx, epoch{tx: tx.ID(), at: time.Now()}, tx.Size()/int64(db.Info().PageSize)
			if err := c.checkElements(path); err != nil || c.Faults > 0 {
				return err // Data in damaged pages cannot be trusted.
			}
			for fault := range tx.Check() {
				c.addFault("%s", strings.TrimPrefix(fault.Error(), "panic: "))
			}
			if c.Faults > 0 {
				return nil
			}
			if err := checkSchema(tx); err != nil {
				return err
			}
			if records {
				c.records()
			}
			return nil
		})
	})
	if err == nil && c.Faults > 0 {
		err = fmt.Errorf("%w: faults: %d, the first one: %s: %s", ErrDamaged, c.Faults, c.first, remedy)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return c.Checked, fmt.Errorf("store %s: %w", path, err)
	}
	return c.Checked, nil
}

// checkReadOnly checks a file as checkFile does, but accepts a file of any user and does not change
// its mode.
func checkReadOnly(path string) (os.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if err := checkKind(info); err != nil {
		return nil, err
	}
	f, err := openExisting(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return info, errors.Join(checkMetas(f), f.Close())
}

// checker checks one state of a file.
type checker struct {
	Checked

	tx      *bolt.Tx
	epoch   epoch
	report  func(fault string)
	first   string            // first fault, its first line
	counts  map[string]counts // what tenants should contain, as far as the conversations show
	damaged map[string]error  // conversations, by key, whose fault was not reported yet
}

func (c *checker) addFault(format string, args ...any) {
	fault := fmt.Sprintf(format, args...)
	c.Faults++
	if c.Faults == 1 {
		c.first, _, _ = strings.Cut(fault, "\n")
	}
	c.report(fault)
}

// checkRecords checks the entries of all buckets in a transaction and calls report for each fault. e
// separates the holds of this process from those of ended processes.
func checkRecords(tx *bolt.Tx, e epoch, report func(fault string)) Checked {
	c := &checker{tx: tx, epoch: e, report: report}
	c.records()
	return c.Checked
}

// records checks the entries of all buckets.
func (c *checker) records() {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	c.counts, c.damaged = map[string]counts{}, map[string]error{}
	c.each(conversationsBucket, c.conversation)
	c.each(idsBucket, c.id)
	for key, err := range c.damaged {
		c.addFault("conversation with key %x, to which no id leads: %v", key, err)
	}
	c.each(expiryBucket, c.expiry)
	c.each(turnsBucket, c.turn)
	c.each(tenantsBucket, c.tenant)
	for tenant, want := range c.counts { // checker.tenant removed those that tenants contains.
		c.addFault("tenant %q: it has %d conversations and no counts", tenant, want.conversations)
	}
	c.each(sessionsBucket, c.ephemeral)
	c.each(endsBucket, c.deletion)
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
	tenant, rest, ok := cutTenant(key)
	if !ok || len(rest) != record.KeySize {
		c.addFault("conversations: %x is not the key of a conversation", key)
		return
	}
	c.Conversations++
	found := counts{conversations: 1, bytes: int64(len(value))}
	if r, err := record.Unmarshal(value); err != nil {
		c.damaged[string(key)] = err // Its entry in ids may show which conversation it is.
	} else {
		found.messages = int64(r.Conversation().GetMessageCount())
		if err := c.checkConversation(tenant, innerKey(rest), r); err != nil {
			c.addFault("conversation %q of tenant %q: %v", r.Conversation().GetId(), tenant, err)
		}
	}
	c.Messages += found.messages
	c.counts[tenant] = c.counts[tenant].plus(found)
}

// checkConversation checks a conversation and the entries that must exist for it.
func (c *checker) checkConversation(tenant string, key innerKey, r *record.Record) error {
	if err := checkContents(r); err != nil {
		return err
	}
	head := r.Conversation()
	if created := int64(binary.BigEndian.Uint64(key[:])); created != head.GetCreateTime().AsTime().UnixNano() {
		return fmt.Errorf("its key has create time %d", created)
	}
	id := idKey(tenant, head.GetId())
	b := c.get(idsBucket, id)
	if b == nil {
		return errors.New("it has no entry in ids")
	}
	p, err := decodePlace(id, b)
	switch {
	case err != nil:
		return err
	case p.key != key:
		return fmt.Errorf("its entry in ids leads to key %x, but its key is %x", p.key, key)
	}
	entry := expiryKey(p.minute, tenant, key)
	d, ok := decodeDue(entry, c.get(expiryBucket, entry))
	state := c.epoch.stateOf(id, c.get(sessionsBucket, id))
	switch {
	case !ok:
		return fmt.Errorf("its entry in expiry, minute %d, is missing or damaged", p.minute)
	case minuteOf(d.at) != p.minute:
		return fmt.Errorf("its entry in expiry has nanosecond %d, which is not in minute %d", d.at, p.minute)
	case !r.Running() && state.IsZero() && d.at > nanosecond(r.ExpireTime()):
		return fmt.Errorf("it would be swept %d ns late", d.at-nanosecond(r.ExpireTime()))
	}
	return c.checkTurn(r, c.get(turnsBucket, id))
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
// each list of events belongs to a stored turn, at most one list a turn.
func checkContents(r *record.Record) error {
	messages, last := int32(0), int32(0)
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
