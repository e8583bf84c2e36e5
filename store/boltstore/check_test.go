package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// newFilled creates a file with entries in each bucket and returns its path.
func newFilled(t *testing.T) string {
	t.Helper()
	path := newPath(t)
	s := open(t, path, store.Options{})
	for _, id := range []string{"a", "b", "c", "asked"} {
		appendTo(t, s, id, "hello "+id)
	}
	if _, err := s.Append(t.Context(), &store.Append{
		Tenant: "acme", ConversationID: "asked", Messages: text("question"), Begin: &parleyv1.Turn{Id: "t1"},
	}); err != nil {
		t.Fatal(err)
	}
	h := &store.Hold{Tenant: "acme", ConversationIDs: []string{"c"}, DeleteAfter: time.Hour}
	if err := errors.Join(s.Hold(t.Context(), h), s.Release(t.Context(), h), s.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// updateFile changes a file directly with bbolt.
func updateFile(t *testing.T, path string, write func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, boltfile.FileMode, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(write), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestCheck breaks each invariant of package layout once.
func TestCheck(t *testing.T) {
	first := func(b *bolt.Bucket) (k, v []byte) {
		k, v = b.Cursor().First()
		return bytes.Clone(k), bytes.Clone(v)
	}
	flip := func(bucket string) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			k, v := first(b)
			v[len(v)-1] ^= 1
			return b.Put(k, v)
		}
	}
	drop := func(bucket string) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			k, _ := first(b)
			return b.Delete(k)
		}
	}
	id := func(tx *bolt.Tx, id string) (entry []byte, p layout.Place) {
		entry = layout.IDKey("acme", id)
		p, err := layout.DecodePlace(entry, tx.Bucket([]byte(layout.IDsBucket)).Get(entry))
		if err != nil {
			t.Fatal(err)
		}
		return entry, p
	}
	tests := map[string]struct {
		write func(tx *bolt.Tx) error
		want  []string
	}{
		"messages": {
			flip(layout.ConversationsBucket),
			[]string{`conversation "a" of tenant "acme": record is corrupt: messages of conversation "a"`},
		},
		"header": {func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(layout.ConversationsBucket))
			k, v := first(b)
			v[20] ^= 1
			return b.Put(k, v)
		}, []string{`conversation "a" of tenant "acme": record is corrupt: header`}},
		"record lost": {
			drop(layout.ConversationsBucket),
			[]string{
				`conversation "a" of tenant "acme": its id leads to key`, `leads to no conversation`,
				`its counts are 4 conversations`,
			},
		},
		"id": {
			flip(layout.IDsBucket),
			[]string{
				`conversation "a" of tenant "acme": record is corrupt: entry of its id`,
				`conversation "a" of tenant "acme": record is corrupt`,
			},
		},
		"id lost":     {drop(layout.IDsBucket), []string{`conversation "a" of tenant "acme": it has no entry in ids`}},
		"expiry":      {flip(layout.ExpiryBucket), []string{`its entry in expiry, minute`, `expiry: entry`}},
		"expiry lost": {drop(layout.ExpiryBucket), []string{`its entry in expiry, minute`}},
		"turn": {
			flip(layout.TurnsBucket), []string{`conversation "asked" of tenant "acme": record is corrupt: progress of a turn`},
		},
		"turn lost": {
			drop(layout.TurnsBucket),
			[]string{`conversation "asked" of tenant "acme": a turn runs, but it has no entry in turns`},
		},
		"counts":         {flip(layout.TenantsBucket), []string{`tenant "acme": its counts are damaged`}},
		"counts lost":    {drop(layout.TenantsBucket), []string{`tenant "acme": it has 4 conversations, 0 records and no counts`}},
		"ephemeral":      {flip(layout.SessionsBucket), []string{`its entry in sessions is damaged`, `has another time`}},
		"ephemeral lost": {drop(layout.SessionsBucket), []string{`conversation "c" of tenant "acme": its entry in ends has`}},
		"ends": {
			flip(layout.EndsBucket),
			[]string{`conversation "c" of tenant "acme": it is ephemeral and deleted at`, `ends: entry`},
		},
		"ends lost": {
			drop(layout.EndsBucket), []string{`conversation "c" of tenant "acme": it is ephemeral and deleted at`},
		},
		"id of another": {func(tx *bolt.Tx) error {
			entry, _ := id(tx, "a")
			_, other := id(tx, "b")
			return tx.Bucket([]byte(layout.IDsBucket)).Put(entry, other.Encode(entry))
		}, []string{
			`conversation "a" of tenant "acme": its entry in ids leads to`,
			`conversation "a" of tenant "acme": its id leads to conversation "b"`,
		}},
		"late": {func(tx *bolt.Tx) error {
			_, p := id(tx, "a")
			entry := layout.ExpiryKey(p.Minute, "acme", p.Key)
			at := int64(p.Minute+1)*int64(time.Minute) - 1
			return tx.Bucket([]byte(layout.ExpiryBucket)).Put(entry, layout.EncodeDue(entry, at))
		}, []string{`conversation "a" of tenant "acme": it would be swept`}},
		"two entries in expiry": {func(tx *bolt.Tx) error {
			_, p := id(tx, "a")
			entry := layout.ExpiryKey(p.Minute+1, "acme", p.Key)
			return tx.Bucket([]byte(layout.ExpiryBucket)).Put(entry,
				layout.EncodeDue(entry, int64(p.Minute+1)*int64(time.Minute)))
		}, []string{`conversation "a" of tenant "acme": it has an entry in expiry for minute`}},
		"turn without a conversation": {func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(layout.TurnsBucket)).Put(layout.IDKey("acme", "none"), nil)
		}, []string{`conversation "none" of tenant "acme": it has an entry in turns, but does not exist`}},
		"another turn": {func(tx *bolt.Tx) error {
			value, err := record.MarshalProgress(&store.Progress{TurnID: "t2"})
			return errors.Join(err, tx.Bucket([]byte(layout.TurnsBucket)).Put(layout.IDKey("acme", "asked"), value))
		}, []string{`conversation "asked" of tenant "acme": turn "t1" runs, but its entry in turns is of turn "t2"`}},
		"ended turn": {func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(layout.TurnsBucket)).Put(layout.IDKey("acme", "a"), nil)
		}, []string{`conversation "a" of tenant "acme": no turn runs, but it has an entry in turns`}},
		"counts without a conversation": {func(tx *bolt.Tx) error {
			key := layout.TenantKey("none")
			return tx.Bucket([]byte(layout.TenantsBucket)).Put(key, layout.Counts{
				Conversations: 1, Messages: 1, Bytes: 1,
			}.Encode(key))
		}, []string{`tenant "none": it has counts, but no conversation`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := newFilled(t)
			wantSound(t, path)
			updateFile(t, path, test.write)
			var reported []string
			done, err := Check(path, func(fault string) { reported = append(reported, fault) })
			if !errors.Is(err, ErrDamaged) || done.Faults != int64(len(reported)) || !strings.Contains(err.Error(), path) {
				t.Errorf("Check = %d faults, %v", done.Faults, err)
			}
			if len(reported) != len(test.want) {
				t.Fatalf("reported faults = %q, want %q", reported, test.want)
			}
			for i, want := range test.want {
				if !strings.Contains(reported[i], want) {
					t.Errorf("reported fault = %q, want %q", reported[i], want)
				}
			}
			if _, err := CheckPages(path, func(fault string) { t.Error(fault) }); err != nil {
				t.Errorf("CheckPages = %v", err)
			}
		})
	}
}

// TestCheckPages damages pages so that they do not form a tree. The checks must report that and
// read no record.
func TestCheckPages(t *testing.T) {
	const header, lengthOfKey = 16, 4
	for _, tt := range []struct {
		name, want string
		leaf       bool  // otherwise a branch
		at         int64 // offset in the page
		bytes      []byte
	}{
		{"number of a branch", "its header says that it is page", false, 0, []byte{0xff, 0xff}},
		{"kind of a branch", "neither a leaf nor a branch", false, 8, []byte{0x10}},
		{"a branch without elements", "with 0 elements", false, 10, []byte{0, 0}},
		{"length of a key", "lies outside of the page", false, header + lengthOfKey, []byte{0xff, 0xff, 0xff, 0x7f}},
		{"number of a leaf", "its header says that it is page", true, 0, []byte{0xff, 0xff}},
		{"kind of a leaf", "neither a leaf nor a branch", true, 8, []byte{0x03}},
		{"too many elements of a leaf", "it is too small for", true, 10, []byte{0xff, 0xff}},
		{"too many pages of a leaf", "beyond the end", true, 12, []byte{0xff, 0xff, 0xff, 0xff}},
	} {
		t.Run(tt.name, func(t *testing.T) { checkPagesDamaged(t, tt.want, tt.leaf, tt.at, tt.bytes) })
	}
}

// checkPagesDamaged writes bytes to an offset of a page, and checks that both checks report it.
func checkPagesDamaged(t *testing.T, want string, leaf bool, at int64, damage []byte) {
	t.Helper()
	path := newFilled(t)
	var page uint64 // root of a bucket
	updateFile(t, path, func(tx *bolt.Tx) error {
		for i := range 200 { // Enough for the bucket to have pages of its own.
			if err := tx.Bucket([]byte(layout.IDsBucket)).Put(fmt.Appendf(nil, "%04d%s", i, strings.Repeat("x", 100)),
				[]byte("y")); err != nil {
				return err
			}
		}
		return nil
	})
	updateFile(t, path, func(tx *bolt.Tx) error {
		page = uint64(tx.Bucket([]byte(layout.IDsBucket)).Root())
		return nil
	})
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if leaf { // The first page below the root.
		const firstElement, below = 16, 8
		child := make([]byte, 8)
		if _, err := f.ReadAt(child, int64(page)*int64(os.Getpagesize())+firstElement+below); err != nil {
			t.Fatal(err)
		}
		page = binary.NativeEndian.Uint64(child)
	}
	_, err = f.WriteAt(damage, int64(page)*int64(os.Getpagesize())+at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	for name, check := range map[string]func(string, func(string)) (Checked, error){
		"Check": Check, "CheckPages": CheckPages,
	} {
		var reported []string
		done, err := check(path, func(fault string) { reported = append(reported, fault) })
		if !errors.Is(err, ErrDamaged) || int64(len(reported)) != done.Faults || done.Conversations > 0 ||
			!strings.Contains(strings.Join(reported, " "), want) {
			t.Errorf("%s reported %q, %+v, %v", name, reported, done, err)
		}
	}
}

// TestCheckPagesInUse makes a page in use free, or part of another page. The page is not the first
// of those that belong together, which is the only one that bbolt checks.
func TestCheckPagesInUse(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		free       bool
	}{
		{"and free", "in the list of free pages", true},
		{"and in use", "is in use twice", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := newFilled(t)
			const pages = 3
			updateFile(t, path, func(tx *bolt.Tx) error {
				return tx.Bucket([]byte(layout.TurnsBucket)).Put([]byte("long"), make([]byte, pages*os.Getpagesize()))
			})
			var long uint64
			updateFile(t, path, func(tx *bolt.Tx) error {
				long = uint64(tx.Bucket([]byte(layout.TurnsBucket)).Root())
				return nil
			})
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			meta, err := boltfile.NewestMeta(f)
			if err != nil {
				t.Fatal(err)
			}
			if tt.free {
				err = addToFreeList(f, meta, long+1)
			} else { // The root page claims all pages up to the end of the other.
				const more = 12
				_, err = f.WriteAt(binary.NativeEndian.AppendUint32(nil, uint32(long+pages-meta.Root)),
					int64(meta.Root)*meta.PageSize+more)
			}
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			var reported []string
			_, err = CheckPages(path, func(fault string) { reported = append(reported, fault) })
			if !errors.Is(err, ErrDamaged) || !strings.Contains(strings.Join(reported, " "), tt.want) {
				t.Errorf("CheckPages reported %q, %v, root is page %d, the other page %d", reported, err, meta.Root, long)
			}
		})
	}
}

// addToFreeList replaces an entry of the list of free pages, so that the list stays in order.
func addToFreeList(f *os.File, meta boltfile.MetaPage, page uint64) error {
	const header, entry = 16, 8
	b, at := make([]byte, meta.PageSize), int64(meta.Freelist)*meta.PageSize
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	last := int(binary.NativeEndian.Uint16(b[10:])) - 1
	i := sort.Search(last, func(i int) bool { return binary.NativeEndian.Uint64(b[header+i*entry:]) > page })
	_, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, page), at+int64(header+i*entry))
	return err
}

// TestCheckPagesWithoutList checks a file without a list of free pages, which bbolt then computes.
func TestCheckPagesWithoutList(t *testing.T) {
	path := newFilled(t)
	db, err := bolt.Open(path, boltfile.FileMode, &bolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte(layout.MetaBucket)).Put([]byte("x"), nil) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckPages(path, func(fault string) { t.Error(fault) }); err != nil {
		t.Error(err)
	}
	open(t, path, store.Options{})
}

func TestCheckOtherFiles(t *testing.T) {
	held := newPath(t)
	open(t, held, store.Options{})
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(held, link); err != nil {
		t.Fatal(err)
	}
	newer := newFilled(t)
	updateFile(t, newer, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(layout.MetaBucket)).Put([]byte(boltfile.SchemaKey),
			boltfile.EncodeSchema(boltfile.MaxSchemaVersion+1))
	})
	garbage := write("garbage", strings.Repeat("garbage", 10000))
	for path, want := range map[string]error{
		held: ErrInUse, link: ErrDamaged, dir: ErrDamaged, write("empty", ""): ErrDamaged, garbage: ErrDamaged,
		newer: ErrSchema, filepath.Join(dir, "none"): os.ErrNotExist,
	} {
		if _, err := Check(path, func(fault string) { t.Error(fault) }); !errors.Is(err, want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("Check(%s) = %v, want %v in one line", path, err, want)
		}
	}
	if info, err := os.Stat(garbage); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode after Check = %v, want it unchanged", info.Mode())
	}
}
