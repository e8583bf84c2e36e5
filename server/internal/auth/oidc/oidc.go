// Package oidc checks JSON Web Tokens of an OpenID Connect issuer.
//
// The verifier reads the issuer's keys when the first token arrives, and again when they may have changed. So the
// server starts without its issuer, and callers continue while the issuer is away: the last keys remain in use. keys.go
// contains the keys, cache.go the tokens that were verified before, and claims.go what a token states. Start at [New].
package oidc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"

	"github.com/parleyhq/parley/server/internal/auth"
)

const (
	// clockSkew is the maximum difference between the clocks of the issuer and of this server.
	clockSkew = time.Minute
	// maxTokenBytes is the maximum size of a token. gRPC limits all metadata of a call to the same size.
	maxTokenBytes = 16 << 10
	// maxExpiry is the last second of the year 9999. Later times have no form in RFC 3339.
	maxExpiry = 253402300799
)

// Options configure a Verifier.
type Options struct {
	// Issuer is the URL of the issuer. It must be https, except on a loopback address.
	Issuer string
	// Audience must be among the audiences of a token.
	Audience string
	// TenantClaim is the name of the claim with the tenants: a text, or a list of texts. A name with dots also selects
	// members of objects, as in "app.tenants". If empty, it is "tenant".
	TenantClaim string
	// RoleClaim is the name of the claim with the role: a text, or a list of texts of which the largest role counts. If
	// empty, it is "role".
	RoleClaim string
	// OnKeysRemoved is called after the verifier has noticed that the issuer removed or replaced a key. Tokens of that
	// key are no longer accepted, so streams that began with one must end. ctx does not end. [Verifier.Close] waits for
	// the call, which must not call it. If nil, nothing is called.
	OnKeysRemoved func(ctx context.Context)
	// Log receives failures to read the keys of the issuer.
	Log *slog.Logger
	// Now is the clock. If nil, it is time.Now.
	Now func() time.Time
	// HTTPClient has the transport of requests to the issuer. The caller closes its connections. If nil, requests use
	// the proxy and the certificate authorities of the environment.
	HTTPClient *http.Client
}

// Verifier checks tokens of one issuer. Create it with [New], and call [Verifier.Close] at the end. Its methods may be
// called from many goroutines.
type Verifier struct {
	tenantClaim, roleClaim string
	now                    func() time.Time

	keys   *keySet
	tokens *gooidc.IDTokenVerifier
	cache  *cache
}

// New returns a verifier. It does not call the issuer yet. The error says which option is invalid.
func New(o Options) (*Verifier, error) {
	if err := checkURL(o.Issuer); err != nil {
		return nil, fmt.Errorf("OIDC issuer %.200q: %w", o.Issuer, err)
	}
	if o.Audience == "" {
		return nil, errors.New("OIDC audience: must not be empty; use the audience that the issuer's tokens have")
	}
	if o.TenantClaim == "" {
		o.TenantClaim = "tenant"
	}
	if o.RoleClaim == "" {
		o.RoleClaim = "role"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	v := &Verifier{tenantClaim: o.TenantClaim, roleClaim: o.RoleClaim, now: o.Now, cache: newCache(maxCached)}
	v.keys = newKeySet(o, v.cache.clear)
	v.tokens = gooidc.NewVerifier(o.Issuer, v.keys, &gooidc.Config{
		ClientID:             o.Audience,
		SupportedSigningAlgs: algorithmNames(),
		SkipExpiryCheck:      true, // checkTimes allows the same skew in both directions.
	})
	return v, nil
}

// checkURL returns an error if the URL of an issuer or of its keys is not safe.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("is not a URL of the form https://host/path")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return errors.New("must begin with https://; http:// is only safe on a loopback address")
	}
	return nil
}

// isLoopback reports whether a host is always this machine.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// Close stops requests to the issuer and waits for their goroutines. Later calls of Verify fail unless the token is
// valid with the known keys.
func (v *Verifier) Close() { v.keys.close() }

// Verify returns what the token of c states. A token that was valid before is not verified again while the keys of the
// issuer are the same, until it expires.
func (v *Verifier) Verify(ctx context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Token == "" {
		return auth.Identity{}, errors.New("OIDC: no token")
	}
	if len(c.Token) > maxTokenBytes || strings.Count(c.Token, ".") != 2 {
		return auth.Identity{}, errors.New("OIDC: not a JSON Web Token")
	}
	now := v.now()
	v.keys.refreshOld(ctx)
	hash := sha256.Sum256([]byte(c.Token))
	identity, round, found := v.cache.find(hash)
	if found && now.Before(identity.Expires) {
		return identity, nil
	}
	token, err := v.tokens.Verify(ctx, c.Token)
	if err == nil {
		identity, err = v.identity(token, now)
	}
	if err != nil {
		// The text may quote fields of the header or of the claims, which callers choose.
		return auth.Identity{}, fmt.Errorf("OIDC: %.300s", err.Error())
	}
	v.cache.add(hash, identity, round)
	return identity, nil
}
