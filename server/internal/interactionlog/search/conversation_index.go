package search

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
)

const (
	// minIndexedBytes is the minimum size in bytes of a file that gets an index. To read a smaller
	// file takes about as long as to read its index.
	minIndexedBytes = 64 << 10
	// minIndexAge is the minimum time since the last change of a file that gets an index. Two
	// changes in quick succession may leave a file with the same modification time.
	minIndexAge = 2 * time.Second
	// indexRetryDelay is the delay after which a failed write of an index is retried.
	indexRetryDelay = time.Minute
)

// indexState is the state of a reader that concerns the indexes of past days' files.
type indexState struct {
	building chan struct{} // contains a value while an index is built
	retry    atomic.Int64  // earliest time of the next attempt after a failure, in nanoseconds since 1970
}

// indexedLines yields the lines of a conversation that an index lists. It returns true if these are
// all of the section. If there is no index, or it is damaged, it returns false and reduces the section
// to what remains.
func (r *Reader) indexedLines(
	ctx context.Context, f *dayfile.File, d dayfile.Day, conversation string,
	s *scan.Section, yield func(scan.Line, error) bool,
) (complete bool) {
	x := r.indexOf(ctx, f, d)
	if x == nil {
		return false
	}
	defer x.close()
	if x.oversize {
		return false
	}
	var buffer []byte
	for more := true; more; {
		var offsets []int64
		var err error
		if offsets, more, err = x.find(conversation, s.First, s.End, s.Backward); err != nil {
			r.dropIndex(d)
			return false
		}
		for _, from := range offsets {
			if err := ctx.Err(); err != nil {
				yield(scan.Line{}, err)
				return true
			}
			raw, err := scan.ReadLine(f, f.Size, from, &buffer)
			if errors.Is(err, scan.ErrChanged) {
				r.dropIndex(d)
				return false
			}
			if !yield(raw, err) || err != nil {
				return true
			}
			if s.First = from + 1; s.Backward {
				s.First, s.End = 0, from
			}
		}
	}
	return true
}

// indexOf returns the index of a file, which it builds if there is none. It returns nil if the file
// must be read instead.
func (r *Reader) indexOf(ctx context.Context, f *dayfile.File, d dayfile.Day) *index {
	now := r.now()
	if f.Size < minIndexedBytes || d >= dayfile.DayOf(now) || now.Sub(time.Unix(0, f.Modified)) < minIndexAge {
		return nil
	}
	if x := r.openIndex(f, d); x != nil {
		return x
	}
	select {
	case r.indexes.building <- struct{}{}:
		defer func() { <-r.indexes.building }()
	case <-ctx.Done():
		return nil
	}
	if x := r.openIndex(f, d); x != nil { // Another query has built it in the meantime.
		return x
	}
	if now.UnixNano() < r.indexes.retry.Load() {
		return nil
	}
	if err := r.makeIndex(ctx, f, d); err != nil {
		if ctx.Err() == nil {
			r.indexes.retry.Store(now.Add(indexRetryDelay).UnixNano())
			r.log.Warn("index of the interaction log not written, queries of a conversation read the complete file",
				"error", err)
		}
		return nil
	}
	return r.openIndex(f, d)
}

// openIndex opens the index of a file. It returns nil if no index was built from the file as it is.
func (r *Reader) openIndex(f *dayfile.File, d dayfile.Day) *index {
	file, err := dayfile.OpenRead(r.dir, d.IndexName())
	if file == nil || err != nil {
		return nil
	}
	x := &index{file: file}
	if err := x.readHeader(f.Fingerprint); err != nil {
		x.close()
		return nil
	}
	return x
}

// dropIndex removes a damaged index, so that the next query rebuilds it.
func (r *Reader) dropIndex(d dayfile.Day) {
	if err := os.Remove(filepath.Join(r.dir, d.IndexName())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("damaged index of the interaction log not removed", "error", err)
	}
}

// makeIndex writes the index of a file under a temporary name and renames it when it is complete.
func (r *Reader) makeIndex(ctx context.Context, f *dayfile.File, d dayfile.Day) error {
	path := filepath.Join(r.dir, d.IndexName())
	temporary := filepath.Join(r.dir, dayfile.TemporaryName(d.IndexName()))
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Open the file first: if the directory is not writable, reading the entries would be useless.
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, dayfile.FileMode)
	if err != nil {
		return err
	}
	entries, err := r.buildEntries(ctx, f)
	if err == nil {
		err = writeIndex(file, f.Fingerprint, entries)
	}
	if err = cmp.Or(err, file.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}

// buildEntries returns the index entries of a file, sorted, or nil if there are more than
// maxIndexEntries.
func (r *Reader) buildEntries(ctx context.Context, f *dayfile.File) ([]indexEntry, error) {
	entries := make([]indexEntry, 0, min(f.Size/256, maxIndexEntries)) // Most lines are longer than 256 bytes.
	for raw, err := range r.scanner.Lines(ctx, &scan.Section{File: f, Size: f.Size, End: f.Size}, true) {
		if err != nil {
			return nil, err
		}
		if len(entries) == maxIndexEntries {
			return nil, nil
		}
		entries = append(entries, indexEntry{hash: hashOfLine(raw), offset: raw.From})
	}
	sortEntries(entries)
	return entries, nil
}

// hashOfLine returns the hash of a line's conversation id, or unreadable.
func hashOfLine(raw scan.Line) uint64 {
	if entry.HasBraces(raw.Text) {
		if head, ok := entry.ParseHead(raw.Text); ok {
			return hashConversation(head.ConversationID)
		}
	}
	e, err := raw.Parse()
	if err != nil {
		return unreadable
	}
	return hashConversation([]byte(e.Interaction.ConversationId))
}
