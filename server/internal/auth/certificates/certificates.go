// Package certificates authenticates callers by the client certificates that TLS has verified. Rules map the URI or the
// common name of a certificate to tenants and a role. Start at [New].
package certificates

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/parleyhq/parley/server/internal/auth"
)

// maxNameBytes is the maximum length of a URI or a common name in a rule.
const maxNameBytes = 2048

// Rule states what the callers with a certificate may do. It has either a URI or a CN.
type Rule struct {
	// URI is a subject alternative name of the certificate, as in "spiffe://example/acme".
	URI string
	// CN is the common name of the certificate's subject. It is only compared if no rule has a URI of the certificate.
	CN string
	// Tenants are the tenants that the caller may name, or only [auth.AllTenants].
	Tenants []string
	// Role is the role of the caller in all of its tenants.
	Role auth.Role
}

// Verifier authenticates callers by rules. Create it with [New]. Its methods may be called from many goroutines.
type Verifier struct {
	table atomic.Pointer[table]
	// Errors of Verify.
	absent, rejected error
}

// table contains the rules. It does not change.
type table struct {
	rules     []Rule
	uris, cns map[string]int // indices of rules
}

// New returns a verifier with the rules. If several rules have a URI of a certificate, the first one applies. The error
// has a line for each fault; it names rules by their index: "[0].uri".
func New(rules []Rule) (*Verifier, error) {
	t := &table{rules: rules, uris: map[string]int{}, cns: map[string]int{}}
	v := &Verifier{
		absent:   errors.New("client certificate: none"),
		rejected: errors.New("client certificate: no rule has a URI or the common name of the certificate"),
	}
	var faults []error
	for i, r := range rules {
		for _, err := range t.add(i, r) {
			faults = append(faults, fmt.Errorf("[%d]%w", i, err))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	v.table.Store(t)
	return v, nil
}

// Replace replaces the rules by those of next.
func (v *Verifier) Replace(next *Verifier) { v.table.Store(next.table.Load()) }

// add adds a rule, and returns its faults.
func (t *table) add(i int, r Rule) (faults []error) {
	key, name, index := ".uri", r.URI, t.uris
	if r.URI == "" {
		key, name, index = ".cn", r.CN, t.cns
	}
	switch u, err := url.Parse(r.URI); {
	case r.URI == "" && r.CN == "":
		faults = append(faults, errors.New(": must have uri or cn"))
	case r.URI != "" && r.CN != "":
		faults = append(faults, errors.New(": must have either uri or cn, not both; use two rules"))
	case r.URI != "" && (err != nil || u.Scheme == ""):
		faults = append(faults, fmt.Errorf(".uri: %.80q is not a URI; write it as in spiffe://example/acme", r.URI))
	case len(name) > maxNameBytes || strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) }):
		faults = append(faults, fmt.Errorf("%s: use at most %d bytes of printable text", key, maxNameBytes))
	default:
		if r.URI != "" {
			name = u.String() // The form in which certificates are compared.
		}
		if first, twice := index[name]; twice {
			faults = append(faults, fmt.Errorf("%s: %.80q is also in rule [%d]; delete one of them", key, name, first))
			break
		}
		index[name] = i
	}
	if err := auth.CheckTenants(r.Tenants); err != nil {
		faults = append(faults, fmt.Errorf(".tenants: %w", err))
	}
	if r.Role < auth.Reader || r.Role > auth.Admin {
		faults = append(faults, errors.New(".role: use reader, writer or admin"))
	}
	return faults
}

// id returns the ID of the caller with a certificate. It contains the fingerprint: the SHA-256 of the certificate.
func id(c *x509.Certificate) string {
	fingerprint := sha256.Sum256(c.Raw)
	return "certificate:" + hex.EncodeToString(fingerprint[:])
}

// Verify returns what the rule for the certificate of c states. The identity expires with the certificate. Its tenants
// must not be changed.
func (v *Verifier) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Certificate == nil {
		return auth.Identity{}, v.absent
	}
	t := v.table.Load()
	best, name := math.MaxInt, ""
	for _, u := range c.Certificate.URIs {
		if i, found := t.uris[u.String()]; found && i < best {
			best, name = i, u.String()
		}
	}
	if name == "" {
		i, found := t.cns[c.Certificate.Subject.CommonName]
		if !found {
			return auth.Identity{}, v.rejected
		}
		best, name = i, c.Certificate.Subject.CommonName
	}
	r := t.rules[best]
	return auth.Identity{
		ID: id(c.Certificate), Name: name, Tenants: r.Tenants, Role: r.Role, Expires: c.Certificate.NotAfter,
	}, nil
}
