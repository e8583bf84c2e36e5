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
	writing = 10 * time.Second
)

// What is wrong with a line that may be whole.
var (
	errTooLong  = errors.New("longer than 20 MiB")
	errTooLarge = errors.New("larger than a reply, 4 MiB")
)

// reader reads the files of a directory, whoever writes them. It may be used by many
// goroutines.
type reader struct {
	dir     string
	log     *slog.Logger
	now     func() time.Time
	pool    sync.Pool     // of *chunk
	scans   chan struct{} // holds a value for each that is under way
	lists   chan struct{} // likewise
	indexes indexes
	told    told
}

func newReader(dir string, log *slog.Logger, now func() time.Time) *reader {
	return &reader{
		dir: dir, log: log, now: now,
		scans:   make(chan struct{}, maxScans),
		lists:   make(chan struct{}, maxLists),
		indexes: indexes{building: make(chan struct{}, 1)},
	}
}

// page answers a query from a page token on.
func (r *reader) page(ctx context.Context, q *query, token string) (*Page, error) {
	if q.size <= 0 {
		q.size = defaultPageSize
	}
	q.size = min(q.size, maxPageSize)
	from := q.start()
	if token != "" {
		var err error
		if from, err = q.resume(token); err != nil {
			return nil, err
		}
	}
	turns := r.lists
	if q.selective() {
		turns = r.scans
	}
	leave, err := enter(ctx, turns)
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
func (r *reader) beginScan(ctx context.Context) (end func(), err error) {
	return enter(ctx, r.scans)
}

// enter waits for a turn: until fewer are under way than there is room for. leave must be
// called.
func enter(ctx context.Context, turns chan struct{}) (leave func(), err error) {
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// selective reports whether of many lines few may be wanted.
func (q *query) selective() bool { return q.session != "" || q.text != nil }

// readDay collects lines of a day that start between two places of its file.
func (r *reader) readDay(ctx context.Context, c *collector, d day, begin, end int64) error {
	f, err := r.openToRead(d.fileName())
	if f == nil {
		return err
	}
	defer func() { _ = f.Close() }()
	q := c.query
	faults := faults{day: d, known: r.told.lines(d)}
	older := 0 // in a row
	s := &stretch{file: f, size: f.size, first: begin, end: end, backward: q.backward, wants: q.wants}
	for at, err := range r.lines(ctx, f, d, q, s) {
		if err != nil {
			return err
		}
		l, err := read(at)
		switch {
		case err != nil && at.open && r.now().Sub(time.Unix(0, f.modified)) < writing:
			continue
		case err != nil:
			c.skipped++
			faults.add(at.from, err)
			continue
		case l.tenant != q.tenant, q.session != "" && l.interaction.ConversationId != q.session:
			continue
		}
		if !q.since.IsZero() && l.interaction.Timestamp.AsTime().Before(q.since) {
			older++
			if older == maxOlder {
				break
			}
			continue
		}
		older = 0
		if !q.text.in(l.interaction.Content) {
			continue
		}
		if !c.take(d, at, l.interaction) {
			c.skipped++
			faults.add(at.from, errTooLarge)
		}
		if c.more {
			break
		}
	}
	return r.warn(ctx, f, &faults)
}

// read parses a line.
func read(at rawLine) (*line, error) {
	if at.long {
		return nil, errTooLong
	}
	return parseLine(at.text)
}

// lines yields those of a file that the query has to parse, by way of an index of sessions or
// through the whole stretch. One that is still long is longer than any may be.
func (r *reader) lines(ctx context.Context, f *openedFile, d day, q *query, s *stretch) iter.Seq2[rawLine, error] {
	return func(yield func(rawLine, error) bool) {
		if q.session != "" {
			if done := r.indexed(ctx, f, d, q.session, s, yield); done {
				return
			}
		}
		r.wholeLines(ctx, s, q.selective())(yield)
	}
}

// wholeLines is scan with the text of long lines.
func (r *reader) wholeLines(ctx context.Context, s *stretch, parallel bool) iter.Seq2[rawLine, error] {
	return func(yield func(rawLine, error) bool) {
		var buffer []byte
		for at, err := range r.scan(ctx, s, parallel) {
			if err == nil && at.long {
				at, err = readLine(s.file, s.size, at.from, &buffer)
				if errors.Is(err, errMoved) || err == nil && !at.long && s.wants != nil && !s.wants(at.text) {
					continue
				}
			}
			if !yield(at, err) || err != nil {
				return
			}
		}
	}
}
