package interactionlog

import (
	"context"
	"strconv"
)

// defaultDays is how many days a search looks at that names no number.
const defaultDays = 7

// Search says what to find, newest first: the lines whose content holds the text. Of other
// parts of a line, such as the agent's name, nothing is found. Files are searched by the day
// of their name, and give their lines from the end.
type Search struct {
	// Tenant whose lines are searched. Required.
	Tenant string
	// Query is the text. Letters are found in upper and lower case, as Unicode's simple case
	// folding has it: "äpfel" finds "ÄPFEL", "strasse" does not find "straße". Empty: all lines.
	Query string
	// Days is how many, the last of them today, in UTC; 7 when 0.
	Days int
	// ConversationID that is searched; empty: all.
	ConversationID string
	// PageSize is 50 when 0, 1000 at most.
	PageSize int
	// PageToken is Page.NextPageToken of the page before; empty: the first page.
	PageToken string
}

// search returns a page of lines; none is no error. Errors: ErrPageToken, those of ctx and
// of the file system.
func (r *reader) search(ctx context.Context, s *Search) (*Page, error) {
	days := s.Days
	if days == 0 {
		days = defaultDays
	}
	today := dayOf(r.now())
	q := &query{
		filter: filter{tenant: s.Tenant, conversation: s.ConversationID, text: newNeedle(s.Query)},
		first:  today - day(days) + 1, last: today,
		backward: true,
		size:     s.PageSize,
		scope:    []string{"search", s.Tenant, s.Query, strconv.Itoa(days), s.ConversationID},
	}
	return r.query(ctx, q, s.PageToken)
}
