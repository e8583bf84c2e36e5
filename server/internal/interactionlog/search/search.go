package search

import (
	"context"
	"strconv"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// defaultDays is the number of days of a search that names none.
const defaultDays = 7

// Search selects the entries whose content contains a text, newest first. It does not search other parts
// of an entry, such as the name of the agent. Files are read by the day of their name, each from its end.
type Search struct {
	// Tenant is the tenant whose entries are searched. Required.
	Tenant string
	// Query is the text to find, ignoring case as in Unicode's simple case folding: "äpfel" matches
	// "ÄPFEL", "strasse" does not match "straße". If empty, all entries match.
	Query string
	// Days is the number of days to search, up to today in UTC. If 0, it is 7.
	Days int
	// ConversationID is the conversation to search. If empty, all are searched.
	ConversationID string
	// PageSize is the maximum number of entries in a page. If 0, it is 50; the maximum is 1000.
	PageSize int
	// PageToken is NextPageToken of the previous page. If empty, the first page is returned.
	PageToken string
}

// Search returns a page of entries. To find none is not an error. Errors: ErrPageToken, those of ctx and
// of the file system.
func (r *Reader) Search(ctx context.Context, s *Search) (*Page, error) {
	days := s.Days
	if days == 0 {
		days = defaultDays
	}
	today := dayfile.DayOf(r.now())
	q := &query{
		filter: filter{tenant: s.Tenant, conversation: s.ConversationID, text: newNeedle(s.Query)},
		first:  today - dayfile.Day(days) + 1, last: today,
		backward: true,
		size:     s.PageSize,
		scope:    []string{"search", s.Tenant, s.Query, strconv.Itoa(days), s.ConversationID},
	}
	return r.query(ctx, q, s.PageToken)
}
