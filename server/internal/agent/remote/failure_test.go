package remote

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestAgentStatus(t *testing.T) {
	tests := []struct {
		status    error
		message   string
		retryable bool
	}{
		{status.Error(codes.Unavailable, "the shop is closed"), "the agent reported: the shop is closed", true},
		{status.Error(codes.ResourceExhausted, "quota"), "the agent reported: quota", true},
		{status.Error(codes.Aborted, "again"), "the agent reported: again", true},
		{status.Error(codes.DeadlineExceeded, "late"), "the agent reported: late", true},
		{status.Error(codes.Internal, "bug"), "the agent reported: bug", false},
		{status.Error(codes.InvalidArgument, "no"), "the agent reported: no", false},
		{status.Error(codes.Canceled, "stopped"), "the agent reported: stopped", false},
		{
			status.Error(codes.Unimplemented, "pictures are not supported; send text"),
			"the agent reported: pictures are not supported; send text", false,
		},
		{errors.New("plain"), "the agent reported: plain", false},
		{
			status.Error(codes.PermissionDenied, ""), "the agent failed with status PermissionDenied and without a message",
			false,
		},
		{status.Error(codes.Internal, " \x00\x1b "), "the agent failed with status Internal and without a message", false},
		{status.Error(codes.Internal, "a\tb\nc\x00\x1b[1m\u0085d"), "the agent reported: a\tb\nc[1md", false},
		{status.Error(codes.Internal, "grpc: of its own"), "the agent reported: grpc: of its own", false},
		{
			status.Error(codes.Unauthenticated, "no such key as Bearer marked-key-1234"),
			"the agent reported: no such key as [redacted]", false,
		},
		{status.Error(codes.Unauthenticated, "nor marked-key-1234-and-more"), "the agent reported: nor [redacted]", false},
		{status.Error(codes.Unauthenticated, "token marked-\x00key-1234?"), "the agent reported: token [redacted]?", false},
		{
			status.Error(codes.Unauthenticated, "not c2hvcnQ, Basic or not"), "the agent reported: not [redacted], Basic or not",
			false,
		},
		{
			status.Error(codes.Unauthenticated, "tier 1: "+strings.Repeat("marked-key-1234", 2)),
			"the agent reported: tier 1: [redacted]", false,
		},
	}
	secrets := map[string]string{
		"authorization": "Bearer marked-key-1234", "second": "marked-key-1234-and-more", "third": "Basic c2hvcnQ",
		"tier": "1",
	}
	for _, started := range []bool{false, true} {
		var end error
		s := start(t, "127.0.0.1:0", nil, func(_ *parleyv1.RespondRequest, stream pieces) error {
			if started {
				if err := stream.Send(text("This will ")); err != nil {
					return err
				}
			}
			return end
		})
		a := open(t, Config{Address: s.address, Headers: secrets})
		for _, test := range tests {
			if started && strings.Contains(test.message, "grpc: ") {
				continue // After a piece it is treated as gRPC's own status.
			}
			end = test.status
			answer, err := collect(t.Context(), a, nil)
			if (len(answer) == 1) != started {
				t.Errorf("%v: pieces = %v", test.status, answer)
			}
			if got := mustFail(t, err); got.Message != test.message || got.Retryable != test.retryable {
				t.Errorf("%v: message = %q, retryable = %v, want %q, %v", test.status, got.Message, got.Retryable, test.message,
					test.retryable)
			}
		}
	}
}

// TestReasonIsText: the message of a status that is not UTF-8 is converted.
func TestReasonIsText(t *testing.T) {
	address := httpAgent(t, func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "13")
		w.Header().Set("Grpc-Message", "bad %FF%FE bytes%1B")
	})
	_, err := collect(t.Context(), open(t, Config{Address: address}), nil)
	if got := mustFail(t, err); got.Message != "the agent reported: bad \uFFFD bytes" {
		t.Errorf("message = %q, want valid text", got.Message)
	}
}

func TestLongReason(t *testing.T) {
	for _, pad := range []string{"", "x", "xx"} {
		s := start(t, "127.0.0.1:0", nil, func(*parleyv1.RespondRequest, pieces) error {
			return status.Error(codes.Internal, pad+strings.Repeat("円", 10<<10/3))
		})
		_, err := collect(t.Context(), open(t, Config{Address: s.address}), nil)
		got := strings.TrimPrefix(mustFail(t, err).Message, "the agent reported: ")
		if len(got) > maxReasonBytes || len(got) < maxReasonBytes-3 || !utf8.ValidString(got) ||
			!strings.HasSuffix(got, "円…") {
			t.Errorf("message of %d bytes ends with %q, want it truncated", len(got), got[len(got)-8:])
		}
	}
}

// TestLargeTrailers: trailers that exceed the limit are an error. The test serves HTTP/2 itself,
// because a server of grpc-go does not send such trailers.
func TestLargeTrailers(t *testing.T) {
	s := httpAgent(t, func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/grpc")
		for range 64 {
			w.Header().Add("X-Large", strings.Repeat("x", 2<<10))
		}
		w.Header().Set("Grpc-Status", "0")
	})
	_, err := collect(t.Context(), open(t, Config{Address: s}), nil)
	if got := mustFail(t, err); got.Message != "the agent violated the protocol" || got.Detail == "" || got.Retryable {
		t.Errorf("error = %+v, want a violation of the protocol", got)
	}
	fine := start(t, "127.0.0.1:0", nil, func(_ *parleyv1.RespondRequest, stream pieces) error {
		stream.SetTrailer(metadata.Pairs("x", strings.Repeat("x", 8<<10)))
		return stream.Send(text("fine"))
	})
	if answer, err := collect(t.Context(), open(t, Config{Address: fine.address}), nil); len(answer) != 1 || err != nil {
		t.Errorf("Respond = %v, %v, want one piece", answer, err)
	}
}

func TestPieceTooLarge(t *testing.T) {
	tests := []struct {
		name  string
		max   int
		fits  int // Bytes of text; the piece has 4 or 5 more.
		times int
	}{
		{"default", 0, 4<<20 - 5, 1},
		{"small, so that the status may arrive first", 1000, 900, 20},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, end := range []error{nil, status.Error(codes.Unavailable, "unavailable")} {
				size := test.fits
				s := start(t, "127.0.0.1:0", nil, func(_ *parleyv1.RespondRequest, stream pieces) error {
					if err := stream.Send(text(strings.Repeat("x", size))); err != nil {
						return err
					}
					return end
				})
				a := open(t, Config{Address: s.address, MaxPieceBytes: test.max})
				if answer, err := collect(t.Context(), a, nil); len(answer) != 1 || (err == nil) != (end == nil) {
					t.Errorf("Respond with a piece within the limit = %d pieces, %v", len(answer), err)
				}
				size += 100
				for range test.times {
					answer, err := collect(t.Context(), a, nil)
					if len(answer) != 0 {
						t.Fatal("Respond yields the too large piece")
					}
					if got := mustFail(t, err); !strings.HasPrefix(got.Message, "the agent sent a piece of more than ") ||
						got.Retryable {
						t.Fatalf("error = %+v, want that the piece is too large", got)
					}
				}
			}
		})
	}
}

// raw is a codec that sends strings unchanged.
type raw struct{ encoding.CodecV2 }

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(string))}, nil //nolint:errcheck // A panic fails the test.
}
func (raw) Unmarshal(mem.BufferSlice, any) error { return nil }

// TestNotAPiece: an agent that sends something other than a piece violates the protocol.
func TestNotAPiece(t *testing.T) {
	for _, sent := range []string{"\xff\xff\xff", "\x0a\x02\xc3\x28"} { // Not a message; a text that is not UTF-8.
		s := new(service)
		s.serve(t, "127.0.0.1:0", grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(func(_ any,
			stream grpc.ServerStream,
		) error {
			if method, _ := grpc.MethodFromServerStream(stream); strings.Contains(method, "Health") {
				return status.Error(codes.Unimplemented, "none")
			}
			return errors.Join(stream.RecvMsg(nil), stream.SendMsg(sent))
		})))
		a := open(t, Config{Address: s.address})
		for range 10 {
			_, err := collect(t.Context(), a, nil)
			if got := mustFail(t, err); got.Message != "the agent violated the protocol" ||
				!strings.HasPrefix(got.Detail, s.address+": grpc: ") || got.Retryable {
				t.Fatalf("%q: error = %+v, want a violation of the protocol", sent, got)
			}
		}
	}
}

// TestNoSuchService: a server without the service is named as the cause.
func TestNoSuchService(t *testing.T) {
	other := new(service)
	other.serve(t, "127.0.0.1:0", grpc.NewServer())
	web := httpAgent(t, func(w http.ResponseWriter) { http.Error(w, "no such page", http.StatusNotFound) })
	for _, address := range []string{other.address, web} {
		_, err := collect(t.Context(), open(t, Config{Address: address}), nil)
		if got := mustFail(t, err); got.Message != "the agent does not implement parley.v1.AgentService" ||
			!strings.HasPrefix(got.Detail, address+": ") || got.Retryable {
			t.Errorf("error = %+v, want another", got)
		}
	}
}

// TestNoSuchMethod: the messages of servers in several languages for a missing method are
// recognized.
func TestNoSuchMethod(t *testing.T) {
	for _, message := range []string{
		"", "unknown method Respond for service parley.v1.AgentService", "method Respond not implemented",
		"Method not found!", "Method not found: parley.v1.AgentService/Respond", "Method not implemented!",
		"The server does not implement the method /parley.v1.AgentService/Respond",
	} {
		s := start(t, "127.0.0.1:0", nil, func(*parleyv1.RespondRequest, pieces) error {
			return status.Error(codes.Unimplemented, message)
		})
		_, err := collect(t.Context(), open(t, Config{Address: s.address}), nil)
		if got := mustFail(t, err); got.Message != "the agent does not implement parley.v1.AgentService" ||
			got.Detail != s.address+": "+message || got.Retryable {
			t.Errorf("%q: error = %+v, want a missing service", message, got)
		}
	}
}

// TestGateway: status 502 of a proxy counts as a lost connection.
func TestGateway(t *testing.T) {
	address := httpAgent(t, func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) })
	_, err := collect(t.Context(), open(t, Config{Address: address}), nil)
	if got := mustFail(t, err); got.Message != "the connection to the agent was lost before its answer" ||
		!strings.Contains(got.Detail, "502") || !got.Retryable {
		t.Errorf("error = %+v, want another", got)
	}
}

// httpAgent starts a plaintext HTTP/2 server without a health service that answers calls by
// respond.
func httpAgent(t *testing.T, respond func(http.ResponseWriter)) (address string) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.Contains(r.URL.Path, "Health") {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", "12")
			return
		}
		respond(w)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestNotHTTP2: a server that accepts connections but does not speak HTTP/2 is not available.
func TestNotHTTP2(t *testing.T) {
	for _, greeting := range []string{"SSH-2.0-OpenSSH\r\n", ""} {
		t.Run(greeting, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			defer func() { l.Close(); <-done }()
			go func() {
				defer close(done)
				var accepted []net.Conn // Keeps the connections open.
				for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
					accepted = append(accepted, conn)
					_, _ = io.WriteString(conn, greeting)
				}
				for _, conn := range accepted {
					conn.Close()
				}
			}()
			a := open(t, Config{Address: l.Addr().String()})
			a.readyTimeout = 50 * time.Millisecond
			_, err = collect(t.Context(), a, nil)
			if got := mustFail(t, err); got.Message != "the agent is not available" ||
				!strings.HasPrefix(got.Detail, a.address+": ") || !got.Retryable {
				t.Errorf("error = %+v, want another", got)
			}
		})
	}
}
