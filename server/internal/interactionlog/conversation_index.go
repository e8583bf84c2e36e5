package interactionlog

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// indexPrefix and indexSuffix are about the day in the name of an index.
	indexPrefix, indexSuffix = ".", ".sessions"
	// minIndexed is from which size on a file gets an index: to read less takes about as long
	// as to read the index.
	minIndexedBytes = 64 << 10
	// settled is how long a file must not have been written to get one: two changes in
	// quick succession may leave it with the same time.
	minIndexAge = 2 * time.Second
	// retryIndex is after how long an index that could not be written is tried again.
	indexRetryDelay = time.Minute
)

// indexes is what a reader knows of the indexes by session beside the files of past days.
type indexState struct {
	building chan struct{} // holds a value while one is built
	retry    atomic.Int64  // when, in nanoseconds since 1970, after a failure
}

// indexed yields the lines of a session by way of an index, and reports whether that was all
// of the stretch. If not, because there is no index or it is damaged, the stretch is what
// remains.
func (r *reader) indexedLines(ctx context.Context, f *openedFile, d day, session string, s *section, yield func(rawLine, error) bool) bool {
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
		if offsets, more, err = x.find(session, s.first, s.end, s.backward); err != nil {
			r.dropIndex(d)
			return false
		}
		for _, from := range offsets {
			if err := ctx.Err(); err != nil {
				yield(rawLine{}, err)
				return true
			}
			at, err := readLine(f, f.size, from, &buffer)
			if errors.Is(err, errChanged) {
				r.dropIndex(d)
				return false
			}
			if !yield(at, err) || err != nil {
				return true
			}
			if s.first = from + 1; s.backward {
				s.first, s.end = 0, from
			}
		}
	}
	return true
}

// index returns that of a file, which is made if need be; nil if there is none, and the file
// is to be read instead.
func (r *reader) indexOf(ctx context.Context, f *openedFile, d day) *index {
	now := r.now()
	if f.size < minIndexedBytes || d >= dayOf(now) || now.Sub(time.Unix(0, f.modified)) < minIndexAge {
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
	if x := r.openIndex(f, d); x != nil { // Another query has made it meanwhile.
		return x
	}
	if now.UnixNano() < r.indexes.retry.Load() {
		return nil
	}
	if err := r.makeIndex(ctx, f, d); err != nil {
		if ctx.Err() == nil {
			r.indexes.retry.Store(now.Add(indexRetryDelay).UnixNano())
			r.log.Warn("index of the interaction log cannot be written, sessions are looked for in the whole file", "error", err)
		}
		return nil
	}
	return r.openIndex(f, d)
}

// indexName is the name of a day's index.
func indexName(d day) string { return indexPrefix + d.String() + indexSuffix }

// parseIndexName reads a name that indexName gives.
func parseIndexName(name string) (d day, ok bool) {
	name, prefixed := strings.CutPrefix(name, indexPrefix)
	name, suffixed := strings.CutSuffix(name, indexSuffix)
	d, ok = parseDay(name)
	return d, ok && prefixed && suffixed
}

// openIndex opens the index of a file; nil if there is none that was made from it as it is.
func (r *reader) openIndex(f *openedFile, d day) *index {
	file, err := r.openToRead(indexName(d))
	if file == nil || err != nil {
		return nil
	}
	x := &index{file: file}
	if err := x.readHeader(f.fingerprint); err != nil {
		x.close()
		return nil
	}
	return x
}

// dropIndex removes a damaged index, so that the next query makes it anew.
func (r *reader) dropIndex(d day) {
	if err := os.Remove(filepath.Join(r.dir, indexName(d))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("damaged index of the interaction log cannot be removed", "error", err)
	}
}

// makeIndex writes the index of a file: as a new file of another name, which takes the
// place of the old one when it is whole.
func (r *reader) makeIndex(ctx context.Context, f *openedFile, d day) error {
	path := filepath.Join(r.dir, indexName(d))
	unfinished := path + temporarySuffix
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Before the work, which would be in vain in a directory that cannot be written to.
	file, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	entries, err := r.buildEntries(ctx, f)
	if err == nil {
		err = writeIndex(file, f.fingerprint, entries)
	}
	if err = cmp.Or(err, file.Close()); err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		_ = os.Remove(unfinished)
	}
	return err
}

// sessionsOf lists the lines of a file by session; nil if there are more than maxIndexed.
func (r *reader) buildEntries(ctx context.Context, f *openedFile) ([]indexEntry, error) {
	var buffer []byte
	entries := make([]indexEntry, 0, min(f.size/256, maxIndexEntries)) // Most lines are longer.
	for at, err := range r.scanShortLines(ctx, &section{file: f, size: f.size, end: f.size}, true) {
		if err == nil && at.long {
			at, err = readLine(f, f.size, at.from, &buffer)
		}
		if errors.Is(err, errChanged) {
			continue
		} else if err != nil {
			return nil, err
		}
		if len(entries) == maxIndexEntries {
			return nil, nil
		}
		entries = append(entries, indexEntry{hash: hashOfLine(at), offset: at.from})
	}
	sortEntries(entries)
	return entries, nil
}

// hashOf is the hash of a line's session, or unreadable.
func hashOfLine(at rawLine) uint64 {
	if hasBraces(at.text) {
		if h, ok := parseHead(at.text); ok {
			return hashConversation(h.conversationID)
		}
	}
	l, err := parseRaw(at)
	if err != nil {
		return unreadable
	}
	return hashConversation([]byte(l.interaction.ConversationId))
}
