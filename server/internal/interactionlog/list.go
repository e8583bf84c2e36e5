package interactionlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

const (
	// defaultWithin is how far a list goes back that names no span and no conversation.
	defaultSpan = 24 * time.Hour
	// maxOlder is after how many older lines in a row a recent span ends in a file. Lines may
	// be somewhat out of order, by hand or because a message came late.
	maxOlderInRow = 1000
)

// ErrDate says that List.Date is not a day of the calendar.
var ErrDate = errors.New("no such day")

// List says which lines to list.
//
//   - Date: the lines of that day's file, oldest first, as they stand there.
//   - ConversationID alone: those of all days, oldest first.
//   - Within, or nothing: those whose timestamp is not longer ago, newest first, as they
//     stand in the files of these days. A file is read from its end until 1000 lines in a row
//     are older.
//
// ConversationID narrows a day or a span.
type List struct {
	// Tenant whose lines are listed. Required.
	Tenant string
	// Date is a day in UTC, "2026-11-20". It goes ahead of Within.
	Date string
	// Within is how long ago at most; 0 is not set, and 24 h where nothing else is.
	Within time.Duration
	// ConversationID whose lines are listed; empty: of all.
	ConversationID string
	// PageSize is 50 when 0, 1000 at most.
	PageSize int
	// PageToken is Page.NextPageToken of the page before; empty: the first page.
	PageToken string
}

// list returns a page of lines; none is no error. Errors: ErrPageToken, ErrDate, those of ctx and of
// the file system.
func (r *reader) list(ctx context.Context, l *List) (*Page, error) {
	q := &query{
		filter: filter{tenant: l.Tenant, conversation: l.ConversationID},
		first:  math.MinInt, last: math.MaxInt,
		size:  l.PageSize,
		scope: []string{"list", l.Tenant, l.Date, l.Within.String(), l.ConversationID},
	}
	switch {
	case l.Date != "":
		d, ok := parseDay(l.Date)
		if !ok {
			return nil, fmt.Errorf("%w: %q, want one such as 2026-11-20", ErrDate, l.Date)
		}
		q.first, q.last = d, d
	case l.Within > 0 || l.ConversationID == "":
		now := r.now()
		q.since, q.backward = now.Add(-cmp.Or(l.Within, defaultSpan)), true
		q.first, q.last = dayOf(q.since), dayOf(now)
	}
	return r.query(ctx, q, l.PageToken)
}
