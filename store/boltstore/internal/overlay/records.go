package overlay

import (
	"iter"

	"github.com/google/btree"

	"github.com/parleyhq/parley/store/internal/records"
)

// Memory of the first record of a scope and of each one, without its key, in bytes: measured, with the nodes of the
// tree.
const (
	recordsBytes = 160
	recordBytes  = 112
)

// Record is a record that an operation writes or deletes. In a Set it does not change.
type Record struct {
	// Key of the record in its scope.
	Key string
	// State of the record after the operation. The zero value means that it is deleted.
	State records.State
	// Operation that writes or deletes the record.
	Operation Operation
}

// Records are the records of one scope that operations write or delete, each as after the newest of them. They do
// not change. A nil *Records has none.
type Records struct {
	tree   *btree.BTreeG[*Record] // Readers only read its root, which Clone does not change.
	bytes  int64
	memory int64
}

// With returns the records after another operation. It takes time for the records of that operation only, except
// for the logarithm of the number of the others. Only one goroutine may call it.
func (r *Records) With(changed ...*Record) *Records {
	if len(changed) == 0 {
		return r
	}
	var next Records
	if r == nil {
		const degree = 16
		next.tree = btree.NewWithFreeListG(degree, func(a, b *Record) bool { return a.Key < b.Key },
			btree.NewFreeListG[*Record](0))
		next.memory = recordsBytes
	} else {
		next = Records{tree: r.tree.Clone(), bytes: r.bytes, memory: r.memory}
	}
	for _, c := range changed {
		before, replaced := next.tree.ReplaceOrInsert(c)
		next.bytes += c.State.Counts.Bytes
		if replaced {
			next.bytes -= before.State.Counts.Bytes
		} else {
			next.memory += recordBytes + int64(len(c.Key))
		}
	}
	return &next
}

// Len returns the number of records, with those that are deleted.
func (r *Records) Len() int {
	if r == nil {
		return 0
	}
	return r.tree.Len()
}

// Bytes returns the size of the records that are not deleted, in bytes.
func (r *Records) Bytes() int64 {
	if r == nil {
		return 0
	}
	return r.bytes
}

// Memory returns about how much memory the records take, in bytes.
func (r *Records) Memory() int64 {
	if r == nil {
		return 0
	}
	return r.memory
}

// Get returns the record with a key, or nil if no operation writes or deletes it.
func (r *Records) Get(key string) *Record {
	if r == nil {
		return nil
	}
	found, _ := r.tree.Get(&Record{Key: key})
	return found
}

// From yields the records from a key on, in the order of their keys.
func (r *Records) From(key string) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		if r != nil {
			r.tree.AscendGreaterOrEqual(&Record{Key: key}, yield)
		}
	}
}

// Back yields the records through a key, from the last one on.
func (r *Records) Back(key string) iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		if r != nil {
			r.tree.DescendLessOrEqual(&Record{Key: key}, yield)
		}
	}
}
