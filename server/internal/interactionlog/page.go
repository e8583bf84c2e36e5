package interactionlog

import (
	"encoding/binary"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	defaultPageSize = 50
	maxPageSize     = 1000
	// maxPageBytes bounds a page of more than one interaction, in encoded form.
	maxPageBytes = 3 << 20
	// maxInteractionBytes bounds one that has a page of its own: a larger one is skipped, since
	// no reply, of 4 MiB at most, could hold it.
	maxInteractionBytes = 4<<20 - 64<<10
)

// ErrPageToken says that a page token was made up, damaged, or given for another query. It is
// that of the store, which says the same of its lists.
var ErrPageToken = store.ErrPageToken

// Page is a part of what was asked for.
//
// Pages go on where the one before ended, by file and byte: of files that only grow they give
// every line once, and of recent spans and searches nothing that came after the first page.
// When a file is edited between two pages, lines of it may be given twice or not at all, but
// none that is not in the file, whole, when its page is read.
type Page struct {
	// Interactions are the lines, in the order of the query.
	Interactions []*parleyv1.Interaction
	// NextPageToken is empty on the last page.
	NextPageToken string
	// Skipped counts the lines up to the last interaction of the page, or up to the end if it
	// is the last page, that cannot be read: not JSON, without a key that is required, longer
	// than 20 MiB, or larger than a reply. A query knows of those that are not enclosed in
	// braces and of those that it had to parse, and not of faults in lines that seem to be of
	// others or without the text. A last line that is just being written does not count.
	Skipped int
}

// query is what a List or a Search comes down to.
type query struct {
	filter

	first, last day       // whose files are read
	since       time.Time // of lines; zero: all
	backward    bool      // newest first
	size        int
	scope       []string // all of it that a page token is bound to
}

// place is between two lines. Forward, the line that starts there is the next one, backward
// the one ahead of it.
type position struct {
	day    day
	offset int64
}

// start is where the first page begins.
func (q *query) start() position {
	if q.backward {
		return position{q.last, math.MaxInt64}
	}
	return position{q.first, 0}
}

// seal makes a page token. It keeps the span of the first page, since that of the next would
// begin later.
func (q *query) sealToken(p position) string {
	var b []byte
	for _, n := range [...]int64{int64(q.first), int64(q.last), q.since.Unix(), int64(q.since.Nanosecond()), int64(p.day), p.offset} {
		b = binary.AppendVarint(b, n)
	}
	return store.SealToken(b, q.scope...)
}

// resume goes on from a page token.
func (q *query) openToken(token string) (position, error) {
	b, err := store.OpenToken(token, q.scope...)
	if err != nil {
		return position{}, ErrPageToken
	}
	var numbers [6]int64
	for i := range numbers {
		number, n := binary.Varint(b)
		if n <= 0 {
			return position{}, ErrPageToken
		}
		numbers[i], b = number, b[n:]
	}
	p := position{day(numbers[4]), numbers[5]}
	q.first, q.last = day(numbers[0]), day(numbers[1])
	if q.since = time.Unix(numbers[2], numbers[3]); len(b) > 0 || p.day < q.first || p.day > q.last || p.offset < 0 {
		return position{}, ErrPageToken
	}
	return p, nil
}

// collector gathers a page.
type collector struct {
	query *query
	page  Page
	bytes int
	last  position // behind the last interaction of the page
	more  bool     // there is one for the next page
	// skipped counts all unreadable lines, page.Skipped those that belong to the page.
	skipped int
}

// take adds the interaction of a line to the page, unless it belongs to the next one; false
// if it can be on none.
func (c *collector) add(d day, at rawLine, interaction *parleyv1.Interaction) bool {
	size := proto.Size(interaction)
	if size > maxInteractionBytes {
		return false
	}
	n := len(c.page.Interactions)
	if n == c.query.size || n > 0 && c.bytes+size > maxPageBytes {
		c.more = true
		return true
	}
	c.page.Interactions = append(c.page.Interactions, interaction)
	c.page.Skipped = c.skipped
	c.bytes += size
	if c.last = (position{d, at.next}); c.query.backward {
		c.last.offset = at.from
	}
	return true
}

// finish returns the page.
func (c *collector) finish() *Page {
	if c.more {
		c.page.NextPageToken = c.query.sealToken(c.last)
	} else {
		c.page.Skipped = c.skipped
	}
	return &c.page
}
