// Package interactionlog keeps every message as a line of JSON in a file a day, and finds it
// again. Begin with [Open].
//
// The files are the only truth, and belong to whoever runs the service: they may be read,
// searched, edited, rotated and removed with any tool at any time. Of each there is one a UTC
// day, interactions/2026-11-20.jsonl, and a message is in that of its create_time. The lines of
// a conversation stand in the order in which they were committed.
//
// # A line
//
// One object, UTF-8, with these keys in this order:
//
//	timestamp   "2026-11-20T09:30:00.123456Z": when the message was committed, in UTC
//	session_id  id of the conversation
//	tenant      whose it is; a line without one is read as "default"
//	agent       of a user: the message's metadata user, else "User"; else the name of the
//	            agent; of a tool's result that no agent claims: the name of the tool
//	role        "user", "assistant", "system" or "tool"
//	content     the text; of a tool's result without one, what the tool returned
//	metadata    model, turn_number, exchange, tokens {input, output, cached_input, reasoning},
//	            turn_id, status ("complete" or "incomplete"), structured_data_types, then what
//	            the message carried itself, by key; ours win over keys of the same name
//
// turn_number is the message's sequence: 1, 2, 3 … through a conversation. Of the metadata all
// others are left out when they are empty, and a count of tokens when it is 0. Lines that people
// write may be spelled in any way that JSON has; timestamp, session_id, role and content are
// required.
//
// # When it fails
//
// A message is in the file before its sender is told that it was accepted, unless the log
// fails: nothing waits for it then. What cannot be written is tried once more, counted, and
// given up. The next messages try again, and what succeeds begins with a line of the tenant "*",
// which is nobody's, so that no caller but whoever reads the file sees it: of the role "system"
// it says how many lines are missing and since when, for people in content and for programs in
// metadata.lost_lines and metadata.lost_since.
//
// A line that a crash or an editor has left without its end gets a line break, and stays; those
// who read pass over it. The files are made durable every second. After a crash,
// [Log.CatchUp] adds the messages since then that are still kept and that the files lack.
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
	"sync/atomic"
	"syscall"
	"time"
)

// What Open may answer. It comes wrapped, in one line that names the directory and says what to
// do about it.
var (
	// ErrRefused: a link, or what is no directory, is where the directory should be.
	ErrRefused = errors.New("refused")
	// ErrInUse: another process writes to the directory.
	ErrInUse = errors.New("interaction log is in use")
)

// tendEvery is how often the files are made durable, and so about how much a power cut takes
// from those that no [Log.CatchUp] gives back.
const maintainEvery = time.Second

// Options of a Log. Dir and Log are required.
type Options struct {
	// Dir is the directory of the files.
	Dir string
	// Redact lists expressions whose matches become "[redacted]" before they reach the disk:
	// in the text and in what else a client or an agent chose, but not in ids.
	Redact []*regexp.Regexp
	// RetentionDays is how many days are kept before today's; the files of older ones are
	// removed. 0: all are kept.
	RetentionDays int
	// Log is told what operators must know of the log.
	Log *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Log writes and reads the files of a directory. The zero value is not usable.
type Log struct {
	options Options
	reader  *reader
	erasing chan struct{} // holds a value while an Erase is under way
	lost    atomic.Int64  // lines, since the start

	// syncing is held while files are made durable or replaced, and is locked before mu: a file
	// that is replaced during its sync cannot be told from one that has lost entries, and what an
	// Erase has made durable must not be in a file that is being replaced.
	syncMu sync.Mutex

	// mu guards the writing side. Whoever replaces a file holds it, so that no line goes
	// into the old one.
	mu      sync.Mutex
	encoder encoder
	buffer  []byte
	files   []*appendFile // the latest one written to last
	loss    lossState
	pending pending
	lock    *os.File // the directory
	closed  bool
}

// Open opens the log of a directory, makes that with mode 0700 when it is missing, and takes
// from others the right to read it and its files. That nothing can be written is no error,
// since no chat is to fail for the log: it is said in Options.Log. Errors: ErrRefused, ErrInUse.
func Open(o Options) (*Log, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &Log{options: o, reader: newReader(o.Dir, o.Log, o.Now), erasing: make(chan struct{}, 1), encoder: encoder{redact: o.Redact}}
	err := makeDir(o.Dir)
	if err == nil {
		err = l.lockDir()
	}
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrInUse) {
		return nil, fmt.Errorf("interaction log: %w", err)
	}
	if err = errors.Join(err, l.repairFiles(), l.loadCheckpoint()); err != nil {
		o.Log.Warn("interaction log may fail", "error", err)
	}
	return l, nil
}

// lockDir keeps other processes from writing to the directory.
func (l *Log) lockDir() error {
	dir, err := os.Open(l.options.Dir)
	if err != nil {
		return err
	}
	err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		l.lock = dir
		return nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%w: another process writes to %s: stop that one or use another directory", ErrInUse, l.options.Dir)
	}
	return errors.Join(err, dir.Close())
}

// mendFiles takes from others the right to read the files that there are, and removes those
// that a crash has left unfinished, and indexes of files that are no longer there.
func (l *Log) repairFiles() error {
	entries, err := os.ReadDir(l.options.Dir)
	if err != nil {
		return err
	}
	var faults []error
	for _, entry := range entries {
		if isTemporary(entry.Name()) || entry.Name() == temporaryCheckpoint || l.isOrphan(entry.Name()) {
			faults = append(faults, os.Remove(filepath.Join(l.options.Dir, entry.Name())))
		}
		if _, isDay := parseFileName(entry.Name()); !isDay {
			continue
		}
		f, _, err := openFile(filepath.Join(l.options.Dir, entry.Name()), os.O_RDONLY)
		if err == nil {
			err = f.Close()
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// isOrphan reports whether a file with that name is the index of one that is no longer there.
func (l *Log) isOrphan(name string) bool {
	d, isIndex := parseIndexName(name)
	if !isIndex {
		return false
	}
	_, err := os.Lstat(filepath.Join(l.options.Dir, d.fileName()))
	return errors.Is(err, fs.ErrNotExist)
}

// List returns a page of lines, see [List]; none is no error. Errors: ErrPageToken, those of ctx
// and of the file system.
func (l *Log) List(ctx context.Context, q *List) (*Page, error) { return l.reader.list(ctx, q) }

// Search returns a page of the lines that hold a text, see [Search]; none is no error. Errors
// are those of List.
func (l *Log) Search(ctx context.Context, q *Search) (*Page, error) { return l.reader.search(ctx, q) }

// Lost returns how many lines could not be written since the start.
func (l *Log) Lost() int64 { return l.lost.Load() }

// Maintain does what must not be done on the way of a message: it makes the files durable,
// tries again when the log fails, warns of that once a minute, and removes the files of old
// days. It returns when ctx ends.
func (l *Log) Maintain(ctx context.Context) {
	ticker := time.NewTicker(maintainEvery)
	defer ticker.Stop()
	for today := day(0); ; {
		if now := dayOf(l.options.Now()); now != today {
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

// tend is one step of Maintain.
func (l *Log) maintainOnce() {
	l.probe()
	l.reportLoss(errors.Join(l.sync(), l.compact()), false)
}

// Close makes the files durable and ends the log. Changes that are committed later are lost,
// closing again is no error. The error says what could not be made durable.
func (l *Log) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return nil
	}
	l.probe()
	err := l.sync()
	l.reportLoss(nil, true)
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	err = errors.Join(err, l.saveClosed())
	for _, f := range l.files {
		err = errors.Join(err, f.Close())
	}
	l.files = nil
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("interaction log: %w", err)
	}
	return nil
}
