package oidc_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/oidc"
)

const watch = parleyv1.ConversationService_WatchConversations_FullMethodName

// follow opens a stream.
func follow(t *testing.T, a *auth.Authenticator, token string) (ctx context.Context) {
	t.Helper()
	c := auth.Credentials{Token: token, TokenSent: true}
	p, err := a.Authorize(t.Context(), watch, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, release := a.Follow(t.Context(), watch, c, p)
	t.Cleanup(release)
	return ctx
}

// TestRemovedKey checks that streams end when the issuer removes or replaces the key of their token.
func TestRemovedKey(t *testing.T) {
	first, second := newSigner(t, "k1", jose.ES256), newSigner(t, "k2", jose.ES256)
	for what, keys := range map[string][]*signer{
		"removed": {second}, "replaced by one with the same id": {newSigner(t, "k1", jose.ES256), second},
	} {
		t.Run(what, func(t *testing.T) {
			var a *auth.Authenticator
			f := newFixture(t, newIssuer(t, first, second), func(o *oidc.Options) {
				o.OnKeysRemoved = func(ctx context.Context) { a.Recheck(ctx) }
			})
			a = auth.New(f.clock, f.Verifier)
			old := first.sign(t, f.claims(nil))
			ended, remains := follow(t, a, old), follow(t, a, second.sign(t, f.claims(nil)))
			f.setKeys(keys...)
			f.advance(5 * time.Second)
			f.reject("token of an unknown key", newSigner(t, "k3", jose.ES256).sign(t, f.claims(nil)), "no key with the id")
			<-ended.Done()
			if err := context.Cause(ended); !errors.Is(err, auth.ErrUnauthenticated) {
				t.Errorf("cause of the end of the stream = %v, want ErrUnauthenticated", err)
			}
			if _, err := f.verify(old); err == nil {
				t.Error("Verify(token of the key) = nil, want an error")
			}
			f.Close() // It waits until all streams are checked.
			if err := context.Cause(remains); err != nil {
				t.Errorf("cause of a stream with a token of the other key = %v, want none", err)
			}
		})
	}
}

// TestAddedKey checks that streams are not checked again when the issuer only adds a key.
func TestAddedKey(t *testing.T) {
	first, second := newSigner(t, "k1", jose.ES256), newSigner(t, "k2", jose.ES256)
	f := newFixture(t, newIssuer(t, first), func(o *oidc.Options) {
		o.OnKeysRemoved = func(context.Context) { t.Error("OnKeysRemoved was called after a key was added") }
	})
	f.accept("token", first.sign(t, f.claims(nil)))
	f.setKeys(second, first)
	f.advance(5 * time.Second)
	added := second.sign(t, f.claims(nil))
	f.rejectDuringFetch("token of the added key", added)
	f.accept("token of the added key after the fetch", added)
	f.Close()
}

// listed is a verifier of tokens, which may look as those of an issuer.
type listed map[string]bool

// Verify accepts the tokens of the list.
func (l listed) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if !l[c.Token] {
		return auth.Identity{}, errors.New("not listed")
	}
	return auth.Identity{Tenants: []string{"acme"}, Role: auth.Writer}, nil
}

// TestRecheckDoesNotWait checks that a slow issuer does not delay the end of streams, even before its first keys are
// read.
func TestRecheckDoesNotWait(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	f := newFixture(t, newIssuer(t, s), nil)
	asked := f.hang(nil)
	token := s.sign(t, f.claims(nil))
	list := listed{token: true}
	a := auth.New(f.clock, list, f.Verifier)
	ctx := follow(t, a, token)
	delete(list, token)
	a.Recheck(t.Context())
	if err := context.Cause(ctx); !errors.Is(err, auth.ErrUnauthenticated) {
		t.Errorf("cause after Recheck = %v, want ErrUnauthenticated", err)
	}
	<-asked
	if log := f.log.String(); log != "" {
		t.Errorf("log = %s, want none, because the request for the keys still runs", log)
	}
}
