package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// recover opens the segments, replays the operations after Options.After, finds the end of the journal and
// syncs what it found.
func (j *Journal) recover(replay func(Operation) error) error {
	if err := j.openSegments(); err != nil {
		return err
	}
	if n := j.options.Segment; n != 0 && j.segments[n] == nil {
		return damaged("segment %d is missing", n)
	}
	var scans []*scan
	for _, s := range j.segments {
		scanned := &scan{segment: s, id: j.options.ID}
		ok, err := scanned.next()
		if err != nil {
			return err
		}
		if ok {
			scans = append(scans, scanned)
		} else {
			j.unused = append(j.unused, s)
		}
	}
	slices.SortFunc(scans, func(a, b *scan) int { return cmp.Compare(a.batch.first, b.batch.first) })
	for _, s := range scans {
		if err := j.replay(s, replay); err != nil {
			return err
		}
	}
	if j.next <= j.options.Through {
		return damaged("it ends with operation %d, the store has seen operation %d: a part is missing, or it is an "+
			"older copy", j.next-1, j.options.Through)
	}
	if err := j.checkEnd(); err != nil {
		return err
	}
	for _, s := range j.segments {
		if s.last != 0 && s.last <= j.options.After && s != j.active {
			s.last = 0
			j.unused = append(j.unused, s)
		}
	}
	return j.syncRecovered()
}

// syncRecovered makes durable what was found. A process that was killed may have left a complete batch, a new segment
// or the directory unsynced: nothing may depend on them before they are on disk.
func (j *Journal) syncRecovered() error {
	if j.options.ReadOnly {
		return nil
	}
	if j.active != nil {
		if err := dataSync(j.active.file); err != nil {
			return fmt.Errorf("sync the journal: %w", err)
		}
	}
	return errors.Join(boltfile.SyncDir(j.dir), boltfile.SyncDir(filepath.Dir(j.dir)))
}

func damaged(format string, arguments ...any) error {
	return fmt.Errorf("%w: its journal: %s: %s", boltfile.ErrDamaged, fmt.Sprintf(format, arguments...), boltfile.Remedy)
}

// openSegments opens all segments in the directory. Unless the journal is read-only, it removes segments
// whose creation was not completed.
func (j *Journal) openSegments() error {
	flags := os.O_RDWR
	entries, err := os.ReadDir(j.dir)
	if j.options.ReadOnly {
		flags = os.O_RDONLY
		if errors.Is(err, fs.ErrNotExist) {
			return nil // A journal without a directory has no operations.
		}
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(j.dir, e.Name())
		name, ok := strings.CutSuffix(e.Name(), suffix)
		number, err := strconv.ParseUint(name, 10, 32)
		if !ok || err != nil {
			if strings.HasSuffix(e.Name(), suffix+boltfile.UnfinishedSuffix) && !j.options.ReadOnly {
				if err := boltfile.RemoveIfExists(path); err != nil {
					return err
				}
			}
			continue
		}
		file, err := os.OpenFile(path, flags|boltfile.NoFollow, 0)
		if err != nil {
			return err
		}
		s := &segment{number: uint32(number), file: file}
		j.segments[s.number], j.last = s, max(j.last, s.number)
		info, err := file.Stat()
		if err != nil {
			return err
		}
		s.size = info.Size()
		j.bytes.Add(s.size)
		if err := s.checkMark(); err != nil {
			return err
		}
	}
	return nil
}

// replay replays the operations of a segment that are after the newest one, and makes the segment
// active if it has any.
func (j *Journal) replay(s *scan, replay func(Operation) error) error {
	for ok := true; ok; {
		h := s.batch
		if h.first > j.next {
			return damaged("operations %d to %d are missing", j.next, h.first-1)
		}
		valid, err := decodeOperations(s.bytes, h, func(i, offset int, operation []byte) error {
			index := h.first + uint64(i)
			if index < j.next {
				return nil
			}
			j.next = index + 1
			return replay(Operation{Index: index, Bytes: operation, Place: Place{
				segment: s.segment.number, offset: uint32(s.at) + uint32(offset), length: uint32(len(operation)),
			}})
		})
		if err != nil {
			return err
		}
		if !valid {
			return damaged("the batch of operation %d has a valid checksum, but no valid operations", h.first)
		}
		s.segment.last = h.first + uint64(h.count) - 1
		if s.segment.last == j.next-1 {
			j.active, j.at, j.anchor = s.segment, h.end(s.at), h.anchor
		}
		if ok, err = s.next(); err != nil {
			return err
		}
	}
	return nil
}

// checkEnd checks that no valid batch follows the end of the journal. If one does, the batch at the
// end was complete, and is damaged.
func (j *Journal) checkEnd() error {
	for _, s := range j.segments {
		if s.last != 0 && s != j.active {
			continue // The next segment has followed it.
		}
		from := int64(0)
		if s == j.active {
			from = j.at
		}
		if first, found, err := j.findBatch(s, from); err != nil {
			return err
		} else if found {
			return damaged("operation %d and those before %d cannot be read", j.next, first)
		}
	}
	return nil
}

// findBatch searches for a valid batch in a segment, from an offset on, that has operations after the end of
// the journal. It returns the index of the first operation of that batch.
func (j *Journal) findBatch(s *segment, from int64) (first uint64, found bool, err error) {
	const chunk = 1 << 20
	buffer := make([]byte, chunk+len(magic))
	for at := from; at < s.room(); at += chunk {
		n, err := s.file.ReadAt(buffer[:min(int64(len(buffer)), s.room()-at)], at)
		if err != nil && err != io.EOF {
			return 0, false, err
		}
		for i := 0; i+len(magic) <= n && i < chunk; i += alignment {
			if string(buffer[i:i+len(magic)]) != magic {
				continue
			}
			candidate := &scan{segment: s, id: j.options.ID, end: at + int64(i)}
			ok, err := candidate.next()
			if err != nil {
				return 0, false, err
			}
			if ok && candidate.batch.first+uint64(candidate.batch.count) > j.next {
				return candidate.batch.first, true, nil
			}
		}
	}
	return 0, false, nil
}

// scan reads the batches of a segment in order.
type scan struct {
	segment *segment
	id      ID
	at, end int64 // offsets of the current batch and after it
	batch   batch
	bytes   []byte // header and payload
}

// next reads the next batch. It returns false if there is no valid batch, or if the batch is left from an
// earlier use of the segment. A batch of another journal is boltfile.ErrDamaged.
func (s *scan) next() (bool, error) {
	var header [headerSize]byte
	at, last := s.end, s.batch
	if at+headerSize > s.segment.room() {
		return false, nil
	}
	if _, err := s.segment.file.ReadAt(header[:], at); err != nil {
		return false, err
	}
	h, ok := decodeHeader(header[:])
	if !ok || h.count == 0 || h.first == 0 || at+headerSize+int64(h.length) > s.segment.room() {
		return false, nil
	}
	size := headerSize + int(h.length)
	s.bytes = slices.Grow(s.bytes[:0], size)[:size]
	if _, err := s.segment.file.ReadAt(s.bytes, at); err != nil {
		return false, err
	}
	if checksum(s.bytes[8:]) != binary.BigEndian.Uint32(s.bytes[4:]) {
		return false, nil
	}
	if h.id != s.id {
		return false, damaged("segment %d belongs to another store", s.segment.number)
	}
	if last.count != 0 && h.first != last.first+uint64(last.count) {
		return false, nil
	}
	s.at, s.end, s.batch = at, h.end(at), h
	return true, nil
}
