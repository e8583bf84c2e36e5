package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
)

// suffix is the suffix of the names of segments, which begin with their number.
const suffix = ".segment"

// markSize is the size of the mark at the end of each segment.
const markSize = 16

// markOf returns the mark of a segment of size bytes. A file that was cut short, emptied or overwritten does not have
// it.
func markOf(size int64) []byte {
	return binary.BigEndian.AppendUint64([]byte("plyj end"), uint64(size))
}

// room returns how many bytes of batches the segment can have.
func (s *segment) room() int64 { return s.size - markSize }

// checkMark checks that the file is complete.
func (s *segment) checkMark() error {
	mark := make([]byte, markSize)
	if s.size >= markSize {
		if _, err := s.file.ReadAt(mark, s.room()); err != nil {
			return err
		}
	}
	if !slices.Equal(mark, markOf(s.size)) {
		return damaged("segment %d is cut short or overwritten", s.number)
	}
	return nil
}

func nameOf(number uint32) string { return fmt.Sprintf("%08d%s", number, suffix) }

// takeUnused returns an unused segment with at least size bytes. If there is none, it waits until one
// is created. If it returns the last unused one that is large enough, it starts to create another one, so
// that the next call need not wait.
func (j *Journal) takeUnused(size int64) (*segment, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for {
		fits := func(s *segment) bool { return s.room() >= size }
		if i := slices.IndexFunc(j.unused, fits); i >= 0 {
			s := j.unused[i]
			j.unused = slices.Delete(j.unused, i, i+1)
			if !slices.ContainsFunc(j.unused, fits) {
				j.create(size)
			}
			return s, nil
		}
		j.create(size)
		created := j.creating
		j.mu.Unlock()
		<-created
		j.mu.Lock()
		if j.createErr != nil {
			return nil, j.createErr
		}
	}
}

// create starts to create a segment of at least size bytes, unless one is being created or the journal is
// closed. The caller has locked mu.
func (j *Journal) create(size int64) {
	if j.creating != nil || j.closed {
		return
	}
	bytes := j.options.MinSegment
	for _, s := range j.segments {
		bytes = max(bytes, min(2*s.size, j.options.MaxSegment))
	}
	if len(j.segments) == 1 {
		bytes = j.options.MinSegment // An idle server needs no more than two of these.
	}
	bytes = max(bytes, align(size)+markSize)
	j.last++
	number, done := j.last, make(chan struct{})
	j.creating = done
	go func() {
		var s *segment
		err := error(syscall.ENOSPC)
		if j.options.MayGrow(bytes, j.Bytes()) {
			s, err = createSegment(filepath.Join(j.dir, nameOf(number)), bytes)
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if err == nil {
			s.number = number
			j.segments[number] = s
			j.bytes.Add(s.size)
			j.unused = append(j.unused, s)
		}
		j.createErr, j.creating = err, nil
		close(done)
	}()
}

// createSegment creates a file of size zeros under another name and renames it, so that path has a
// complete file or none. The caller sets its number.
func createSegment(path string, size int64) (*segment, error) {
	unfinished := path + boltfile.UnfinishedSuffix
	file, err := os.OpenFile(unfinished, os.O_RDWR|os.O_CREATE|os.O_TRUNC|boltfile.NoFollow, boltfile.FileMode)
	if err != nil {
		return nil, err
	}
	err = writeZeros(file, size)
	if err == nil {
		_, err = file.WriteAt(markOf(size), size-markSize)
	}
	err = errors.Join(err, file.Sync())
	if err == nil {
		err = errors.Join(os.Rename(unfinished, path), boltfile.SyncDir(filepath.Dir(path)))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), boltfile.RemoveIfExists(unfinished))
	}
	return &segment{file: file, size: size}, nil
}

// writeZeros fills a file with size zeros. It does not suffice to reserve the space: each later write would
// then change the metadata of the file system.
func writeZeros(file *os.File, size int64) error {
	zeros := make([]byte, min(size, 1<<20))
	for at := int64(0); at < size; at += int64(len(zeros)) {
		if _, err := file.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at); err != nil {
			return err
		}
	}
	return nil
}

// addUnused adds released segments that no reader has pinned. The caller has locked mu.
func (j *Journal) addUnused(segments []*segment) { j.unused = append(j.unused, segments...) }

// dropUnused drops unused segments, the smallest first, while more than keepUnused bytes and least segments are left.
// The caller has locked mu, and removes them after it has unlocked it: readers must not wait for that.
func (j *Journal) dropUnused(least int) (dropped []*segment) {
	var bytes int64
	for _, s := range j.unused {
		bytes += s.size
	}
	slices.SortFunc(j.unused, func(a, b *segment) int { return int(b.size - a.size) })
	for len(j.unused) > least {
		s := j.unused[len(j.unused)-1]
		if bytes-s.size < j.keepUnused {
			break
		}
		bytes -= s.size
		j.unused = j.unused[:len(j.unused)-1]
		delete(j.segments, s.number)
		dropped = append(dropped, s)
	}
	return dropped
}

// remove removes segments that were dropped. A file that cannot be removed does no harm: it has no operation that is
// needed, and the next Open uses it.
func (j *Journal) remove(dropped []*segment) {
	for _, s := range dropped {
		_ = errors.Join(s.file.Close(), os.Remove(filepath.Join(j.dir, nameOf(s.number))))
		j.bytes.Add(-s.size)
	}
}

// pins counts the readers that may read released segments. The zero value is usable.
//
// Readers belong to groups. A release ends the newest group: the segments become unused when this group
// and all earlier ones have no reader left.
type pins struct {
	groups []*pinGroup // oldest first
}

type pinGroup struct {
	readers  int
	released []*segment // when the group was ended
}

// add adds a reader to the newest group.
func (p *pins) add() *pinGroup {
	if len(p.groups) == 0 {
		p.groups = append(p.groups, new(pinGroup))
	}
	g := p.groups[len(p.groups)-1]
	g.readers++
	return g
}

// remove removes a reader and returns the segments that no reader uses any more.
func (p *pins) remove(g *pinGroup) []*segment {
	g.readers--
	return p.collect()
}

// release releases segments, and returns those that no reader uses any more.
func (p *pins) release(segments []*segment) []*segment {
	if len(p.groups) == 0 {
		return segments
	}
	newest := p.groups[len(p.groups)-1]
	newest.released = append(newest.released, segments...)
	p.groups = append(p.groups, new(pinGroup))
	return p.collect()
}

// collect removes the oldest groups that have no reader, and returns their segments.
func (p *pins) collect() (unused []*segment) {
	for len(p.groups) > 0 && p.groups[0].readers == 0 {
		unused = append(unused, p.groups[0].released...)
		p.groups = p.groups[1:]
	}
	return unused
}
