package adk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/adk/v2/session"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// change is an event that is to be stored, and what it changes in the states.
type change struct {
	event *session.Event
	text  []byte // The event as JSON.
	delta stateDelta
}

// AppendEvent stores an event and the changes of the states that it has, in one commit, and adds both to the session.
// Like the framework's services, it ignores a partial event, and it cuts the time of the event to microseconds.
func (s *service) AppendEvent(ctx context.Context, to session.Session, event *session.Event) error {
	if to == nil {
		return errors.New("session is nil")
	}
	if event == nil {
		return errors.New("event is nil")
	}
	if event.Partial {
		return nil
	}
	of, ok := to.(*storedSession)
	if !ok {
		return fmt.Errorf("unexpected session type %T for session %q: use a session of Create or Get", to, to.ID())
	}
	event.Timestamp = event.Timestamp.Truncate(time.Microsecond)
	stored := withoutTemporary(event)
	text, err := encodeEvent(stored)
	if err != nil {
		return err
	}
	c := change{event: stored, text: text}
	if c.delta, err = split(event.Actions.StateDelta); err != nil {
		return fmt.Errorf("event %q: %w", event.ID, err)
	}
	of.appending.Lock()
	defer of.appending.Unlock()
	if err := s.commit(ctx, of, c); err != nil {
		return err
	}
	of.apply(stored, event.Actions.StateDelta)
	return nil
}

// withoutTemporary returns an event without the temporary keys of its state. It returns the event itself if it has
// none.
func withoutTemporary(event *session.Event) *session.Event {
	temporary := func(key string, _ any) bool { return strings.HasPrefix(key, session.KeyPrefixTemp) }
	kept := maps.Clone(event.Actions.StateDelta)
	maps.DeleteFunc(kept, temporary)
	if len(kept) == len(event.Actions.StateDelta) {
		return event
	}
	stored := *event
	stored.Actions.StateDelta = kept
	return &stored
}

// commit stores a change. If the state of the app or of the user is no longer what the session read, commit reads it
// and tries again, so that no writer loses a key. If the session has another event, commit fails.
func (s *service) commit(ctx context.Context, of *storedSession, c change) error {
	for large := false; ; {
		next, request, err := newRequest(of, c, large)
		if err != nil {
			return fmt.Errorf("event %q: %w", c.event.ID, err)
		}
		if err := s.stage(ctx, request); err != nil {
			return notFound(of.key, err)
		}
		reply, err := s.client.AppendMessages(ctx, request)
		if mismatch, ok := client.RevisionMismatch(err); ok {
			if !mismatch.TenantScope {
				return fmt.Errorf("session %q: %w: %w", of.key.id, ErrStaleSession, err)
			}
			if of.stored.app, of.stored.user, err = s.readTenant(ctx, of.key); err != nil {
				return err
			}
			continue
		}
		if client.Reason(err) == "MESSAGE_TOO_LARGE" && !large {
			large = true // The limit of this server is lower than the default.
			continue
		}
		if err != nil {
			return notFound(of.key, err)
		}
		revision, err := s.revisionAfter(ctx, of.key, next, reply)
		if err != nil {
			return err
		}
		of.stored = next.committed(c.delta, revision, reply.GetTenantRevision())
		return nil
	}
}

// newRequest returns the request of a change, and the states after it.
func newRequest(of *storedSession, c change, large bool) (states, *parleyv1.AppendMessagesRequest, error) {
	header := of.stored.header
	header.Updated, header.Events = epochSeconds(c.event.Timestamp), header.Events+1
	next, writes, err := of.stored.after(c.delta, header)
	if err != nil {
		return states{}, nil, err
	}
	messages, parts, err := withEvent(c.event, c.text, header.Events, large)
	if err != nil {
		return states{}, nil, err
	}
	request := &parleyv1.AppendMessagesRequest{
		ConversationId: of.key.conversation, MustExist: true, Messages: messages, Records: append(writes, parts...),
	}
	// A caller that repeats a call after a lost connection repeats the request, which the server executes once. Another
	// copy of the session has other ids: its call is refused, even for the same event.
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return states{}, nil, err
	}
	digest := sha256.Sum256(append([]byte(of.copied), encoded...))
	request.RequestId = "adk-" + hex.EncodeToString(digest[:])
	return next, request, nil
}

// stage writes the parts of an event before the request if they make it too large. No reader sees them before there is
// the message that names them.
func (s *service) stage(ctx context.Context, request *parleyv1.AppendMessagesRequest) error {
	if proto.Size(request) <= maxRequest {
		return nil
	}
	isPart := func(w *parleyv1.RecordWrite) bool { return strings.HasPrefix(w.GetKey(), eventKey) }
	for _, w := range request.GetRecords() {
		if !isPart(w) {
			continue
		}
		if _, err := s.client.Records(request.GetConversationId()).Put(ctx, w); err != nil {
			return err
		}
	}
	request.Records = slices.DeleteFunc(request.GetRecords(), isPart)
	return nil
}

// revisionAfter returns the revision of the header after an append. If the server had executed the request before, its
// reply has the present version, which may be that of a later append of others: then the revision is 0, so that the
// next append is refused.
func (s *service) revisionAfter(
	ctx context.Context, key identity, next states, reply *parleyv1.AppendMessagesResponse,
) (int64, error) {
	if !reply.GetReplayed() {
		return int64(reply.GetConversation().GetVersion()), nil
	}
	now, err := s.readRecords(ctx, key.conversation)
	if err != nil {
		return 0, notFound(key, err)
	}
	if now.nonce != next.nonce || now.header.Events != next.header.Events {
		return 0, nil // A record that exists never has this revision.
	}
	return now.revision, nil
}
