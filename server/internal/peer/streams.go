package peer

import (
	"context"
	"errors"
	"io"
	"iter"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/store"
)

// yield receives events. It returns false to stop.
type yield = func(*parleyv1.TurnEvent, error) bool

// Chat is turn.Manager.Chat of all servers. A turn that has to wait for one of another server, or to interrupt it,
// mostly waits in the queue of that server. After ErrUnreachable it may have started all the same.
func (t *Turns) Chat(
	ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request,
) iter.Seq2[*parleyv1.TurnEvent, error] {
	at := conversation{tenant, request.GetConversationId()}
	return t.follow(ctx, at, followed{
		local: func() iter.Seq2[*parleyv1.TurnEvent, error] { return t.local.Chat(ctx, tenant, request, q) },
		open: func(ctx context.Context, client parleyv1.ConversationServiceClient, _ string) (receiver, error) {
			stream, err := client.Chat(ctx, request)
			return func() (*parleyv1.TurnEvent, error) { r, err := stream.Recv(); return r.GetEvent(), err }, err
		},
	})
}

// Resume is turn.Manager.Resume of all servers.
func (t *Turns) Resume(
	ctx context.Context, tenant, conversationID, turnID string, after int32,
) iter.Seq2[*parleyv1.TurnEvent, error] {
	return t.follow(ctx, conversation{tenant, conversationID}, followed{
		local: func() iter.Seq2[*parleyv1.TurnEvent, error] {
			return t.local.Resume(ctx, tenant, conversationID, turnID, after)
		},
		open: func(ctx context.Context, client parleyv1.ConversationServiceClient, runningID string) (receiver, error) {
			id := turnID
			if id == "" {
				id = runningID
			}
			stream, err := client.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{
				ConversationId: conversationID, TurnId: id, AfterIndex: after,
			})
			return func() (*parleyv1.TurnEvent, error) { r, err := stream.Recv(); return r.GetEvent(), err }, err
		},
		mayWait: turnID != "", after: after,
	})
}

// conversation identifies a conversation.
type conversation struct{ tenant, id string }

// receiver returns the next event of a stream. The error is io.EOF after the last one.
type receiver func() (*parleyv1.TurnEvent, error)

// followed is a call that follows the events of a turn.
type followed struct {
	// local answers it at this server.
	local func() iter.Seq2[*parleyv1.TurnEvent, error]
	// open makes the same call at the server of the running turn.
	open func(ctx context.Context, client parleyv1.ConversationServiceClient, runningID string) (receiver, error)
	// mayWait is set if the turn of the call may wait in the queue of another server.
	mayWait bool
	// after is the index after which the caller wants events.
	after int32
}

// errStopped means that the caller reads no more events.
var errStopped = errors.New("the reader stopped reading")

// follow yields the events of the turn of a call: those of this server, or of the one that runs the turn.
func (t *Turns) follow(ctx context.Context, at conversation, f followed) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield yield) {
		if err := t.tryFollow(ctx, at, f, yield); err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// tryFollow is follow. It returns the error with which the stream ends.
func (t *Turns) tryFollow(ctx context.Context, at conversation, f followed, yield yield) error {
	for attempt := 1; ; attempt++ {
		err := passOn(f.local(), yield)
		elsewhere, isElsewhere := errors.AsType[*turn.ElsewhereError](err)
		switch {
		case t.isLast(ctx), attempt == maxAttempts:
			return err
		case f.mayWait && errors.As(err, new(*turn.NotFoundError)):
			return t.followWaiting(ctx, at, f, yield)
		case !isElsewhere:
			return err
		}
		owner, ownerErr := t.ownerElsewhere(ctx, at.tenant, at.id)
		switch {
		case ownerErr != nil:
			return ownerErr
		case owner.TurnID != elsewhere.TurnID && owner.Server.Address == "":
			continue // The turn has ended.
		case owner.Server.Address != "":
			forwarded := t.forward(ctx, at, owner.Server, owner.TurnID, f, yield)
			if isBusy(forwarded) {
				continue // The turn has ended, and another one has begun at a third server.
			}
			if reasonOfError(forwarded) != shuttingDown {
				return forwarded
			}
		}
		// The server of the turn is stopping, or its lease has ended: the turn ends soon, and the call is repeated.
		if waited := t.awaitEnd(ctx, at, elsewhere.TurnID, err); waited != nil {
			return waited
		}
	}
}

// followWaiting yields the events of a turn that waits in the queue of another server. If none has it, it may have
// started or ended in the meantime: the last answer is that of this server.
func (t *Turns) followWaiting(ctx context.Context, at conversation, f followed, yield yield) error {
	peers, err := t.shared.Peers(ctx)
	if err != nil {
		return err
	}
	var unreachable error
	for _, peer := range peers {
		switch err := t.forward(ctx, at, peer, "", f, yield); {
		case errors.Is(err, ErrUnreachable):
			unreachable = err
		case !isNotFound(err):
			return err
		}
	}
	if err := passOn(f.local(), yield); !errors.As(err, new(*turn.NotFoundError)) || unreachable == nil {
		return err
	}
	return unreachable
}

// passOn yields events. It returns the error at their end, or errStopped.
func passOn(all iter.Seq2[*parleyv1.TurnEvent, error], yield yield) error {
	for event, err := range all {
		if err != nil {
			return err
		}
		if !yield(event, nil) {
			return errStopped
		}
	}
	return nil
}

// awaitEnd waits until a turn has ended in the store, at most endWithin. If it has not ended then, it returns the error
// that is passed to it.
func (t *Turns) awaitEnd(ctx context.Context, at conversation, turnID string, late error) error {
	waiting, cancel := context.WithTimeoutCause(ctx, endWithin, late)
	defer cancel()
	ended := t.local.FollowStored(waiting, at.tenant, at.id, turnID, turn.Received{})
	_ = passOn(ended, func(*parleyv1.TurnEvent, error) bool { return true }) // The repeated call reads the turn.
	return context.Cause(waiting)
}

// forward yields the events of a call of another server, about the turn that runs there. If the stream breaks, it
// continues from the store.
func (t *Turns) forward(
	ctx context.Context, at conversation, to store.Server, runningID string, f followed, yield yield,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(t.running, func() { cancel(context.Cause(t.running)) })
	defer stop()
	client, release, err := t.stream(ctx, to)
	if err != nil {
		return err
	}
	defer release()
	received, turnID := turn.ReceivedThrough(f.after), ""
	receive, err := f.open(outgoing(ctx, to), client, runningID)
	for err == nil {
		var next *parleyv1.TurnEvent
		if next, err = receive(); err != nil {
			break
		}
		received.Add(next)
		if turnID = next.GetTurnId(); !yield(next, nil) {
			return errStopped
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	err = t.failure(ctx, to, err)
	hasBroken := errors.Is(err, ErrUnreachable) || reasonOfError(err) == shuttingDown
	if !hasBroken || turnID == "" {
		return err
	}
	rest := passOn(t.local.FollowStored(ctx, at.tenant, at.id, turnID, received), yield)
	if errors.As(rest, new(*turn.NotFoundError)) {
		return err // The turn waited in the queue of the other server, and has ended with it.
	}
	return rest
}
