// Package journal writes operations to files beside a store's file, one batch after the other, and
// returns them after a restart. It does not interpret the operations.
//
// # The files
//
// A journal is a directory of segments, files of a fixed size that are filled with zeros once. After
// that, a batch is one write and one fdatasync that changes no metadata of the file system. When a
// segment is full, the next batch begins another one. A segment whose operations are all released is
// written again from its beginning. Each segment contains batches, one after the other:
//
//	4 bytes  magic "plyj"
//	4 bytes  CRC-32C of the rest of the header and of the payload
//	16 bytes id of the journal
//	8 bytes  anchor: a number from the caller, see Append
//	8 bytes  index of the first operation
//	4 bytes  number of operations
//	4 bytes  length of the payload
//	then     each operation: length as a uvarint, CRC-32C, bytes
//
// The last 16 bytes of a segment are a mark with its size, so that a file that was cut short is found.
//
// A batch begins at a multiple of 8 bytes. Integers are big-endian. The checksum of an operation
// protects it when it is read alone. Indexes have no gaps, and no index is used for two operations
// that were synced. So they show which batch follows which, over all segments, and which batches of a
// segment are left from its earlier use.
//
// # Recovery
//
// A batch is written after the one before is on disk. So only the last one may be incomplete, and Open
// drops it. A bad batch before a valid one, a gap between indexes, or a batch of another journal is
// damage: the error is boltfile.ErrDamaged, and Open changes nothing. Open syncs what it has found: after a kill, it
// may be only in memory.
//
// The id is random and secret, so no operation can contain bytes that look like a batch.
//
// # Owners
//
// One goroutine calls Append and Release. Any goroutine may call Pin and Read. While no unused segment
// is left, one goroutine of the journal creates the next one, and Close waits for it.
//
// Start at [Open].
package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// Sizes of segments in bytes. Each new one has twice the size of the largest, so that the journal of an
// idle server is small and that of a busy one has few files.
const (
	MinSegmentBytes = 4 << 20
	MaxSegmentBytes = 64 << 20
)

// maxBuffer is the capacity above which the buffer of a batch is not kept, in bytes.
const maxBuffer = 1 << 20

// ID identifies a journal. It must be random.
type ID = [16]byte

// Options describe what the store knows of its journal. ID must be set.
type Options struct {
	// ID of the journal.
	ID ID
	// After is an index: the store's file contains this operation and all before it, and Open does not
	// return them.
	After uint64
	// Through is an index that the journal must reach. If it does not, a part of it is missing, or
	// it is an older copy.
	Through uint64
	// Segment is the number of a segment that must exist; 0 if there is none.
	Segment uint32
	// MustExist says that the directory must exist.
	MustExist bool
	// MayGrow reports whether the disk has space for another segment of size bytes beside all segments of total bytes.
	// If nil, a segment is created while the disk has space. A goroutine of the journal calls it.
	MayGrow func(size, total int64) bool
	// ReadOnly opens the journal for Read only. It changes no file.
	ReadOnly bool
	// MinSegment and MaxSegment are the sizes of segments in bytes; 0 is MinSegmentBytes and MaxSegmentBytes.
	MinSegment, MaxSegment int64
}

func (o Options) withDefaults() Options {
	if o.MinSegment == 0 {
		o.MinSegment = MinSegmentBytes
	}
	if o.MaxSegment == 0 {
		o.MaxSegment = MaxSegmentBytes
	}
	if o.MayGrow == nil {
		o.MayGrow = func(int64, int64) bool { return true }
	}
	return o
}

// Place is where the journal has an operation. The zero value is no place.
type Place struct {
	segment uint32
	offset  uint32
	length  uint32
}

// Length returns the length of the operation in bytes.
func (p Place) Length() int { return int(p.length) }

// Operation is an operation that Open found.
type Operation struct {
	Index uint64
	Place Place
	Bytes []byte // valid until the next operation
}

// Journal is an open journal.
type Journal struct {
	dir     string
	options Options

	// These fields belong to the goroutine that calls Append and Release.
	active *segment // nil before the first batch
	newest int64    // offset of the newest batch in active
	at     int64    // offset of the next one
	next   uint64   // index of the next operation
	anchor uint64   // of the newest batch
	buffer []byte   // of the batch that is written
	broken error    // an earlier write failed, so what is on disk is unknown

	mu         sync.RWMutex
	segments   map[uint32]*segment
	unused     []*segment // may be written from their beginning
	last       uint32     // number of the newest segment
	pins       pins
	creating   chan struct{} // closed at the end of the creation that runs; nil if none runs
	createErr  error         // of the last creation
	keepUnused int64         // bytes of unused segments to keep
	closed     bool

	bytes atomic.Int64 // of all segments; read without mu, which is locked while files are removed
}

// segment is one file.
type segment struct {
	number uint32
	file   *os.File
	size   int64  // of the file
	last   uint64 // index of its newest operation, 0 if all are released; of the goroutine that calls Append
}

// Open opens the journal in a directory. Unless o.ReadOnly is set, Open creates the directory if it does
// not exist. It calls replay with each operation after o.After, in order. Errors: boltfile.ErrDamaged,
// that of replay, those of the file system.
func Open(dir string, o Options, replay func(Operation) error) (*Journal, error) {
	if o.MustExist {
		if err := CheckExists(dir); err != nil {
			return nil, err
		}
	}
	if !o.ReadOnly {
		if err := boltfile.MakeDir(dir); err != nil {
			return nil, err
		}
	}
	j := &Journal{dir: dir, options: o.withDefaults(), segments: map[uint32]*segment{}, next: o.After + 1}
	j.keepUnused = j.options.MinSegment
	if err := j.recover(replay); err != nil {
		return nil, errors.Join(err, j.closeFiles())
	}
	return j, nil
}

// CheckExists returns boltfile.ErrDamaged if the directory of a journal that the store's file needs does not exist.
func CheckExists(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: its journal %s is missing: copy or move both together while no server uses them, or "+
			"restore a backup", boltfile.ErrDamaged, dir)
	}
	return nil
}

// Next returns the index of the next operation.
func (j *Journal) Next() uint64 { return j.next }

// Failed reports whether a write has failed, so that what is on disk is unknown.
func (j *Journal) Failed() bool { return j.broken != nil }

// Anchor returns the anchor of the newest batch, or 0 if there is none.
func (j *Journal) Anchor() uint64 { return j.anchor }

// Segment returns the number of the segment with the newest batch, or 0 if there is none.
func (j *Journal) Segment() uint32 {
	if j.active == nil {
		return 0
	}
	return j.active.number
}

// BeganSegment reports whether the newest batch is the first in its segment.
func (j *Journal) BeganSegment() bool { return j.newest == 0 }

// Append writes operations as one batch and syncs it. It returns their places; the first has the index
// [Journal.Next]. anchor is a number that Anchor returns after a restart. If the batch is too large, or no segment
// can be created for it, for example on a full disk, nothing has been written, and a later call may succeed. After
// any other error, what is on disk is unknown, Failed returns true, and all later calls return that error.
func (j *Journal) Append(anchor uint64, operations [][]byte) ([]Place, error) {
	if j.broken != nil {
		return nil, j.broken
	}
	places := make([]Place, len(operations))
	var err error
	header := batch{id: j.options.ID, anchor: anchor, first: j.next}
	if j.buffer, err = appendBatch(j.buffer[:0], header, operations, places); err != nil {
		return nil, err
	}
	if err := j.ensureSpace(int64(len(j.buffer))); err != nil {
		return nil, err
	}
	for i := range places {
		places[i].segment, places[i].offset = j.active.number, places[i].offset+uint32(j.at)
	}
	_, err = j.active.file.WriteAt(j.buffer, j.at)
	if err == nil {
		err = dataSync(j.active.file)
	}
	if err != nil {
		j.broken = fmt.Errorf("write the journal: %w", err)
		return nil, j.broken
	}
	j.newest, j.at = j.at, j.at+int64(len(j.buffer))
	j.next, j.anchor = j.next+uint64(len(operations)), anchor
	j.active.last = j.next - 1
	if cap(j.buffer) > maxBuffer {
		j.buffer = nil
	}
	return places, nil
}

// ensureSpace makes another segment active if the active one has no space for a batch of size bytes.
func (j *Journal) ensureSpace(size int64) error {
	if j.active != nil && j.at+size <= j.active.room() {
		return nil
	}
	if size > math.MaxUint32 {
		return fmt.Errorf("a batch of the journal has %d bytes, %d at most", size, int64(math.MaxUint32))
	}
	s, err := j.takeUnused(size)
	if err != nil {
		return fmt.Errorf("begin a segment of the journal: %w", err)
	}
	j.active, j.at = s, 0
	return nil
}

// Read returns an operation. It uses the memory of buffer if that is large enough, and new memory otherwise. The caller
// must have pinned the journal before it got the place, unless it is the goroutine that calls Release. If the operation
// does not match its checksum, the error is boltfile.ErrDamaged.
func (j *Journal) Read(p Place, buffer []byte) ([]byte, error) {
	j.mu.RLock()
	s := j.segments[p.segment]
	j.mu.RUnlock()
	if s == nil {
		return nil, fmt.Errorf("the journal has no segment %d", p.segment)
	}
	buffer = slices.Grow(buffer[:0], sumSize+int(p.length))[:sumSize+int(p.length)]
	if _, err := s.file.ReadAt(buffer, int64(p.offset)-sumSize); err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	operation, ok := checkOperation(buffer)
	if !ok {
		return nil, fmt.Errorf("%w: an operation in segment %d of the journal does not match its checksum: %s",
			boltfile.ErrDamaged, p.segment, boltfile.Remedy)
	}
	return operation, nil
}

// Pin keeps the segments that have operations now from being written again until unpin is called, even if they are
// released before. unpin must be called once.
func (j *Journal) Pin() (unpin func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	g := j.pins.add()
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.addUnused(j.pins.remove(g))
	}
}

// Release releases the operations up to an index: the store's file contains them. A segment with no other operations
// may be written again. Release removes unused segments that the journal is not expected to need soon.
func (j *Journal) Release(through uint64) {
	var released []*segment
	j.mu.Lock()
	var bytes int64
	for _, s := range j.segments {
		if s != j.active && s.last != 0 && s.last <= through {
			s.last = 0
			released, bytes = append(released, s), bytes+s.size
		}
	}
	// As much as was released now is expected to be needed until the next release.
	j.keepUnused = max(j.options.MinSegment, bytes)
	j.addUnused(j.pins.release(released))
	dropped := j.dropUnused(1)
	j.mu.Unlock()
	j.remove(dropped)
}

// Trim removes all unused segments. A full disk needs their space more than later appends do.
func (j *Journal) Trim() {
	j.mu.Lock()
	j.keepUnused = 0
	dropped := j.dropUnused(0)
	j.mu.Unlock()
	j.remove(dropped)
}

// Bytes returns the size of all files. It does not block.
func (j *Journal) Bytes() int64 { return j.bytes.Load() }

// Close waits for the creation of a segment and closes the files. No other call may run.
func (j *Journal) Close() error {
	j.mu.Lock()
	j.closed = true
	creating := j.creating
	j.mu.Unlock()
	if creating != nil {
		<-creating
	}
	return j.closeFiles()
}

func (j *Journal) closeFiles() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	for _, s := range j.segments {
		err = errors.Join(err, s.file.Close())
	}
	j.segments, j.unused = nil, nil
	return err
}
