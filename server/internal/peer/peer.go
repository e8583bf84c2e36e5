// Package peer lets several servers on one store answer calls about the turns of one another.
//
// A running turn is in the memory of the server that runs it, with its pieces and its queue. [Turns] asks the turns of
// this server first. If they say that another server runs the turn, Turns asks the store which one, and calls it:
//
//	caller ── Chat, ResumeTurn, CancelTurn, … ──▶ Turns ──▶ turn.Manager ──▶ ElsewhereError
//	                                                │ store.Shared.Owner
//	                                                └──────▶ the same method of the owner
//
// The call has the credentials of the caller, and the key of the owner, which only servers know. A call with the
// server's own key is answered by that server alone, so that no call takes more than one hop.
//
// When the stream of an owner breaks, the stream of the caller does not: Turns waits until the turn has ended in the
// store, and sends the rest from there.
//
// Start at [Turns].
package peer

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"log/slog"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/store"
)

// keyOfServer is the key of the metadata with which a server calls another one: the key of the one that is called.
const keyOfServer = "parley-server-key"

// maxLooks is how often a call looks for the server of a turn. Each time that is in vain, the turn has ended, and
// another one has begun at another server.
const maxLooks = 5

// ErrUnreachable is returned if the server that runs a turn cannot be called.
var ErrUnreachable = errors.New("the server that runs the turn of this conversation cannot be reached")

// StatusError is the status with which another server has answered.
type StatusError struct{ Status *status.Status }

// Error returns the text of the status.
func (e *StatusError) Error() string { return e.Status.Message() }

// Options configure a Turns. Log, Local and Shared are required.
type Options struct {
	// Local runs the turns of this server.
	Local *turn.Manager
	// Shared is the store of all servers.
	Shared store.Shared
	// TLS secures calls of other servers. If nil, they are plaintext.
	TLS *tls.Config
	Log *slog.Logger
}

// Turns answers calls about the turns of all servers on one store. Its methods may be called from many goroutines.
type Turns struct {
	local  *turn.Manager
	shared store.Shared
	log    *slog.Logger
	conns  conns
}

// New returns the turns of all servers. The caller must call Close.
func New(o Options) *Turns {
	return &Turns{local: o.Local, shared: o.Shared, log: o.Log, conns: conns{tls: o.TLS}}
}

// Close closes the connections to other servers.
func (t *Turns) Close() error { return t.conns.close() }

// IsFromServer reports whether a call comes from another server: it has the key of this one.
func IsFromServer(ctx context.Context, self store.Server) bool {
	sent := metadata.ValueFromIncomingContext(ctx, keyOfServer)
	return len(sent) == 1 && self.Key != "" && subtle.ConstantTimeCompare([]byte(sent[0]), []byte(self.Key)) == 1
}

// isLast reports whether this server must answer a call itself.
func (t *Turns) isLast(ctx context.Context) bool { return IsFromServer(ctx, t.shared.Self()) }

// outgoing returns the context of a call of another server.
func outgoing(ctx context.Context, to store.Server) context.Context {
	sent := auth.PassedOn(ctx)
	sent.Set(keyOfServer, to.Key)
	tracing.Inject(ctx, func(key, value string) { sent.Set(key, value) })
	return metadata.NewOutgoingContext(ctx, sent)
}

// ownerElsewhere returns the running turn of a conversation if another server runs it that can be called. The server is
// the zero value if this server or none runs a turn.
func (t *Turns) ownerElsewhere(ctx context.Context, tenant, conversationID string) (store.Owner, error) {
	owner, err := t.shared.Owner(ctx, tenant, conversationID)
	if owner.Server == t.shared.Self() {
		owner.Server = store.Server{}
	}
	return owner, err
}

// Get is turn.Manager.Get of all servers.
func (t *Turns) Get(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error) {
	found, err := t.local.Get(ctx, tenant, conversationID, turnID)
	if !errors.As(err, new(*turn.NotFoundError)) || t.isLast(ctx) {
		return found, err
	}
	// The turn may wait in the queue of another server.
	servers, lookErr := t.queuesOf(ctx, tenant, conversationID)
	if lookErr != nil {
		return nil, lookErr
	}
	for _, server := range servers {
		reply, callErr := call(ctx, t, server, parleyv1.ConversationServiceClient.GetTurn,
			&parleyv1.GetTurnRequest{ConversationId: conversationID, TurnId: turnID})
		switch {
		case callErr == nil:
			return reply.GetTurn(), nil
		case !isNotFound(callErr):
			return nil, callErr
		}
	}
	return nil, err
}

// queuesOf returns the other servers that may have queued turns of a conversation, or of any of a tenant if
// conversationID is empty.
func (t *Turns) queuesOf(ctx context.Context, tenant, conversationID string) ([]store.Server, error) {
	if conversationID == "" {
		return t.shared.Peers(ctx)
	}
	owner, err := t.ownerElsewhere(ctx, tenant, conversationID)
	if err != nil || owner.Server.Address == "" {
		return nil, err
	}
	return []store.Server{owner.Server}, nil
}

// Cancel is turn.Manager.Cancel of all servers.
func (t *Turns) Cancel(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error) {
	for look := 1; ; look++ {
		ended, err := t.local.Cancel(ctx, tenant, conversationID, turnID)
		isElsewhere := errors.As(err, new(*turn.ElsewhereError))
		mayWaitElsewhere := errors.As(err, new(*turn.NotFoundError)) // in the queue of another server
		if !isElsewhere && !mayWaitElsewhere || t.isLast(ctx) {
			return ended, err
		}
		owner, lookErr := t.ownerElsewhere(ctx, tenant, conversationID)
		switch {
		case lookErr != nil:
			return nil, lookErr
		case owner.Server.Address != "":
			reply, callErr := call(ctx, t, owner.Server, parleyv1.ConversationServiceClient.CancelTurn,
				&parleyv1.CancelTurnRequest{ConversationId: conversationID, TurnId: turnID})
			if !isBusy(callErr) || look == maxLooks {
				return reply.GetTurn(), callErr
			}
		case mayWaitElsewhere || look == maxLooks:
			return nil, err
		}
	}
}

// List is turn.Manager.List of all servers.
func (t *Turns) List(ctx context.Context, l *turn.ListRequest) (*turn.Page, error) {
	if t.isLast(ctx) || !l.HasQueued() {
		return t.local.List(ctx, l)
	}
	servers, err := t.queuesOf(ctx, l.Tenant, l.ConversationID)
	if err != nil {
		return nil, err
	}
	all := *l
	for _, server := range servers {
		queued, err := t.queuedTurns(ctx, server, l.ConversationID)
		if isNotFound(err) {
			continue // The conversation has ended.
		}
		if err != nil {
			return nil, err
		}
		all.Elsewhere = append(all.Elsewhere, queued...)
	}
	return t.local.List(ctx, &all)
}

// queuedTurns returns the turns that wait in the queues of a server.
func (t *Turns) queuedTurns(ctx context.Context, server store.Server, conversationID string) ([]*parleyv1.Turn, error) {
	request := &parleyv1.ListTurnsRequest{
		ConversationId: conversationID, States: []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_QUEUED},
		PageSize: listPage,
	}
	var queued []*parleyv1.Turn
	for {
		reply, err := call(ctx, t, server, parleyv1.ConversationServiceClient.ListTurns, request)
		if err != nil {
			return nil, err
		}
		queued = append(queued, reply.GetTurns()...)
		if request.PageToken = reply.GetNextPageToken(); request.PageToken == "" {
			return queued, nil
		}
	}
}

// listPage is the largest page of ListTurns.
const listPage = 1000

// Running returns the number of running turns of this server.
func (t *Turns) Running() int { return t.local.Running() }

// RunningOf returns the number of running turns of a tenant at this server.
func (t *Turns) RunningOf(tenant string) int { return t.local.RunningOf(tenant) }
