package pages

import (
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/store"
)

// defaultTurns is the page size of ListTurns if the request has none.
const defaultTurns = 32

// positionSeparator separates the ids in the position of a list of turns. No id contains it.
const positionSeparator = "\n"

// Turns is one page of ListTurns. Create it with OpenTurns.
type Turns struct {
	// List is the call of the manager of turns that returns the page.
	List  *turn.ListRequest
	scope []string // of page tokens
}

// OpenTurns returns the page that a request names with its page token, or the first page. If the token is not from a
// list with the same tenant, conversation and states, the error is store.ErrPageToken.
func OpenTurns(r *parleyv1.ListTurnsRequest, tenant string) (*Turns, error) {
	p := &Turns{
		List: &turn.ListRequest{
			Tenant: tenant, ConversationID: r.GetConversationId(), States: r.GetStates(), Limit: int(r.GetPageSize()),
		},
		scope: []string{"turns", tenant, r.GetConversationId()},
	}
	for _, state := range r.GetStates() {
		p.scope = append(p.scope, state.String())
	}
	if p.List.Limit == 0 {
		p.List.Limit = defaultTurns
	}
	if r.GetPageToken() == "" {
		return p, nil
	}
	position, err := store.OpenToken(r.GetPageToken(), p.scope...)
	if err != nil {
		return nil, err
	}
	// The checksum of a token does not prevent forgery, and each id that is pending costs a search in the store.
	const mostIDs = 1 + turn.MaxPending
	ids := strings.SplitN(string(position), positionSeparator, mostIDs+1)
	p.List.Position = turn.Position{Before: ids[0], Pending: ids[1:]}
	if len(ids) > mostIDs || r.GetConversationId() == "" && len(ids) > 1 || p.List.Position.IsLast() {
		return nil, store.ErrPageToken
	}
	return p, nil
}

// Token returns the token of the page at a position, or "" if no turns follow.
func (p *Turns) Token(next turn.Position) string {
	if next.IsLast() {
		return ""
	}
	ids := append([]string{next.Before}, next.Pending...)
	return store.SealToken([]byte(strings.Join(ids, positionSeparator)), p.scope...)
}
