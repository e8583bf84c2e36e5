package interactionlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
	"github.com/parleyhq/parley/server/internal/interactionlog/search"
)

// maxRewrites is the maximum number of attempts to rewrite a file that is being edited.
const maxRewrites = 10

// Erase removes all entries of a tenant's conversation from the files of all days and returns their
// number. To find none, or to erase again, is not an error. Entries that are written while Erase runs may stay.
//
// Entries are written and read in the meantime. A file with entries to remove is written again under a
// temporary name, all other lines byte for byte, and renamed when it is durable. After a crash the file
// is the old or the new one, and CatchUp does not add the entries again unless the clock was set back.
// If a file is edited by hand in the meantime, Erase starts again with that file.
//
// Lines that cannot be parsed, such as half an entry that a crash has left, stay. Erase logs the number
// of those that mention the conversation's id. After an error, which is that of ctx or of the file
// system, some files may have been rewritten.
func (l *Log) Erase(ctx context.Context, tenant, conversationID string) (int64, error) {
	select {
	case l.erasing <- struct{}{}:
		defer func() { <-l.erasing }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	e := &erasure{
		Log: l, conversation: search.Conversation{Tenant: tenant, ID: conversationID},
		buffer: make([]byte, copyBytes), seed: maphash.MakeSeed(),
	}
	erased, err := e.run(ctx)
	if err != nil {
		return erased, fmt.Errorf("interaction log: erase: %w", err)
	}
	return erased, nil
}

// erasure is the state of one call of Log.Erase.
type erasure struct {
	*Log

	conversation search.Conversation // whose entries are removed
	buffer       []byte
	seed         maphash.Seed
	// mentions counts the lines of the current file that contain the id and cannot be parsed.
	mentions int
	// until is the time up to which CatchUp adds no entries of the conversation. latest is the latest
	// time of the entries found. An entry that is later than an import may date a message was written
	// by hand and does not count, since CatchUp never adds one like it.
	until, latest time.Time
}

func (e *erasure) run(ctx context.Context) (erased int64, err error) {
	if err := e.excludeErased(); err != nil {
		return 0, err
	}
	days, err := dayfile.Days(e.options.Dir, math.MinInt, math.MaxInt)
	if err != nil {
		return 0, err
	}
	for _, d := range days {
		n, err := e.eraseDay(ctx, d)
		erased += n
		if err != nil {
			return erased, err
		}
	}
	return erased, nil
}

// excludeErased keeps CatchUp from adding the conversation's entries up to now again.
func (e *erasure) excludeErased() error {
	e.syncMu.Lock()
	defer e.syncMu.Unlock()
	e.writer.mu.Lock()
	err := errClosed
	if !e.writer.closed {
		err = e.writer.save(false) // The file may have been removed.
	}
	if err == nil {
		err = e.excludeUntil(e.options.Now())
	}
	e.writer.mu.Unlock()
	if err != nil {
		return err
	}
	return e.syncExclusions()
}

// excludeFound does the same up to the latest entry found, if that is later. The entries of an imported
// conversation may be up to maxImportAhead after the clock, and others are written while the erasure
// runs. The caller holds e.mu.
func (e *erasure) excludeFound() error {
	latest := e.latest.Add(time.Microsecond - 1) // The entry has microseconds, its message nanoseconds.
	if !latest.After(e.until) {
		return nil
	}
	if err := e.excludeUntil(latest); err != nil {
		return err
	}
	return e.syncExclusions()
}

// syncExclusions makes the exclusions durable, even if the file is new or has been replaced.
func (e *erasure) syncExclusions() error {
	return errors.Join(dayfile.SyncFile(e.writer.checkpointPath()), dayfile.SyncDir(e.options.Dir))
}

// excludeUntil adds an exclusion of the conversation, which it does not make durable. The caller holds
// e.mu.
func (e *erasure) excludeUntil(until time.Time) error {
	e.until = until
	return e.writer.addExclusion(exclusion{
		Tenant: e.conversation.Tenant, ID: e.conversation.ID, Erased: until, Until: until,
	})
}

// eraseDay erases from the file of a day.
func (e *erasure) eraseDay(ctx context.Context, d dayfile.Day) (int64, error) {
	path := filepath.Join(e.options.Dir, d.FileName())
	for range maxRewrites {
		erased, err := e.tryDay(ctx, d, path)
		switch {
		case errors.Is(err, scan.ErrChanged):
			continue
		case err == nil && e.mentions > 0:
			const message = "unreadable lines of the interaction log mention an erased conversation; search the file for the id"
			e.options.Log.Warn(message, "file", path, "lines", e.mentions,
				"tenant", e.conversation.Tenant, "conversation_id", e.conversation.ID)
		}
		return erased, err
	}
	return 0, fmt.Errorf("%s: %w, %d times in a row; try again when it is not being edited",
		path, scan.ErrChanged, maxRewrites)
}

// tryDay is one attempt of eraseDay. Errors: scan.ErrChanged.
func (e *erasure) tryDay(ctx context.Context, d dayfile.Day, path string) (int64, error) {
	f, err := dayfile.OpenRead(e.options.Dir, d.FileName())
	if f == nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	found, err := e.contains(ctx, f, d)
	if err != nil || !found {
		return 0, err
	}
	w := &rewrite{erasure: e, day: d, from: f, path: path}
	w.hash.SetSeed(e.seed)
	e.mentions = 0
	err = w.run(ctx)
	if w.to != nil {
		err = errors.Join(err, w.to.Close(), os.Remove(w.to.Name()))
	}
	if err != nil {
		return 0, err
	}
	_ = os.Remove(filepath.Join(e.options.Dir, d.IndexName())) // It is out of date.
	return w.erased, nil
}

// contains reports whether a file has an entry of the conversation.
func (e *erasure) contains(ctx context.Context, f *dayfile.File, d dayfile.Day) (bool, error) {
	release, err := e.reader.AcquireScan(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	e.mentions = 0
	for _, err := range e.entries(f, e.reader.ConversationLines(ctx, f, d, e.conversation)) {
		return err == nil, err
	}
	return false, nil
}

// entries yields those of a file's lines that are entries of the conversation. It counts the lines that
// mention the conversation and cannot be parsed.
func (e *erasure) entries(f *dayfile.File, lines iter.Seq2[scan.Line, error]) iter.Seq2[scan.Line, error] {
	return func(yield func(scan.Line, error) bool) {
		for raw, err := range lines {
			if err != nil {
				yield(raw, err)
				return
			}
			entry, err := raw.Parse()
			switch {
			case err == nil && entry.Tenant == e.conversation.Tenant && entry.Interaction.ConversationId == e.conversation.ID:
				at := entry.Interaction.GetTimestamp().AsTime()
				if at.After(e.latest) && !at.After(e.options.Now().Add(maxImportAhead)) {
					e.latest = at
				}
				if !yield(raw, nil) {
					return
				}
			case err != nil && e.mentionsID(f, raw):
				e.mentions++
			}
		}
	}
}

// mentionsID reports whether a line contains the conversation's id. Of a line that is too long it checks
// the beginning.
func (e *erasure) mentionsID(f *dayfile.File, raw scan.Line) bool {
	text := raw.Text
	if raw.Long {
		n, _ := f.ReadAt(e.buffer, raw.From) // After an error the buffer has what could be read.
		text = e.buffer[:n]
	}
	return bytes.Contains(text, []byte(e.conversation.ID)) || bytes.Contains(text, escapedID(e.conversation.ID))
}

// escapedID returns an id as the encoder of entries writes it: JSON escapes a quote and a backslash.
func escapedID(id string) []byte {
	return []byte(strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(id))
}
