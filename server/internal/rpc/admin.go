package rpc

import (
	"context"
	"runtime/metrics"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// ListAgents returns the configured agents.
func (s *Server) ListAgents(context.Context, *parleyv1.ListAgentsRequest) (*parleyv1.ListAgentsResponse, error) {
	return &parleyv1.ListAgentsResponse{Agents: s.agents.Infos()}, nil
}

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
	}, nil
}

// heapBytes returns the size of all heap objects that are live or not yet collected. Unlike
// runtime.ReadMemStats it does not stop the world.
func heapBytes() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
