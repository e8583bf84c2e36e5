package rpc

import (
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/transfer"
)

type (
	// exportStream is the server's end of an ExportConversations call.
	exportStream = grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]
	// importStream is the server's end of an ImportConversations call.
	importStream = grpc.ClientStreamingServer[
		parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse,
	]
)

// ExportConversations streams complete conversations.
func (s *Server) ExportConversations(r *parleyv1.ExportConversationsRequest, stream exportStream) error {
	ctx := stream.Context()
	exported, err := transfer.Export(ctx, s.store, s.largeExports, tenant(ctx), r, stream.Send)
	s.log.InfoContext(ctx, "exported", "tenant", tenant(ctx), "conversations", exported.Conversations,
		"messages", exported.Messages, "records", exported.Records, "damaged", exported.Damaged, "complete", err == nil)
	return transferError(err)
}

// ImportConversations stores complete conversations.
func (s *Server) ImportConversations(stream importStream) error {
	ctx := stream.Context()
	release, err := s.limits.Import(tenant(ctx))
	if err != nil {
		return err
	}
	defer release()
	imported, err := s.importer.Import(ctx, tenant(ctx), stream.Recv)
	if errors.Is(err, transfer.ErrTooManyImports) {
		return err
	}
	s.log.InfoContext(ctx, "imported", "tenant", tenant(ctx), "conversations", imported.Reply.GetImportedCount(),
		"skipped", imported.Reply.GetSkippedCount(), "failed", imported.Failed, "complete", err == nil)
	if err != nil {
		return transferError(err)
	}
	return stream.SendAndClose(imported.Reply)
}

// transferError adds the conversation that an error of package transfer is about.
func transferError(err error) error {
	if e, ok := errors.AsType[*transfer.ConversationError](err); ok {
		// The error that ended the stream has a status of its own.
		if ended, ok := errors.AsType[interface {
			error
			GRPCStatus() *status.Status
		}](e); ok {
			if connectionEnded(ended.GRPCStatus()) {
				return ended
			}
			return status.Convert(err).Err()
		}
		return inConversation(e.ID, e.Err)
	}
	return err
}
