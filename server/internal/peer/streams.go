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
// waits in the queue of that server.
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
	for look := 1; ; look++ {
		err := passOn(f.local(), yield)
		elsewhere, isElsewhere := errors.AsType[*turn.ElsewhereError](err)
		mayWait := f.mayWait && errors.As(err, new(*turn.NotFoundError))
		if !isElsewhere && !mayWait || t.isLast(ctx) {
			return err
		}
		owner, lookErr := t.ownerElsewhere(ctx, at.tenant, at.id)
		switch {
		case lookErr != nil:
			return lookErr
		case owner.Server.Address != "":
			if err := t.forward(ctx, at, owner, f, yield); !isBusy(err) || look == maxLooks {
				return err
			}
		case mayWait || look == maxLooks:
			return err
		case owner.TurnID == elsewhere.TurnID: // Its server has gone. Another one ends the turn after the end of the lease.
			if err := t.awaitEnd(ctx, at, owner.TurnID); err != nil {
				return err
			}
		}
	}
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

// awaitEnd waits until a turn has ended in the store.
func (t *Turns) awaitEnd(ctx context.Context, at conversation, turnID string) error {
	ended := t.local.FollowStored(ctx, at.tenant, at.id, turnID, turn.Received{})
	_ = passOn(ended, func(*parleyv1.TurnEvent, error) bool { return true }) // The call reads the turn again.
	return context.Cause(ctx)
}

// forward yields the events of a call of another server. If the stream breaks, it continues from the store.
func (t *Turns) forward(ctx context.Context, at conversation, owner store.Owner, f followed, yield yield) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, err := t.client(ctx, owner.Server)
	if err != nil {
		return err
	}
	received, turnID := turn.ReceivedThrough(f.after), ""
	receive, err := f.open(outgoing(ctx, owner.Server), client, owner.TurnID)
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
	err = t.failure(ctx, owner.Server, err)
	if !errors.Is(err, ErrUnreachable) || turnID == "" {
		return err
	}
	rest := passOn(t.local.FollowStored(ctx, at.tenant, at.id, turnID, received), yield)
	if errors.As(rest, new(*turn.NotFoundError)) {
		return err // The turn waited in the queue of the other server, and has ended with it.
	}
	return rest
}
