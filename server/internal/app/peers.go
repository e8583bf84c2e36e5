package app

import (
	"context"
	"crypto/tls"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/peer"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/store"
)

// allTurns returns the turns of all servers on the store, and this server as the others call it. If no other server may
// use the store, they are the turns of this server, and the zero value.
func (s *server) allTurns(ctx context.Context, c *config.Config) (rpc.Turns, store.Server, error) {
	shared, ok := s.storage.Store.(store.Shared)
	if !ok || c.Peers.AdvertiseAddress == "" {
		return s.turns, store.Server{}, nil
	}
	security, err := c.TLSToPeers(func() *tls.Certificate { return s.transports.Certificate() })
	if err != nil {
		return nil, store.Server{}, settingsError("peer-ca-file", err)
	}
	s.peers = peer.New(context.WithoutCancel(ctx), peer.Options{
		Local: s.turns, Shared: shared, Hub: s.hub, TLS: security, Log: s.log,
	})
	return s.peers, shared.Self(), nil
}

// allInteractions returns the interaction logs of all servers on the store. If no other server may use the store, it
// returns the log of this server, or nil if that log is off.
func (s *server) allInteractions() rpc.Interactions {
	switch {
	case s.peers != nil:
		return s.peers.Interactions(s.storage.interactions)
	case s.storage.interactions != nil:
		return s.storage.interactions
	}
	return nil
}

// owner returns the running turn of a conversation and its server. It is the zero value if the store cannot have
// several servers.
func (s *server) owner(ctx context.Context, tenant, conversationID string) (store.Owner, error) {
	if shared, ok := s.storage.Store.(store.Shared); ok {
		return shared.Owner(ctx, tenant, conversationID)
	}
	return store.Owner{}, nil
}
