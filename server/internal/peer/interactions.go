package peer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/interactionlog/search"
	"github.com/parleyhq/parley/store"
)

// logOff is the reason of a server without an interaction log, see package rpc.
const logOff = "INTERACTION_LOG_OFF"

// Interactions is the interaction log of all servers on one store. Each server has the entries of its own commits. A
// server without a log counts as a server with an empty log, unless no server has a log. Its methods may be called from
// many goroutines.
type Interactions struct {
	turns *Turns
	local *interactionlog.Log // nil if off
}

// Interactions returns the interaction log of all servers. local is the log of this server. If nil, this server has no
// log.
func (t *Turns) Interactions(local *interactionlog.Log) *Interactions {
	return &Interactions{turns: t, local: local}
}

// EraseError reports that the entries of a conversation were not erased at all servers.
type EraseError struct {
	// Failures are the servers where entries may remain. All other servers have erased their entries.
	Failures []Failure
	// Erased is the number of entries that the other servers have erased.
	Erased int64
}

// Failure is an error of another server.
type Failure struct {
	// Address of the server.
	Address string
	// Err is ErrUnreachable if the server has not answered.
	Err error
}

// Servers returns the addresses of the servers where entries may remain.
func (e *EraseError) Servers() []string {
	addresses := make([]string, len(e.Failures))
	for n, f := range e.Failures {
		addresses[n] = f.Address
	}
	return addresses
}

// Error returns a text that names the servers and says what to do.
func (e *EraseError) Error() string {
	faults := make([]string, len(e.Failures))
	for n, f := range e.Failures {
		fault := "does not answer"
		if answered, ok := errors.AsType[*StatusError](f.Err); ok {
			fault = answered.Error()
		}
		faults[n] = f.Address + " (" + fault + ")"
	}
	return fmt.Sprintf("entries of the conversation may remain at %s; those of all other servers are erased (%d); "+
		"repeat the call until it succeeds", strings.Join(faults, ", "), e.Erased)
}

// Lost returns the number of entries that this server could not write since its start.
func (i *Interactions) Lost() int64 {
	if i.local == nil {
		return 0
	}
	return i.local.Lost()
}

// List is interactionlog.Log.List for all servers. The entries of one server are in the order of its files. The entries
// of several servers are in the order of their timestamps. Page.Unreachable names the servers that have not answered.
// Errors: also interactionlog.ErrOff, StatusError, and those of the store.
func (i *Interactions) List(ctx context.Context, l *interactionlog.List) (*interactionlog.Page, error) {
	return i.query(ctx, &logQuery{
		scope:       []string{"list", l.Tenant, l.Date, l.Within.String(), l.ConversationID},
		newestFirst: l.NewestFirst(), size: search.PageSize(l.PageSize), token: l.PageToken,
		local: func(token string) (*interactionlog.Page, error) {
			own := *l
			own.PageToken = token
			return i.local.List(ctx, &own)
		},
		remote: func(ctx context.Context, to parleyv1.InteractionLogServiceClient, size int32, token string,
			header grpc.CallOption,
		) (logReply, error) {
			r := &parleyv1.ListInteractionsRequest{ConversationId: l.ConversationID, PageSize: size, PageToken: token}
			switch {
			case l.Date != "":
				r.Span = &parleyv1.ListInteractionsRequest_Date{Date: l.Date}
			case l.Within > 0:
				r.Span = &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(l.Within)}
			}
			return to.ListInteractions(ctx, r, header)
		},
	})
}

// Search is interactionlog.Log.Search for all servers, with the order and the errors of List.
func (i *Interactions) Search(ctx context.Context, s *interactionlog.Search) (*interactionlog.Page, error) {
	return i.query(ctx, &logQuery{
		scope:       []string{"search", s.Tenant, s.Query, fmt.Sprint(s.Days), s.ConversationID},
		newestFirst: true, size: search.PageSize(s.PageSize), token: s.PageToken,
		local: func(token string) (*interactionlog.Page, error) {
			own := *s
			own.PageToken = token
			return i.local.Search(ctx, &own)
		},
		remote: func(ctx context.Context, to parleyv1.InteractionLogServiceClient, size int32, token string,
			header grpc.CallOption,
		) (logReply, error) {
			return to.SearchInteractions(ctx, &parleyv1.SearchInteractionsRequest{
				Query: s.Query, Days: int32(s.Days), ConversationId: s.ConversationID, PageSize: size, PageToken: token,
			}, header)
		},
	})
}

// logQuery is a List or a Search.
type logQuery struct {
	scope       []string // all parameters, to which a page token is bound
	newestFirst bool
	size        int
	token       string
	// local queries the log of this server from a token on.
	local func(token string) (*interactionlog.Page, error)
	// remote queries another server from a token on.
	remote func(ctx context.Context, to parleyv1.InteractionLogServiceClient, size int32, token string,
		header grpc.CallOption) (logReply, error)
}

// logReply is the reply of another server to a List or a Search.
type logReply interface {
	GetInteractions() []*parleyv1.Interaction
	GetNextPageToken() string
	GetSkippedCount() int32
}

// query returns a page with the entries of all servers. It asks each server for one page.
func (i *Interactions) query(ctx context.Context, q *logQuery) (*interactionlog.Page, error) {
	t := i.turns
	if t.isLast(ctx) {
		page, err := i.ask(q, q.token)
		if err == nil {
			err = grpc.SetHeader(ctx, sealCuts(page))
		}
		return page, err
	}
	places, err := openPlaces(q)
	if err != nil {
		return nil, err
	}
	peers, err := t.shared.Peers(ctx)
	if err != nil {
		return nil, err
	}
	parts := make([]*part, 1+len(peers))
	var asking sync.WaitGroup
	for n, server := range append([]store.Server{t.shared.Self()}, peers...) {
		p := &part{address: server.Address}
		parts[n] = p
		token, hasMore := places.of(p.address)
		switch {
		case !hasMore:
		case n == 0:
			asking.Go(func() { p.err = i.askSelf(q, token, p) })
		default:
			asking.Go(func() { p.err = i.askPeer(ctx, server, q, token, p) })
		}
	}
	asking.Wait()
	return joinParts(ctx, q, places, parts)
}

// ask returns a page of this server.
func (i *Interactions) ask(q *logQuery, token string) (*interactionlog.Page, error) {
	if i.local == nil {
		return nil, interactionlog.ErrOff
	}
	return q.local(token)
}

// askSelf sets a part to the page of this server.
func (i *Interactions) askSelf(q *logQuery, token string, p *part) error {
	page, err := i.ask(q, token)
	if err == nil {
		p.interactions, p.cut = page.Interactions, page.Cut
	}
	return err
}

// askPeer sets a part to the page of another server. Errors: also ErrUnreachable, interactionlog.ErrOff.
func (i *Interactions) askPeer(ctx context.Context, to store.Server, q *logQuery, token string, p *part) error {
	var header metadata.MD
	reply, err := callLog(ctx, i.turns, to, func(
		ctx context.Context, client parleyv1.InteractionLogServiceClient,
	) (logReply, error) {
		return q.remote(ctx, client, int32(q.size), token, grpc.Header(&header))
	})
	if err != nil {
		return err
	}
	cuts, err := openCuts(reply, header)
	if err != nil { // The server has another version.
		i.turns.log.WarnContext(ctx, "server cannot be reached", "address", to.Address, "error", err)
		return ErrUnreachable
	}
	p.interactions, p.cut = reply.GetInteractions(), func(n int) search.Cut { return cuts[n] }
	return nil
}

// Erase is interactionlog.Log.Erase for all servers. It erases the entries at all servers that answer. Erase may be
// repeated. Errors: also EraseError, interactionlog.ErrOff, and those of the store, after which nothing was erased.
func (i *Interactions) Erase(ctx context.Context, tenant, conversationID string) (int64, error) {
	t := i.turns
	if t.isLast(ctx) {
		return i.eraseHere(ctx, tenant, conversationID)
	}
	peers, err := t.shared.Peers(ctx)
	if err != nil {
		return 0, err
	}
	erased, errs := make([]int64, 1+len(peers)), make([]error, 1+len(peers))
	var erasing sync.WaitGroup
	for n, to := range peers {
		erasing.Go(func() {
			reply, err := callLog(ctx, t, to, func(
				ctx context.Context, client parleyv1.InteractionLogServiceClient,
			) (*parleyv1.DeleteInteractionsResponse, error) {
				return client.DeleteInteractions(ctx, &parleyv1.DeleteInteractionsRequest{ConversationId: conversationID})
			})
			erased[1+n], errs[1+n] = reply.GetDeletedCount(), err
		})
	}
	erased[0], errs[0] = i.eraseHere(ctx, tenant, conversationID)
	erasing.Wait()
	return joinErasures(ctx, peers, erased, errs)
}

// eraseHere erases from the log of this server.
func (i *Interactions) eraseHere(ctx context.Context, tenant, conversationID string) (int64, error) {
	if i.local == nil {
		return 0, interactionlog.ErrOff
	}
	return i.local.Erase(ctx, tenant, conversationID)
}

// joinErasures returns the joint result of the erasures at this server, which is the first result, and at the others.
func joinErasures(ctx context.Context, peers []store.Server, erased []int64, errs []error) (total int64, err error) {
	off := 0
	incomplete := new(EraseError)
	for n, err := range errs {
		total += erased[n]
		switch {
		case err == nil:
		case errors.Is(err, interactionlog.ErrOff):
			off++
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case n == 0:
			return 0, err
		default:
			incomplete.Failures = append(incomplete.Failures, Failure{peers[n-1].Address, err})
		}
	}
	switch {
	case len(incomplete.Failures) > 0:
		incomplete.Erased = total
		return 0, incomplete
	case off == len(errs):
		return 0, interactionlog.ErrOff
	}
	return total, nil
}

// callLog calls the interaction log of another server. Errors: ErrUnreachable, also if the server is stopping,
// interactionlog.ErrOff, StatusError, or the cause of ctx.
func callLog[R any](
	ctx context.Context, t *Turns, to store.Server,
	method func(ctx context.Context, client parleyv1.InteractionLogServiceClient) (R, error),
) (reply R, err error) {
	l, err := t.links(ctx, to)
	if err != nil {
		return reply, err
	}
	ctx, cancel := t.whileAnswering(ctx, to, l.unary)
	defer cancel()
	reply, err = method(outgoing(ctx, to), parleyv1.NewInteractionLogServiceClient(l.unary))
	if err == nil {
		return reply, nil
	}
	switch err = t.failure(ctx, to, err); reasonOfError(err) {
	case shuttingDown:
		return reply, ErrUnreachable
	case logOff:
		return reply, interactionlog.ErrOff
	}
	return reply, err
}
