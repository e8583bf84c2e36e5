package rpc

import (
	"context"
	"errors"
	"iter"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rpc/slowstream"
	"github.com/parleyhq/parley/store"
)

// chatFunc has the signature of Turns.Chat.
type chatFunc func(ctx context.Context, tenant string, r *parleyv1.ChatRequest, q *store.Request) iter.Seq2[*parleyv1.TurnEvent, error]

// chatTurns implements Turns with a function for Chat.
type chatTurns struct {
	Turns
	chat chatFunc
}

func turnsFunc(f chatFunc) Turns { return chatTurns{chat: f} }

// Chat calls the function.
func (c chatTurns) Chat(
	ctx context.Context, tenant string, r *parleyv1.ChatRequest, q *store.Request,
) iter.Seq2[*parleyv1.TurnEvent, error] {
	return c.chat(ctx, tenant, r, q)
}

// Running returns 0. GetStats calls it.
func (chatTurns) Running() int { return 0 }

func (chatTurns) RunningOf(string) int { return 0 }

// statsFunc is a store with a function for Stats.
type statsFunc struct {
	store.Store
	stats func(ctx context.Context) (store.Stats, error)
}

func (s *statsFunc) Stats(ctx context.Context) (store.Stats, error) { return s.stats(ctx) }

func withStats(stats func(ctx context.Context) (store.Stats, error)) func(*setup) {
	return func(s *setup) {
		s.wrap = func(inner store.Store) store.Store { return &statsFunc{Store: inner, stats: stats} }
	}
}

func TestPanic(t *testing.T) {
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			return &statsFunc{
				Store: inner,
				stats: func(context.Context) (store.Stats, error) { panic("boom " + secret) },
			}
		}
		s.Turns = turnsFunc(
			func(context.Context, string, *parleyv1.ChatRequest, *store.Request) iter.Seq2[*parleyv1.TurnEvent, error] {
				panic("boom " + secret)
			},
		)
	})
	_, unary := f.admin.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
	_, stream := f.chat(t, &parleyv1.ChatRequest{Content: "hello"})
	for method, err := range map[string]error{"GetStats": unary, "Chat": stream} {
		if got := wantError(t, err, codes.Internal, "INTERNAL"); got.text != "internal error" {
			t.Errorf("%s: text = %q, want %q", method, got.text, "internal error")
		}
		if len(f.log.lines("level=ERROR", "/"+method, "boom "+secret, "interceptors_test.go")) != 1 {
			t.Errorf("%s: the log has no line with the stack", method)
		}
	}
	if _, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{}); err != nil {
		t.Errorf("CreateConversation after a panic = %v", err)
	}
}

func TestMaxDeadline(t *testing.T) {
	var left time.Duration
	f := open(t, withStats(func(ctx context.Context) (store.Stats, error) {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return store.Stats{}, nil
	}))
	for name, ctx := range map[string]context.Context{"none": t.Context(), "one year": withTimeout(t, 365*24*time.Hour)} {
		if _, err := f.admin.GetStats(ctx, &parleyv1.GetStatsRequest{}); err != nil || left <= 0 ||
			left > maxUnaryTime {
			t.Errorf("client deadline %s: the handler has %v (%v), want at most %v", name, left, err, maxUnaryTime)
		}
	}
	if _, err := f.admin.GetStats(withTimeout(t, time.Minute), &parleyv1.GetStatsRequest{}); err != nil ||
		left > time.Minute {
		t.Errorf("client deadline 1m: the handler has %v (%v), want at most 1m", left, err)
	}
	short := withTimeout(t, time.Minute)
	_, _ = new(Server).limitUnary(short, nil, nil, func(ctx context.Context, _ any) (any, error) {
		if ctx != short {
			t.Error("client deadline 1m: the call has another timer")
		}
		return nil, nil
	})
}

func withTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// byMetadata returns an authenticator that reads tenants and role from the metadata of a call.
func byMetadata() *auth.Authenticator { return auth.New(time.Now, metadataVerifier{}) }

// metadataVerifier accepts every call that names tenants. The default role is writer.
type metadataVerifier struct{}

// Verify returns the identity in the metadata of a call.
func (metadataVerifier) Verify(ctx context.Context, _ auth.Credentials) (auth.Identity, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	tenants := md.Get("tenant")
	if len(tenants) == 0 {
		return auth.Identity{}, errors.New("no tenant in " + secret)
	}
	role := auth.Writer
	for _, name := range md.Get("role") {
		var err error
		if role, err = auth.ParseRole(name); err != nil {
			return auth.Identity{}, err
		}
	}
	return auth.Identity{Tenants: tenants, Role: role}, nil
}

func withMetadata(t *testing.T, pairs ...string) context.Context {
	t.Helper()
	return metadata.AppendToOutgoingContext(t.Context(), pairs...)
}

func TestAuthentication(t *testing.T) {
	f := open(t, func(s *setup) { s.Auth = byMetadata() })
	// Authentication comes before validation.
	_, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{RequestId: "a "})
	if got := wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED"); strings.Contains(got.text, secret) {
		t.Errorf("text = %q, want no internal text", got.text)
	}
	_, err = f.chat(t, &parleyv1.ChatRequest{Content: "hello"})
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	if f.changeCount() != 0 {
		t.Errorf("got %d changes, want 0", f.changeCount())
	}

	_, err = f.admin.GetStats(withMetadata(t, "tenant", "a"), &parleyv1.GetStatsRequest{})
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	if _, err = f.admin.GetStats(withMetadata(t, "tenant", "a", "role", "admin"), &parleyv1.GetStatsRequest{}); err != nil {
		t.Errorf("GetStats as administrator = %v", err)
	}
}

func TestCallsAreLogged(t *testing.T) {
	f := open(t, nil)
	_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "missing"})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	events, err := f.chat(t, &parleyv1.ChatRequest{Content: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	chosen := events[0].GetStarted().GetConversation().GetId()
	for _, want := range [][]string{
		{
			"level=INFO", "/GetConversation", "code=NOT_FOUND", "reason=CONVERSATION_NOT_FOUND", "duration=", "tenant=default",
			"conversation_id=missing", "transport=grpc", "peer=bufconn",
		},
		{"level=DEBUG", "/Chat", "code=OK", "duration=", "first_reply=", "conversation_id=" + chosen},
	} {
		if got := f.log.lines(want...); len(got) != 1 {
			t.Errorf("got %d log lines with %q, want 1", len(got), want)
		}
	}
}

// endlessTurns returns Turns with an answer that never ends, in pieces of size bytes. It closes ended
// when the stream of the answer has ended.
func endlessTurns(size int, ended chan struct{}) Turns {
	piece := textDelta(size)
	return turnsFunc(
		func(context.Context, string, *parleyv1.ChatRequest, *store.Request) iter.Seq2[*parleyv1.TurnEvent, error] {
			return func(yield func(*parleyv1.TurnEvent, error) bool) {
				defer close(ended)
				for yield(piece, nil) {
				}
			}
		},
	)
}

func textDelta(size int) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: strings.Repeat("x", size)}},
	}
}

// TestSlowReader checks that the server ends the stream of a client that does not read, and leaks no
// goroutine. The time limit is 30 s for small pieces, and longer for large ones. The checks add up to
// 10 s.
func TestSlowReader(t *testing.T) {
	for _, test := range []struct {
		size int
		want time.Duration
	}{{1 << 10, 30 * time.Second}, {8 << 10, 31 * time.Second}, {64 << 10, 38 * time.Second}, {1 << 20, 158 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			ended := make(chan struct{})
			monitor := new(refusalLog)
			f := open(t, func(s *setup) { s.Turns, s.Monitor = endlessTurns(test.size, ended), monitor })
			start := time.Now()
			stream, err := f.Chat(t.Context(), &parleyv1.ChatRequest{Content: "hello"})
			if err != nil {
				t.Fatal(err)
			}
			<-ended
			if waited := time.Since(start); waited < test.want || waited > test.want+10*time.Second {
				t.Errorf("pieces of %d bytes: the stream ended after %v, want %v to %v",
					test.size, waited, test.want, test.want+10*time.Second)
			}
			for err == nil {
				_, err = stream.Recv()
			}
			wantError(t, err, codes.ResourceExhausted, "SLOW_READER")
			monitor.want(t, auth.DefaultTenant+" SLOW_READER")
		})
	}
}

// slowConn is a connection that delivers a number of bytes a second to its reader.
type slowConn struct {
	net.Conn
	perSecond int
}

// Read reads the bytes that arrive within 50 ms.
func (l slowConn) Read(p []byte) (int, error) {
	<-time.After(50 * time.Millisecond)
	return l.Conn.Read(p[:min(len(p), l.perSecond/20)])
}

// TestSteadyReader checks that streams of large messages do not end while the client reads them
// continuously over a slow connection.
func TestSteadyReader(t *testing.T) {
	const perSecond = 20_000
	large := turnsFunc(
		func(context.Context, string, *parleyv1.ChatRequest, *store.Request) iter.Seq2[*parleyv1.TurnEvent, error] {
			return func(yield func(*parleyv1.TurnEvent, error) bool) {
				for _, size := range []int{1 << 20, 100, 3 << 20, 100, 100, 2 << 20} {
					if !yield(textDelta(size), nil) {
						return
					}
				}
			}
		},
	)
	for name, read := range map[string]func(t *testing.T, f *fixture) (bytes int, err error){
		"Chat": func(t *testing.T, f *fixture) (bytes int, err error) {
			t.Helper()
			events, err := f.chat(t, &parleyv1.ChatRequest{Content: "hello"})
			for _, e := range events {
				bytes += len(e.GetTextDelta().GetText())
			}
			return bytes, err
		},
		"ExportConversations": func(t *testing.T, f *fixture) (bytes int, err error) {
			t.Helper()
			file := exportOf("a", time.Now())
			m := file.GetMessages()[0]
			m.Content, file.Messages = strings.Repeat("x", 500<<10), nil
			for i := range 5 {
				m = proto.CloneOf(m)
				m.Sequence = int32(i + 1)
				file.Messages = append(file.Messages, m)
			}
			f.wantImport(t, false, 1, 0, file)
			parts, err := f.export(t.Context(), "a")
			for _, part := range parts {
				bytes += proto.Size(part)
			}
			return bytes, err
		},
		"BackupStore": func(t *testing.T, f *fixture) (bytes int, err error) {
			t.Helper()
			got, _, err := f.backup(t.Context())
			return len(got), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := open(t, func(s *setup) {
					s.Turns, s.Backuper = large, newFakeBackuper(2<<20)
					s.wrapConn = func(c net.Conn) net.Conn { return slowConn{c, perSecond} }
				})
				start := time.Now()
				bytes, err := read(t, f)
				if err != nil || bytes < 2<<20 {
					t.Errorf("read %d bytes in %v, then error %v, want at least 2 MiB", bytes, time.Since(start), err)
				}
				if minimum := time.Duration(bytes/perSecond) * time.Second; time.Since(start) < minimum {
					t.Errorf(
						"%d bytes took %v, want at least %v: the connection is not slow",
						bytes,
						time.Since(start),
						minimum,
					)
				}
			})
		})
	}
}

// TestInfrequentReader checks that the stream of a client that reads just often enough does not end.
func TestInfrequentReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		f := open(t, func(s *setup) { s.Turns = endlessTurns(64<<10, ended) })
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := f.Chat(ctx, &parleyv1.ChatRequest{Content: "hello"})
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			<-time.After(slowstream.MaxSendTime * 9 / 10)
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		<-ended
	})
}

// TestTooManyHealthWatches: a client that may not watch the health of the server can call it. gRPC clients take a
// server that does not implement the method for healthy, and one that refuses it for unhealthy.
func TestTooManyHealthWatches(t *testing.T) {
	f := open(t, nil)
	f.server.healthWatches.Add(maxHealthWatches)
	info := &grpc.StreamServerInfo{FullMethod: healthv1.Health_Watch_FullMethodName}
	err := f.server.limitStream(nil, nil, info, func(any, grpc.ServerStream) error { return nil })
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("watch of the health above the limit = %v, want %v", err, codes.Unimplemented)
	}
}
