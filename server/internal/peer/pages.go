package peer

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/interactionlog/search"
	"github.com/parleyhq/parley/store"
)

// maxPlaces is the number of servers up to which a page token also contains servers that have ended.
const maxPlaces = 100

// places contains the page tokens of servers by their addresses, or one of the texts below. A server that is not in it
// was not asked yet.
type places map[string]string

const (
	atStart = "-" // The server has not answered yet.
	atEnd   = ""  // The server has no more entries.
)

// of returns the page token of a server. It returns false if the server has no more entries.
func (p places) of(address string) (token string, hasMore bool) {
	token, isKnown := p[address]
	if !isKnown || token == atStart {
		return "", true
	}
	return token, token != atEnd
}

// seal returns a page token of all servers.
func (p places) seal(q *logQuery) string {
	var b []byte
	for _, address := range slices.Sorted(maps.Keys(p)) {
		for _, text := range [...]string{address, p[address]} {
			b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
		}
	}
	return store.SealToken(b, append([]string{"servers"}, q.scope...)...)
}

// openPlaces returns the places of the page token of a query.
func openPlaces(q *logQuery) (places, error) {
	all := places{}
	if q.token == "" {
		return all, nil
	}
	b, err := store.OpenToken(q.token, append([]string{"servers"}, q.scope...)...)
	if err != nil {
		return nil, err
	}
	next := func() (text string) {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			err = store.ErrPageToken
			return ""
		}
		text, b = string(b[n:n+int(size)]), b[n+int(size):]
		return text
	}
	for len(b) > 0 && err == nil {
		address := next()
		all[address] = next()
	}
	return all, err
}

// part is the page of one server, of which the first entries are used. It is empty if the server has no more entries.
type part struct {
	address      string
	err          error
	interactions []*parleyv1.Interaction
	used         int
	cut          func(n int) search.Cut // of the first n interactions; nil if the server was not asked or has not answered
}

// rest returns the token of the entries that are not used. It is empty if all are used.
func (p *part) rest() string {
	if p.cut == nil {
		return ""
	}
	return p.cut(p.used).PageToken
}

// joinParts returns the page of all servers.
func joinParts(ctx context.Context, q *logQuery, old places, parts []*part) (*interactionlog.Page, error) {
	page, next := new(interactionlog.Page), places{}
	off := 0
	for _, p := range parts {
		switch {
		case p.err == nil:
			next[p.address] = atEnd
		case errors.Is(p.err, interactionlog.ErrOff):
			off++
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(p.err, ErrUnreachable):
			page.Unreachable = append(page.Unreachable, p.address)
			next[p.address] = atStart
			if token, isKnown := old[p.address]; isKnown {
				next[p.address] = token
			}
		default:
			return nil, p.err
		}
	}
	if off == len(parts) {
		return nil, interactionlog.ErrOff
	}
	slices.SortFunc(parts, func(a, b *part) int { return cmp.Compare(a.address, b.address) })
	page.Interactions = merge(parts, q)
	hasMore := false
	for _, p := range parts {
		if p.cut != nil {
			cut := p.cut(p.used)
			next[p.address], page.Skipped = cut.PageToken, page.Skipped+cut.Skipped
			hasMore = hasMore || cut.PageToken != ""
		}
	}
	for _, address := range slices.Sorted(maps.Keys(old)) {
		if slices.ContainsFunc(parts, func(p *part) bool { return p.address == address }) {
			continue
		}
		if old[address] != atEnd { // The server ended after an earlier page.
			page.Unreachable = append(page.Unreachable, address)
		}
		if len(next) < maxPlaces {
			next[address] = old[address]
		}
	}
	slices.Sort(page.Unreachable)
	if hasMore {
		page.NextPageToken = next.seal(q)
	}
	return page, nil
}

// merge returns the next entries of all parts, at most one page. It stops when the entries of a part end although its
// server has more: the next entry of that server may precede all others.
func merge(parts []*part, q *logQuery) (merged []*parleyv1.Interaction) {
	bytes := 0
	for len(merged) < q.size {
		var first *part
		for _, p := range parts {
			switch {
			case p.used < len(p.interactions):
				if first == nil || precedes(p.interactions[p.used], first.interactions[first.used], q.newestFirst) {
					first = p
				}
			case p.rest() != "":
				return merged
			}
		}
		if first == nil {
			return merged
		}
		next := first.interactions[first.used]
		if bytes += proto.Size(next); bytes > store.MaxListBytes && len(merged) > 0 {
			return merged
		}
		merged, first.used = append(merged, next), first.used+1
	}
	return merged
}

// precedes reports whether an entry comes before one of another server. Messages of a conversation that were committed
// in the same microsecond are in the order of their sequences.
func precedes(a, b *parleyv1.Interaction, newestFirst bool) bool {
	order := a.GetTimestamp().AsTime().Compare(b.GetTimestamp().AsTime())
	if order == 0 && a.GetConversationId() == b.GetConversationId() {
		order = cmp.Compare(turnNumber(a), turnNumber(b))
	}
	if newestFirst {
		return order > 0
	}
	return order < 0
}

// turnNumber returns the sequence of the message of an entry.
func turnNumber(i *parleyv1.Interaction) float64 {
	return i.GetMetadata().GetFields()["turn_number"].GetNumberValue()
}

// cutsKey is the key of the metadata in which a server reports to another server where each entry of its page begins.
// The caller receives one page with entries of several servers, so the next page begins in the middle of their pages.
const cutsKey = "parley-page-cuts"

// sealCuts returns the metadata of a page.
func sealCuts(page *interactionlog.Page) metadata.MD {
	cuts := make([]string, len(page.Interactions))
	for n := range cuts {
		cut := page.Cut(n)
		cuts[n] = strconv.Itoa(cut.Skipped) + " " + cut.PageToken
	}
	return metadata.MD{cutsKey: cuts}
}

// openCuts returns where each entry of a reply begins, and where the reply ends.
func openCuts(reply logReply, header metadata.MD) ([]search.Cut, error) {
	sealed := header.Get(cutsKey)
	if len(sealed) != len(reply.GetInteractions()) {
		return nil, fmt.Errorf("%s has %d values for %d entries", cutsKey, len(sealed), len(reply.GetInteractions()))
	}
	cuts := make([]search.Cut, len(sealed), len(sealed)+1)
	for n, text := range sealed {
		skipped, token, _ := strings.Cut(text, " ")
		number, err := strconv.Atoi(skipped)
		if err != nil || token == "" {
			return nil, fmt.Errorf("%s has %q, want a number and a page token", cutsKey, text)
		}
		cuts[n] = search.Cut{PageToken: token, Skipped: number}
	}
	return append(cuts, search.Cut{PageToken: reply.GetNextPageToken(), Skipped: int(reply.GetSkippedCount())}), nil
}
