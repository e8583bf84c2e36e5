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

// readTimeout is how long who reads a file waits for whoever has it open.
const readTimeout = time.Second

// Checked is what Check looked at, and how often it found a fault.
type Checked struct {
	// Bytes of the file, Pages that are in use or were, Conversations and Messages in them.
	Bytes, Pages, Conversations, Messages int64
	// Faults that were told of.
	Faults int64
}

// CheckPages looks at the pages of a store's file: whether they are a tree, and each belongs
// to one place. It tells of each fault, and returns ErrDamaged if there is any, or as Check.
//
// Pages that make no sense may end the process, or keep CheckPages from ever returning: it is
// to run in a process of its own, with a time limit. No other process may have the file open
// as a store.
func CheckPages(path string, tell func(fault string)) (Checked, error) {
	return check(path, tell, false)
}

// Check looks at the pages as CheckPages does and, if they are sound, at every record and
// at whether all that the package comment says holds. It changes nothing. Errors: ErrInUse,
// ErrSchema, ErrDamaged, also if there was any fault, those of the file system.
func Check(path string, tell func(fault string)) (Checked, error) {
	return check(path, tell, true)
}

// load has the kernel read all of a file: from end to end that takes a fraction of the time that
// it does page by page.
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

func check(path string, tell func(fault string), records bool) (done Checked, err error) {
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
	c := &checker{report: tell, Checked: Checked{Bytes: info.Size()}}
	err = recoverDamage(func() error {
		return db.View(func(tx *bolt.Tx) error {
			c.tx, c.epoch, c.Pages = tx, epoch{tx: tx.ID(), at: time.Now()}, tx.Size()/int64(db.Info().PageSize)
			if err := c.checkElements(path); err != nil || c.Faults > 0 {
				return err // What is in them is not to be trusted.
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

// checkSound looks at a file that is somebody's, as checkFile does, but leaves it as it is.
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

// checker looks at one state of a file.
type checker struct {
	Checked

	tx      *bolt.Tx
	epoch   epoch
	report  func(fault string)
	first   string            // fault
	counts  map[string]counts // as they should be, as far as can be told
	damaged map[string]error  // conversations, by key, that were not told of yet
}

func (c *checker) addFault(format string, args ...any) {
	fault := fmt.Sprintf(format, args...)
	c.Faults++
	if c.Faults == 1 {
		c.first, _, _ = strings.Cut(fault, "\n")
	}
	c.report(fault)
}

// records looks at all that is in the buckets.
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
	for tenant, want := range c.counts { // Those that tenants has not are left.
		c.addFault("tenant %q: it has %d conversations and no counts", tenant, want.conversations)
	}
	c.each(sessionsBucket, c.ephemeral)
	c.each(endsBucket, c.deletion)
}

// each calls look for all of a bucket. Files of the first versions lack some.
func (c *checker) each(name string, look func(key, value []byte)) {
	if b := c.tx.Bucket([]byte(name)); b != nil {
		_ = b.ForEach(func(key, value []byte) error {
			look(key, value)
			return nil
		})
	}
}

// get returns an entry of a bucket, nil if there is none.
func (c *checker) get(bucket string, key []byte) []byte {
	if b := c.tx.Bucket([]byte(bucket)); b != nil {
		return b.Get(key)
	}
	return nil
}

func (c *checker) conversation(key, value []byte) {
	tenant, rest, ok := cutTenant(key)
	if !ok || len(rest) != record.KeySize {
		c.addFault("conversations: %x is no key of a conversation", key)
		return
	}
	c.Conversations++
	found := counts{conversations: 1, bytes: int64(len(value))}
	if r, err := record.Unmarshal(value); err != nil {
		c.damaged[string(key)] = err // Which conversation that is, ids may tell.
	} else {
		found.messages = int64(r.Conversation().GetMessageCount())
		if err := c.checkConversation(tenant, innerKey(rest), r); err != nil {
			c.addFault("conversation %q of tenant %q: %v", r.Conversation().GetId(), tenant, err)
		}
	}
	c.Messages += found.messages
	c.counts[tenant] = c.counts[tenant].plus(found)
}

// checkConversation looks at all that must be there beside a conversation.
func (c *checker) checkConversation(tenant string, key innerKey, r *record.Record) error {
	if err := checkContents(r); err != nil {
		return err
	}
	head := r.Conversation()
	if created := int64(binary.BigEndian.Uint64(key[:])); created != head.GetCreateTime().AsTime().UnixNano() {
		return fmt.Errorf("its key says that it was made at %d", created)
	}
	id := idKey(tenant, head.GetId())
	b := c.get(idsBucket, id)
	if b == nil {
		return errors.New("ids does not have it")
	}
	p, err := decodePlace(id, b)
	switch {
	case err != nil:
		return err
	case p.key != key:
		return fmt.Errorf("ids leads to %x, and it is at %x", p.key, key)
	}
	entry := expiryKey(p.minute, tenant, key)
	d, ok := decodeDue(entry, c.get(expiryBucket, entry))
	session := record.Session{}
	if sessions := c.tx.Bucket([]byte(sessionsBucket)); sessions != nil {
		session = c.epoch.readState(sessions, tenant, head.GetId())
	}
	switch {
	case !ok:
		return fmt.Errorf("its entry in expiry, minute %d, is missing or damaged", p.minute)
	case minuteOf(d.at) != p.minute:
		return fmt.Errorf("its entry in expiry is for %d, which is not in minute %d", d.at, p.minute)
	case !r.Running() && session.IsZero() && d.at > nanosecond(r.ExpireTime()):
		return fmt.Errorf("it would be swept %d ns late", d.at-nanosecond(r.ExpireTime()))
	}
	return c.checkTurn(r, c.get(turnsBucket, id))
}

// checkTurn looks at what turns has of a conversation.
func (c *checker) checkTurn(r *record.Record, value []byte) error {
	if !r.Running() {
		if value != nil {
			return errors.New("no turn runs, but turns has one")
		}
		return nil
	}
	if value == nil {
		return errors.New("a turn runs, but turns does not have it")
	}
	progress, err := record.UnmarshalProgress(bytes.Clone(value))
	if err != nil {
		return err
	}
	if running := r.Conversation().GetActiveTurnId(); progress.TurnID != running {
		return fmt.Errorf("turn %q runs, but turns has %q", running, progress.TurnID)
	}
	return nil
}

// checkKept looks at what a conversation holds: as many messages as it says, and of the turns
// that are kept with it, none of whose events may outlive it.
func checkContents(r *record.Record) error {
	messages, last := int32(0), int32(0)
	for frame := range r.Messages.All() {
		sequence := frame.Sequence()
		if sequence <= last {
			return fmt.Errorf("message %d comes behind message %d", sequence, last)
		}
		messages, last = messages+1, sequence
	}
	if want := r.Conversation().GetMessageCount(); messages != want {
		return fmt.Errorf("it has %d messages and says %d", messages, want)
	}
	kept, err := r.AllTurns()
	if err != nil {
		return err
	}
	turns := map[string]bool{}
	for _, t := range kept.GetTurns() {
		turns[t.GetId()] = true
	}
	for _, e := range kept.GetEvents() {
		if !turns[e.GetTurnId()] {
			return fmt.Errorf("it has events of turn %q, which is not kept", e.GetTurnId())
		}
		delete(turns, e.GetTurnId()) // Once.
	}
	return nil
}
