package pages

import (
	"strconv"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// defaultRecords is the page size of ListRecords if the request has none.
const defaultRecords = 100

// Records is one page of ListRecords. Create it with OpenRecords.
type Records struct {
	// List is the call of the store that reads the page.
	List  *store.ListRecords
	scope []string // of page tokens
}

// OpenRecords returns the page that a request names with its page token, or the first page. The error of a token that
// is not one of this list is store.ErrPageToken.
func OpenRecords(r *parleyv1.ListRecordsRequest, tenant string) (*Records, error) {
	p := &Records{
		List: &store.ListRecords{
			Tenant: tenant, ConversationID: r.GetConversationId(), Prefix: r.GetPrefix(), After: r.GetAfterKey(),
			Descending: r.GetDescending(), KeysOnly: r.GetKeysOnly(), Limit: int(r.GetPageSize()), MaxBytes: MaxBytes,
		},
		scope: []string{
			"records", tenant, r.GetConversationId(), r.GetPrefix(), r.GetAfterKey(),
			strconv.FormatBool(r.GetDescending()), strconv.FormatBool(r.GetKeysOnly()),
		},
	}
	if p.List.Limit == 0 {
		p.List.Limit = defaultRecords
	}
	if r.GetPageToken() == "" {
		return p, nil
	}
	last, err := store.OpenToken(r.GetPageToken(), p.scope...)
	if err != nil || len(last) == 0 {
		return nil, store.ErrPageToken
	}
	p.List.After = string(last)
	return p, nil
}

// Token returns the token of the next page, or "" if this is the last page. records are those of the page, and more
// reports that records follow them.
func (p *Records) Token(records []*parleyv1.Record, more bool) string {
	if !more || len(records) == 0 {
		return ""
	}
	return store.SealToken([]byte(records[len(records)-1].GetKey()), p.scope...)
}
