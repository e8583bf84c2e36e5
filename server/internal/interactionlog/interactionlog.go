// Package interactionlog writes every message as a line of JSON to a file of its day, and lists and
// searches these files.
//
// The files are the only copy of the log. Operators may read, search, edit, rotate and remove them with
// any tool at any time. Each day in UTC has one file, such as interactions/2026-11-20.jsonl. A message
// is in the file of its create_time. The entries of a conversation are in the order of their commits.
// If messages are removed from a conversation, their entries stay, and the removal has an entry of its own.
// Package entry documents their format.
//
// This package appends entries, maintains the checkpoint, adds entries after a crash, and erases entries.
// Its subpackages do not import it. Package search lists and searches the files, scan reads their lines,
// and dayfile names and opens them.
//
// # Failures
//
// A message is in the file before its sender is notified that it was accepted. If the log cannot be
// written, no sender waits for it. The log retries a failed write once, then counts its entries as
// lost. The next messages try again. The first successful write begins with a loss entry. It has the
// tenant "*", which no caller has, so it is visible only in the file. Its role is "system". It reports
// how many entries are missing and since when: in content for people, and in metadata.lost_lines and
// metadata.lost_since for programs.
//
// If a crash or an editor has left a line without a line break, the log adds one. The partial line stays,
// and readers skip it. The files are made durable every second. After a crash, [Log.CatchUp] adds the
// messages after the checkpoint that the store retains and the files lack.
//
// Start at [Open].
package interactionlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
	"github.com/parleyhq/parley/server/internal/interactionlog/search"
)

// Queries of a Log and their result. Package search documents them.
type (
	// List selects entries by day, span or conversation.
	List = search.List
	// Search selects entries by their text.
	Search = search.Search
	// Page is a page of entries.
	Page = search.Page
)

// Errors of Open. Open wraps them with the directory and what to do.
var (
	// ErrRefused reports a link, or something that is not a directory, in place of the directory.
	ErrRefused = dayfile.ErrRefused
	// ErrInUse reports that another process writes to the directory.
	ErrInUse = errors.New("interaction log is in use")
)

// maintainEvery is the interval at which the files are made durable. A power cut takes about as much of
// the entries that [Log.CatchUp] cannot add again.
const maintainEvery = time.Second

// Options are the options of a Log. Dir and Log are required.
type Options struct {
	// Dir is the directory of the files.
	Dir string
	// Redact lists expressions whose matches are replaced by "[redacted]" before they are written: in
	// the text and in everything else that a client or an agent has chosen, except ids.
	Redact []*regexp.Regexp
	// RetentionDays is the number of days before today whose files are retained. Older files are
	// removed. If 0, all files are retained.
	RetentionDays int
	// CheckSpace, if not nil, is called with the directory and the size of the entries before each write. If it
	// returns an error, the write fails with that error. So the log can leave space on the disk to others.
	CheckSpace func(dir string, size int) error
	// Shared says that other servers write to the store, each with a log of its own. CatchUp then adds no entries, since
	// it cannot know which server has committed a message.
	Shared bool
	// Log receives what operators must know about the log.
	Log *slog.Logger
	// Now returns the current time. If nil, it is time.Now.
	Now func() time.Time
}

// Log writes and reads the files of a directory. The zero value is not usable.
//
// Committed writes under writer.mu, in a goroutine of the store that commits. Maintain makes files durable under
// syncMu, mostly without writer.mu. Erase rewrites files without a lock, and replaces them under both. Queries
// need no lock.
type Log struct {
	options *Options // the same as in writer
	reader  *search.Reader
	scanner scan.Scanner
	erasing chan struct{} // contains a value while an Erase runs

	// syncMu is held while files are made durable or replaced. It is locked before writer.mu. A file that is
	// replaced during its sync looks like one that has lost entries. The result of an Erase must not be in a
	// file that is being replaced.
	syncMu sync.Mutex

	writer writer
}

// Open opens the log of a directory. It creates a missing directory with mode 0700 and removes the
// permissions of other users for the directory and its files. If the directory is not writable, Open
// logs a warning and returns no error, since chats must not fail because of the log. Errors:
// ErrRefused, ErrInUse.
func Open(o Options) (*Log, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &Log{
		options: &o, reader: search.NewReader(o.Dir, o.Log, o.Now), erasing: make(chan struct{}, 1),
		writer: writer{options: &o, encoder: entry.NewEncoder(o.Redact)},
	}
	err := dayfile.MakeDir(o.Dir)
	if err == nil {
		err = l.writer.lockDir()
	}
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrInUse) {
		return nil, fmt.Errorf("interaction log: %w", err)
	}
	if err = errors.Join(err, l.repairFiles(), l.writer.loadCheckpoint()); err != nil {
		o.Log.Warn("interaction log may lose entries", "error", err)
	}
	return l, nil
}

// lockDir keeps other processes from writing to the directory.
func (w *writer) lockDir() error {
	dir, err := os.Open(w.options.Dir)
	if err != nil {
		return err
	}
	locked, err := dayfile.Lock(dir)
	if locked {
		w.lock = dir
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%w: another process writes to %s; stop it or use another directory", ErrInUse, w.options.Dir)
	}
	return errors.Join(err, dir.Close())
}

// repairFiles removes the permissions of other users for the files. It removes temporary files that a
// crash has left and indexes without a file.
func (l *Log) repairFiles() error {
	entries, err := os.ReadDir(l.options.Dir)
	if err != nil {
		return err
	}
	var faults []error
	for _, entry := range entries {
		if dayfile.IsTemporary(entry.Name()) || entry.Name() == temporaryCheckpoint() || l.isOrphan(entry.Name()) {
			faults = append(faults, os.Remove(filepath.Join(l.options.Dir, entry.Name())))
		}
		if _, isDay := dayfile.ParseFileName(entry.Name()); !isDay {
			continue
		}
		f, _, err := dayfile.OpenFile(filepath.Join(l.options.Dir, entry.Name()), os.O_RDONLY)
		if err == nil {
			err = f.Close()
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// isOrphan reports whether a name is that of an index without a file.
func (l *Log) isOrphan(name string) bool {
	d, isIndex := dayfile.ParseIndexName(name)
	if !isIndex {
		return false
	}
	_, err := os.Lstat(filepath.Join(l.options.Dir, d.FileName()))
	return errors.Is(err, fs.ErrNotExist)
}

// List returns a page of entries, see [List]. To find none is not an error. Errors:
// search.ErrPageToken, search.ErrDate, those of ctx and of the file system.
func (l *Log) List(ctx context.Context, q *List) (*Page, error) { return l.reader.List(ctx, q) }

// Search returns a page of the entries that contain a text, see [Search]. To find none is not an error.
// Errors: those of List except search.ErrDate.
func (l *Log) Search(ctx context.Context, q *Search) (*Page, error) { return l.reader.Search(ctx, q) }

// Lost returns the number of entries that could not be written since the start.
func (l *Log) Lost() int64 { return l.writer.lost.Load() }

// Failing reports whether the latest entries could not be written.
func (l *Log) Failing() bool {
	l.writer.mu.Lock()
	defer l.writer.mu.Unlock()
	return l.writer.loss.missing > 0
}

// Maintain does the work that no message waits for, until ctx ends. Every second it makes the files
// durable and retries failed writes. It warns of lost entries at most once a minute. Every day it
// removes the files of old days.
func (l *Log) Maintain(ctx context.Context) {
	ticker := time.NewTicker(maintainEvery)
	defer ticker.Stop()
	for today := dayfile.Day(0); ; {
		if now := dayfile.DayOf(l.options.Now()); now != today {
			today = now
			l.removeOld(today)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.maintainOnce()
		}
	}
}

// maintainOnce is one step of Maintain.
func (l *Log) maintainOnce() {
	l.writer.probe()
	l.writer.reportLoss(errors.Join(l.sync(), l.compact()), false)
}

// Close makes the files durable and closes the log. Changes that are committed later are lost. Closing
// again is not an error. The error names what could not be made durable.
func (l *Log) Close() error {
	l.writer.mu.Lock()
	closed := l.writer.closed
	l.writer.mu.Unlock()
	if closed {
		return nil
	}
	l.writer.probe()
	err := l.sync()
	l.writer.reportLoss(nil, true)
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.writer.mu.Lock()
	defer l.writer.mu.Unlock()
	l.writer.closed = true
	err = errors.Join(err, l.writer.saveClosed())
	for _, f := range l.writer.files {
		err = errors.Join(err, f.Close())
	}
	l.writer.files = nil
	if l.writer.lock != nil {
		err = errors.Join(err, l.writer.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("interaction log: %w", err)
	}
	return nil
}
