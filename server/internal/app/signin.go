package app

import (
	"errors"
	"log/slog"
	"time"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/transport"
)

// signIn contains the kinds of credentials that callers can sign in with.
type signIn struct {
	auth   *auth.Authenticator
	tokens *tokenfile.File // nil: no tokens of a file
}

// openSignIn opens the kinds of credentials of the settings. The caller must call close.
func openSignIn(c *config.Config, _ *slog.Logger) (*signIn, error) {
	s, verifiers := new(signIn), []auth.Verifier(nil)
	if c.AuthTokenFile != "" {
		var err error
		if s.tokens, err = tokenfile.Open(c.AuthTokenFile, time.Now); err != nil {
			return nil, tokenFileError(err)
		}
		verifiers = append(verifiers, s.tokens)
	}
	if len(verifiers) != len(c.SignIn()) { // Without verifiers sign-in would be off.
		return nil, errors.New("a kind of sign-in in the settings has no verifier")
	}
	s.auth = auth.New(time.Now, verifiers...)
	return s, nil
}

// close ends the refresh of the keys of issuers. A nil signIn has none.
func (s *signIn) close() {}

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
