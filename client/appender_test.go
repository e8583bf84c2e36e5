package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestAppenderSendsUnansweredRequestsAgain breaks the first stream after each number of answers.
func TestAppenderSendsUnansweredRequestsAgain(t *testing.T) {
	ends := resumableErrors()
	ends["a request is answered with UNAVAILABLE"] = statusWithReason(codes.Unavailable, "SHUTTING_DOWN")
	ends["the server takes the client for slow"] = statusWithReason(codes.ResourceExhausted, "SLOW_SENDER")
	ends["the stream is silent"] = context.DeadlineExceeded
	ids := []string{"r1", "r2", "r3", "r4", ""} // The appender sets the last one.
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			for k := range ids {
				synctest.Test(t, func(t *testing.T) {
					first, second := make(chan []string, 1), make(chan []string, 1)
					var f *fake
					f = appendFake(func(a *appendCall) error {
						if a.nth > 0 {
							again, err := a.acceptAll()
							second <- again
							return err
						}
						requests, err := a.receive(len(ids))
						first <- requestIDs(requests)
						if err := errors.Join(err, a.accept(requests[:k]...)); err != nil {
							return err
						}
						switch {
						case strings.HasPrefix(name, "a request"):
							return errors.Join(a.refuse(end), a.hang())
						case errors.Is(end, io.EOF):
							if k == 0 {
								f.breakConnections()
							}
							return a.hang()
						case errors.Is(end, context.DeadlineExceeded):
							return a.hang()
						}
						return end
					})
					appender := f.dial(t).NewAppender(t.Context())
					results := appendAll(t.Context(), appender, ids...)
					sent := <-first
					if k > 0 {
						checkAppended(t, results[:k], sent...)
						if errors.Is(end, io.EOF) {
							f.breakConnections()
						}
					}
					checkAppended(t, results, sent...)
					if err := appender.Close(); err != nil {
						t.Errorf("after %d answers: Close = %v, want no error", k, err)
					}
					if diff := cmp.Diff(sent[k:], <-second); diff != "" {
						t.Errorf("after %d answers: requests of the second stream (-want +got):\n%s", k, diff)
					}
				})
			}
		})
	}
}

// TestAppenderFails checks the errors that end an appender after one answer, with one request under way.
func TestAppenderFails(t *testing.T) {
	noAnswers := func(a *appendCall) error { return a.hang() }
	tests := []struct {
		name   string
		answer func(*appendCall) error // The calls after the first one.
		end    error                   // The status of the first stream; nil if it ends without an error.
		leave  func(c *client.Client, cancel func())
		want   codes.Code
		text   string
		took   time.Duration // At least; with one second more at most.
	}{
		{name: "too old", end: status.Error(codes.Unimplemented, "unknown method"), want: codes.Unimplemented, text: "update it"},
		{name: "refused", end: statusWithReason(codes.PermissionDenied, "PERMISSION_DENIED"), want: codes.PermissionDenied},
		{name: "no other token", end: errExpired, want: codes.Unauthenticated},
		{name: "streams without answers", answer: func(*appendCall) error { return nil }, want: codes.Unknown, text: "nothing new", took: 57 * time.Second},
		{
			name: "streams that are refused", answer: func(*appendCall) error {
				return statusWithReason(codes.ResourceExhausted, "TENANT_STREAMS")
			}, want: codes.ResourceExhausted, text: "nothing new", took: 57 * time.Second,
		},
		{name: "silent streams", answer: noAnswers, end: status.Error(codes.Unavailable, "broken"), want: codes.Unavailable, took: 57 * time.Second},
		{name: "the context ends", answer: noAnswers, leave: func(_ *client.Client, cancel func()) { cancel() }, want: codes.Canceled},
		{name: "the client is closed", answer: noAnswers, leave: func(c *client.Client, _ func()) { c.Close() }, want: codes.Canceled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := appendFake(func(a *appendCall) error {
					if a.nth > 0 {
						return test.answer(a)
					}
					requests, err := a.receive(2)
					return errors.Join(err, a.accept(requests[0]), test.end)
				}).dial(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				appender := c.NewAppender(ctx)
				results := appendAll(t.Context(), appender, "r1", "r2")
				checkAppended(t, results[:1], "r1")
				begin := time.Now()
				if test.leave != nil {
					synctest.Wait()
					test.leave(c, cancel)
				}
				_, err := results[1].Wait(t.Context())
				if status.Code(err) != test.want || !strings.Contains(err.Error(), test.text) {
					t.Errorf("Wait = %v, want %v with %q", err, test.want, test.text)
				}
				if took := time.Since(begin); took < test.took || took > test.took+3*time.Second {
					t.Errorf("failed after %v, want about %v", took, test.took)
				}
				_, later := appendAll(t.Context(), appender, "r3")[0].Wait(t.Context())
				for call, got := range map[string]error{
					"Wait of a later request": later, "Flush": appender.Flush(t.Context()), "Close": appender.Close(), "Err": appender.Err(),
				} {
					if !errors.Is(got, err) {
						t.Errorf("%s = %v, want %v", call, got, err)
					}
				}
			})
		})
	}
}

// TestAppenderFailsAtFirst checks the errors that an appender retries only after an answer.
func TestAppenderFailsAtFirst(t *testing.T) {
	for want, reachable := range map[codes.Code]bool{codes.Unavailable: false, codes.ResourceExhausted: true} {
		synctest.Test(t, func(t *testing.T) {
			var unreachable atomic.Bool
			unreachable.Store(!reachable)
			begin := time.Now()
			appender := appendFake(func(*appendCall) error {
				return statusWithReason(codes.ResourceExhausted, "TENANT_STREAMS")
			}).dialUntil(t, &unreachable).NewAppender(t.Context())
			if _, err := appendAll(t.Context(), appender, "r1")[0].Wait(t.Context()); status.Code(err) != want {
				t.Errorf("Wait = %v, want %v", err, want)
			}
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("took %v, want at most 2 s", took)
			}
			if err := appender.Close(); status.Code(err) != want {
				t.Errorf("Close = %v, want %v", err, want)
			}
		})
	}
}

// TestIdleAppenderSurvivesABreak checks that the time without requests does not count, and that a break then is no error.
func TestIdleAppenderSurvivesABreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var unreachable atomic.Bool
		f := appendFake(func(a *appendCall) error {
			_, err := a.acceptAll()
			return err
		})
		appender := f.dialUntil(t, &unreachable).NewAppender(t.Context())
		for i := range 3 {
			id := fmt.Sprint(i)
			checkAppended(t, appendAll(t.Context(), appender, id), id)
			<-time.After(5 * time.Minute)
			if i == 1 {
				unreachable.Store(true)
				f.breakConnections()
				<-time.After(5 * time.Minute)
				time.AfterFunc(30*time.Second, func() { unreachable.Store(false) })
			}
		}
		if err := appender.Close(); err != nil {
			t.Errorf("Close = %v, want no error", err)
		}
		if calls, _ := f.recordedCalls(); len(calls) != 2 {
			t.Errorf("server received %d calls, want 2", len(calls))
		}
	})
}

func TestAppenderLimitsTheRequestsUnderWay(t *testing.T) {
	text := strings.Repeat("x", 1<<20)
	tests := []struct {
		name    string
		request func(i int) *parleyv1.AppendMessagesRequest
		want    int
	}{
		{"of one conversation", func(i int) *parleyv1.AppendMessagesRequest { return appendRequest("c", fmt.Sprint(i)) }, 16},
		{"of all", func(i int) *parleyv1.AppendMessagesRequest { return appendRequest(fmt.Sprint(i), fmt.Sprint(i)) }, 1024},
		{"in bytes", func(i int) *parleyv1.AppendMessagesRequest {
			request := appendRequest(fmt.Sprint(i), fmt.Sprint(i))
			request.Messages[0].Content = text
			return request
		}, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				appender := acceptingAfter(release).dial(t).NewAppender(t.Context())
				for i := range test.want {
					appender.Append(t.Context(), test.request(i))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				for range 2 { // The second one waits for the first one.
					if _, err := appender.Append(ctx, test.request(test.want)).Wait(t.Context()); status.Code(err) != codes.DeadlineExceeded {
						t.Errorf("Append beyond the limit of %d: Wait = %v, want DEADLINE_EXCEEDED", test.want, err)
					}
				}
				time.AfterFunc(time.Second, func() { close(release) })
				if _, err := appender.Append(t.Context(), test.request(test.want)).Wait(t.Context()); err != nil {
					t.Errorf("Append after the answers: Wait = %v, want no error", err)
				}
				if err := appender.Close(); err != nil {
					t.Errorf("Close = %v, want no error", err)
				}
			})
		})
	}
}

// TestAppenderRefusesRequestsThatCannotBeSent checks that such requests do not affect the others.
func TestAppenderRefusesRequestsThatCannotBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []string
		appender := appendFake(func(a *appendCall) error {
			ids, err := a.acceptAll()
			all = append(all, ids...)
			return err
		}).dial(t).NewAppender(t.Context())
		ids := []string{"r1", "\xff", strings.Repeat("x", 4<<20), "r2"}
		results := appendAll(t.Context(), appender, ids...)
		for i, want := range []codes.Code{codes.OK, codes.Internal, codes.ResourceExhausted, codes.OK} {
			if _, err := results[i].Wait(t.Context()); status.Code(err) != want {
				t.Errorf("request %d: Wait = %v, want %v", i, err, want)
			}
		}
		if err := appender.Flush(t.Context()); err != nil {
			t.Errorf("Flush = %v, want no error", err)
		}
		request := appendRequest("c", "")
		filled := appender.Append(t.Context(), request)
		if err := appender.Close(); err != nil {
			t.Errorf("Close = %v, want no error", err)
		}
		if response, err := filled.Wait(t.Context()); err != nil || response.GetAppended()[0].GetId() == "" || request.GetRequestId() != "" {
			t.Errorf("request without an id: Wait = %v, %v; want an id that the appender set on a copy", response, err)
		}
		if _, err := appender.Append(t.Context(), request).Wait(t.Context()); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("Append after Close: Wait = %v, want FAILED_PRECONDITION", err)
		}
	})
}

// acceptingAfter returns a server that accepts all requests after release is closed.
func acceptingAfter(release <-chan struct{}) *fake {
	return appendFake(func(a *appendCall) error {
		select {
		case <-release:
		case <-a.Context().Done():
		}
		_, err := a.acceptAll()
		return err
	})
}

// TestFlushWaitsForAllRequests appends a request that cannot be encoded, and so fails before the one before it is
// answered.
func TestFlushWaitsForAllRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		appender := acceptingAfter(release).dial(t).NewAppender(t.Context())
		results := appendAll(t.Context(), appender, "r1", "\xff")
		<-results[1].Done()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		results = append(results, appendAll(t.Context(), appender, "\xff")...)
		if err := appender.Flush(ctx); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("Flush before the answer = %v, want DEADLINE_EXCEEDED", err)
		}
		close(release)
		if err := appender.Flush(t.Context()); err != nil {
			t.Errorf("Flush = %v, want no error", err)
		}
		checkAppended(t, results[:1], "r1")
		if err := appender.Close(); err != nil {
			t.Errorf("Close = %v, want no error", err)
		}
	})
}

// TestAppenderWaitsForLimitsOfTheTenant refuses the second stream, because the tenant is still charged for the first one.
func TestAppenderWaitsForLimitsOfTheTenant(t *testing.T) {
	for _, reason := range []string{"TENANT_STREAMS", "TENANT_REQUESTS"} {
		synctest.Test(t, func(t *testing.T) {
			appender := appendFake(func(a *appendCall) error {
				switch a.nth {
				case 0:
					requests, err := a.receive(2)
					return errors.Join(err, a.accept(requests[0]), status.Error(codes.Unavailable, "broken"))
				case 1:
					return statusWithReason(codes.ResourceExhausted, reason)
				}
				_, err := a.acceptAll()
				return err
			}).dial(t).NewAppender(t.Context())
			checkAppended(t, appendAll(t.Context(), appender, "r1", "r2"), "r1", "r2")
			if err := appender.Close(); err != nil {
				t.Errorf("Close after %s = %v, want no error", reason, err)
			}
		})
	}
}
