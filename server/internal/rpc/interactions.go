package rpc

import (
	"context"
	"errors"
	"math"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog"
)

// errInteractionLogOff means that the server was started without an interaction log.
var errInteractionLogOff = errors.New("the interaction log is off")

// ListInteractions returns the log entries of a day, of a recent time span, or of a conversation. The
// conversation may be deleted or expired. A conversation or day without entries is not an error.
func (s *Server) ListInteractions(
	ctx context.Context, r *parleyv1.ListInteractionsRequest,
) (*parleyv1.ListInteractionsResponse, error) {
	if s.interactions == nil {
		return nil, errInteractionLogOff
	}
	list, err := listOf(tenant(ctx), r)
	if err != nil {
		return nil, err
	}
	page, err := s.interactions.List(ctx, list)
	if err != nil {
		return nil, err
	}
	return &parleyv1.ListInteractionsResponse{
		Interactions: page.Interactions, NextPageToken: page.NextPageToken, SkippedCount: skipped(page),
	}, nil
}

// listOf returns the query of a request. It returns an error if the date is not a day of the calendar, for
// example 2026-02-30. An empty date is valid.
func listOf(tenant string, r *parleyv1.ListInteractionsRequest) (*interactionlog.List, error) {
	if _, err := time.Parse(time.DateOnly, r.GetDate()); err != nil && r.GetDate() != "" {
		faults := new(invalidError)
		faults.add("date", "%s is not a day of the calendar", r.GetDate())
		return nil, faults
	}
	return &interactionlog.List{
		Tenant: tenant, Date: r.GetDate(), Within: r.GetWithin().AsDuration(), ConversationID: r.GetConversationId(),
		PageSize: int(r.GetPageSize()), PageToken: r.GetPageToken(),
	}, nil
}

// SearchInteractions returns the log entries of the last days that contain a text.
func (s *Server) SearchInteractions(
	ctx context.Context, r *parleyv1.SearchInteractionsRequest,
) (*parleyv1.SearchInteractionsResponse, error) {
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

// DeleteInteractions erases the log entries of a conversation. A conversation without entries is not
// an error.
func (s *Server) DeleteInteractions(
	ctx context.Context, r *parleyv1.DeleteInteractionsRequest,
) (*parleyv1.DeleteInteractionsResponse, error) {
	if s.interactions == nil {
		return nil, errInteractionLogOff
	}
	erased, err := s.interactions.Erase(ctx, tenant(ctx), r.GetConversationId())
	if err != nil {
		return nil, err
	}
	return &parleyv1.DeleteInteractionsResponse{DeletedCount: erased}, nil
}

// skipped returns the number of unreadable entries of a page as the type of the reply's field.
func skipped(page *interactionlog.Page) int32 {
	return int32(min(page.Skipped, math.MaxInt32))
}
