package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/certificates"
	"github.com/parleyhq/parley/server/internal/auth/oidc"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/transport"
)

// signIn contains the kinds of credentials that callers can sign in with.
type signIn struct {
	auth   *auth.Authenticator
	tokens *tokenfile.File        // nil: no tokens of a file
	issuer *oidc.Verifier         // nil: no tokens of an issuer
	rules  *certificates.Verifier // nil: no client certificates
}

// openSignIn opens the kinds of credentials of the settings. The caller must call close. If the settings or the files
// that they name have faults, the error is a *config.Error.
func openSignIn(c *config.Config, log *slog.Logger) (*signIn, error) {
	s, verifiers := new(signIn), []auth.Verifier(nil)
	if c.AuthTokenFile != "" {
		var err error
		if s.tokens, err = tokenfile.Open(c.AuthTokenFile, time.Now); err != nil {
			return nil, tokenFileError(err)
		}
		verifiers = append(verifiers, s.tokens)
	}
	if len(c.ClientCertificates) > 0 {
		var err error
		if s.rules, err = certificates.New(certificateRules(c)); err != nil {
			return nil, settingsError("client_certificates", err)
		}
		verifiers = append(verifiers, s.rules)
	}
	if c.OIDCIssuer != "" {
		var err error
		if s.issuer, err = oidc.New(oidc.Options{
			Issuer: c.OIDCIssuer, Audience: c.OIDCAudience, TenantClaim: c.OIDCTenantClaim, RoleClaim: c.OIDCRoleClaim,
			OnKeysRemoved: func(ctx context.Context) { s.auth.Recheck(ctx) }, Log: log,
		}); err != nil {
			return nil, settingsError("oidc-issuer", err)
		}
		verifiers = append(verifiers, s.issuer)
	}
	if len(verifiers) != len(c.SignIn()) { // Without a verifier sign-in would be off.
		s.close()
		return nil, errors.New("a kind of sign-in in the settings has no verifier")
	}
	s.auth = auth.New(time.Now, verifiers...)
	return s, nil
}

// settingsError returns an error of a setting.
func settingsError(place string, err error) error {
	return &config.Error{Faults: []string{fmt.Sprintf("%s: %v", place, err)}}
}

// certificateRules returns the rules for client certificates.
func certificateRules(c *config.Config) []certificates.Rule {
	rules := make([]certificates.Rule, len(c.ClientCertificates))
	for i, r := range c.ClientCertificates {
		rules[i] = certificates.Rule{URI: r.URI, CN: r.CN, Tenants: r.Tenants, Role: r.Role}
	}
	return rules
}

// close ends the refresh of the issuer's keys.
func (s *signIn) close() {
	if s.issuer != nil {
		s.issuer.Close()
	}
}

// tlsFiles returns the files of the certificates of the listeners, or nil if they have no TLS.
func tlsFiles(c *config.Config) *transport.TLSFiles {
	if !c.HasTLS() {
		return nil
	}
	return &transport.TLSFiles{
		CertFile: c.TLSCertFile, KeyFile: c.TLSKeyFile, ClientCAFile: c.TLSClientCAFile,
		RequireClientCert: c.TLSClientAuth == config.ClientAuthRequired,
	}
}
