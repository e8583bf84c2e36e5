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
	"time"
)

// maxRewrites is how often a file is begun anew that is edited meanwhile.
const maxRewrites = 10

// Erase takes all lines of a tenant's conversation out of the files of all days, and returns
// how many. None is no error, and to erase again is harmless; what is written while it runs may
// stay. Lines come and are read meanwhile: a file that holds such lines is written anew beside
// the old one, with all others as they are, byte for byte, and takes its place when it is on the
// disk. A crash leaves the one or the other, and CatchUp adds no line again unless the clock was
// set back. A file that is edited by hand meanwhile is begun anew.
//
// What cannot be read is nobody's and stays, such as the half of a line that a crash has left;
// operators are told of lines that mention the conversation's id. After an error, which is that
// of ctx or of the file system, some files may have been rewritten.
func (l *Log) Erase(ctx context.Context, tenant, conversationID string) (int64, error) {
	select {
	case l.erasing <- struct{}{}:
		defer func() { <-l.erasing }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	e := &erasure{
		Log: l, query: &query{filter: filter{tenant: tenant, conversation: conversationID}},
		buffer: make([]byte, copyBytes), seed: maphash.MakeSeed(),
	}
	erased, err := e.run(ctx)
	if err != nil {
		return erased, fmt.Errorf("interaction log: erase: %w", err)
	}
	return erased, nil
}

// erasure is an Erase under way.
type erasure struct {
	*Log

	query  *query // for the lines
	buffer []byte
	seed   maphash.Seed
	// mentions counts the lines of the file at hand that cannot be read and hold the id.
	mentions int
	// The time until which CatchUp knows that the conversation was erased, and the latest time
	// of the entries of it that were found. An entry that is dated after what an import may bring
	// was written by hand and does not count: CatchUp never adds one like it.
	until, latest time.Time
}

func (e *erasure) run(ctx context.Context) (erased int64, err error) {
	if err := e.excludeErased(); err != nil {
		return 0, err
	}
	days, err := e.reader.days(math.MinInt, math.MaxInt)
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

// forget keeps CatchUp from adding again what is erased, as far as it was said until now.
func (e *erasure) excludeErased() error {
	e.syncMu.Lock()
	defer e.syncMu.Unlock()
	e.mu.Lock()
	err := errClosed
	if !e.closed {
		err = e.save(false) // Somebody may have removed it.
	}
	if err == nil {
		err = e.excludeUntil(e.options.Now())
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	return e.syncExclusions()
}

// forgetFound does the same for the entries that were found, if one of them is later: the entries
// of an imported conversation may be up to importedAhead after the clock, and others are written
// while the erasure runs. e.mu is held.
func (e *erasure) excludeFound() error {
	latest := e.latest.Add(time.Microsecond - 1) // Its message may be later by less than the entry shows.
	if !latest.After(e.until) {
		return nil
	}
	if err := e.excludeUntil(latest); err != nil {
		return err
	}
	return e.syncExclusions()
}

// syncForgotten makes durable what was remembered, also if the file was replaced or made since.
func (e *erasure) syncExclusions() error {
	return errors.Join(syncFile(e.checkpointPath()), syncDir(e.options.Dir))
}

// forgetUntil remembers that the conversation was erased, but does not make that durable. e.mu is
// held.
func (e *erasure) excludeUntil(until time.Time) error {
	e.until = until
	return e.addExclusion(exclusion{Tenant: e.query.tenant, ID: e.query.conversation, Erased: until, Until: until})
}

// day erases from the file of a day.
func (e *erasure) eraseDay(ctx context.Context, d day) (int64, error) {
	path := filepath.Join(e.options.Dir, d.fileName())
	for range maxRewrites {
		erased, err := e.tryDay(ctx, d, path)
		switch {
		case errors.Is(err, errChanged):
			continue
		case err == nil && e.mentions > 0:
			e.options.Log.Warn("lines of the interaction log that cannot be read mention a conversation that was erased, and stay; look for the id in the file",
				"file", path, "lines", e.mentions, "tenant", e.query.tenant, "conversation_id", e.query.conversation)
		}
		return erased, err
	}
	return 0, fmt.Errorf("%s: %w, %d times in a row: try again when nobody edits it", path, errChanged, maxRewrites)
}

// rewrite is one try to do that. Errors: errMoved.
func (e *erasure) tryDay(ctx context.Context, d day, path string) (int64, error) {
	f, err := e.reader.openToRead(d.fileName())
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
	_ = os.Remove(filepath.Join(e.options.Dir, indexName(d))) // It would be made anew.
	return w.erased, nil
}

// holds reports whether a file has a line of the conversation.
func (e *erasure) contains(ctx context.Context, f *openedFile, d day) (bool, error) {
	end, err := e.reader.acquireScan(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	s := &section{file: f, size: f.size, end: f.size, filter: e.query.mayMatch}
	e.mentions = 0
	for _, err := range e.entries(f, e.reader.candidateLines(ctx, f, d, e.query, s)) {
		return err == nil, err
	}
	return false, nil
}

// matches yields those of a file's lines that are the conversation's, and counts those that
// mention it and cannot be read.
func (e *erasure) entries(f *openedFile, lines iter.Seq2[rawLine, error]) iter.Seq2[rawLine, error] {
	return func(yield func(rawLine, error) bool) {
		for at, err := range lines {
			if err != nil {
				yield(at, err)
				return
			}
			l, err := parseRaw(at)
			switch {
			case err == nil && l.tenant == e.query.tenant && l.interaction.ConversationId == e.query.conversation:
				if said := l.interaction.GetTimestamp().AsTime(); said.After(e.latest) && !said.After(e.options.Now().Add(maxImportAhead)) {
					e.latest = said
				}
				if !yield(at, nil) {
					return
				}
			case err != nil && e.mentionsID(f, at):
				e.mentions++
			}
		}
	}
}

// mentioned reports whether a line holds the conversation's id; of one that is too long, whether
// its beginning does.
func (e *erasure) mentionsID(f *openedFile, at rawLine) bool {
	text := at.text
	if at.long {
		n, _ := f.ReadAt(e.buffer, at.from) // What is not there mentions nothing.
		text = e.buffer[:n]
	}
	return bytes.Contains(text, []byte(e.query.conversation))
}
