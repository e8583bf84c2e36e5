package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
)

// watchStream is the client's end of a watch.
type watchStream struct {
	stream     grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]
	disconnect context.CancelFunc
	changes    []*parleyv1.ConversationChange // received so far
	heartbeats int                            // heartbeats since the last other change
}

// watch starts a watch and receives its first heartbeat. It fails the test if there is an error.
func (f *fixture) watch(t *testing.T, ctx context.Context, r *parleyv1.WatchConversationsRequest) *watchStream {
	t.Helper()
	w, err := f.tryWatch(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.disconnect)
	return w
}

// tryWatch starts a watch and receives its first heartbeat.
func (f *fixture) tryWatch(ctx context.Context, r *parleyv1.WatchConversationsRequest) (*watchStream, error) {
	w := new(watchStream)
	ctx, w.disconnect = context.WithCancel(ctx)
	var err error
	if w.stream, err = f.WatchConversations(ctx, r); err == nil {
		err = w.next()
	}
	if err != nil {
		w.disconnect()
		return nil, err
	}
	return w, nil
}

// next receives the next change.
func (w *watchStream) next() error {
	response, err := w.stream.Recv()
	if err != nil {
		return err
	}
	w.changes = append(w.changes, response.GetChange())
	w.heartbeats++
	if response.GetChange().GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
		w.heartbeats = 0
	}
	if w.heartbeats > 240 { // One hour. The fake clock of testing/synctest does not wait for it.
		return errors.New("received only heartbeats for one hour")
	}
	return nil
}

// cursor returns the cursor of the last change.
func (w *watchStream) cursor() string { return w.changes[len(w.changes)-1].GetCursor() }

// want receives changes until there are len(want), and compares the descriptions of all received changes.
func (w *watchStream) want(t *testing.T, want ...string) {
	t.Helper()
	for len(w.changes) < len(want) {
		if err := w.next(); err != nil {
			t.Fatalf("after %q: %v", describe(w.changes), err)
		}
	}
	if d := cmp.Diff(want, describe(w.changes)); d != "" {
		t.Fatalf("changes (-want +got):\n%s", d)
	}
}

// describe returns the kind, the conversation and the version of each change.
func describe(changes []*parleyv1.ConversationChange) []string {
	var lines []string
	for _, c := range changes {
		line := strings.TrimPrefix(c.GetKind().String(), "CHANGE_KIND_")
		if c.GetConversationId() != "" {
			line += fmt.Sprint(" ", c.GetConversationId(), " ", c.GetVersion())
		}
		lines = append(lines, line)
	}
	return lines
}

func TestInvalidWatchRequests(t *testing.T) {
	f := open(t, nil)
	ids := make([]string, 1001)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	future := []byte(f.hub.Cursor("default"))
	future[len(future)-3]++
	tests := []struct {
		name    string
		request *parleyv1.WatchConversationsRequest
		fields  []string
	}{
		{
			"delete_after_disconnect without ids",
			&parleyv1.WatchConversationsRequest{DeleteAfterDisconnect: durationpb.New(0)},
			[]string{"conversation_ids"},
		},
		{
			"invalid ids",
			&parleyv1.WatchConversationsRequest{ConversationIds: []string{"a", "", "b\nc"}},
			[]string{"conversation_ids[1]", "conversation_ids[2]"},
		},
		{"too many ids", &parleyv1.WatchConversationsRequest{ConversationIds: ids}, []string{"conversation_ids"}},
		{
			"long duration",
			&parleyv1.WatchConversationsRequest{
				ConversationIds:       ids[:1],
				DeleteAfterDisconnect: durationpb.New(366*24*time.Hour + 1),
			},
			[]string{"delete_after_disconnect"},
		},
		{
			"negative duration",
			&parleyv1.WatchConversationsRequest{ConversationIds: ids[:1], DeleteAfterDisconnect: durationpb.New(-1)},
			[]string{"delete_after_disconnect"},
		},
		{
			"invalid duration",
			&parleyv1.WatchConversationsRequest{
				ConversationIds:       ids[:1],
				DeleteAfterDisconnect: &durationpb.Duration{Seconds: 1, Nanos: -1},
			},
			[]string{"delete_after_disconnect"},
		},
		{"long cursor", &parleyv1.WatchConversationsRequest{Cursor: strings.Repeat("A", 129)}, []string{"cursor"}},
		{"invalid cursor", &parleyv1.WatchConversationsRequest{Cursor: "?"}, []string{"cursor"}},
		{"truncated cursor", &parleyv1.WatchConversationsRequest{Cursor: f.hub.Cursor("default")[1:]}, []string{"cursor"}},
		{"future cursor", &parleyv1.WatchConversationsRequest{Cursor: string(future)}, []string{"cursor"}},
		{
			"invalid cursor with delete_after_disconnect",
			&parleyv1.WatchConversationsRequest{
				Cursor:                "?",
				ConversationIds:       ids[:1],
				DeleteAfterDisconnect: durationpb.New(0),
			},
			[]string{"cursor"},
		},
		{
			"several faults",
			&parleyv1.WatchConversationsRequest{
				Cursor:                strings.Repeat("A", 129),
				DeleteAfterDisconnect: durationpb.New(-1),
			},
			[]string{"conversation_ids", "cursor", "delete_after_disconnect"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := f.tryWatch(t.Context(), test.request)
			got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
			slices.Sort(got.fields)
			if d := cmp.Diff(test.fields, got.fields); d != "" {
				t.Errorf("fields of %q (-want +got):\n%s", got.text, d)
			}
		})
	}
	if n := f.hub.Watchers(); n != 0 {
		t.Errorf("Watchers = %d, want 0", n)
	}
	for _, request := range []*parleyv1.WatchConversationsRequest{
		{ConversationIds: ids[:1000]}, {ConversationIds: []string{"a", "a"}}, {Cursor: f.hub.Cursor("default")},
	} {
		f.watch(t, t.Context(), request).want(t, "HEARTBEAT")
	}
}

func TestTooManyWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, func(s *setup) { s.Hub = watch.New(watch.Options{MaxWatchers: 2}) })
		f.append(t, "c1", user("hello"))
		first := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
		f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{ConversationIds: []string{"c1"}})
		_, err := f.tryWatch(t.Context(), &parleyv1.WatchConversationsRequest{})
		if got := wantError(t, err, codes.ResourceExhausted, "TOO_MANY_WATCHERS"); got.retry == 0 {
			t.Error("the error has no RetryInfo")
		}
		// Calls that wait for a change count, too.
		_, err = f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c1", KnownVersion: proto.Int32(1), WaitTimeout: durationpb.New(time.Second),
		})
		wantError(t, err, codes.ResourceExhausted, "TOO_MANY_WATCHERS")
		stats, err := f.admin.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil || stats.GetWatcherCount() != 2 {
			t.Errorf("GetStats = %v, %v, want 2 watchers", stats, err)
		}
		first.disconnect()
		synctest.Wait()
		f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
	})
}

func TestIsolationOfWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, script := openScripted(t, func(s *setup) { s.Auth = byMetadata() })
		a, b := withMetadata(t, "tenant", "a"), withMetadata(t, "tenant", "b")
		_, err := f.tryWatch(t.Context(), &parleyv1.WatchConversationsRequest{})
		wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
		var streams []*watchStream // two of a, then three of b
		for _, ctx := range []context.Context{a, b} {
			for _, ids := range [][]string{nil, {"both", "secret"}} {
				streams = append(
					streams,
					f.watch(t, ctx, &parleyv1.WatchConversationsRequest{ConversationIds: ids, IncludeTurnEvents: true}),
				)
			}
		}
		// The cursor of another tenant is as good as one of an earlier server.
		foreign, own := streams[0].cursor(), streams[2].cursor()
		answered := f.startChat(t, a, chatRequest("secret", "of a", reject))
		script.send(t, "secret", "a secret", end)
		answered.wait(t)
		if _, err := f.AppendMessages(b,
			&parleyv1.AppendMessagesRequest{ConversationId: "both", Messages: []*parleyv1.Message{user("of b")}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.watch(t, b, &parleyv1.WatchConversationsRequest{Cursor: foreign}).want(t, "GAP", "HEARTBEAT")
		streams = append(streams, f.watch(t, b, &parleyv1.WatchConversationsRequest{Cursor: own}))
		for _, w := range streams[2:] {
			w.want(t, "HEARTBEAT", "CREATED both 1", "MESSAGE_APPENDED both 1")
			if got := w.changes[2].GetMessage().GetContent(); got != "of b" {
				t.Errorf("message in the watch of b = %q, want %q", got, "of b")
			}
		}
		for _, w := range streams[:2] {
			for len(w.changes) == 1 || w.changes[len(w.changes)-1].GetTurnEvent().GetFinished() == nil {
				if err := w.next(); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range w.changes[1:] {
				if c.GetConversationId() != "secret" {
					t.Errorf("change in the watch of a = %v, want only changes of secret", c)
				}
			}
		}
		<-time.After(time.Minute) // After that, there are only heartbeats.
		for _, w := range streams {
			n := len(w.changes)
			if err := w.next(); err != nil || w.changes[n].GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
				t.Errorf("next change = %v, %v, want a heartbeat", w.changes[n:], err)
			}
		}
	})
}

func TestServerStopEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		all := []*watchStream{
			f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{}),
			f.watch(
				t,
				t.Context(),
				&parleyv1.WatchConversationsRequest{ConversationIds: []string{"c1"}, IncludeTurnEvents: true},
			),
		}
		f.append(t, "c1", user("hello"))
		synctest.Wait()
		f.server.Stop()
		for _, w := range all {
			w.want(t, "HEARTBEAT", "CREATED c1 1", "MESSAGE_APPENDED c1 1")
			if got := wantError(t, w.next(), codes.Unavailable, "SHUTTING_DOWN"); got.retry == 0 {
				t.Error("the error has no RetryInfo")
			}
		}
		late, err := f.tryWatch(t.Context(), &parleyv1.WatchConversationsRequest{})
		if err == nil {
			err = late.next()
		}
		wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")
		synctest.Wait()
		if n := f.hub.Watchers(); n != 0 {
			t.Errorf("Watchers = %d, want 0", n)
		}
	})
}

func TestClientEndsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{}).disconnect()
		_, err := f.tryWatch(withTimeout(t, time.Minute), &parleyv1.WatchConversationsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if n := f.hub.Watchers(); n != 0 {
			t.Errorf("Watchers = %d, want 0", n)
		}
	})
}
