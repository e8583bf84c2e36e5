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
// Watchers of this server also receive the events of turns of the other servers: [Turns.FollowEvents] passes them to
// the hub, from one stream to each other server for each tenant with such watchers. The other server sends only the
// events of its own turns.
//
// Start at [Turns].
package peer

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// keyOfServer is the key of the metadata with which a server calls another one: the key of the one that is called.
const keyOfServer = "parley-server-key"

// maxAttempts is how often a call is tried that is about a running turn. After each attempt that another server has not
// answered, the turn has ended and another one has begun at a third server.
const maxAttempts = 16

// endWithin is how long a call waits for the end of a turn whose server is stopping or has no lease. Within the time of
// a lease and a search for abandoned turns, another server ends the turn, unless the engine is full.
const endWithin = 20 * time.Second

// askTime is how long a server may take to say which turns wait in its queues.
const askTime = 5 * time.Second

// ErrUnreachable is returned if a server cannot be called whose answer is needed. What was requested of it may have
// been done.
var ErrUnreachable = errors.New("another server, which is needed for this call, cannot be reached")

// StatusError is the status with which another server has answered.
type StatusError struct{ Status *status.Status }

// Error returns the text of the status.
func (e *StatusError) Error() string { return e.Status.Message() }

// Options configure a Turns. All fields except TLS are required.
type Options struct {
	// Local runs the turns of this server.
	Local *turn.Manager
	// Shared is the store of all servers.
	Shared store.Shared
	// Hub receives the events of turns of other servers.
	Hub *watch.Hub
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
	events *events

	running context.Context //nolint:containedctx // of the streams that other servers answer
	stop    context.CancelCauseFunc
}

// New returns the turns of all servers. The caller must call Close. When ctx ends, streams that other servers answer
// end with its cause.
func New(ctx context.Context, o Options) *Turns {
	t := &Turns{local: o.Local, shared: o.Shared, log: o.Log, conns: conns{tls: o.TLS}}
	t.running, t.stop = context.WithCancelCause(ctx)
	t.events = &events{
		turns: t, hub: o.Hub, list: make(chan struct{}, 1), tenants: make(map[string]*tenantEvents),
		failing: make(map[string]bool),
	}
	return t
}

// Stop ends the streams that other servers answer, with turn.ErrShuttingDown. Call it when all turns have ended.
func (t *Turns) Stop() { t.stop(turn.ErrShuttingDown) }

// Stopping returns a channel that Stop closes. The streams of other servers to this one then end, after all events of
// its turns.
func (t *Turns) Stopping() <-chan struct{} { return t.running.Done() }

// Close ends what Stop ends, and closes the connections to other servers.
func (t *Turns) Close() error {
	t.Stop()
	t.events.close()
	return t.conns.close()
}

// IsFromServer reports whether a call comes from another server: it has the key of this one.
func IsFromServer(ctx context.Context, self store.Server) bool {
	sent := metadata.ValueFromIncomingContext(ctx, keyOfServer)
	return len(sent) == 1 && self.Key != "" && subtle.ConstantTimeCompare([]byte(sent[0]), []byte(self.Key)) == 1
}

// IsForServer reports whether a call comes from another server, even if the call has the key of a server that used the
// address of this server before.
func IsForServer(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, keyOfServer)) > 0
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
	return t.find(ctx, func() (*parleyv1.Turn, error) {
		return t.local.Get(ctx, tenant, conversationID, turnID)
	}, func(ctx context.Context, peer store.Server) (*parleyv1.Turn, error) {
		reply, err := call(ctx, t, peer, parleyv1.ConversationServiceClient.GetTurn,
			&parleyv1.GetTurnRequest{ConversationId: conversationID, TurnId: turnID})
		return reply.GetTurn(), err
	})
}

// find asks this server for a turn, and then the others in whose queues it may wait. If none has it, it may have
// started or ended in the meantime: the last answer is that of this server.
func (t *Turns) find(
	ctx context.Context, local func() (*parleyv1.Turn, error),
	remote func(ctx context.Context, peer store.Server) (*parleyv1.Turn, error),
) (*parleyv1.Turn, error) {
	found, err := local()
	if !errors.As(err, new(*turn.NotFoundError)) || t.isLast(ctx) {
		return found, err
	}
	answers, err := askAll(ctx, t, remote)
	if err != nil {
		return nil, err
	}
	var failure error
	for _, a := range answers {
		switch {
		case a.err == nil:
			return a.reply, nil
		case !isNotFound(a.err):
			failure = a.err
		}
	}
	if found, err = local(); errors.As(err, new(*turn.NotFoundError)) && failure != nil {
		err = failure
	}
	return found, err
}

// answer is that of one server.
type answer[R any] struct {
	reply R
	err   error
}

// askAll asks all other servers at the same time.
func askAll[R any](
	ctx context.Context, t *Turns, ask func(ctx context.Context, peer store.Server) (R, error),
) ([]answer[R], error) {
	peers, err := t.shared.Peers(ctx)
	if err != nil {
		return nil, err
	}
	answers := make([]answer[R], len(peers))
	var asking sync.WaitGroup
	for i, peer := range peers {
		asking.Go(func() {
			limited, cancel := context.WithTimeoutCause(ctx, askTime, ErrUnreachable)
			defer cancel()
			answers[i].reply, answers[i].err = ask(limited, peer)
		})
	}
	asking.Wait()
	return answers, nil
}

// Cancel is turn.Manager.Cancel of all servers.
func (t *Turns) Cancel(ctx context.Context, tenant, conversationID, turnID string) (*parleyv1.Turn, error) {
	cancelAt := func(ctx context.Context, peer store.Server) (*parleyv1.Turn, error) {
		reply, err := call(ctx, t, peer, parleyv1.ConversationServiceClient.CancelTurn,
			&parleyv1.CancelTurnRequest{ConversationId: conversationID, TurnId: turnID})
		return reply.GetTurn(), err
	}
	for attempt := 1; ; attempt++ {
		ended, err := t.find(ctx, func() (*parleyv1.Turn, error) {
			return t.local.Cancel(ctx, tenant, conversationID, turnID)
		}, cancelAt)
		if !errors.As(err, new(*turn.ElsewhereError)) || t.isLast(ctx) || attempt == maxAttempts {
			return ended, err
		}
		owner, ownerErr := t.ownerElsewhere(ctx, tenant, conversationID)
		switch {
		case ownerErr != nil:
			return nil, ownerErr
		case owner.Server.Address != "":
			if ended, err := cancelAt(ctx, owner.Server); !isBusy(err) {
				return ended, err
			}
		case owner.TurnID == turnID: // Its server has no lease. Another one ends the turn.
			if waited := t.awaitEnd(ctx, conversation{tenant, conversationID}, turnID, err); waited != nil {
				return nil, waited
			}
		}
	}
}

// List is turn.Manager.List of all servers.
func (t *Turns) List(ctx context.Context, l *turn.ListRequest) (*turn.Page, error) {
	if t.isLast(ctx) || !l.HasQueued() {
		return t.local.List(ctx, l)
	}
	answers, err := askAll(ctx, t, func(ctx context.Context, peer store.Server) ([]*parleyv1.Turn, error) {
		return t.queuedTurns(ctx, peer, l.ConversationID)
	})
	if err != nil {
		return nil, err
	}
	all := *l
	for _, a := range answers {
		if a.err != nil && !isNotFound(a.err) { // Not found: the conversation has ended.
			return nil, a.err
		}
		all.Elsewhere = append(all.Elsewhere, a.reply...)
	}
	return t.local.List(ctx, &all)
}

// queuedTurns returns the turns that wait in the queues of a server.
func (t *Turns) queuedTurns(ctx context.Context, peer store.Server, conversationID string) ([]*parleyv1.Turn, error) {
	request := &parleyv1.ListTurnsRequest{
		ConversationId: conversationID, States: []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_QUEUED},
		PageSize: listPage,
	}
	var queued []*parleyv1.Turn
	for {
		reply, err := call(ctx, t, peer, parleyv1.ConversationServiceClient.ListTurns, request)
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
