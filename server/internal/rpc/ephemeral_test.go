package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// holdStore counts holds, releases and reads, and can fail holds and releases.
type holdStore struct {
	store.Store
	held, released atomic.Int32
	reads          atomic.Int32
	hold, release  func(n int32) error // returns the error of the n-th call; if nil, calls succeed
}

func (s *holdStore) Hold(ctx context.Context, h *store.Hold) error {
	if n := s.held.Add(1); s.hold != nil {
		if err := s.hold(n); err != nil {
			return err
		}
	}
	return s.Store.Hold(ctx, h)
}

func (s *holdStore) Release(ctx context.Context, h *store.Hold) error {
	if n := s.released.Add(1); s.release != nil {
		if err := s.release(n); err != nil {
			return err
		}
	}
	return s.Store.Release(ctx, h)
}

func (s *holdStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	s.reads.Add(1)
	return s.Store.Read(ctx, r)
}

func openHoldStore(t *testing.T) (*fixture, *holdStore) {
	t.Helper()
	h := new(holdStore)
	f := open(t, func(s *setup) {
		s.storeOptions.TTL = 5 * time.Second
		s.wrap = func(inner store.Store) store.Store {
			h.Store = inner
			return h
		}
	})
	return f, h
}

// ephemeral returns a request that watches a conversation and makes it ephemeral.
func ephemeral(id string, deleteAfter time.Duration) *parleyv1.WatchConversationsRequest {
	return &parleyv1.WatchConversationsRequest{
		ConversationIds:       []string{id},
		DeleteAfterDisconnect: durationpb.New(deleteAfter),
	}
}

// TestEphemeralConversation checks that an ephemeral conversation exists as long as its stream and the
// time after it, and not longer.
func TestEphemeralConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := openHoldStore(t)
		wantExists := func(want bool) {
			t.Helper()
			synctest.Wait()
			_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c"})
			if got := statusOf(err).code != codes.NotFound; got != want {
				t.Errorf("at %s the conversation exists: %t, want %t", time.Now().Format(time.TimeOnly), got, want)
			}
		}
		w := f.watch(t, t.Context(), ephemeral("c", time.Minute))
		f.append(t, "c", user("hello"))
		<-time.After(time.Hour)
		wantExists(true)
		w.disconnect()
		<-time.After(time.Minute - time.Nanosecond)
		wantExists(true)
		second := f.watch(t, t.Context(), ephemeral("c", time.Minute))
		<-time.After(time.Hour)
		wantExists(true)
		other := f.watch(t, t.Context(), ephemeral("c", 0))
		other.disconnect() // The second stream still holds the conversation.
		wantExists(true)
		second.disconnect()
		<-time.After(time.Minute - time.Nanosecond)
		wantExists(true)
		<-time.After(time.Nanosecond)
		wantExists(false)
		// A new conversation with the id is not ephemeral.
		f.append(t, "c", user("hello"))
		wantExists(true)
		<-time.After(5 * time.Second)
		wantExists(false)
	})
}

// TestReconnect checks that a client that reconnects before the end of delete_after_disconnect finds its
// history, and finds none at the end of it.
func TestReconnect(t *testing.T) {
	const deleteAfter = 5 * time.Second
	for _, test := range []struct {
		away time.Duration
		want bool
	}{{2 * time.Second, true}, {deleteAfter - time.Nanosecond, true}, {deleteAfter, false}} {
		t.Run(test.away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, _ := openHoldStore(t)
				w := f.watch(t, t.Context(), ephemeral("c", deleteAfter))
				f.append(t, "c", user("my name is Ada"))
				w.disconnect()
				synctest.Wait()
				<-time.After(test.away)
				f.watch(t, t.Context(), ephemeral("c", deleteAfter))
				<-time.After(time.Hour)
				reply, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"})
				if err != nil {
					t.Fatal(err)
				}
				if found := len(reply.GetMessages()) == 1; found != test.want || reply.GetCreated() == test.want {
					t.Errorf("LoadConversation = %v, want the history: %t", reply, test.want)
				}
			})
		})
	}
}

// TestPendingReleases checks that releases that the store rejects neither flood the log nor count as
// watchers.
func TestPendingReleases(t *testing.T) {
	for level, err := range map[string]error{"WARN": store.ErrOverloaded, "ERROR": store.ErrNoSpace} {
		synctest.Test(t, func(t *testing.T) {
			f, h := openHoldStore(t)
			h.release = func(int32) error { return fmt.Errorf("release: %w", err) }
			f.watch(t, t.Context(), ephemeral("c", 0)).disconnect()
			synctest.Wait()
			if n := f.hub.Watchers(); n != 0 {
				t.Errorf("%s: Watchers = %d, want 0", level, n)
			}
			<-time.After(2 * time.Minute)
			if n := h.released.Load(); n < 12 || n > 16 {
				t.Errorf("%s: %d releases in two minutes, want 12 to 16", level, n)
			}
			const message = "ephemeral conversations not released"
			if lines := f.log.lines(message); len(lines) != 1 || !strings.Contains(lines[0], "level="+level) {
				t.Errorf("got log lines %v, want one with level %s", lines, level)
			}
			<-time.After(8 * time.Minute)
			if n := len(f.log.lines(message)); n != 3 {
				t.Errorf("%s: %d log lines in ten minutes, want 3", level, n)
			}
		})
	}
}

// TestReleaseRetries checks that the server retries a release until the store accepts it or has failed
// permanently.
func TestReleaseRetries(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int32
	}{{store.ErrOverloaded, 4}, {store.ErrNoSpace, 4}, {errors.New("unknown error"), 4}, {store.ErrFailed, 1}, {store.ErrClosed, 1}} {
		synctest.Test(t, func(t *testing.T) {
			f, h := openHoldStore(t)
			h.release = func(n int32) error {
				if n < 4 {
					return fmt.Errorf("release: %w", test.err)
				}
				return nil
			}
			w := f.watch(t, t.Context(), ephemeral("c", 0))
			w.disconnect()
			<-time.After(time.Minute)
			if n := h.released.Load(); n != test.want {
				t.Errorf("%v: %d releases, want %d", test.err, n, test.want)
			}
			if n := f.hub.Watchers(); n != 0 {
				t.Errorf("%v: Watchers = %d, want 0", test.err, n)
			}
		})
	}
}

// TestNoReleaseAtStop checks that a stop of the server releases nothing. The next start releases the
// holds, and delete_after_disconnect counts from there.
func TestNoReleaseAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := openHoldStore(t)
		open := f.watch(t, t.Context(), ephemeral("c", 0))
		h.release = func(int32) error { return store.ErrOverloaded }
		f.watch(t, t.Context(), ephemeral("d", 0)).disconnect()
		synctest.Wait()
		f.server.Stop()
		for {
			if err := open.next(); err != nil {
				wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")
				break
			}
		}
		synctest.Wait()
		if n := h.released.Load(); n != 1 {
			t.Errorf("%d releases, want 1 of the stream that ended before the stop", n)
		}
	})
}

// TestHoldFailure checks that a watch ends before the first heartbeat if the hold fails, and that it
// releases nothing.
func TestHoldFailure(t *testing.T) {
	f, h := openHoldStore(t)
	h.hold = func(int32) error { return store.ErrTooManyHolds }
	_, err := f.tryWatch(t.Context(), ephemeral("c", 0))
	if got := wantError(t, err, codes.ResourceExhausted, "SESSION_MEMORY_FULL"); got.retry != 0 {
		t.Error("the error has RetryInfo, want none: the limit may last")
	}
	h.hold = nil
	f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{ConversationIds: []string{"c"}})
	if held, released := h.held.Load(), h.released.Load(); held != 1 || released != 0 {
		t.Errorf("%d holds and %d releases, want 1 and 0", held, released)
	}
}

// TestWaitForEphemeralConversation checks that a call that waits for a change of an ephemeral
// conversation does not poll after its expire_time.
func TestWaitForEphemeralConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := openHoldStore(t)
		f.watch(t, t.Context(), ephemeral("c", 0))
		f.append(t, "c", user("hello"))
		<-time.After(4900 * time.Millisecond)
		before := h.reads.Load()
		reply, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c", KnownVersion: proto.Int32(1), WaitTimeout: durationpb.New(time.Minute),
		})
		if err != nil || !reply.GetNotModified() {
			t.Errorf("GetRoutingSummary = %v, %v, want not_modified", reply, err)
		}
		if n := h.reads.Load() - before; n > 3 {
			t.Errorf("%d reads in one minute without changes, want at most 3", n)
		}
	})
}
