package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
)

// tokenRecord checks the tokens of calls and records them.
type tokenRecord struct {
	valid func(token string) bool

	mu      sync.Mutex
	tokens  []string
	tenants []string
}

func (r *tokenRecord) signIn(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	token := strings.Join(md.Get("authorization"), ",")
	r.tokens = append(r.tokens, token)
	r.tenants = append(r.tenants, strings.Join(md.Get("parley-tenant"), ","))
	if r.valid != nil && !r.valid(strings.TrimPrefix(token, "Bearer ")) {
		return statusWithReason(codes.Unauthenticated, "UNAUTHENTICATED")
	}
	return nil
}

// sequence returns a token source that returns tokens in order, then the last one again.
func sequence(tokens ...string) (source func(context.Context) (string, error), asked *int) {
	asked = new(int)
	return func(context.Context) (string, error) {
		*asked++
		return tokens[min(*asked, len(tokens))-1], nil
	}, asked
}

func fixed(token string) grpc.DialOption {
	source, _ := sequence(token)
	return client.WithToken(source)
}

func TestCredentialsOfCalls(t *testing.T) {
	ctx := t.Context()
	own := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer own", "parley-tenant", "other")
	tests := []struct {
		name          string
		ctx           context.Context
		opts          []grpc.DialOption
		token, tenant string
	}{
		{"none", ctx, nil, "", ""},
		{"token", ctx, []grpc.DialOption{fixed("t1")}, "Bearer t1", ""},
		{"tenant", ctx, []grpc.DialOption{client.WithTenant("acme")}, "", "acme"},
		{"no tenant", ctx, []grpc.DialOption{fixed("t1"), client.WithTenant("")}, "Bearer t1", ""},
		{
			"the last option applies", ctx,
			[]grpc.DialOption{fixed("t1"), client.WithTenant("a"), fixed("t2"), client.WithTenant("b")},
			"Bearer t2", "b",
		},
		{"of one call", own, []grpc.DialOption{fixed("t1"), client.WithTenant("acme")}, "Bearer own", "other"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			record := &tokenRecord{}
			c := (&fake{signIn: record.signIn}).dial(t, test.opts...)
			if err := getConversation(test.ctx, c); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{test.token}, record.tokens); diff != "" {
				t.Errorf("tokens (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{test.tenant}, record.tenants); diff != "" {
				t.Errorf("tenants (-want +got):\n%s", diff)
			}
		})
	}
}

// TestInvalidCredentials checks that a call with an invalid token or tenant fails, is not sent, and that the error
// does not contain the token.
func TestInvalidCredentials(t *testing.T) {
	const secret = "5ecret"
	failed := errors.New("the vault is sealed")
	source := func(token string, err error) grpc.DialOption {
		return client.WithToken(func(context.Context) (string, error) { return token, err })
	}
	tests := []struct {
		name string
		opt  grpc.DialOption
		code codes.Code
		text string
	}{
		{"empty", source("", nil), codes.Unauthenticated, "the token is empty"},
		{"a line break", source(secret+"\n", nil), codes.Unauthenticated, "byte 7 of the token"},
		{"two lines", source(secret+"\r\nparley-tenant: x", nil), codes.Unauthenticated, "byte 7 of the token"},
		{"with its scheme", source("Bearer "+secret, nil), codes.Unauthenticated, `without "Bearer"`},
		{"not ASCII", source(secret+"é", nil), codes.Unauthenticated, "byte 7 of the token"},
		{"not printable", source(secret+"\x7f", nil), codes.Unauthenticated, "byte 7 of the token"},
		{"too long", source(strings.Repeat(secret, 3000), nil), codes.Unauthenticated, "longer than 12288 bytes"},
		{"source fails", source(secret, failed), codes.Unauthenticated, failed.Error()},
		{"source is cancelled", source(secret, context.Canceled), codes.Canceled, "context canceled"},
		{"source is unavailable", source(secret, status.Error(codes.Unavailable, "no vault")), codes.Unavailable, "no vault"},
		{"no file", client.WithTokenFile("no/such/file"), codes.Unauthenticated, "no/such/file"},
		{"tenant", client.WithTenant("-acme"), codes.PermissionDenied, `tenant "-acme": use 1 to 64`},
		{"long tenant", client.WithTenant(strings.Repeat("x", 65)), codes.PermissionDenied, "use 1 to 64"},
		{"tenant with a line break", client.WithTenant("a\nb"), codes.PermissionDenied, `tenant "a\nb": use 1 to 64`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := &fake{}
			err := getConversation(t.Context(), f.dial(t, test.opt))
			if status.Code(err) != test.code || !strings.Contains(err.Error(), test.text) {
				t.Errorf("error = %v, want %v with %q", err, test.code, test.text)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("error = %v, want no token in it", err)
			}
			if test.name == "source fails" && !errors.Is(err, failed) {
				t.Errorf("error = %#v, want one that wraps the error of the source", err)
			}
			if calls, _ := f.recordedCalls(); len(calls) != 0 {
				t.Errorf("the server received %d calls, want 0", len(calls))
			}
		})
	}
}

// TestRefusedCallsAreSentAgainOnce checks that a refused call is sent again if there is another token, and only once.
func TestRefusedCallsAreSentAgainOnce(t *testing.T) {
	tests := []struct {
		name   string
		tokens []string
		want   []string
		code   codes.Code
	}{
		{"another token", []string{"old", "good"}, []string{"Bearer old", "Bearer good"}, codes.OK},
		{"the same token", []string{"old"}, []string{"Bearer old"}, codes.Unauthenticated},
		{
			"another token each time",
			[]string{"a", "b", "c", "d", "e", "good"},
			[]string{"Bearer a", "Bearer c"},
			codes.Unauthenticated,
		},
		{"then an invalid one", []string{"old", "x y"}, []string{"Bearer old"}, codes.Unauthenticated},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			source, _ := sequence(test.tokens...)
			record := &tokenRecord{valid: func(token string) bool { return token == "good" }}
			c := (&fake{signIn: record.signIn}).dial(t, client.WithToken(source))
			if err := getConversation(t.Context(), c); status.Code(err) != test.code {
				t.Errorf("error = %v, want %v", err, test.code)
			} else if err != nil && client.Reason(err) != "UNAUTHENTICATED" {
				t.Errorf("Reason(%v) = %q, want UNAUTHENTICATED", err, client.Reason(err))
			}
			if diff := cmp.Diff(test.want, record.tokens); diff != "" {
				t.Errorf("tokens of the calls (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTokenFile checks the tokens of calls while a file changes.
func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, " first\r\n")
	valid := "first"
	record := &tokenRecord{valid: func(token string) bool { return token == valid }}
	c := (&fake{signIn: record.signIn}).dial(t, client.WithTokenFile(path))
	// call checks the token of a call, which the server has not refused before more than a number of times.
	call := func(want string, refusals int) {
		t.Helper()
		before := len(record.tokens)
		err := getConversation(t.Context(), c)
		if last := record.tokens[len(record.tokens)-1]; err != nil || last != "Bearer "+want {
			t.Errorf("GetConversation with token %q = %v, want token %q", last, err, want)
		}
		if got := len(record.tokens) - before - 1; got != refusals {
			t.Errorf("the server refused %d tokens before %q, want %d", got, want, refusals)
		}
	}
	setTime := func(modified time.Time) {
		t.Helper()
		if err := os.Chtimes(path, time.Time{}, modified); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now().Truncate(time.Second)
	setTime(begin)
	call("first", 0)

	// The file is replaced by another one with the same size and time.
	write(t, path+".new", " secon\r\n")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	setTime(begin)
	valid = "secon"
	call("secon", 0)

	// The file is written at another time.
	write(t, path, " third\r\n")
	setTime(begin.Add(time.Second))
	valid = "third"
	call("third", 0)

	// The file has another size.
	write(t, path, "third!!\r\n")
	setTime(begin.Add(time.Second))
	valid = "third!!"
	call("third!!", 0)

	// The file has another token, but its state is the same.
	write(t, path, "third!?\r\n")
	setTime(begin.Add(time.Second))
	valid = "third!?"
	call("third!?", 1)

	// The file is being written, or does not exist for a moment.
	for _, text := range []string{"", "\n", "a b", strings.Repeat("x", 64<<10)} {
		write(t, path, text)
		call("third!?", 0)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	call("third!?", 0)
	valid = "fourth"
	err := getConversation(t.Context(), c)
	if client.Reason(err) != "UNAUTHENTICATED" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error of a refused token whose file is gone = %v, want UNAUTHENTICATED and os.ErrNotExist", err)
	}
	write(t, path, "fourth")
	call("fourth", 0)
}

// TestTokenFileErrors checks that the error of a file without a token names the file and contains nothing of it.
func TestTokenFileErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for _, text := range []string{"", " \n", "5ecret 5ecret", "5ecret\n5ecret\n", strings.Repeat("5ecret", 1<<16)} {
		write(t, path, text)
		err := getConversation(t.Context(), (&fake{}).dial(t, client.WithTokenFile(path)))
		if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), path) ||
			strings.Contains(err.Error(), "5ecret") {
			t.Errorf("error of a file with %.20q = %v, want UNAUTHENTICATED with the path and without the text", text, err)
		}
	}
}

// TestTokenIsNotSentInPlaintextToOtherMachines checks that the token is sent to another machine only over TLS, unless
// the caller explicitly chooses a connection without.
func TestTokenIsNotSentInPlaintextToOtherMachines(t *testing.T) {
	const secret = "5ecret"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan []byte)
	var running sync.WaitGroup
	running.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			received <- nil
			return
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // Only a broken test needs it.
		hello := make([]byte, 5)
		_, _ = io.ReadFull(conn, hello)
		conn.Close()
		received <- hello
	})
	defer running.Wait()
	defer listener.Close()
	c, err := client.Dial("passthrough:///parley.example:50051", fixed(secret),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { _ = getConversation(ctx, c) })
	const handshake = 22 // the type of the first record of TLS
	if got := <-received; len(got) == 0 || got[0] != handshake {
		t.Errorf("the client sent %q, want a TLS handshake", got)
	}
	cancel()
}

// TestConcurrentCallsShareATokenFile checks that calls from many goroutines succeed while the file is replaced.
func TestConcurrentCallsShareATokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "t0")
	record := &tokenRecord{valid: func(token string) bool { return strings.HasPrefix(token, "t") }}
	c := (&fake{signIn: record.signIn}).dial(t, client.WithTokenFile(path))
	stop := make(chan struct{})
	var calling sync.WaitGroup
	for range 4 {
		calling.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := getConversation(t.Context(), c); err != nil {
					t.Errorf("GetConversation = %v, want no error", err)
					return
				}
			}
		})
	}
	for i := range 20 {
		write(t, path+".new", "t"+strings.Repeat("x", i))
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		if err := getConversation(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	calling.Wait()
}
