package rpc

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
)

// withTokens makes a server require a token of a file. The tokens are writers of the tenant acme; the first is valid
// for a time, the second has expired.
func withTokens(t *testing.T, validFor time.Duration) (change func(*setup), path, valid, expired string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tokens.yaml")
	create := func(expires time.Duration) string {
		secret, _, err := tokenfile.Create(t.Context(), path, tokenfile.Token{
			Tenants: []string{"acme"}, Role: auth.Writer, Created: time.Now(), Expires: time.Now().Add(expires),
		})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	valid, expired = create(validFor), create(-time.Hour)
	_, accepts := reopen(t, path)
	return func(s *setup) { s.Auth = accepts }, path, valid, expired
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, auth.TokenKey, "Bearer "+token)
}

// TestFaultyCredentials checks that all faulty credentials get the same status, and that the log says why but contains
// no credential.
func TestFaultyCredentials(t *testing.T) {
	change, path, valid, expired := withTokens(t, time.Hour)
	revoked, created, err := tokenfile.Create(t.Context(), path, tokenfile.Token{
		Tenants: []string{"acme"}, Role: auth.Writer, Created: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokenfile.Revoke(t.Context(), path, created.ID); err != nil {
		t.Fatal(err)
	}
	f := open(t, change)
	headers := map[string][]string{
		"missing": nil, "empty": {""}, "scheme only": {"Bearer "}, "other scheme": {"Basic " + valid}, "plain": {valid},
		"expired": {"Bearer " + expired}, "revoked": {"Bearer " + revoked}, "cut": {"Bearer " + valid[:len(valid)-1]},
		"longer": {"Bearer " + valid + "x"}, "twice": {"Bearer " + valid, "Bearer " + valid},
		"upper case": {"Bearer " + strings.ToUpper(valid)}, "long": {"Bearer " + strings.Repeat(valid, 100)},
		"like a JWT": {"Bearer " + valid + "." + valid + "." + valid}, "inner space": {"Bearer " + valid[:9] + " " + valid[9:]},
	}
	var want statusParts
	for name, values := range headers {
		ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{auth.TokenKey: values})
		_, unary := f.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: "c"})
		stream, err := f.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		for method, err := range map[string]error{"GetConversation": unary, "WatchConversations": err} {
			got := wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
			if want.text == "" {
				want = got
			}
			if got.text != want.text {
				t.Errorf("%s with a credential that is %s: text = %q, want %q as with other faults", method, name, got.text, want.text)
			}
		}
	}
	if got := len(f.log.lines("credential not accepted", "expired token, id ")); got != 2 {
		t.Errorf("the log has %d entries about the expired token, want 2", got)
	}
	for _, token := range []string{valid, expired, revoked} {
		for n := range len(token) - 20 { // A part of a token is a secret, too.
			if part := token[n : n+20]; len(f.log.lines(part)) > 0 || len(f.log.lines(strings.ToUpper(part))) > 0 {
				t.Fatalf("the log contains a part of a token: %v", f.log.lines(part))
			}
		}
	}
	if _, err := f.CreateConversation(withToken(t.Context(), valid), &parleyv1.CreateConversationRequest{}); err != nil {
		t.Errorf("CreateConversation(valid token) = %v", err)
	}
}

// TestStreamsEndWithCredential checks that streams end when the grace of their token does, also if the handler waits
// for the client.
func TestStreamsEndWithCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		change, _, valid, _ := withTokens(t, time.Hour)
		f := open(t, change)
		start := time.Now()
		ctx := withToken(t.Context(), valid)
		watch, err := f.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = watch.Recv()
		}
		wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
		if got, want := time.Since(start), time.Hour+auth.Grace; got != want {
			t.Errorf("the watch ended after %s, want %s", got, want)
		}
		header, err := watch.Header()
		if got := header.Get(auth.ExpiresKey); err != nil || len(got) != 1 ||
			got[0] != start.Add(time.Hour).UTC().Format(time.RFC3339) {
			t.Errorf("header %s = %q, %v, want the time of the expiry", auth.ExpiresKey, got, err)
		}
	})
}

// sendMeter counts the sends of a stream. The number is odd during a send.
type sendMeter struct {
	grpc.ServerStream
	transitions *atomic.Int64
}

func (s sendMeter) SendMsg(m any) error {
	s.transitions.Add(1)
	defer s.transitions.Add(1)
	return s.ServerStream.SendMsg(m)
}

// TestBlockedWatchEndsWithCredential checks that the watch of a client that does not read ends when its token expires or
// is revoked. The handler then waits in a send.
func TestBlockedWatchEndsWithCredential(t *testing.T) {
	for name, revoke := range map[string]bool{"expired": false, "revoked": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, path, valid, _ := withTokens(t, time.Hour)
				var transitions atomic.Int64
				ended := make(chan struct{})
				var file *tokenfile.File
				f := open(t, func(s *setup) {
					file, s.Auth = reopen(t, path)
					s.grpcOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(
						func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
							if strings.HasSuffix(info.FullMethod, "/WatchConversations") {
								defer close(ended)
								stream = sendMeter{stream, &transitions}
							}
							return handler(srv, stream)
						})}
				})
				ctx := withToken(t.Context(), valid)
				watch, err := f.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{IncludeTurnEvents: true})
				if err != nil {
					t.Fatal(err)
				}
				blocked := func() bool { synctest.Wait(); return transitions.Load()%2 == 1 }
				for n := 0; !blocked(); n++ {
					if n == 1000 {
						t.Fatal("the watch does not wait for its client")
					}
					chat, err := f.Chat(ctx, &parleyv1.ChatRequest{Content: strings.Repeat("x", 16<<10)})
					for err == nil {
						_, err = chat.Recv()
					}
				}
				if revoke {
					tokens, err := tokenfile.List(path)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := tokenfile.Revoke(t.Context(), path, tokens[0].ID); err != nil {
						t.Fatal(err)
					}
					if err := file.Reload(); err != nil {
						t.Fatal(err)
					}
					f.server.auth.Recheck(t.Context())
				} else {
					<-time.After(time.Hour + auth.Grace)
				}
				synctest.Wait()
				select {
				case <-ended:
				default:
					t.Error("the handler of the watch still waits for its client")
				}
				for err == nil { // The client reads again.
					_, err = watch.Recv()
				}
				wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
			})
		})
	}
}

// reopen returns the tokens of a file, and an authenticator that accepts them.
func reopen(t *testing.T, path string) (*tokenfile.File, *auth.Authenticator) {
	t.Helper()
	file, err := tokenfile.Open(path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return file, auth.New(time.Now, file)
}

func TestStreamThatReceivesEndsWithCredential(t *testing.T) {
	for name, start := range map[string]func(context.Context, *fixture) (grpc.ClientStream, error){
		"ImportConversations": func(ctx context.Context, f *fixture) (grpc.ClientStream, error) {
			return f.ImportConversations(ctx)
		},
		"AppendStream": func(ctx context.Context, f *fixture) (grpc.ClientStream, error) { return f.AppendStream(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				change, _, valid, _ := withTokens(t, time.Minute) // Less than the limit of a stream that receives nothing.
				f := open(t, change)
				begin := time.Now()
				stream, err := start(withToken(t.Context(), valid), f)
				if err != nil {
					t.Fatal(err)
				}
				err = stream.RecvMsg(new(parleyv1.ImportConversationsResponse))
				wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
				if got, want := time.Since(begin), time.Minute+auth.Grace; got != want {
					t.Errorf("the stream ended after %s, want %s", got, want)
				}
			})
		})
	}
}

// TestReaderChangesNothing checks the calls of a reader that create or delete a conversation besides reading.
func TestReaderChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	token, _, err := tokenfile.Create(t.Context(), path, tokenfile.Token{
		Tenants: []string{"acme"}, Role: auth.Reader, Created: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	file, err := tokenfile.Open(path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	f := open(t, func(s *setup) { s.Auth = auth.New(time.Now, file) })
	ctx := withToken(t.Context(), token)
	_, load := f.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: "c"})
	stream, watch := f.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{
		ConversationIds: []string{"c"}, DeleteAfterDisconnect: durationpb.New(0),
	})
	if watch == nil {
		_, watch = stream.Recv()
	}
	for method, err := range map[string]error{"LoadConversation": load, "WatchConversations": watch} {
		got := wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
		if want := method; !strings.Contains(got.text, want) || !strings.Contains(got.text, "needs the role writer") {
			t.Errorf("%s: text = %q, want the method and the role writer", method, got.text)
		}
	}
}
