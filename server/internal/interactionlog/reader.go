package interactionlog

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// maxScans is how many queries may look through whole files at once; others wait. Each
	// takes all processors and some megabytes.
	maxScans = 2
	// maxLists is how many others may read at once, which wait for no scan. Each takes one
	// processor: mostly for a page, but for all of a file whose lines are other tenants'.
	maxLists = 4
	// writing is how long after a file was last written a last line that cannot be read may
	// still be growing.
	incompleteFor = 10 * time.Second
)

// What is wrong with a line that may be whole.
var (
	errTooLong  = errors.New("longer than 20 MiB")
	errTooLarge = errors.New("larger than a reply, 4 MiB")
)

// reader reads the files of a directory, whoever writes them. It may be used by many
// goroutines.
type reader struct {
	dir       string
	log       *slog.Logger
	now       func() time.Time
	pool      sync.Pool     // of *chunk
	scanSlots chan struct{} // holds a value for each that is under way
	listSlots chan struct{} // likewise
	indexes   indexState
	warned    warnedLines
}

func newReader(dir string, log *slog.Logger, now func() time.Time) *reader {
	return &reader{
		dir: dir, log: log, now: now,
		scanSlots: make(chan struct{}, maxScans),
		listSlots: make(chan struct{}, maxLists),
		indexes:   indexState{building: make(chan struct{}, 1)},
	}
}

// page answers a query from a page token on.
func (r *reader) query(ctx context.Context, q *query, token string) (*Page, error) {
	if q.size <= 0 {
		q.size = defaultPageSize
	}
	q.size = min(q.size, maxPageSize)
	from := q.start()
	if token != "" {
		var err error
		if from, err = q.openToken(token); err != nil {
			return nil, err
		}
	}
	turns := r.listSlots
	if q.selective() {
		turns = r.scanSlots
	}
	leave, err := acquire(ctx, turns)
	if err != nil {
		return nil, err
	}
	defer leave()
	days, err := r.days(q.first, q.last)
	if err != nil {
		return nil, err
	}
	if q.backward {
		slices.Reverse(days)
	}
	c := &collector{query: q}
	for _, d := range days {
		begin, end := int64(0), int64(math.MaxInt64)
		switch passed := d < from.day; {
		case d == from.day && q.backward:
			end = from.offset
		case d == from.day:
			begin = from.offset
		case passed != q.backward:
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

// beginScan waits for the turn to look through whole files. end must be called.
func (r *reader) acquireScan(ctx context.Context) (end func(), err error) {
	return acquire(ctx, r.scanSlots)
}

// enter waits for a turn: until fewer are under way than there is room for. leave must be
// called.
func acquire(ctx context.Context, turns chan struct{}) (leave func(), err error) {
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// selective reports whether of many lines few may be wanted.
func (q *query) selective() bool { return q.conversation != "" || q.text != nil }

// readDay collects lines of a day that start between two places of its file.
func (r *reader) readDay(ctx context.Context, c *collector, d day, begin, end int64) error {
	f, err := r.openToRead(d.fileName())
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	q := c.query
	faults := faults{day: d, warned: r.warned.ofDay(d)}
	older := 0 // in a row
	s := &section{file: f, size: f.size, first: begin, end: end, backward: q.backward, filter: q.mayMatch}
	for at, err := range r.candidateLines(ctx, f, d, q, s) {
		if err != nil {
			return err
		}
		l, err := parseRaw(at)
		switch {
		case err != nil && at.open && r.now().Sub(time.Unix(0, f.modified)) < incompleteFor:
			continue
		case err != nil:
			c.skipped++
			faults.add(at.from, err)
			continue
		case l.tenant != q.tenant, q.conversation != "" && l.interaction.ConversationId != q.conversation:
			continue
		}
		if !q.since.IsZero() && l.interaction.Timestamp.AsTime().Before(q.since) {
			older++
			if older == maxOlderInRow {
				break
			}
			continue
		}
		older = 0
		if !q.text.matches(l.interaction.Content) {
			continue
		}
		if !c.add(d, at, l.interaction) {
			c.skipped++
			faults.add(at.from, errTooLarge)
		}
		if c.more {
			break
		}
	}
	return r.warnFaults(ctx, f, &faults)
}

// read parses a line.
func parseRaw(at rawLine) (*parsedEntry, error) {
	if at.long {
		return nil, errTooLong
	}
	return parseEntry(at.text)
}

// lines yields those of a file that the query has to parse, by way of an index of sessions or
// through the whole stretch. One that is still long is longer than any may be.
func (r *reader) candidateLines(ctx context.Context, f *openedFile, d day, q *query, s *section) iter.Seq2[rawLine, error] {
	return func(yield func(rawLine, error) bool) {
		if q.conversation != "" {
			if done := r.indexedLines(ctx, f, d, q.conversation, s, yield); done {
				return
			}
		}
		r.scanLines(ctx, s, q.selective())(yield)
	}
}

// wholeLines is scan with the text of long lines.
func (r *reader) scanLines(ctx context.Context, s *section, parallel bool) iter.Seq2[rawLine, error] {
	return func(yield func(rawLine, error) bool) {
		var buffer []byte
		for at, err := range r.scanShortLines(ctx, s, parallel) {
			if err == nil && at.long {
				at, err = readLine(s.file, s.size, at.from, &buffer)
				if errors.Is(err, errChanged) || err == nil && !at.long && s.filter != nil && !s.filter(at.text) {
					continue
				}
			}
			if !yield(at, err) || err != nil {
				return
			}
		}
	}
}
