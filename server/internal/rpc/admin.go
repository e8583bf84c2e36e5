package rpc

import (
	"context"
	"errors"
	"io"
	"math"
	"runtime/metrics"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/store"
)

// ListAgents returns the configured agents.
func (s *Server) ListAgents(context.Context, *parleyv1.ListAgentsRequest) (*parleyv1.ListAgentsResponse, error) {
	return &parleyv1.ListAgentsResponse{Agents: s.Agents()}, nil
}

// Agents returns the configured agents, for callers in the same process.
func (s *Server) Agents() []*parleyv1.AgentInfo { return s.agents.Infos() }

// GetStats returns counts and sizes of the service. A caller that is bound to one tenant, or names one, gets the
// counts of that tenant only.
func (s *Server) GetStats(ctx context.Context, _ *parleyv1.GetStatsRequest) (*parleyv1.GetStatsResponse, error) {
	if p := principal(ctx); !p.AllTenants || p.Tenant != "" && s.auth.Required() {
		return s.tenantStats(ctx, p.Tenant)
	}
	stats, err := s.store.Stats(ctx)
	if err != nil {
		return nil, err
	}
	return &parleyv1.GetStatsResponse{
		Version: s.version, Store: s.storeName, StartTime: timestamppb.New(s.startTime),
		ConversationCount: stats.Conversations, MessageCount: stats.Messages, DataBytes: stats.Bytes,
		MemoryBytes: heapBytes() - int64(s.ballastBytes), FileBytes: stats.FileBytes, FileBytesInUse: stats.FileBytesInUse,
		ActiveTurnCount: int32(s.turns.Running()), WatcherCount: int32(s.hub.Watchers()),
		ExpiredTotal: stats.Expired, EvictedTotal: stats.Evicted,
		LostInteractionTotal: s.lostInteractions(), DataLossTotal: stats.Corrupt,
		RecordCount: stats.Records, RecordBytes: stats.RecordBytes,
	}, nil
}

// lostInteractions returns the number of entries that the interaction log could not write; 0 if it is off.
func (s *Server) lostInteractions() int64 {
	if s.interactions == nil {
		return 0
	}
	return s.interactions.Lost()
}

// tenantStats returns the counts of a tenant. The fields that describe the whole server are 0.
func (s *Server) tenantStats(ctx context.Context, tenant string) (*parleyv1.GetStatsResponse, error) {
	stats, err := s.store.TenantStats(ctx, tenant)
	if err != nil {
		return nil, err
	}
	return &parleyv1.GetStatsResponse{
		Version: s.version, Store: s.storeName, StartTime: timestamppb.New(s.startTime),
		ConversationCount: stats.Conversations, MessageCount: stats.Messages, DataBytes: stats.Bytes,
		ActiveTurnCount: int32(s.turns.RunningOf(tenant)), WatcherCount: int32(s.hub.TenantWatchers(tenant)),
		RecordCount: stats.Records, RecordBytes: stats.RecordBytes,
	}, nil
}

// heapBytes returns the size of all heap objects that are live or not yet collected. Unlike
// runtime.ReadMemStats it does not stop the world.
func heapBytes() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// backupChunk is the number of bytes of a backup in a response. The last response may have fewer.
const backupChunk = 256 << 10

// errBackupUnsupported means that the server's store does not support backups.
var errBackupUnsupported = errors.New("the store does not support backups")

// backupStream is the server's end of a BackupStore call.
type backupStream = grpc.ServerStreamingServer[parleyv1.BackupStoreResponse]

// BackupStore streams a copy of the store with all tenants. The server makes the copy before it sends
// the first response. So a client that reads slowly occupies disk space, but blocks nothing else.
func (s *Server) BackupStore(_ *parleyv1.BackupStoreRequest, stream backupStream) error {
	if s.backuper == nil {
		return errBackupUnsupported
	}
	ctx, start := stream.Context(), s.now()
	backup, err := s.backuper.Backup(ctx)
	if err != nil {
		return err
	}
	copied := s.now()
	sent, err := s.sendBackup(backup, stream, start)
	log := s.log.With("bytes", backup.Size, "sent", sent,
		"copying", copied.Sub(start).String(), "sending", s.now().Sub(copied).String())
	if err != nil {
		log.InfoContext(ctx, "backup aborted")
		return err
	}
	log.InfoContext(ctx, "backup sent")
	return nil
}

// sendBackup sends a copy of the store that was begun at an instant, and closes it. It returns the number of bytes
// sent.
func (s *Server) sendBackup(backup *store.Backup, stream backupStream, began time.Time) (sent int64, err error) {
	defer func() {
		if closeErr := backup.Close(); err == nil { // An error of the stream has priority.
			err = closeErr
		}
	}()
	for size := backup.Size; sent < backup.Size; size = 0 {
		// Each chunk needs its own memory, because gRPC may read it after Send returns.
		chunk := make([]byte, min(backupChunk, backup.Size-sent))
		if _, err := io.ReadFull(backup, chunk); err != nil {
			return sent, err
		}
		if err := stream.Send(&parleyv1.BackupStoreResponse{Chunk: chunk, SizeBytes: size}); err != nil {
			return sent, err
		}
		sent += int64(len(chunk))
	}
	s.monitor.BackupSent(began)
	return sent, nil
}

// ListInteractions returns the log entries of a day, of a recent time span, or of a conversation. The
// conversation may be deleted or expired. A conversation or day without entries is not an error.
func (s *Server) ListInteractions(
	ctx context.Context, r *parleyv1.ListInteractionsRequest,
) (*parleyv1.ListInteractionsResponse, error) {
	if s.interactions == nil {
		return nil, interactionlog.ErrOff
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
		Unreachable: page.Unreachable,
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
		return nil, interactionlog.ErrOff
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
		Unreachable: page.Unreachable,
	}, nil
}

// DeleteInteractions erases the log entries of a conversation. A conversation without entries is not
// an error.
func (s *Server) DeleteInteractions(
	ctx context.Context, r *parleyv1.DeleteInteractionsRequest,
) (*parleyv1.DeleteInteractionsResponse, error) {
	if s.interactions == nil {
		return nil, interactionlog.ErrOff
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
