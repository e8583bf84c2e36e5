package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
)

// TestWaitForVersion checks how long a call with wait_timeout waits.
func TestWaitForVersion(t *testing.T) {
	tests := []struct {
		name   string
		ttl    time.Duration
		known  int32
		during func(t *testing.T, f *fixture)
		wait   time.Duration // duration of the call
		code   codes.Code
		want   *parleyv1.GetRoutingSummaryResponse
	}{
		{
			"no change",
			time.Hour,
			1,
			func(*testing.T, *fixture) {},
			time.Minute,
			codes.OK,
			&parleyv1.GetRoutingSummaryResponse{NotModified: true},
		},
		{"append", time.Hour, 1, func(t *testing.T, f *fixture) {
			t.Helper()
			<-time.After(time.Second)
			f.append(t, "c1", user("more"))
		}, time.Second, codes.OK, &parleyv1.GetRoutingSummaryResponse{Summary: &parleyv1.RoutingSummary{Version: 2}}},
		{"append to another conversation", time.Hour, 1, func(t *testing.T, f *fixture) {
			t.Helper()
			<-time.After(time.Second)
			f.append(t, "c2", user("more"))
		}, time.Minute, codes.OK, &parleyv1.GetRoutingSummaryResponse{NotModified: true}},
		{
			"changed before",
			time.Hour,
			7,
			func(*testing.T, *fixture) {},
			0,
			codes.OK,
			&parleyv1.GetRoutingSummaryResponse{Summary: &parleyv1.RoutingSummary{Version: 1}},
		},
		{"delete", time.Hour, 1, func(t *testing.T, f *fixture) {
			t.Helper()
			<-time.After(time.Second)
			if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "c1"}); err != nil {
				t.Error(err)
			}
		}, time.Second, codes.NotFound, nil},
		// The test does not sweep the store. The call itself waits for the expire_time.
		{"expiry", 5 * time.Second, 1, func(*testing.T, *fixture) {}, 5 * time.Second, codes.NotFound, nil},
		{"stop of the server", time.Hour, 1, func(_ *testing.T, f *fixture) {
			<-time.After(time.Second)
			f.server.Stop()
		}, time.Second, codes.Unavailable, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := open(t, func(s *setup) { s.storeOptions.TTL = test.ttl })
				f.append(t, "c1", user("hello"))
				start := time.Now()
				done := make(chan struct{})
				go func() {
					defer close(done)
					test.during(t, f)
				}()
				got, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
					ConversationId: "c1", KnownVersion: &test.known, WaitTimeout: durationpb.New(time.Minute),
				})
				if waited := time.Since(start); waited != test.wait || statusOf(err).code != test.code {
					t.Errorf(
						"GetRoutingSummary after %v = %v, %v, want %v after %v",
						waited,
						got,
						err,
						test.code,
						test.wait,
					)
				}
				if got.GetSummary() != nil {
					got.Summary = &parleyv1.RoutingSummary{Version: got.GetSummary().GetVersion()}
				}
				if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				<-done
				if n := f.hub.Watchers(); n != 0 {
					t.Errorf("Watchers = %d, want 0", n)
				}
			})
		})
	}
}

func TestDeadlineEndsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		f.append(t, "c1", user("hello"))
		_, err := f.GetRoutingSummary(withTimeout(t, time.Second), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c1", KnownVersion: proto.Int32(1), WaitTimeout: durationpb.New(time.Minute),
		})
		if statusOf(err).code != codes.DeadlineExceeded {
			t.Errorf("GetRoutingSummary = %v, want DeadlineExceeded", err)
		}
		synctest.Wait()
		if n := f.hub.Watchers(); n != 0 {
			t.Errorf("Watchers = %d, want 0", n)
		}
	})
}

func TestTooManyWatchers(t *testing.T) {
	const limit = 10
	f := open(t, func(s *setup) { s.Hub = watch.New(watch.Options{MaxWatchers: limit}) })
	for range limit {
		_, stop, err := f.hub.Subscribe("default", "c1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
	request := &parleyv1.GetRoutingSummaryRequest{
		ConversationId: "c1",
		KnownVersion:   proto.Int32(0),
		WaitTimeout:    durationpb.New(time.Minute),
	}
	_, err := f.GetRoutingSummary(t.Context(), request)
	wantError(t, err, codes.ResourceExhausted, "TOO_MANY_WATCHERS")
	request.WaitTimeout = nil
	if _, err := f.GetRoutingSummary(t.Context(), request); err != nil {
		t.Errorf("GetRoutingSummary without wait_timeout = %v", err)
	}
}
