package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// replicaOf starts a replica of an engine, and waits until the engine can send it writes.
func replicaOf(t *testing.T, engine *redistest.Server) *redistest.Server {
	t.Helper()
	host, port, err := net.SplitHostPort(engine.Addr())
	if err != nil {
		t.Fatal(err)
	}
	engine.Config("repl-diskless-sync-delay", "0")
	replica := redistest.Start(t, redistest.Setting("replicaof", host, port))
	awaitInfo(t, engine, "state=online")
	return replica
}

// awaitInfo waits until INFO replication of an engine has a text. The test fails after some time.
func awaitInfo(t *testing.T, engine *redistest.Server, text string) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	var info string
	for range 1500 {
		if info, _ = engine.Do("INFO", "replication"); strings.Contains(info, text) {
			return
		}
		<-ticker.C
	}
	t.Fatalf("INFO replication of %s has no %q:\n%s", engine.Addr(), text, info)
}

// unconfirmedWrites are writes that the engine makes while no replica answers. Each may be repeated.
func unconfirmedWrites() map[string]func(ctx context.Context, s store.Store, id string) error {
	const acme = "acme"
	hold := func(id string) *store.Hold {
		return &store.Hold{Tenant: acme, ConversationIDs: []string{id}, DeleteAfter: time.Hour}
	}
	return map[string]func(ctx context.Context, s store.Store, id string) error{
		"append": func(ctx context.Context, s store.Store, id string) error {
			a := &store.Append{Tenant: acme, ConversationID: id, Messages: message("two"), Request: requestOf(id)}
			return second(s.Append(ctx, a))
		},
		"create": func(ctx context.Context, s store.Store, id string) error {
			return second(s.Create(ctx, &store.Create{
				Tenant: acme, Conversation: &parleyv1.Conversation{Id: "new " + id}, Request: requestOf(id),
			}))
		},
		"update": func(ctx context.Context, s store.Store, id string) error {
			return second(s.Update(ctx, &store.Update{
				Tenant: acme, ConversationID: id, Values: &parleyv1.Conversation{Title: "new"}, Fields: []string{"title"},
			}))
		},
		"delete": func(ctx context.Context, s store.Store, id string) error {
			return s.Delete(ctx, &store.Delete{Tenant: acme, ConversationID: id})
		},
		"import": func(ctx context.Context, s store.Store, id string) error {
			now := timestamppb.Now()
			return second(s.Import(ctx, &store.Import{Tenant: acme, Overwrite: true, Conversation: &parleyv1.Conversation{
				Id: id, Version: 7, CreateTime: now, UpdateTime: now, LastAppendTime: now,
			}}))
		},
		"purge": func(ctx context.Context, s store.Store, id string) error {
			return second(s.Purge(ctx, &store.Purge{Tenant: "of " + id}))
		},
		"begin and end of a turn": func(ctx context.Context, s store.Store, id string) error {
			turn := &parleyv1.Turn{Id: "turn of " + id}
			_, err := s.Append(ctx, &store.Append{
				Tenant: acme, ConversationID: id, Messages: message("two"), Begin: turn, Request: requestOf(id),
			})
			if err == nil {
				_, err = s.Append(ctx, &store.Append{Tenant: acme, ConversationID: id, End: turn})
			}
			return err
		},
		"progress": func(ctx context.Context, s store.Store, id string) error {
			return s.SaveProgress(ctx, &store.Progress{Tenant: acme, ConversationID: id, TurnID: "turn"})
		},
		"records of the conversation": func(ctx context.Context, s store.Store, id string) error {
			return second(s.WriteRecords(ctx, &store.WriteRecords{
				Tenant: acme, ConversationID: id, Writes: []*parleyv1.RecordWrite{putRecord("k", "v")},
			}))
		},
		"records of the tenant": func(ctx context.Context, s store.Store, id string) error {
			return second(s.WriteRecords(ctx, &store.WriteRecords{
				Tenant: acme, Writes: []*parleyv1.RecordWrite{putRecord("k", "v")}, Request: requestOf(id),
			}))
		},
		"hold": func(ctx context.Context, s store.Store, id string) error { return s.Hold(ctx, hold(id)) },
		"release": func(ctx context.Context, s store.Store, id string) error {
			return s.Release(ctx, hold(id))
		},
	}
}

// TestUnconfirmed: with Options.Replicated, no write is acknowledged while no replica answers: neither the first
// attempt, nor a retry that finds the write made. Both are acknowledged when a replica answers. Reads may return the
// write before.
func TestUnconfirmed(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	replica := replicaOf(t, engine)
	o := Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 4, Replicated: true}
	o.Timeout = 3 * time.Second
	patient := openReplicated(t, o)
	o.Timeout = time.Second
	hasty := openReplicated(t, o)
	ctx := t.Context()
	writes := unconfirmedWrites()
	for name := range writes {
		appendTo(t, patient, name, "one")
		a := &store.Append{Tenant: "of " + name, ConversationID: name, Messages: message("one")}
		if name == "progress" {
			a.Tenant, a.Begin = "acme", &parleyv1.Turn{Id: "turn"}
		}
		if _, err := patient.Append(ctx, a); err != nil {
			t.Fatal(err)
		}
	}
	replica.Pause()
	for again := range 2 {
		var calls sync.WaitGroup
		for name, write := range writes {
			if name == "purge" && again > 0 {
				continue // It finds nothing to delete.
			}
			calls.Go(func() {
				if err := write(ctx, hasty, name); !isUnavailable(err) {
					t.Errorf("%s without a replica = %v, want ErrUnavailable", name, err)
				}
			})
		}
		calls.Wait()
	}
	if err := writes["append"](ctx, patient, "append"); !isUnavailable(err) ||
		!strings.Contains(err.Error(), "no replica has confirmed the write") {
		t.Errorf("append without a replica = %v, want that no replica has confirmed it", err)
	}
	wantTexts(t, patient, "append", "one", "two")
	replica.Resume()
	for name, write := range writes {
		err := write(ctx, patient, name)
		if name == "delete" && errors.Is(err, store.ErrNotFound) {
			err = nil // The first one has deleted it.
		}
		if err != nil {
			t.Errorf("%s with a replica = %v, want nil", name, err)
		}
	}
	wantTexts(t, patient, "append", "one", "two")
	if info, err := replica.Do("INFO", "replication"); err != nil || !strings.Contains(info, "master_link_status:up") {
		t.Errorf("INFO replication of the replica = %s, %v", info, err)
	}
}

// openReplicated opens a store that is closed at the end of the test.
func openReplicated(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestReplicatedNeedsReplica: a store whose writes no replica can confirm is not opened. If only some masters of a
// cluster have replicas, there is a warning that names the others.
func TestReplicatedNeedsReplica(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	o := Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 1, Replicated: true}
	wantOpen(t, o, "engine at "+engine.Addr(), "no replica is connected", "connect a replica, or use --durability local")
	replicaOf(t, engine)
	if warnings := wantOpen(t, o); len(warnings) > 0 {
		t.Errorf("warnings = %q, want none", warnings)
	}
	if testing.Short() {
		return
	}
	cluster := redistest.StartCluster(t, 2, 1)
	cluster.Nodes[2].Kill()
	awaitInfo(t, cluster.Nodes[0], "connected_slaves:0")
	o.Client = clientOf(t, cluster.URL(), Access{})
	want := "no replica, so that no write of its buckets is acknowledged: connect a replica at " + cluster.Nodes[0].Addr()
	if warnings := wantOpen(t, o); len(warnings) != 1 || warnings[0] != want {
		t.Errorf("warnings = %q, want %q", warnings, want)
	}
}

// TestConfirmedTogether: writes that wait for a replica do not wait for one another. They also end if there are more of
// them than allowed connections.
func TestConfirmedTogether(t *testing.T) {
	t.Parallel()
	const enough = maxConfirmed / 2
	engine := redistest.Start(t)
	replica := replicaOf(t, engine)
	s := openReplicated(t, Options{
		Client: clientOf(t, engine.URL(), Access{}), Buckets: 4, Replicated: true, Timeout: time.Minute,
	})
	blocked := func() (n int) {
		info, err := engine.Do("INFO", "clients")
		if err != nil {
			t.Fatal(err)
		}
		_, count, _ := strings.Cut(info, "blocked_clients:")
		_, _ = fmt.Sscan(count, &n)
		return n
	}
	appendTo(t, s, "first", "hello")
	replica.Pause()
	var calls sync.WaitGroup
	for i := range 2 * maxConfirmed {
		calls.Go(func() { appendTo(t, s, fmt.Sprint("c", i), "hello") })
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	most := 0
	for range 1000 {
		if most = max(most, blocked()); most > enough {
			break
		}
		<-ticker.C
	}
	replica.Resume()
	calls.Wait()
	if most <= enough || most > maxConfirmed {
		t.Errorf("%d writes waited at once, want more than %d and at most %d", most, enough, maxConfirmed)
	}
	for i := range 2 * maxConfirmed {
		wantTexts(t, s, fmt.Sprint("c", i), "hello")
	}
}
