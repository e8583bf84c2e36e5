package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

func isUnavailable(err error) bool { return errors.Is(err, store.ErrUnavailable) }

// TestOutage: while the engine is killed or paused, every call ends with ErrUnavailable. Afterwards all calls work, and
// nothing is lost.
func TestOutage(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Setting("appendfsync", "always"))
	s, err := Open(t.Context(), Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 4})
	if err != nil {
		t.Fatalf("Open = %v, want nil", err)
	}
	defer s.Close()
	if err := create(t.Context(), s, "before"); err != nil {
		t.Fatalf("Create = %v, want nil", err)
	}
	for name, stop := range map[string]func(){"killed": engine.Kill, "paused": engine.Pause} {
		stop()
		for call, err := range map[string]error{
			"Read": read(t.Context(), s, "before"), "Create": create(t.Context(), s, "during "+name),
			"Ping": s.Ping(t.Context()), "Stats": second(s.Stats(t.Context())), "Sweep": second(s.Sweep(t.Context(), 10)),
		} {
			if !isUnavailable(err) {
				t.Errorf("%s, engine %s = %v, want ErrUnavailable", call, name, err)
			}
		}
		engine.Restart()
		for call, err := range map[string]error{
			"Ping": s.Ping(t.Context()), "Read": read(t.Context(), s, "before"),
			"Create": create(t.Context(), s, "after "+name),
		} {
			if err != nil {
				t.Errorf("%s, engine %s and started again = %v, want nil", call, name, err)
			}
		}
	}
}

// TestOutageOfWrites: an engine that refuses to write until it is repaired, here because it has no replica, is
// unavailable for writes only, and a write that waits for it succeeds.
func TestOutageOfWrites(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	s, err := Open(t.Context(), Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 1})
	if err != nil {
		t.Fatalf("Open = %v, want nil", err)
	}
	defer s.Close()
	engine.Config("min-replicas-to-write", "1")
	began := time.Now()
	if err := create(t.Context(), s, "a"); !isUnavailable(err) {
		t.Errorf("Create = %v, want ErrUnavailable", err)
	}
	if took := time.Since(began); took < defaultTimeout-maxPause {
		t.Errorf("Create was given up after %v, want %v", took, defaultTimeout)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping = %v, want nil", err)
	}
	done := make(chan error)
	go func() { done <- create(t.Context(), s, "b") }()
	engine.Config("min-replicas-to-write", "0")
	if err := <-done; err != nil {
		t.Errorf("Create = %v, want nil", err)
	}
}

func TestFault(t *testing.T) {
	s := new(Store)
	for _, test := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		{context.DeadlineExceeded, true},
		{rueidis.ErrClosing, true},
		{rueidis.ErrNoAddr, true},
		{context.Canceled, false},
		{errors.New("other"), false},
		{nil, false},
	} {
		if err := s.fault(test.err); isUnavailable(err) != test.want || !errors.Is(err, test.err) {
			t.Errorf("fault(%v) = %v, want ErrUnavailable: %t", test.err, err, test.want)
		}
	}
	for reply, want := range map[string]bool{
		"LOADING Redis is loading the dataset in memory": true, "CLUSTERDOWN Hash slot not served": true,
		"READONLY You can't write": true, "NOREPLICAS Not enough good replicas to write.": true,
		"WRONGTYPE Operation": false, "ERR LOADING": false, "NOPERM": false,
	} {
		if isOutage(reply) != want {
			t.Errorf("isOutage(%q) = %t, want %t", reply, !want, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func create(ctx context.Context, s *Store, id string) error {
	return second(s.Create(ctx, &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: id}}))
}

func read(ctx context.Context, s *Store, id string) error {
	_, err := s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: id})
	if err != nil {
		return fmt.Errorf("read %q: %w", id, err)
	}
	return nil
}

// TestConnectionsCut: reads during which the engine ends the connections succeed, since they are sent again. The race
// detector reports it if the memory of a command is reused before the driver has given up writing it.
func TestConnectionsCut(t *testing.T) {
	t.Parallel()
	const readers, cuts = 16, 40
	engine := redistest.Start(t)
	s, err := Open(t.Context(), Options{Client: clientOf(t, engine.URL(), Access{}), Buckets: 4})
	if err != nil {
		t.Fatalf("Open = %v, want nil", err)
	}
	defer s.Close()
	if err := create(t.Context(), s, "c"); err != nil {
		t.Fatalf("Create = %v, want nil", err)
	}
	var reading sync.WaitGroup
	var reads atomic.Int64
	var stopped atomic.Bool
	for range readers {
		reading.Go(func() {
			for !stopped.Load() {
				if err := read(t.Context(), s, "c"); err != nil {
					t.Errorf("Read = %v, want nil", err)
					return
				}
				reads.Add(1)
			}
		})
	}
	for range cuts {
		for next := reads.Load() + readers; reads.Load() < next && !t.Failed(); {
			runtime.Gosched()
		}
		if _, err := engine.Do("CLIENT", "KILL", "TYPE", "pubsub"); err != nil {
			t.Error(err)
		}
	}
	stopped.Store(true)
	reading.Wait()
}
