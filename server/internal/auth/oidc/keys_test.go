package oidc_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/parleyhq/parley/server/internal/auth"
)

// TestRotation exchanges the keys of the issuer.
func TestRotation(t *testing.T) {
	first, second := newSigner(t, "k1", jose.ES256), newSigner(t, "k2", jose.ES256)
	f := newFixture(t, newIssuer(t, first), nil)
	old := first.sign(t, f.claims(nil))
	f.accept("token of the first key", old)
	f.setKeys(first, second)
	f.advance(5 * time.Second)
	added := second.sign(t, f.claims(nil))
	f.rejectDuringFetch("token of the added key", added)
	f.accept("token of the added key after the fetch", added)
	f.accept("token of the first key", old)
	f.setKeys(second)
	f.advance(5 * time.Second)
	f.reject("token of an unknown key", newSigner(t, "k3", jose.ES256).sign(t, f.claims(nil)), "no key with the id")
	f.AwaitFetch()
	f.reject("token of the removed key", old, "no key with the id")
	f.accept("token of the second key", second.sign(t, f.claims(nil)))
}

// TestOldKeys checks that keys in use are read again after some minutes, also if all tokens are known.
func TestOldKeys(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	f := newFixture(t, newIssuer(t, s), nil)
	token := s.sign(t, f.claims(nil))
	f.accept("token", token)
	f.advance(10 * time.Minute)
	f.accept("token", token)
	if got := f.requestCount(); got != 1 {
		t.Errorf("the issuer has %d requests after 10 minutes, want 1", got)
	}
	asked := make(chan struct{}, 1)
	f.setAnswer(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} })
	f.advance(time.Second)
	f.accept("token while the keys are read", token)
	<-asked
}

// TestIssuerAway checks that callers continue while the issuer is away, also those whose token is new.
func TestIssuerAway(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	f := newFixture(t, newIssuer(t, s), nil)
	token := s.sign(t, f.claims(nil))
	f.accept("token", token)
	f.setAnswer(away)
	for minute := range 59 {
		f.advance(time.Minute)
		f.accept("known token", token)
		f.accept("new token", s.sign(t, f.claims(map[string]any{"jti": fmt.Sprint(minute)})))
	}
	f.advance(2 * time.Minute)
	f.reject("expired token", token, "the token expired")
	f.AwaitFetch() // Otherwise the only fetch might still run, and succeed.
	f.setAnswer(nil)
	unknown := newSigner(t, "k2", jose.ES256).sign(t, f.claims(map[string]any{"exp": start().Add(2 * time.Hour).Unix()}))
	f.advance(5 * time.Second)
	f.reject("unknown key", unknown, "no key with the id")
	f.AwaitFetch()
	if got := f.log.String(); !strings.Contains(got, "keys of the OIDC issuer read again") {
		t.Errorf("log = %s, want that the keys were read again", got)
	}
}

// TestUnknownKeys checks that tokens with random keys, or with wrong signatures, cost the issuer no more than one request
// for its keys in five seconds.
func TestUnknownKeys(t *testing.T) {
	s, wrong := newSigner(t, "k1", jose.ES256), newSigner(t, "k1", jose.ES256)
	f := newFixture(t, newIssuer(t, s), nil)
	good := s.sign(t, f.claims(nil))
	f.accept("token", good)
	var attacks sync.WaitGroup
	const seconds = 20
	for second := range seconds {
		f.advance(time.Second)
		for n := range 20 {
			unknown := *wrong
			unknown.id = fmt.Sprint(second, n)
			tokens := []string{wrong.sign(t, f.claims(nil)), unknown.sign(t, f.claims(nil))}
			attacks.Go(func() {
				for _, token := range tokens {
					if _, err := f.Verify(t.Context(), auth.Credentials{Token: token}); err == nil {
						t.Error("Verify() of a token that the issuer has not signed = nil")
					}
				}
			})
		}
		attacks.Wait()
		f.AwaitFetch()
	}
	if got, most := f.requestCount(), 1+seconds/5; got > most || got < 2 {
		t.Errorf("the issuer has %d requests in %d s, want 2 to %d", got, seconds, most)
	}
	f.accept("token", good)
}

// hang makes requests for the keys wait for their end, or for the end of release. It returns a channel with a value for
// each request.
func (f *fixture) hang(release <-chan struct{}) (asked <-chan struct{}) {
	requests := make(chan struct{}, 1)
	f.setAnswer(func(w http.ResponseWriter, r *http.Request) {
		requests <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-release:
			away(w, r)
		}
	})
	return requests
}

// rejectDuringFetch checks that a token of an unknown key is rejected, before the issuer answers the request that the
// token causes. It waits for the end of the fetch.
func (f *fixture) rejectDuringFetch(what, token string) {
	f.t.Helper()
	release := make(chan struct{})
	f.setAnswer(func(w http.ResponseWriter, r *http.Request) {
		<-release
		f.writeKeys(w, r)
	})
	f.reject(what, token, "no key with the id")
	close(release)
	f.AwaitFetch()
	f.setAnswer(nil)
}

// TestHangingIssuer checks that tokens of an unknown key are refused at once while the issuer does not answer, that other
// callers continue, and that Close ends the request.
func TestHangingIssuer(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	f := newFixture(t, newIssuer(t, s), nil)
	good := s.sign(t, f.claims(nil))
	f.accept("token", good)
	asked := f.hang(nil)
	f.advance(5 * time.Second)
	unknown := newSigner(t, "k2", jose.ES256).sign(t, f.claims(nil))
	f.reject("unknown key", unknown, "no key with the id")
	<-asked
	f.reject("unknown key during the fetch", unknown, "no key with the id")
	f.accept("token", good)
	f.accept("new token", s.sign(t, f.claims(map[string]any{"jti": "2"})))
	if log := f.log.String(); log != "" {
		t.Errorf("log = %s, want none, because the request still runs", log)
	}
	f.Close()
	f.accept("known token after Close", good)
	f.reject("token after Close", unknown, "the verifier is closed")
}

// TestHangingFirstKeys checks that callers wait for the first keys no longer than their call.
func TestHangingFirstKeys(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	f := newFixture(t, newIssuer(t, s), nil)
	asked := f.hang(nil)
	token := s.sign(t, f.claims(nil))
	results := make(chan error)
	verify := func(ctx context.Context) {
		_, err := f.Verify(ctx, auth.Credentials{Token: token})
		results <- err
	}
	ctx, cancel := context.WithCancel(t.Context())
	go verify(ctx)
	<-asked
	go verify(t.Context())
	cancel()
	if err := <-results; err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("Verify() of a cancelled call = %v, want context.Canceled", err)
	}
	f.Close()
	if err := <-results; err == nil {
		t.Error("Verify() after Close = nil, want an error")
	}
}

// TestIntervalAfterSlowFetch checks that an attempt that lasts long is not followed by the next one at once.
func TestIntervalAfterSlowFetch(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	f := newFixture(t, newIssuer(t, s), nil)
	f.accept("token", s.sign(t, f.claims(nil)))
	release := make(chan struct{})
	asked := f.hang(release)
	f.advance(5 * time.Second)
	unknown := newSigner(t, "k2", jose.ES256).sign(t, f.claims(nil))
	f.reject("unknown key", unknown, "no key with the id")
	<-asked
	f.advance(9 * time.Second) // The fetch lasts that long.
	close(release)
	f.AwaitFetch()
	f.reject("unknown key after the fetch", unknown, "requested less than 5s ago")
	f.advance(5 * time.Second)
	f.reject("unknown key after the interval", unknown, "no key with the id")
	<-asked
}

// TestExpiryOfKnownToken checks that the cache does not extend the life of a token.
func TestExpiryOfKnownToken(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	f := newFixture(t, newIssuer(t, s), nil)
	token := s.sign(t, f.claims(nil))
	f.accept("token", token)
	f.advance(time.Hour + time.Minute - time.Nanosecond)
	f.accept("token just before its expiry", token)
	f.advance(time.Nanosecond)
	f.reject("token at its expiry", token, "expired")
	a := auth.New(f.clock, f.Verifier)
	_, err := a.Authorize(t.Context(), "/parley.v1.ConversationService/GetConversation", auth.Credentials{Token: token})
	if !errors.Is(err, auth.ErrUnauthenticated) {
		t.Errorf("Authorize() at the expiry = %v, want ErrUnauthenticated", err)
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, algorithm := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256} {
		s := newSigner(b, "k1", algorithm)
		f := newFixture(b, newIssuer(b, s), nil)
		b.Run("known/"+string(algorithm), func(b *testing.B) {
			token := s.sign(b, f.claims(nil))
			for b.Loop() {
				if _, err := f.Verify(b.Context(), auth.Credentials{Token: token}); err != nil {
					b.Fatal(err)
				}
			}
		})
		wrong := newSigner(b, "k1", algorithm).sign(b, f.claims(nil))
		b.Run("wrong/"+string(algorithm), func(b *testing.B) {
			for b.Loop() {
				if _, err := f.Verify(b.Context(), auth.Credentials{Token: wrong}); err == nil {
					b.Fatal("a wrong signature was accepted")
				}
			}
		})
	}
}
