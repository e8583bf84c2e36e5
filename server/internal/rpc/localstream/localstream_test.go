package localstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// maxBytes is the maximum size of a message.
const maxBytes = 100 << 10

// The kinds of streams.
var (
	replies  = grpc.StreamDesc{StreamName: "Replies", ServerStreams: true}
	requests = grpc.StreamDesc{StreamName: "Requests", ClientStreams: true}
	both     = grpc.StreamDesc{StreamName: "Both", ServerStreams: true, ClientStreams: true}
)

// opener opens a stream with a handler.
type opener func(context.Context, *grpc.StreamDesc, func(grpc.ServerStream) error) (grpc.ClientStream, error)

// inMemory returns an opener of this package. All streams end with the test.
func inMemory(t *testing.T) opener {
	t.Helper()
	s := New(t.Context(), encoding.GetCodecV2(proto.Name), maxBytes)
	t.Cleanup(func() { s.Stop(t.Context()) })
	return s.Open
}

// overConnection returns an opener of gRPC, which is the model.
func overConnection(t *testing.T) opener {
	t.Helper()
	var handler func(grpc.ServerStream) error
	d := grpc.ServiceDesc{ServiceName: "test", HandlerType: (*any)(nil)}
	for _, one := range []grpc.StreamDesc{replies, requests, both} {
		one.Handler = func(_ any, stream grpc.ServerStream) error { return handler(stream) }
		d.Streams = append(d.Streams, one)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxBytes), grpc.MaxSendMsgSize(maxBytes), grpc.WaitForHandlers(true))
	server.RegisterService(&d, nil)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxBytes), grpc.MaxCallRecvMsgSize(maxBytes)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return func(
		ctx context.Context, desc *grpc.StreamDesc, h func(grpc.ServerStream) error,
	) (grpc.ClientStream, error) {
		handler = h
		return conn.NewStream(ctx, desc, "/test/"+desc.StreamName)
	}
}

// send sends texts.
func send(s interface{ SendMsg(m any) error }, texts ...string) error {
	for _, text := range texts {
		if err := s.SendMsg(wrapperspb.String(text)); err != nil {
			return err
		}
	}
	return nil
}

// receiveAll receives texts to the end of a stream.
func receiveAll(s interface{ RecvMsg(m any) error }) (texts []string, err error) {
	for {
		var m wrapperspb.StringValue
		if err := s.RecvMsg(&m); err != nil {
			return texts, err
		}
		texts = append(texts, m.GetValue())
	}
}

// outcome is what a client sees of a stream.
type outcome struct {
	Replies         []string
	Err             error
	Header, Trailer []string // values of the key "k"
}

// calls are streams, each with its handler and its client, which returns what it received.
var calls = map[string]struct {
	desc    *grpc.StreamDesc
	handler func(grpc.ServerStream) error
	client  func(grpc.ClientStream) ([]string, error)
}{
	"replies": {&replies, func(s grpc.ServerStream) error {
		asked, err := receiveAll(s)
		if !errors.Is(err, io.EOF) {
			return err
		}
		return send(s, append(asked, "b", "", strings.Repeat("c", maxBytes/2))...)
	}, ask},
	"no reply": {&replies, func(grpc.ServerStream) error { return nil }, ask},
	"replies, then a status": {&replies, func(s grpc.ServerStream) error {
		st, err := status.New(codes.NotFound, "no").WithDetails(&errdetails.ErrorInfo{Reason: "R"})
		return errors.Join(send(s, "a", "b"), err, st.Err())
	}, ask},
	"a status with details": {&replies, func(grpc.ServerStream) error {
		st, err := status.New(codes.NotFound, "no").WithDetails(&errdetails.ErrorInfo{Reason: "R"})
		if err != nil {
			return err
		}
		return st.Err()
	}, ask},
	"another error": {&replies, func(grpc.ServerStream) error { return io.ErrClosedPipe }, ask},
	"an ended context": {&replies, func(grpc.ServerStream) error {
		return fmt.Errorf("wrapped: %w", context.DeadlineExceeded)
	}, ask},
	"a header before the reply": {&replies, func(s grpc.ServerStream) error {
		err := errors.Join(s.SetHeader(metadata.Pairs("k", "1")), s.SetHeader(metadata.Pairs("k", "2")), send(s, "a"))
		s.SetTrailer(metadata.Pairs("k", "3"))
		return err
	}, ask},
	"a header without a reply": {&replies, func(s grpc.ServerStream) error {
		return s.SendHeader(metadata.Pairs("k", "1"))
	}, ask},
	"a header and an error": {&replies, func(s grpc.ServerStream) error {
		return errors.Join(s.SendHeader(metadata.Pairs("k", "1")), status.Error(codes.Aborted, "no"))
	}, ask},
	"a header too late": {&replies, func(s grpc.ServerStream) error {
		if err := send(s, "a"); err != nil {
			return err
		}
		if s.SetHeader(metadata.Pairs("k", "1")) == nil {
			return errors.New("SetHeader succeeded after a reply")
		}
		return nil
	}, ask},
	"a reply that is too large": {&replies, func(s grpc.ServerStream) error {
		return send(s, "a", strings.Repeat("b", maxBytes))
	}, ask},
	"a request that is too large": {&requests, func(s grpc.ServerStream) error {
		_, err := receiveAll(s)
		return err
	}, func(c grpc.ClientStream) ([]string, error) {
		return nil, send(c, strings.Repeat("b", maxBytes))
	}},
	"requests": {&requests, func(s grpc.ServerStream) error {
		all, err := receiveAll(s)
		if !errors.Is(err, io.EOF) {
			return err
		}
		return send(s, strings.Join(all, " "))
	}, tell},
	"requests without a reply": {&requests, func(s grpc.ServerStream) error {
		_, err := receiveAll(s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}, tell},
	"requests with two replies": {&requests, func(s grpc.ServerStream) error {
		return send(s, "a", "b")
	}, func(c grpc.ClientStream) ([]string, error) {
		return nil, errors.Join(c.CloseSend(), c.RecvMsg(new(wrapperspb.StringValue)))
	}},
	"a reply, then an error": {&requests, func(s grpc.ServerStream) error {
		return errors.Join(send(s, "a"), status.Error(codes.Aborted, "no"))
	}, tell},
	"requests that are refused": {&requests, func(grpc.ServerStream) error {
		return status.Error(codes.PermissionDenied, "no")
	}, func(c grpc.ClientStream) ([]string, error) {
		for {
			if err := send(c, "a"); errors.Is(err, io.EOF) {
				return receiveAll(c)
			}
		}
	}},
	"both": {&both, func(s grpc.ServerStream) error {
		for {
			var m wrapperspb.StringValue
			if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
				return send(s, "end")
			} else if err != nil {
				return err
			}
			if err := send(s, m.GetValue()+"!"); err != nil {
				return err
			}
		}
	}, func(c grpc.ClientStream) (all []string, err error) {
		for i := range 5 {
			if err := send(c, fmt.Sprint(i)); err != nil {
				return all, err
			}
			var m wrapperspb.StringValue
			if err := c.RecvMsg(&m); err != nil {
				return all, err
			}
			all = append(all, m.GetValue())
		}
		if err := c.CloseSend(); err != nil {
			return all, err
		}
		rest, err := receiveAll(c)
		return append(all, rest...), err
	}},
}

// ask sends the only request and reads all replies, as generated clients do.
func ask(c grpc.ClientStream) ([]string, error) {
	if err := errors.Join(send(c, "a"), c.CloseSend()); err != nil {
		return nil, err
	}
	return receiveAll(c)
}

// tell sends requests and reads the only reply, as generated clients do.
func tell(c grpc.ClientStream) ([]string, error) {
	for _, text := range []string{"a", "b", "c"} {
		if err := send(c, text); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
	if err := c.CloseSend(); err != nil {
		return nil, err
	}
	var m wrapperspb.StringValue
	if err := c.RecvMsg(&m); err != nil {
		return nil, err
	}
	return []string{m.GetValue()}, nil
}

// TestLikeGRPC checks that clients see what they would see over a connection.
func TestLikeGRPC(t *testing.T) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			see := func(open opener) (o outcome) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c, err := open(ctx, call.desc, call.handler)
				if err != nil {
					t.Fatal(err)
				}
				if o.Replies, err = call.client(c); err != nil && !errors.Is(err, io.EOF) {
					o.Err = err
				}
				header, err := c.Header()
				if err == nil {
					o.Header = header.Get("k")
				}
				o.Trailer = c.Trailer().Get("k")
				return o
			}
			want, got := see(overConnection(t)), see(inMemory(t))
			// Texts of errors that gRPC makes may differ.
			texts := cmp.Comparer(func(a, b error) bool {
				x, y := status.Convert(a), status.Convert(b)
				return x.Code() == y.Code() && (x.Code() == codes.Internal || cmp.Equal(x.Proto(), y.Proto(), protocmp.Transform()))
			})
			if diff := cmp.Diff(want, got, texts); diff != "" {
				t.Errorf("outcome (-gRPC +in memory):\n%s", diff)
			}
		})
	}
}

// TestRefusedBeforeTheRequest checks that a client sends its only request in any case, and then receives why the stream
// has ended: generated clients return the error of SendMsg in place of the stream.
func TestRefusedBeforeTheRequest(t *testing.T) {
	s := New(t.Context(), encoding.GetCodecV2(proto.Name), maxBytes)
	c, err := s.Open(t.Context(), &replies, func(grpc.ServerStream) error { return status.Error(codes.NotFound, "no") })
	if err != nil {
		t.Fatal(err)
	}
	s.Stop(t.Context()) // The handler has returned.
	for range 100 {     // There is no order among the reasons for which SendMsg returns.
		if err := send(c, "a"); err != nil {
			t.Fatalf("SendMsg = %v, want nil", err)
		}
	}
	if err := c.RecvMsg(new(wrapperspb.StringValue)); status.Code(err) != codes.NotFound {
		t.Errorf("RecvMsg = %v, want NOT_FOUND", err)
	}
}

// TestEnds checks what both ends see when the client cancels, or its deadline passes, while they wait.
func TestEnds(t *testing.T) {
	waits := map[string]func(grpc.ServerStream) error{
		"send": func(s grpc.ServerStream) error {
			for {
				if err := send(s, "a"); err != nil {
					return err
				}
			}
		},
		"receive": func(s grpc.ServerStream) error { _, err := receiveAll(s); return err },
	}
	type ending struct {
		code codes.Code
		make func(context.Context) (context.Context, context.CancelFunc)
	}
	for name, e := range map[string]ending{
		"cancel": {codes.Canceled, context.WithCancel},
		"deadline": {codes.DeadlineExceeded, func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}},
	} {
		for where, wait := range waits {
			t.Run(name+" in "+where, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := New(t.Context(), encoding.GetCodecV2(proto.Name), maxBytes)
					ctx, cancel := e.make(t.Context())
					defer cancel()
					handled := make(chan error, 1)
					c, err := s.Open(ctx, &both, func(stream grpc.ServerStream) error {
						err := wait(stream)
						handled <- err
						return err
					})
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // The handler waits.
					if name == "cancel" {
						cancel()
					}
					if err := <-handled; status.Code(err) != e.code {
						t.Errorf("the handler got %v, want %v", err, e.code)
					}
					if _, err := receiveAll(c); status.Code(err) != e.code {
						t.Errorf("RecvMsg = %v, want %v", err, e.code)
					}
					s.Stop(t.Context())
					if _, err := s.Open(ctx, &both, wait); err == nil {
						t.Errorf("Open succeeded with a context that has ended")
					}
				})
			})
		}
	}
}

// TestSlowReader checks that a handler waits for a client that does not read, however long that takes, and is at most
// one message ahead.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), encoding.GetCodecV2(proto.Name), maxBytes)
		defer s.Stop(t.Context())
		sent := 0
		c, err := s.Open(t.Context(), &replies, func(stream grpc.ServerStream) error {
			for ; sent < 10; sent++ {
				if err := send(stream, fmt.Sprint(sent)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for read := range 10 {
			<-time.After(10 * time.Minute) // of the fake clock
			synctest.Wait()
			if want := min(read+1, 10); sent != want {
				t.Errorf("%d messages were sent when %d were read, want %d", sent, read, want)
			}
			var m wrapperspb.StringValue
			if err := c.RecvMsg(&m); err != nil || m.GetValue() != fmt.Sprint(read) {
				t.Fatalf("message %d = %q, %v", read, m.GetValue(), err)
			}
		}
		if err := c.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) {
			t.Errorf("RecvMsg = %v, want io.EOF", err)
		}
	})
}

// TestContext checks that a handler gets the metadata of its caller, but no values: what a caller has in its context
// must not reach the agents that a handler calls.
func TestContext(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(metadata.AppendToOutgoingContext(t.Context(), "k", "1", "k", "2"), key{}, true)
	c, err := inMemory(t)(ctx, &replies, func(s grpc.ServerStream) error {
		if s.Context().Value(key{}) != nil {
			return errors.New("the value of the caller reached the handler")
		}
		if md, ok := metadata.FromOutgoingContext(s.Context()); ok {
			return fmt.Errorf("outgoing metadata reached the handler: %v", md)
		}
		return send(s, metadata.ValueFromIncomingContext(s.Context(), "k")...)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ask(c); !errors.Is(err, io.EOF) || !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("metadata = %q, %v, want 1 and 2", got, err)
	}
}

// TestStop checks that Stop waits for the handlers, cancels them when its context ends, and refuses new streams.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), encoding.GetCodecV2(proto.Name), maxBytes)
		release := make(chan struct{})
		var ended []string
		open := func(name string, until func(context.Context) error) grpc.ClientStream {
			c, err := s.Open(t.Context(), &both, func(stream grpc.ServerStream) error {
				defer func() { ended = append(ended, name) }()
				return until(stream.Context())
			})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		open("released", func(context.Context) error { <-release; return nil })
		cancelled := open("cancelled", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stopped := make(chan struct{})
		go func() { defer close(stopped); s.Stop(ctx) }()
		synctest.Wait()
		if _, err := s.Open(t.Context(), &both, nil); status.Code(err) != codes.Unavailable {
			t.Errorf("Open during a stop = %v, want UNAVAILABLE", err)
		}
		close(release)
		<-stopped
		if want := []string{"released", "cancelled"}; !slices.Equal(ended, want) {
			t.Errorf("handlers ended: %q, want %q", ended, want)
		}
		if err := cancelled.RecvMsg(new(wrapperspb.StringValue)); status.Code(err) != codes.Unavailable {
			t.Errorf("RecvMsg of the cancelled stream = %v, want UNAVAILABLE", err)
		}
	})
}

// TestWorkers checks that the goroutines of handlers are used again, and that not too many wait.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), encoding.GetCodecV2(proto.Name), maxBytes)
		most := cap(s.waiting)
		run := func(n int) {
			release := make(chan struct{})
			for range n {
				_, err := s.Open(t.Context(), &replies, func(grpc.ServerStream) error { <-release; return nil })
				if err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			close(release)
			synctest.Wait()
		}
		for _, step := range []struct{ handlers, waiting int }{{1, 1}, {1, 1}, {3, 3}, {2, 3}, {2 * most, most}} {
			run(step.handlers)
			if got := len(s.waiting); got != step.waiting {
				t.Errorf("%d workers wait after %d handlers, want %d", got, step.handlers, step.waiting)
			}
		}
		s.Stop(t.Context())
	})
}

// TestWaitingWorkersRetainNothing checks that what a handler refers to is freed while its goroutine waits for another.
func TestWaitingWorkersRetainNothing(t *testing.T) {
	s := New(t.Context(), encoding.GetCodecV2(proto.Name), maxBytes)
	defer s.Stop(t.Context())
	freed := make(chan struct{})
	func() {
		request := new([1 << 20]byte)
		runtime.AddCleanup(request, func(c chan struct{}) { close(c) }, freed)
		c, err := s.Open(t.Context(), &replies, func(grpc.ServerStream) error { request[0]++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(c); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}()
	for {
		runtime.GC()
		select {
		case <-freed:
			return
		case <-t.Context().Done():
			t.Fatal("the request was not freed")
		default:
		}
	}
}
