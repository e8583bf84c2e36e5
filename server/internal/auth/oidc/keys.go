package oidc

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/parleyhq/parley/server/internal/auth"
)

const (
	// fetchInterval is the minimum time from the end of an attempt to read the keys to the next attempt. Tokens with
	// unknown keys cost the issuer no more than that, however many there are.
	fetchInterval = 5 * time.Second
	// fetchTimeout is the maximum duration of an attempt.
	fetchTimeout = 10 * time.Second
	// maxKeyAge is the age after which keys are read again while they are in use.
	maxKeyAge = 10 * time.Minute
	// maxBodyBytes is the maximum size of a response of the issuer.
	maxBodyBytes = 1 << 20
	// maxHeaderBytes is the maximum size of the headers of a response.
	maxHeaderBytes = 64 << 10
	// maxKeys is the maximum number of keys of an issuer that are used.
	maxKeys = 100
	// maxRedirects is the maximum number of redirects of a request.
	maxRedirects = 3
)

// algorithms returns the algorithms that a token may be signed with. All are asymmetric: a key of the issuer is public,
// so it must not be a secret that signs.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512,
		jose.EdDSA,
	}
}

func algorithmNames() []string {
	var names []string
	for _, a := range algorithms() {
		names = append(names, string(a))
	}
	return names
}

// keySet contains the public keys of an issuer. It implements the key set of go-oidc, which reads the keys again for
// each token with a wrong signature; this one does so at a limited rate.
type keySet struct {
	issuer     string
	client     *http.Client
	log        *slog.Logger
	now        func() time.Time
	clearCache func()                    // called when keys were removed, before the fetch ends
	onRemoved  func(ctx context.Context) // called then, after the fetch has ended
	slots      chan struct{}

	current atomic.Pointer[keys]

	mu       sync.Mutex
	ended    time.Time // end of the last fetch
	fetching *fetch    // nil if there is none
	lastErr  error     // of the last fetch
	closed   bool
	running  sync.WaitGroup
}

// keys are the keys that the issuer had at a time.
type keys struct {
	list []jose.JSONWebKey
	read time.Time
}

// fetch is a running attempt to read the keys.
type fetch struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when err is set
	err    error
}

func newKeySet(o Options, clearCache func()) *keySet {
	// Requests are minutes apart, so no connection is kept.
	var transport http.RoundTripper = &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeaderBytes,
	}
	if o.HTTPClient != nil && o.HTTPClient.Transport != nil {
		transport = o.HTTPClient.Transport
	}
	client := http.Client{
		Timeout: fetchTimeout, CheckRedirect: checkRedirect, Transport: limitedBodies{transport},
	}
	s := &keySet{
		issuer: o.Issuer, client: &client, log: o.Log, now: o.Now,
		clearCache: clearCache, onRemoved: o.OnKeysRemoved,
		// Half of the processors, so that tokens with wrong signatures leave the others to the signed-in callers.
		slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
	s.current.Store(&keys{})
	return s
}

// checkRedirect refuses redirects to addresses that checkURL does not allow.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	target := *r.URL
	target.RawQuery, target.Fragment = "", ""
	return checkURL(target.String())
}

// limitedBodies limits the size of responses.
type limitedBodies struct{ http.RoundTripper }

// RoundTrip returns a response whose body fails after maxBodyBytes.
func (t limitedBodies) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, maxBodyBytes)
	}
	return response, err
}

// VerifySignature returns the payload of a token that one of the keys has signed. If none has, it starts to read the
// keys again, unless it did so less than fetchInterval ago. It waits for the first keys only: later it fails at once,
// so that a slow issuer does not hold calls with faulty tokens, and the caller's next attempt finds a new key.
func (s *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSigned(token, algorithms())
	if err != nil {
		return nil, err
	}
	known := s.current.Load()
	payload, err := s.verifyWith(ctx, known, signed)
	if err == nil || ctx.Err() != nil {
		return payload, err
	}
	f, fetchErr := s.start(ctx)
	if fetchErr == nil && len(known.list) == 0 && !auth.IsRecheck(ctx) {
		fetchErr = f.wait(ctx)
	}
	read := s.current.Load()
	if read == known {
		return nil, errors.Join(err, fetchErr)
	}
	return s.verifyWith(ctx, read, signed)
}

// verifyWith verifies at most one signature, since a signature costs more than the rest of a call.
func (s *keySet) verifyWith(ctx context.Context, k *keys, token *jose.JSONWebSignature) ([]byte, error) {
	header := token.Signatures[0].Header
	fits := func(key jose.JSONWebKey) bool {
		return (header.KeyID == "" || key.KeyID == header.KeyID) &&
			(key.Algorithm == "" || key.Algorithm == header.Algorithm)
	}
	i := slices.IndexFunc(k.list, fits)
	if i < 0 {
		return nil, errors.New("the issuer has no key with the id and algorithm of the token")
	}
	if header.KeyID == "" && slices.ContainsFunc(k.list[i+1:], fits) {
		return nil, errors.New("the token has no key id, and the issuer has several keys")
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return token.Verify(k.list[i].Key)
}

// refreshOld starts to read the keys again if they are old. It does not wait.
func (s *keySet) refreshOld(ctx context.Context) {
	if k := s.current.Load(); len(k.list) > 0 && s.now().Sub(k.read) > maxKeyAge {
		_, _ = s.start(ctx)
	}
}

// wait waits for the end of the fetch, or of ctx.
func (f *fetch) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// start returns the running fetch, or starts one. It fails if the last one ended less than fetchInterval ago.
func (s *keySet) start(ctx context.Context) (*fetch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the verifier is closed")
	}
	if s.fetching != nil {
		return s.fetching, nil
	}
	// A clock that was set back does not stop the attempts.
	if since := s.now().Sub(s.ended); since >= 0 && since < fetchInterval {
		return nil, fmt.Errorf("the keys were requested less than %s ago", fetchInterval)
	}
	// The fetch is for all callers, so it continues when the caller that started it has left.
	ctx = context.WithoutCancel(ctx)
	limited, cancel := context.WithTimeout(ctx, fetchTimeout)
	f := &fetch{cancel: cancel, done: make(chan struct{})}
	s.fetching = f
	s.running.Go(func() {
		removed, err := s.fetch(limited)
		s.finish(f, err)
		if removed && s.onRemoved != nil {
			s.onRemoved(ctx)
		}
	})
	return f, nil
}

// finish ends a fetch.
func (s *keySet) finish(f *fetch, err error) {
	f.cancel()
	s.mu.Lock()
	failedBefore := s.lastErr != nil
	s.fetching, s.lastErr, s.ended = nil, err, s.now()
	closed := s.closed
	s.mu.Unlock()
	switch {
	case err != nil && !failedBefore && !closed:
		s.log.Warn("keys of the OIDC issuer not read", "issuer", s.issuer, "error", err,
			"keys_in_use", len(s.current.Load().list))
	case err == nil && failedBefore:
		s.log.Info("keys of the OIDC issuer read again", "issuer", s.issuer)
	}
	f.err = err
	close(f.done)
}

// fetch reads the keys from the issuer. It reports whether the issuer has removed keys.
func (s *keySet) fetch(ctx context.Context) (removed bool, err error) {
	provider, err := gooidc.NewProvider(gooidc.ClientContext(ctx, s.client), s.issuer)
	if err != nil {
		return false, fmt.Errorf("discovery: %.300s", err.Error()) // The text may quote a page.
	}
	var metadata struct {
		KeysURL string `json:"jwks_uri"`
	}
	if err := provider.Claims(&metadata); err != nil {
		return false, fmt.Errorf("discovery: %w", err)
	}
	list, err := s.fetchKeys(ctx, metadata.KeysURL)
	if err != nil {
		return false, fmt.Errorf("keys: %w", err)
	}
	old := s.current.Swap(&keys{list: list, read: s.now()})
	for _, key := range old.list {
		if !slices.ContainsFunc(list, func(k jose.JSONWebKey) bool { return sameKey(k, key) }) {
			s.clearCache() // The issuer no longer vouches for what the key has signed.
			return true, nil
		}
	}
	return false, nil
}

// sameKey reports whether the same tokens are valid with two keys. An issuer may replace a key and keep its id, so the
// thumbprints of RFC 7638 count, too.
func sameKey(a, b jose.JSONWebKey) bool {
	if a.KeyID != b.KeyID || a.Algorithm != b.Algorithm {
		return false
	}
	first, errA := a.Thumbprint(crypto.SHA256)
	second, errB := b.Thumbprint(crypto.SHA256)
	return errA == nil && errB == nil && bytes.Equal(first, second)
}

func (s *keySet) fetchKeys(ctx context.Context, url string) ([]jose.JSONWebKey, error) {
	if err := checkURL(url); err != nil {
		return nil, fmt.Errorf("jwks_uri %.200q: %w", url, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the issuer answered %s", response.Status)
	}
	return parseKeys(body)
}

// parseKeys returns the public keys for signatures in a JSON Web Key Set. It skips keys of unknown kinds, as RFC 7517
// asks.
func parseKeys(body []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("not a JSON Web Key Set: %w", err)
	}
	var list []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) == nil && key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			list = append(list, key)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("the issuer has no key for signatures")
	}
	return list[:min(len(list), maxKeys)], nil
}

// close cancels a running fetch and waits for its end.
func (s *keySet) close() {
	s.mu.Lock()
	s.closed = true
	if s.fetching != nil {
		s.fetching.cancel()
	}
	s.mu.Unlock()
	s.running.Wait()
}
