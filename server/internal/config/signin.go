package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
	"github.com/parleyhq/parley/server/internal/secretfile"
)

// Values of the setting tls-client-auth.
const (
	ClientAuthOptional = "optional" // clients may present a certificate
	ClientAuthRequired = "required" // clients must present a certificate
)

// Names of the claims in the tokens of an issuer, unless the settings name others.
const (
	defaultTenantClaim = "tenant"
	defaultRoleClaim   = "role"
)

// ClientCertificate is the rule that maps client certificates with one name to tenants and a role.
type ClientCertificate struct {
	URI     string // subject alternative name; empty: CN is set
	CN      string // common name of the subject; empty: URI is set
	Tenants []string
	Role    auth.Role
}

// HasTLS reports whether the listeners use TLS.
func (c *Config) HasTLS() bool { return c.TLSCertFile != "" && c.TLSKeyFile != "" }

// SignIn returns the kinds of credentials that callers can sign in with. If there are none, sign-in is off.
func (c *Config) SignIn() []string {
	var kinds []string
	if c.AuthTokenFile != "" {
		kinds = append(kinds, "tokens")
	}
	if c.OIDCIssuer != "" {
		kinds = append(kinds, "oidc")
	}
	if len(c.ClientCertificates) > 0 {
		kinds = append(kinds, "client certificates")
	}
	return kinds
}

// signInSettings returns the rows of the table of settings for TLS and sign-in.
func (c *Config) signInSettings() []*setting {
	return []*setting{
		newSetting("tls-cert-file", text(&c.TLSCertFile, "", 0, 4*kib, "path"),
			"certificate of the listeners, in PEM form, with its intermediates; empty: no TLS"),
		newSetting("tls-key-file", text(&c.TLSKeyFile, "", 0, 4*kib, "path"),
			"private key of the certificate, in PEM form; readable by its owner only"),
		newSetting("tls-client-ca-file", text(&c.TLSClientCAFile, "", 0, 4*kib, "path"),
			"certificates of the authorities that issue client certificates; empty: none are requested"),
		newSetting("tls-client-auth", choice(&c.TLSClientAuth, "", ClientAuthOptional, ClientAuthRequired),
			"whether clients must present a certificate (default optional if tls-client-ca-file is set)"),
		newSetting("auth-token-file", text(&c.AuthTokenFile, "", 0, 4*kib, "path"),
			"file of the tokens that callers sign in with; 'parleyd token create' adds one; empty: no tokens"),
		newSetting("oidc-issuer", issuer(&c.OIDCIssuer),
			"OpenID Connect issuer whose tokens callers sign in with, as in https://login.example; empty: none"),
		newSetting("oidc-audience", text(&c.OIDCAudience, "", 0, kib, "name"),
			"audience that the issuer's tokens must have"),
		newSetting("oidc-tenant-claim", text(&c.OIDCTenantClaim, defaultTenantClaim, 1, 256, "name"),
			"claim with the caller's tenant or list of tenants"),
		newSetting("oidc-role-claim", text(&c.OIDCRoleClaim, defaultRoleClaim, 1, 256, "name"),
			"claim with the caller's role: reader, writer or admin"),
	}
}

// issuer is the URL of an OpenID Connect issuer, or empty.
func issuer(target *string) value[string] {
	return value[string]{target, "url", func(s string) (string, error) {
		u, err := url.Parse(s)
		switch {
		case s == "":
		case err != nil, u.Hostname() == "", u.User != nil, strings.ContainsAny(s, "?#"), len(s) > 2*kib,
			u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
			return "", errors.New("is not an issuer; use its https URL, as in https://login.example; " +
				"http is allowed for a loopback host")
		}
		return s, nil
	}, verbatim}
}

// clientCertificates reads the rules for client certificates.
func (f *file) clientCertificates(key string, n *yaml.Node) {
	f.loader.clientCertificatesAt = f.place(key, n)
	f.items(key, n, func(_ int, key string, n *yaml.Node) {
		var c ClientCertificate
		f.mapping(key, n, map[string]field{
			"uri":     f.value(text(&c.URI, "", 1, 2*kib, "")),
			"cn":      f.value(text(&c.CN, "", 1, 256, "")),
			"tenants": f.list(&c.Tenants, func(_ int, tenant *string) pflag.Value { return text(tenant, "", 1, kib, "") }),
			"role":    f.value(role(&c.Role)),
		})
		if (child(n, "uri") == nil) == (child(n, "cn") == nil) {
			f.fault(key, n, "must have exactly one of uri and cn")
		}
		f.require(key, n, "role", "write reader, writer or admin")
		switch err := auth.CheckTenants(c.Tenants); {
		case child(n, "tenants") == nil:
			f.require(key, n, "tenants", "write a list, as in [acme]; [\"*\"] is all tenants")
		case err != nil:
			f.fault(key+".tenants", child(n, "tenants"), "%v", err)
		}
		f.loader.config.ClientCertificates = append(f.loader.config.ClientCertificates, c)
	})
}

// role is a value for a role.
func role(target *auth.Role) value[auth.Role] {
	return value[auth.Role]{target, "reader|writer|admin", auth.ParseRole, auth.Role.String}
}

// node returns the rule in the form of the file.
func (c ClientCertificate) node() *yaml.Node {
	m := &mapping{}
	m.add("uri", c.URI)
	m.add("cn", c.CN)
	m.put("tenants", c.Tenants)
	m.put("role", c.Role.String())
	return m.flow()
}

// checkSignIn checks the settings of TLS and sign-in, and whether the addresses need them.
func (l *loader) checkSignIn() {
	c := l.config
	if c.TLSClientCAFile != "" && c.TLSClientAuth == "" {
		c.TLSClientAuth = ClientAuthOptional
	}
	l.checkPairs()
	if c.HasTLS() {
		l.checkServerCertificate()
	}
	if c.TLSClientCAFile != "" {
		l.checkClientCA()
	}
	if c.AuthTokenFile != "" {
		l.checkSecretFile("auth-token-file", c.AuthTokenFile, tokenfile.MaxFileBytes,
			"; create it with 'parleyd token create --file'")
	}
	l.checkReach()
}

// checkPairs checks which settings need others.
func (l *loader) checkPairs() {
	c := l.config
	rules := len(c.ClientCertificates) > 0
	for _, rule := range []struct {
		faulty        bool
		place, advice string
	}{
		{c.TLSCertFile != "" && c.TLSKeyFile == "", l.place("tls-cert-file"), "needs --tls-key-file"},
		{c.TLSKeyFile != "" && c.TLSCertFile == "", l.place("tls-key-file"), "needs --tls-cert-file"},
		{
			c.TLSClientCAFile != "" && !c.HasTLS(), l.place("tls-client-ca-file"),
			"needs TLS; set --tls-cert-file and --tls-key-file",
		},
		{
			c.TLSClientAuth != "" && c.TLSClientCAFile == "", l.place("tls-client-auth"),
			"needs --tls-client-ca-file",
		},
		{rules && c.TLSClientCAFile == "", l.clientCertificatesAt, "needs --tls-client-ca-file"},
		{c.OIDCIssuer != "" && c.OIDCAudience == "", l.place("oidc-issuer"), "needs --oidc-audience"},
		{c.OIDCAudience != "" && c.OIDCIssuer == "", l.place("oidc-audience"), "needs --oidc-issuer"},
		{
			c.OIDCTenantClaim != defaultTenantClaim && c.OIDCIssuer == "", l.place("oidc-tenant-claim"),
			"needs --oidc-issuer",
		},
		{c.OIDCRoleClaim != defaultRoleClaim && c.OIDCIssuer == "", l.place("oidc-role-claim"), "needs --oidc-issuer"},
	} {
		if rule.faulty {
			l.fault(rule.place, "%s", rule.advice)
		}
	}
}

// checkServerCertificate checks the certificate of the listeners and its key. Faults quote neither file.
func (l *loader) checkServerCertificate() {
	c := l.config
	cert, err := secretfile.Read(c.TLSCertFile, secretfile.MaxPEMBytes)
	if err != nil {
		l.fault(l.place("tls-cert-file"), "%v", err)
	}
	key := l.checkSecretFile("tls-key-file", c.TLSKeyFile, secretfile.MaxPEMBytes, "")
	if cert == nil || key == nil {
		return
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		l.fault(l.place("tls-cert-file"), "does not match the key of %s: %v", l.place("tls-key-file"), err)
	}
}

// checkClientCA checks the authorities of client certificates.
func (l *loader) checkClientCA() {
	data, err := secretfile.Read(l.config.TLSClientCAFile, secretfile.MaxPEMBytes)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(data) {
		err = errors.New("names a file without a certificate in PEM form")
	}
	if err != nil {
		l.fault(l.place("tls-client-ca-file"), "%v", err)
	}
}

// checkSecretFile returns the content of the file of a setting. It reports a fault and returns nil if the file cannot
// be read, or if other users can read or replace it. advice is added if the file does not exist.
func (l *loader) checkSecretFile(name, path string, maximum int, advice string) []byte {
	data, err := secretfile.ReadPrivate(path, maximum)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.fault(l.place(name), "%v%s", err, advice)
	case err != nil:
		l.fault(l.place(name), "%v", err)
	}
	return data
}

// checkReach reports a fault if other machines can reach an address without TLS and sign-in. With --insecure it is a
// warning.
func (l *loader) checkReach() {
	c := l.config
	var names, addresses []string
	for _, a := range []struct{ name, address string }{
		{"grpc-address", c.GRPCAddress}, {"http-address", c.HTTPAddress}, {"metrics-address", c.MetricsAddress},
	} {
		isSocket := a.name == "grpc-address" && strings.HasPrefix(a.address, socketPrefix)
		if a.address != "" && !isSocket && !isLoopbackAddress(a.address) {
			names, addresses = append(names, l.place(a.name)), append(addresses, fmt.Sprintf("%.80q", a.address))
		}
	}
	var missing, advice []string
	if c.TLSCertFile == "" && c.TLSKeyFile == "" {
		missing, advice = append(missing, "TLS"), append(advice, "--tls-cert-file and --tls-key-file")
	}
	if len(c.SignIn()) == 0 {
		missing = append(missing, "sign-in")
		advice = append(advice, "--auth-token-file, --oidc-issuer or client_certificates")
	}
	if len(names) == 0 || len(missing) == 0 {
		return
	}
	places := strings.Join(names, ", ")
	problem := "can be reached from other machines without " + strings.Join(missing, " and ")
	if c.Insecure {
		c.Warnings = append(c.Warnings, Warning{places, problem, "set " + strings.Join(advice, ", and ")})
		return
	}
	l.fault(places, "%s %s; set %s, or use a loopback address, or set --insecure on a trusted network",
		strings.Join(addresses, " and "), problem, strings.Join(advice, ", and "))
}

// isLoopbackAddress reports whether only this machine can reach an address, which is host:port or empty.
func isLoopbackAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isLoopback(host)
}

// isLoopback reports whether a host is always this machine.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}
