// Package search lists and searches the files of an interaction log, which other processes may write in the
// meantime. It owns the limits of queries, their pages and page tokens, the matching of texts and the indexes of
// conversations beside the files. Start at [Reader].
package search

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
)

const (
	// maxScans is the maximum number of concurrent queries that scan complete files. Each of them uses all
	// processors and some megabytes. Other queries wait.
	maxScans = 2
	// maxLists is the maximum number of other concurrent queries, which do not wait for scans. Each uses
	// one processor, usually for one page, but for a complete file if its lines belong to other tenants.
	maxLists = 4
	// incompleteFor is the time after the last write to a file during which an invalid last line counts
	// as incomplete, not as skipped.
	incompleteFor = 10 * time.Second
)

// errTooLarge is the reason for skipping an entry that no page can contain.
var errTooLarge = errors.New("larger than a reply, 4 MiB")

// Reader reads the files of a directory, which other processes may write. It is safe for concurrent use.
type Reader struct {
	dir       string
	log       *slog.Logger
	now       func() time.Time
	scanner   scan.Scanner
	scanSlots chan struct{} // contains a value for each query that scans
	listSlots chan struct{} // contains a value for each other query
	indexes   indexState
	warned    warnedLines
}

// NewReader returns a reader of a directory. log receives warnings about lines that cannot be parsed. now returns the
// current time.
func NewReader(dir string, log *slog.Logger, now func() time.Time) *Reader {
	return &Reader{
		dir: dir, log: log, now: now,
		scanSlots: make(chan struct{}, maxScans),
		listSlots: make(chan struct{}, maxLists),
		indexes:   indexState{building: make(chan struct{}, 1)},
	}
}

// query answers a query from a page token on.
func (r *Reader) query(ctx context.Context, q *query, token string) (*Page, error) {
	q.size = PageSize(q.size)
	from := q.start()
	if token != "" {
		var err error
		if from, err = q.openToken(token); err != nil {
			return nil, err
		}
	}
	slots := r.listSlots
	if q.selective() {
		slots = r.scanSlots
	}
	release, err := acquire(ctx, slots)
	if err != nil {
		return nil, err
	}
	defer release()
	days, err := dayfile.Days(r.dir, q.first, q.last)
	if err != nil {
		return nil, err
	}
	if q.backward {
		slices.Reverse(days)
	}
	c := &collector{query: q, page: Page{query: q}}
	for _, d := range days {
		begin, end := int64(0), int64(math.MaxInt64)
		switch older := d < from.day; {
		case d == from.day && q.backward:
			end = from.offset
		case d == from.day:
			begin = from.offset
		case older != q.backward:
			continue
		}
		if err := r.readDay(ctx, c, d, begin, end); err != nil {
			return nil, err
		}
		if c.more {
			break
		}
	}
	return c.finish(), nil
}

// AcquireScan waits for a slot to scan complete files. The caller must call release.
func (r *Reader) AcquireScan(ctx context.Context) (release func(), err error) {
	return acquire(ctx, r.scanSlots)
}

// acquire waits for a free slot. The caller must call release.
func acquire(ctx context.Context, slots chan struct{}) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// selective reports whether the query may want few of many lines.
func (q *query) selective() bool { return q.conversation != "" || q.text != nil }

// readDay collects the entries of a day whose lines begin from begin to before end in its file.
func (r *Reader) readDay(ctx context.Context, c *collector, d dayfile.Day, begin, end int64) error {
	f, err := dayfile.OpenRead(r.dir, d.FileName())
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	q := c.query
	faults := faults{day: d, warned: r.warned.ofDay(d)}
	older := 0 // consecutive
	s := &scan.Section{File: f, Size: f.Size, First: begin, End: end, Backward: q.backward, Filter: q.mayMatch}
	for raw, err := range r.candidateLines(ctx, f, d, q, s) {
		if err != nil {
			return err
		}
		e, err := raw.Parse()
		switch {
		case err != nil && raw.Open && r.now().Sub(time.Unix(0, f.Modified)) < incompleteFor:
			continue
		case err != nil:
			c.skipped++
			faults.add(raw.From, err)
			continue
		case e.Tenant != q.tenant, q.conversation != "" && e.Interaction.ConversationId != q.conversation:
			continue
		}
		if !q.since.IsZero() && e.Interaction.Timestamp.AsTime().Before(q.since) {
			older++
			if older == maxOlderInRow {
				break
			}
			continue
		}
		older = 0
		if !q.text.matches(e.Interaction.Content) {
			continue
		}
		if !c.add(d, raw, e.Interaction) {
			c.skipped++
			faults.add(raw.From, errTooLarge)
		}
		if c.more {
			break
		}
	}
	return r.warnFaults(ctx, f, &faults)
}

// ConversationLines yields the lines of a day's file that may be entries of a conversation, found with an index if
// there is one. Lines that are still marked as long are longer than an entry may be.
func (r *Reader) ConversationLines(
	ctx context.Context, f *dayfile.File, d dayfile.Day, c Conversation,
) iter.Seq2[scan.Line, error] {
	q := &query{filter: filter{tenant: c.Tenant, conversation: c.ID}}
	return r.candidateLines(ctx, f, d, q, &scan.Section{File: f, Size: f.Size, End: f.Size, Filter: q.mayMatch})
}

// candidateLines yields the lines of a section that the query must parse, with an index of conversations
// if there is one. Lines that are still marked as long are longer than an entry may be.
func (r *Reader) candidateLines(
	ctx context.Context, f *dayfile.File, d dayfile.Day, q *query, s *scan.Section,
) iter.Seq2[scan.Line, error] {
	return func(yield func(scan.Line, error) bool) {
		if q.conversation != "" {
			if done := r.indexedLines(ctx, f, d, q.conversation, s, yield); done {
				return
			}
		}
		r.scanner.Lines(ctx, s, q.selective())(yield)
	}
}
