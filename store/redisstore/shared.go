package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/parleyhq/parley/store"
)

// exclusiveKey is in place of the key of a server that is the only one.
const exclusiveKey = "-"

// entry returns the value of this server in the hash of addresses.
func (s *Store) entry() string { return s.self.Key + " " + s.self.Address }

// parseServer is the reverse of entry. A server that cannot be called has neither address nor key.
func parseServer(entry string) store.Server {
	key, address, _ := strings.Cut(entry, " ")
	if key == exclusiveKey || address == "" {
		return store.Server{}
	}
	return store.Server{Address: address, Key: key}
}

// Self implements store.Shared.
func (s *Store) Self() store.Server { return s.self }

// Owner implements store.Shared.
func (s *Store) Owner(ctx context.Context, tenant, conversationID string) (store.Owner, error) {
	if err := s.enter(ctx); err != nil {
		return store.Owner{}, err
	}
	defer s.leave()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	p := s.spaceOf(tenant, conversationID)
	replies := s.client.DoMulti(ctx, s.client.B().Hget().Key(p.prefix+"rt").Field(p.name+conversationID).Build(),
		s.client.B().Hgetall().Key(p.prefix+"la").Build())
	running, err := replies[0].ToString()
	switch {
	case isNil(err):
		return store.Owner{}, nil
	case err != nil:
		return store.Owner{}, s.fault(err)
	case len(running) < runningHead:
		return store.Owner{}, nil
	}
	entries, err := replies[1].AsStrMap()
	if err != nil {
		return store.Owner{}, s.fault(err)
	}
	server, owner := running[:serverSize], store.Owner{TurnID: running[runningHead:]}
	if server == s.server { // Also after its lease has ended: as long as the turn is in the store, this process runs it.
		owner.Server = s.self
		return owner, nil
	}
	live, err := s.leases(ctx, p.bucket)
	if err != nil {
		return store.Owner{}, err
	}
	if live[server] {
		owner.Server = parseServer(entries[server])
	}
	return owner, nil
}

// Peers implements store.Shared. Each bucket has the leases of all servers: it asks the first that answers.
func (s *Store) Peers(ctx context.Context) ([]store.Server, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var last error
	for _, b := range s.buckets {
		peers, err := s.peersOf(ctx, b)
		if err == nil || !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return peers, err
		}
		last = err
	}
	return nil, last
}

// peersOf returns the other servers that have a lease in a bucket.
func (s *Store) peersOf(ctx context.Context, b bucket) ([]store.Server, error) {
	live, err := s.leases(ctx, b)
	if err != nil {
		return nil, err
	}
	entries, err := s.client.Do(ctx, s.client.B().Hgetall().Key(b.prefix+"la").Build()).AsStrMap()
	if err != nil {
		return nil, s.fault(err)
	}
	var peers []store.Server
	for server, entry := range entries {
		if peer := parseServer(entry); server != s.server && live[server] && peer.Address != "" {
			peers = append(peers, peer)
		}
	}
	slices.SortFunc(peers, func(a, b store.Server) int { return cmp.Compare(a.Address, b.Address) })
	return peers, nil
}
