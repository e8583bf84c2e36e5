package interactionlog

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// compaction writes a file that replaces the checkpoint's, without the exclusions that are no longer
// needed.
type compaction struct {
	*writer

	from, to *os.File
	// Exclusions that end before completeUntil are dropped. One without an end ends at exclusionsUntil.
	completeUntil, exclusionsUntil time.Time
	text                           []byte // the checkpoint, encoded
	read                           int64  // how much of the old file was read
	size                           int64  // of the new file
}

// compact drops the exclusions that are no longer needed, if there are enough of them. Messages are
// committed in the meantime.
func (l *Log) compact() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	c, err := l.writer.beginCompaction()
	if c == nil {
		return err
	}
	if err = c.write(); err == nil {
		err = c.replace()
	}
	err = errors.Join(err, c.from.Close())
	if c.to != nil {
		err = errors.Join(err, c.to.Close(), os.Remove(c.to.Name()))
	}
	return err
}

// beginCompaction returns nil if there is nothing to do. The caller of this and of the methods below
// holds Log.syncMu.
func (w *writer) beginCompaction() (*compaction, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.pending
	if w.closed || p.exclusionBytes < p.compactAt {
		return nil, nil //nolint:nilnil // Having nothing to compact is not an error.
	}
	p.compactAt = p.exclusionBytes + compactInterval
	text, err := p.saved.encode()
	if err != nil {
		return nil, err
	}
	f, info, err := dayfile.OpenFile(w.checkpointPath(), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return &compaction{
		writer: w, from: f, completeUntil: p.saved.CompleteUntil, exclusionsUntil: p.exclusionsUntil,
		text: text, read: max(info.Size(), checkpointBytes),
	}, nil
}

// write writes the new file and makes it durable, since an erasure relies on it.
func (c *compaction) write() error {
	exclusions, err := readExclusions(io.NewSectionReader(c.from, checkpointBytes, c.read-checkpointBytes))
	if err != nil {
		return err
	}
	text := c.text
	for _, e := range exclusions {
		if e.Until.IsZero() {
			e.Until = c.exclusionsUntil
		}
		if c.completeUntil.After(e.Until) {
			continue
		}
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}
	path := filepath.Join(c.options.Dir, temporaryCheckpoint())
	if c.to, _, err = dayfile.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC); err != nil {
		return err
	}
	c.size = int64(len(text))
	_, err = c.to.Write(text)
	return errors.Join(err, c.to.Sync())
}

// replace copies the imports that were added to the old file in the meantime, and the current
// checkpoint, and renames the new file. Neither needs to be durable. If another file has replaced the
// old file, it stays until the next compaction.
func (c *compaction) replace() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := c.from.Stat()
	if err != nil {
		return err
	}
	current, err := os.Lstat(c.checkpointPath())
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!os.SameFile(info, current) || info.Size() < c.read) {
		return nil
	} else if err != nil {
		return err
	}
	added, err := io.Copy(c.to, io.NewSectionReader(c.from, c.read, info.Size()-c.read))
	if err != nil {
		return err
	}
	text, err := c.pending.saved.encode()
	if err != nil {
		return err
	}
	if _, err = c.to.WriteAt(text, 0); err != nil {
		return err
	}
	if err := os.Rename(c.to.Name(), c.checkpointPath()); err != nil {
		return err
	}
	p := &c.pending
	p.exclusionBytes = int(c.size + added - checkpointBytes)
	p.compactAt = p.exclusionBytes + compactInterval
	p.dirChanged = true // The next sync makes the directory durable.
	err, c.to = c.to.Close(), nil
	return err
}
