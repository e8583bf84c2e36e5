package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

const (
	// defaultSpan is the span of a list that names no day, span or conversation.
	defaultSpan = 24 * time.Hour
	// maxOlderInRow is the number of consecutive older entries after which a span ends in a file.
	// Entries may be slightly out of order if they were written by hand or late.
	maxOlderInRow = 1000
)

// ErrDate reports that List.Date is not a day of the calendar.
var ErrDate = errors.New("date is not a day of the calendar")

// List selects entries:
//
//   - Date: the entries of that day's file, oldest first, in the order of the file.
//   - ConversationID alone: the entries of the conversation on all days, oldest first.
//   - Within, or nothing: the entries with a timestamp within the span before now, newest first, in the
//     reverse order of the files. In each file, List stops after 1000 consecutive older entries.
//
// ConversationID also restricts a day or a span.
type List struct {
	// Tenant is the tenant whose entries are listed. Required.
	Tenant string
	// Date is a day in UTC, such as "2026-11-20". If it is set, Within is ignored.
	Date string
	// Within is the span before now. If 0, it is 24 hours unless Date or ConversationID is set.
	Within time.Duration
	// ConversationID is the conversation whose entries are listed. If empty, all are listed.
	ConversationID string
	// PageSize is the maximum number of entries in a page. If 0, it is 50; the maximum is 1000.
	PageSize int
	// PageToken is NextPageToken of the previous page. If empty, the first page is returned.
	PageToken string
}

// NewestFirst reports whether the entries of the list are in the order from the newest to the oldest.
func (l *List) NewestFirst() bool { return l.Date == "" && (l.Within > 0 || l.ConversationID == "") }

// List returns a page of entries. To find none is not an error. Errors: ErrPageToken, ErrDate, those of
// ctx and of the file system.
func (r *Reader) List(ctx context.Context, l *List) (*Page, error) {
	q := &query{
		filter: filter{tenant: l.Tenant, conversation: l.ConversationID},
		first:  math.MinInt, last: math.MaxInt,
		size:  l.PageSize,
		scope: []string{"list", l.Tenant, l.Date, l.Within.String(), l.ConversationID},
	}
	switch {
	case l.Date != "":
		d, ok := dayfile.ParseDay(l.Date)
		if !ok {
			return nil, fmt.Errorf("%w: %q; use one such as 2026-11-20", ErrDate, l.Date)
		}
		q.first, q.last = d, d
	case l.NewestFirst():
		now := r.now()
		q.since, q.backward = now.Add(-cmp.Or(l.Within, defaultSpan)), true
		q.first, q.last = dayfile.DayOf(q.since), dayfile.DayOf(now)
	}
	return r.query(ctx, q, l.PageToken)
}
