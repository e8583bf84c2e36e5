package client_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

var errExpired = statusWithReason(codes.Unauthenticated, "UNAUTHENTICATED")

// TestTurnResumesWithAnotherToken checks what Chat and ResumeTurn do when the server ends their stream because the
// token has expired: they resume at once with another token, and fail at once without one.
func TestTurnResumesWithAnotherToken(t *testing.T) {
	events := short()
	calls := map[string]func(context.Context, *client.Client) iter.Seq2[*parleyv1.TurnEvent, error]{
		"Chat": func(ctx context.Context, c *client.Client) iter.Seq2[*parleyv1.TurnEvent, error] {
			return c.Chat(ctx, hello())
		},
		"ResumeTurn": func(ctx context.Context, c *client.Client) iter.Seq2[*parleyv1.TurnEvent, error] {
			return c.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: "t"})
		},
	}
	tests := []struct {
		name   string
		tokens []string
		after  []int // The number of events after which the server ends each stream.
		want   []string
		events int
		code   codes.Code
	}{
		{"another token", []string{"a", "b"}, []int{1, 3}, []string{"a", "b"}, 3, codes.OK},
		{"the first stream is refused", []string{"a", "b"}, []int{0, 3}, []string{"a", "b"}, 3, codes.OK},
		{"other tokens", []string{"a", "b", "b", "c"}, []int{1, 1, 3}, []string{"a", "b", "c"}, 3, codes.OK},
		{"the same token", []string{"a"}, []int{1}, []string{"a"}, 1, codes.Unauthenticated},
		{"the other token is refused", []string{"a", "b", "b", "c"}, []int{1, 0}, []string{"a", "b"}, 1, codes.Unauthenticated},
		{"no token any more", []string{"a", ""}, []int{2}, []string{"a"}, 2, codes.Unauthenticated},
	}
	for name, call := range calls {
		for _, test := range tests {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					source, _ := sequence(test.tokens...)
					record := &tokenRecord{}
					f := &fake{signIn: record.signIn, turn: func(a *turnCall) error {
						from := int(a.resume.GetAfterIndex())
						if err := a.send(events[from:min(from+test.after[a.nth], len(events))]...); err != nil {
							return err
						}
						if from+test.after[a.nth] >= len(events) {
							return nil
						}
						return errExpired
					}}
					c := f.dial(t, client.WithToken(source))
					begin := time.Now()
					got, err := readTurn(call(t.Context(), c), nil)
					checkEvents(t, events[:test.events], got)
					if status.Code(err) != test.code || err != nil && client.Reason(err) != "UNAUTHENTICATED" {
						t.Errorf("error = %v, want %v", err, test.code)
					}
					checkTokens(t, test.want, record)
					if took := time.Since(begin); took != 0 {
						t.Errorf("took %v, want no delay", took)
					}
				})
			})
		}
	}
}

func checkTokens(t *testing.T, want []string, got *tokenRecord) {
	t.Helper()
	var sent []string
	for _, token := range got.tokens {
		sent = append(sent, strings.TrimPrefix(token, "Bearer "))
	}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("tokens of the streams (-want +got):\n%s", diff)
	}
}

// TestAppenderResumesWithAnotherToken checks the same for an appender.
func TestAppenderResumesWithAnotherToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, _ := sequence("a", "b")
		record := &tokenRecord{}
		f := appendFake(func(a *appendCall) error {
			if a.nth > 0 {
				_, err := a.acceptAll()
				return err
			}
			requests, err := a.receive(2)
			return errors.Join(err, a.accept(requests[0]), errExpired)
		})
		f.signIn = record.signIn
		begin := time.Now()
		appender := f.dial(t, client.WithToken(source)).NewAppender(t.Context())
		checkAppended(t, appendAll(t.Context(), appender, "r1", "r2"), "r1", "r2")
		if err := appender.Close(); err != nil {
			t.Errorf("Close = %v, want no error", err)
		}
		checkTokens(t, []string{"a", "b"}, record)
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %v, want no delay", took)
		}
	})
}

// TestWatchResumesWithAnotherToken checks the same for a watch.
func TestWatchResumesWithAnotherToken(t *testing.T) {
	tests := []struct {
		name     string
		tokens   []string
		want     []string
		position int // That of the last change.
		code     codes.Code
	}{
		{"another token", []string{"a", "b", "b", "c"}, []string{"a", "b", "c"}, 3, codes.OK},
		{"the same token", []string{"a", "b", "b", "b"}, []string{"a", "b"}, 2, codes.Unauthenticated},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				changes := messageChanges(3)
				source, _ := sequence(test.tokens...)
				record := &tokenRecord{}
				f := watchFake(func(w *watchCall) error { return errors.Join(w.send(changes[w.position()]), errExpired) })
				f.signIn = record.signIn
				got, err := readChanges(f.dial(t, client.WithToken(source)).WatchConversations(t.Context(), nil), untilPosition(3))
				if diff := cmp.Diff(changes[:test.position], got, protocmp.Transform()); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
				if status.Code(err) != test.code {
					t.Errorf("error = %v, want %v", err, test.code)
				}
				checkTokens(t, test.want, record)
			})
		})
	}
}

// expiring sends the header of a stream whose credential has expired.
func expiring(w *watchCall) error {
	return w.SetHeader(metadata.Pairs("parley-credential-expires", time.Now().UTC().Format(time.RFC3339)))
}

// TestWatchIsReplacedBeforeItEnds checks that a watch opens its next stream while the server still accepts the stream
// with the expired token, so that an ephemeral conversation keeps a stream. The changes have no gap.
func TestWatchIsReplacedBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := messageChanges(3)
		source, asked := sequence("a", "a", "b")
		record := &tokenRecord{}
		first := make(chan struct{}) // Closed when the first stream has ended.
		f := watchFake(func(w *watchCall) error {
			if w.nth > 0 {
				select {
				case <-first:
					t.Error("the first stream ended before the second began")
				default:
				}
				if err := w.send(heartbeat(w.position())); err != nil {
					return err
				}
				<-first // The client ends the first stream, although it continues the watch.
				return errors.Join(w.send(changes[w.position():]...), w.hang())
			}
			defer close(first)
			if err := errors.Join(expiring(w), w.send(heartbeat(0), changes[0])); err != nil {
				return err
			}
			// The source has no other token at the first message. The client asks again at the heartbeat after 15 s.
			<-time.After(15 * time.Second)
			return errors.Join(w.send(heartbeat(1)), w.hang())
		})
		f.signIn = record.signIn
		want := []*parleyv1.ConversationChange{heartbeat(0), changes[0], heartbeat(1), heartbeat(1), changes[1], changes[2]}
		got, err := readChanges(f.dial(t, client.WithToken(source)).WatchConversations(t.Context(), watchRequest()), untilPosition(3))
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("error = %v, changes (-want +got):\n%s", err, diff)
		}
		checkTokens(t, []string{"a", "b"}, record)
		if *asked != 4 {
			t.Errorf("the source was asked %d times, want 4: for each stream, and at each heartbeat", *asked)
		}
	})
}

// TestWatchContinuesIfItCannotBeReplaced checks that a watch keeps its stream if the next one fails, and resumes when
// the server ends the stream.
func TestWatchContinuesIfItCannotBeReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := messageChanges(2)
		record := &tokenRecord{}
		source, _ := sequence("a", "b")
		f := watchFake(func(w *watchCall) error {
			switch w.nth {
			case 0:
				if err := errors.Join(expiring(w), w.send(heartbeat(0))); err != nil {
					return err
				}
				<-time.After(time.Second)
				return errors.Join(w.send(changes[0]), errExpired)
			case 1:
				return statusWithReason(codes.ResourceExhausted, "TOO_MANY_WATCHERS")
			default:
				return errors.Join(w.send(changes[w.position():]...), w.hang())
			}
		})
		f.signIn = record.signIn
		want := append([]*parleyv1.ConversationChange{heartbeat(0)}, changes...)
		got, err := readChanges(f.dial(t, client.WithToken(source)).WatchConversations(t.Context(), watchRequest()), untilPosition(2))
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("error = %v, changes (-want +got):\n%s", err, diff)
		}
		checkTokens(t, []string{"a", "b", "b"}, record)
	})
}

// TestOtherStreamsEndWithTheirToken checks that the streams of the generated stubs return the error of the server.
func TestOtherStreamsEndWithTheirToken(t *testing.T) {
	source, _ := sequence("a", "b")
	f := watchFake(func(*watchCall) error { return errExpired })
	c := f.dial(t, client.WithToken(source))
	stream, err := c.ConversationServiceClient.WatchConversations(t.Context(), &parleyv1.WatchConversationsRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); client.Reason(err) != "UNAUTHENTICATED" {
		t.Errorf("Recv() = %v, want UNAUTHENTICATED", err)
	}
}
