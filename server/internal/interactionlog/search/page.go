package search

import (
	"encoding/binary"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

const (
	defaultPageSize = 50
	maxPageSize     = 1000
	// maxPageBytes is the maximum encoded size of a page with more than one interaction.
	maxPageBytes = store.MaxListBytes
	// maxInteractionBytes is the maximum encoded size of an interaction. A larger one is skipped,
	// since no reply could contain it.
	maxInteractionBytes = rules.MaxGRPCBytes - 64<<10
)

// ErrPageToken reports that a page token is invalid or belongs to another query. It is the error of the
// store, which reports it for its lists.
var ErrPageToken = store.ErrPageToken

// Page is a page of the result of a query.
//
// A page begins at the byte of a file where the previous one ended. If files only grow, the pages have
// every entry once, and those of spans and searches have no entry that was written after the first page.
// If a file is edited between two pages, its entries may be on two pages or on none. A page never has an
// entry that is not in the file when the page is read.
type Page struct {
	// Interactions are the entries, in the order of the query.
	Interactions []*parleyv1.Interaction
	// NextPageToken is the token of the next page. It is empty on the last page.
	NextPageToken string
	// Skipped is the number of lines that were skipped up to the last interaction of the page, or up
	// to the end on the last page. Lines are skipped if they are not JSON, lack a required key, are
	// longer than 20 MiB or larger than a reply. A query counts lines without braces and those that
	// it must parse. It does not notice errors in lines that seem to belong to others or do not
	// contain the text. The last line of a file that is being written does not count.
	Skipped int
	// Unreachable contains the addresses of other servers that did not answer. Their entries are missing. A Reader leaves
	// it empty.
	Unreachable []string

	query *query
	marks []mark // of Interactions
}

// mark is the state of a page before one of its interactions.
type mark struct {
	position position
	skipped  int // lines of the page that were skipped
}

// Cut is the end of a page that has only the first interactions of another one.
type Cut struct {
	// PageToken is the token of the page that begins with the next interaction. It is empty if there is none.
	PageToken string
	// Skipped is the number of lines that were skipped before the next interaction, as in Page.
	Skipped int
}

// Cut returns the end of the page that has only the first n interactions of this one; n may be 0, or all of them.
func (p *Page) Cut(n int) Cut {
	if n == len(p.Interactions) {
		return Cut{PageToken: p.NextPageToken, Skipped: p.Skipped}
	}
	return Cut{PageToken: p.query.sealToken(p.marks[n].position), Skipped: p.marks[n].skipped}
}

// PageSize returns the maximum number of entries in a page of a query with this PageSize.
func PageSize(requested int) int {
	if requested <= 0 {
		return defaultPageSize
	}
	return min(requested, maxPageSize)
}

// query is a List or a Search in a common form.
type query struct {
	filter

	first, last dayfile.Day // range of days whose files are read
	since       time.Time   // minimum timestamp of the entries; zero: none
	backward    bool        // newest first
	size        int
	scope       []string // what a page token is bound to: all parameters
}

// position is a position between two lines. The next line forward begins there, the next one backward
// ends there.
type position struct {
	day    dayfile.Day
	offset int64
}

// start returns the position where the first page begins.
func (q *query) start() position {
	if q.backward {
		return position{q.last, math.MaxInt64}
	}
	return position{q.first, 0}
}

// sealToken returns a page token. It contains the span of the first page, since the span of a later one
// would begin later.
func (q *query) sealToken(p position) string {
	var b []byte
	for _, n := range [...]int64{
		int64(q.first), int64(q.last), q.since.Unix(), int64(q.since.Nanosecond()), int64(p.day), p.offset,
	} {
		b = binary.AppendVarint(b, n)
	}
	return store.SealToken(b, q.scope...)
}

// openToken returns the position of a page token and restores the span of the first page.
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
	p := position{dayfile.Day(numbers[4]), numbers[5]}
	q.first, q.last = dayfile.Day(numbers[0]), dayfile.Day(numbers[1])
	if q.since = time.Unix(numbers[2], numbers[3]); len(b) > 0 || p.day < q.first || p.day > q.last || p.offset < 0 {
		return position{}, ErrPageToken
	}
	return p, nil
}

// collector collects the interactions of a page.
type collector struct {
	query *query
	page  Page
	bytes int
	last  position // after the last interaction of the page
	more  bool     // there are interactions for a next page
	// skipped counts all skipped lines, page.Skipped those that belong to the page.
	skipped int
}

// add adds the interaction of a line to the page, unless it belongs to the next one. It returns false if
// the interaction is too large for any page.
func (c *collector) add(d dayfile.Day, raw scan.Line, interaction *parleyv1.Interaction) bool {
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
	before, after := position{d, raw.From}, position{d, raw.Next}
	if c.query.backward {
		before, after = after, before
	}
	c.page.marks, c.last = append(c.page.marks, mark{before, c.skipped}), after
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
