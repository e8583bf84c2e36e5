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

// holding is a store whose session memory a test looks into.
type holding struct {
	store.Store
	held, released atomic.Int32
	reads          atomic.Int32
	hold, release  func(n int32) error // of the n-th call; nil: all go well
}

func (s *holding) Hold(ctx context.Context, h *store.Hold) error {
	if n := s.held.Add(1); s.hold != nil {
		if err := s.hold(n); err != nil {
			return err
		}
	}
	return s.Store.Hold(ctx, h)
}

func (s *holding) Release(ctx context.Context, h *store.Hold) error {
	if n := s.released.Add(1); s.release != nil {
		if err := s.release(n); err != nil {
			return err
		}
	}
	return s.Store.Release(ctx, h)
}

func (s *holding) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	s.reads.Add(1)
	return s.Store.Read(ctx, r)
}

func openHolding(t *testing.T) (*fixture, *holding) {
	t.Helper()
	h := new(holding)
	f := open(t, func(s *setup) {
		s.stored.TTL = 5 * time.Second
		s.wrap = func(inner store.Store) store.Store {
			h.Store = inner
			return h
		}
	})
	return f, h
}

// session watches a conversation as session memory.
func session(id string, deleteAfter time.Duration) *parleyv1.WatchConversationsRequest {
	return &parleyv1.WatchConversationsRequest{ConversationIds: []string{id}, DeleteAfterDisconnect: durationpb.New(deleteAfter)}
}

// A conversation lives as long as its stream and the time after it, no more and no less.
func TestSessionMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := openHolding(t)
		there := func(want bool) {
			t.Helper()
			synctest.Wait()
			_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c"})
			if got := toldBy(err).code != codes.NotFound; got != want {
				t.Errorf("at %s the conversation is there: %t, want %t", time.Now().Format(time.TimeOnly), got, want)
			}
		}
		w := f.watch(t, t.Context(), session("c", time.Minute))
		f.append(t, "c", user("hello"))
		<-time.After(time.Hour)
		there(true)
		w.leave()
		<-time.After(time.Minute - time.Nanosecond)
		there(true)
		back := f.watch(t, t.Context(), session("c", time.Minute))
		<-time.After(time.Hour)
		there(true)
		other := f.watch(t, t.Context(), session("c", 0))
		other.leave() // Not the last one.
		there(true)
		back.leave()
		<-time.After(time.Minute - time.Nanosecond)
		there(true)
		<-time.After(time.Nanosecond)
		there(false)
		// The id is like any other by then.
		f.append(t, "c", user("hello"))
		there(true)
		<-time.After(5 * time.Second)
		there(false)
	})
}

// With 5 s a client that comes back after 2 s finds its history; at 5 s it is gone.
func TestComingBackInTime(t *testing.T) {
	const deleteAfter = 5 * time.Second
	for _, test := range []struct {
		away time.Duration
		want bool
	}{{2 * time.Second, true}, {deleteAfter - time.Nanosecond, true}, {deleteAfter, false}} {
		t.Run(test.away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, _ := openHolding(t)
				w := f.watch(t, t.Context(), session("c", deleteAfter))
				f.append(t, "c", user("my name is Ada"))
				w.leave()
				synctest.Wait()
				<-time.After(test.away)
				f.watch(t, t.Context(), session("c", deleteAfter))
				<-time.After(time.Hour)
				reply, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"})
				if err != nil {
					t.Fatal(err)
				}
				if found := len(reply.GetMessages()) == 1; found != test.want || reply.GetCreated() == test.want {
					t.Errorf("got %v, want the history: %t", reply, test.want)
				}
			})
		})
	}
}

// While the store cannot take the ends of streams, these neither fill the log nor keep others
// from watching.
func TestReleasesThatWait(t *testing.T) {
	for level, err := range map[string]error{"WARN": store.ErrOverloaded, "ERROR": store.ErrNoSpace} {
		synctest.Test(t, func(t *testing.T) {
			f, h := openHolding(t)
			h.release = func(int32) error { return fmt.Errorf("release: %w", err) }
			f.watch(t, t.Context(), session("c", 0)).leave()
			synctest.Wait()
			if n := f.hub.Watchers(); n != 0 {
				t.Errorf("%s: %d watchers are left", level, n)
			}
			<-time.After(2 * time.Minute)
			if n := h.released.Load(); n < 12 || n > 16 {
				t.Errorf("%s: asked %d times in two minutes", level, n)
			}
			if lines := f.log.lines("session memory is not released"); len(lines) != 1 || !strings.Contains(lines[0], "level="+level) {
				t.Errorf("log lines: %v, want one of %s", lines, level)
			}
			<-time.After(8 * time.Minute)
			if n := len(f.log.lines("session memory is not released")); n != 3 {
				t.Errorf("%s: %d lines in ten minutes", level, n)
			}
		})
	}
}

// A store that cannot take the end of a session is asked until it can.
func TestSessionMemoryIsReleasedInTheEnd(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int32
	}{{store.ErrOverloaded, 4}, {store.ErrNoSpace, 4}, {errors.New("who knows"), 4}, {store.ErrFailed, 1}, {store.ErrClosed, 1}} {
		synctest.Test(t, func(t *testing.T) {
			f, h := openHolding(t)
			h.release = func(n int32) error {
				if n < 4 {
					return fmt.Errorf("release: %w", test.err)
				}
				return nil
			}
			w := f.watch(t, t.Context(), session("c", 0))
			w.leave()
			<-time.After(time.Minute)
			if n := h.released.Load(); n != test.want {
				t.Errorf("%v: asked %d times, want %d", test.err, n, test.want)
			}
			if n := f.hub.Watchers(); n != 0 {
				t.Errorf("%v: %d watchers are left", test.err, n)
			}
		})
	}
}

// A stop of the server releases nothing: the next start does, from which the time counts.
func TestAStopReleasesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := openHolding(t)
		stays := f.watch(t, t.Context(), session("c", 0))
		h.release = func(int32) error { return store.ErrOverloaded }
		f.watch(t, t.Context(), session("d", 0)).leave()
		synctest.Wait()
		f.server.Stop()
		for {
			if err := stays.next(); err != nil {
				wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")
				break
			}
		}
		synctest.Wait()
		if n := h.released.Load(); n != 1 {
			t.Errorf("released %d times, want that of the stream that ended before", n)
		}
	})
}

// What cannot be held is refused ahead of the first heartbeat, and nothing is released.
func TestSessionMemoryIsRefused(t *testing.T) {
	f, h := openHolding(t)
	h.hold = func(int32) error { return store.ErrTooManyHolds }
	_, err := f.tryWatch(t.Context(), session("c", 0))
	if got := wantError(t, err, codes.ResourceExhausted, "SESSION_MEMORY_FULL"); got.retry != 0 {
		t.Error("with RetryInfo, though it may last")
	}
	h.hold = nil
	f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{ConversationIds: []string{"c"}})
	if held, released := h.held.Load(), h.released.Load(); held != 1 || released != 0 {
		t.Errorf("held %d times, released %d times, want once, never", held, released)
	}
}

// Whoever waits for session memory to change, whose expire_time has passed, does not poll.
func TestWaitingForSessionMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := openHolding(t)
		f.watch(t, t.Context(), session("c", 0))
		f.append(t, "c", user("hello"))
		<-time.After(4900 * time.Millisecond)
		before := h.reads.Load()
		reply, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c", KnownVersion: proto.Int32(1), WaitTimeout: durationpb.New(time.Minute),
		})
		if err != nil || !reply.GetNotModified() {
			t.Errorf("%v, %v", reply, err)
		}
		if n := h.reads.Load() - before; n > 3 {
			t.Errorf("read %d times in a minute in which nothing happened", n)
		}
	})
}
