package rpc

import (
	"context"
	"errors"
	"math"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog"
)

// errInteractionLogOff says that this server keeps no interaction log.
var errInteractionLogOff = errors.New("no interaction log")

// ListInteractions reads the lines of a day, of a recent span, or of a conversation, which
// may have ended long ago. One that was never there has none, like a day without lines.
func (s *Server) ListInteractions(ctx context.Context, r *parleyv1.ListInteractionsRequest) (*parleyv1.ListInteractionsResponse, error) {
	if s.interactions == nil {
		return nil, errInteractionLogOff
	}
	if _, err := time.Parse(time.DateOnly, r.GetDate()); err != nil && r.GetDate() != "" {
		faults := new(invalidError)
		faults.add("date", "%s is no day of the calendar", r.GetDate())
		return nil, faults
	}
	page, err := s.interactions.List(ctx, &interactionlog.List{
		Tenant: tenant(ctx), Date: r.GetDate(), Within: r.GetWithin().AsDuration(), ConversationID: r.GetConversationId(),
		PageSize: int(r.GetPageSize()), PageToken: r.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	return &parleyv1.ListInteractionsResponse{
		Interactions: page.Interactions, NextPageToken: page.NextPageToken, SkippedCount: skipped(page),
	}, nil
}

// SearchInteractions finds a text in the lines of the last days.
func (s *Server) SearchInteractions(ctx context.Context, r *parleyv1.SearchInteractionsRequest) (*parleyv1.SearchInteractionsResponse, error) {
	if s.interactions == nil {
		return nil, errInteractionLogOff
	}
	page, err := s.interactions.Search(ctx, &interactionlog.Search{
		Tenant: tenant(ctx), Query: r.GetQuery(), Days: int(r.GetDays()), ConversationID: r.GetConversationId(),
		PageSize: int(r.GetPageSize()), PageToken: r.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	return &parleyv1.SearchInteractionsResponse{
		Interactions: page.Interactions, NextPageToken: page.NextPageToken, SkippedCount: skipped(page),
	}, nil
}

// DeleteInteractions erases the lines of a conversation; none is no error.
func (s *Server) DeleteInteractions(ctx context.Context, r *parleyv1.DeleteInteractionsRequest) (*parleyv1.DeleteInteractionsResponse, error) {
	if s.interactions == nil {
		return nil, errInteractionLogOff
	}
	erased, err := s.interactions.Erase(ctx, tenant(ctx), r.GetConversationId())
	if err != nil {
		return nil, err
	}
	return &parleyv1.DeleteInteractionsResponse{DeletedCount: erased}, nil
}

// skipped is how many lines of a page could not be read, as replies have it.
func skipped(page *interactionlog.Page) int32 {
	return int32(min(page.Skipped, math.MaxInt32))
}
