package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// notFoundReason is the reason of calls that name a conversation that does not exist.
const notFoundReason = "CONVERSATION_NOT_FOUND"

// inNamed adds the conversation to an error, if the call names one.
func inNamed(id string, err error) error {
	if id == "" {
		return err
	}
	return inConversation(id, err)
}

// addEnding adds to the refusal of a call why and when the conversation ended, if that is known.
func (s *Server) addEnding(ctx context.Context, r refusal, err error) refusal {
	about := subjectOf(err)
	if r.reason != notFoundReason || about.id == "" {
		return r
	}
	ending, ok := s.endingOf(ctx, about.id)
	if !ok {
		return r
	}
	r.metadata = map[string]string{
		"ended": strings.TrimPrefix(ending.Kind.String(), "CHANGE_KIND_"), "at": endTime(ending),
	}
	if errors.Is(err, store.ErrNotFound) {
		r.text = fmt.Sprintf("%s does not exist: %s", about.name, endingText(ending))
	}
	if info, ok := r.detail.(*errdetails.ResourceInfo); ok {
		info.Description = r.text
	}
	return r
}

// endingOf returns how a conversation that was not found ended, and whether that is known. The hub receives an
// expiry when a sweep removes the conversation. Until then, the store returns it.
func (s *Server) endingOf(ctx context.Context, id string) (watch.Ending, bool) {
	of := calllog.Of(ctx).Tenant()
	if ending, ok := s.hub.Ended(of, id, s.now()); ok {
		return ending, true
	}
	_, err := s.store.Read(ctx, &store.Read{Tenant: of, ConversationID: id})
	if expired, ok := errors.AsType[*store.ExpiredError](err); ok {
		return watch.Ending{Kind: parleyv1.ChangeKind_CHANGE_KIND_EXPIRED, At: expired.At}, true
	}
	return watch.Ending{}, false
}

// endingText says how a conversation ended, as a clause whose subject is "it".
func endingText(ending watch.Ending) string {
	at := endTime(ending)
	switch ending.Kind {
	case parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
		return "it expired at " + at
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		return "it was evicted at " + at + " because its tenant was at its capacity"
	default:
		return "it was deleted at " + at
	}
}

func endTime(ending watch.Ending) string { return ending.At.UTC().Format(time.RFC3339) }

// turnNotFound returns the refusal of a call that names a turn that does not exist. With the
// conversation, the call would also find a turn of an earlier version of the server, whose id is a UUID of version 4.
func turnNotFound(e *turn.NotFoundError, about subject) refusal {
	r := refuse(codes.NotFound, "TURN_NOT_FOUND", "%s: %v", about.name, e)
	if about.id == "" {
		r.text = fmt.Sprintf("%v, or its conversation has ended", e)
		if id, err := uuid.Parse(e.TurnID); err == nil && id.Version() == 4 {
			r.text += "; set conversation_id to find a turn of an earlier version of the server"
		}
	}
	r.detail = &errdetails.ResourceInfo{
		ResourceType: "parley.v1.Turn", ResourceName: rules.Clip(e.TurnID, rules.MaxFieldBytes), Owner: about.id,
		Description: rules.Clip(r.text, rules.MaxFaultBytes),
	}
	return r
}
