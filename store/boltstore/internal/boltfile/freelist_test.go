package boltfile

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestSoundFreeList checks that a file is never taken for damaged: after each of many transactions that write and delete
// up to thousands of pages, so that the list grows over several pages and shrinks again.
func TestSoundFreeList(t *testing.T) {
	path, random := newFile(t, 1<<10), rand.New(rand.NewPCG(3, 4))
	db, err := bolt.Open(path, FileMode, &bolt.Options{PageSize: 1 << 10, NoSync: true, FreelistType: bolt.FreelistMapType})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	largest := uint64(0)
	for n := range 300 {
		name := []byte("bucket " + strconv.Itoa(random.IntN(6)))
		err := db.Update(func(tx *bolt.Tx) error {
			if tx.Bucket(name) != nil && random.IntN(3) == 0 {
				return tx.DeleteBucket(name)
			}
			b, err := tx.CreateBucketIfNotExists(name)
			for range 1 + random.IntN(200) {
				key := strconv.Itoa(random.IntN(1 << 30))
				err = errors.Join(err, b.Put([]byte(key), make([]byte, random.IntN(2000))))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if cause, err := findDamage(f); cause != "" || err != nil {
			t.Fatalf("findDamage after transaction %d = %q, %v, want none", n, cause, err)
		}
		meta, err := NewestMeta(f)
		if err != nil {
			t.Fatal(err)
		}
		more, err := morePages(f, meta)
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, more)
	}
	if err := errors.Join(db.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if largest < 2 {
		t.Errorf("the list had at most %d more pages, want 2", largest)
	}
}

// morePages returns how many pages belong to the list of free pages besides its first one.
func morePages(f *os.File, meta MetaPage) (uint64, error) {
	header := make([]byte, 16)
	_, err := f.ReadAt(header, int64(meta.Freelist)*meta.PageSize)
	return uint64(header[12]) + uint64(header[13])<<8, err
}
