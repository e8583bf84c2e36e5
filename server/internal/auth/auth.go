// Package auth finds out who calls a method of the API, and what the caller may do.
//
// A [Verifier] checks one kind of credential: the tokens of a file (package tokenfile), the tokens of
// an OpenID Connect issuer (package oidc), or client certificates (package certificates). An
// [Authenticator] asks its verifiers, selects the caller's tenant, and ends streams whose credential
// is no longer valid. The table in roles.go has the role that each method needs. Start at
// [Authenticator].
package auth

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// DefaultTenant is the tenant of all callers when sign-in is off.
	DefaultTenant = "default"
	// AllTenants in the tenants of an Identity stands for every tenant.
	AllTenants = "*"
	// MaxTenantBytes is the maximum length of a tenant's name.
	MaxTenantBytes = 64
)

// Grace is how long a stream continues after its credential has expired. In this time a client with a
// new credential can open the next stream before it loses the old one.
const Grace = 30 * time.Second

// Principal is the caller of a method, as its credential states.
type Principal struct {
	// Tenant owns the conversations that the caller can access. It is empty if AllTenants is set and
	// the caller named no tenant; only methods that concern the whole server can then be called.
	Tenant string
	// AllTenants is true if the caller may name any tenant. Only such callers may call methods that
	// concern the whole server, if their role suffices.
	AllTenants bool
	// ID is that of the [Identity]. It is empty when sign-in is off.
	ID string
	// Name is the caller's name for logs. Several callers may have the same. It is empty when sign-in is off.
	Name string
	// Role limits the methods that the caller may call.
	Role Role
	// Expires is when the credential expires. If zero, it does not expire.
	Expires time.Time
}

// Anonymous returns the principal of all callers when sign-in is off.
func Anonymous() Principal {
	return Principal{Tenant: DefaultTenant, AllTenants: true, Role: Admin}
}

// Identity is what a valid credential states.
type Identity struct {
	// ID identifies the caller among the callers of all verifiers: two callers with different IDs are different. It
	// has the form KIND:TEXT, is the same each time that the caller signs in with the same credential, and contains
	// no secret.
	ID string
	// Name of the caller for logs. Several callers may have the same. It contains no secret.
	Name string
	// Tenants are the tenants that the caller may name, or only [AllTenants]. It is not empty.
	Tenants []string
	// Role of the caller in all of its tenants.
	Role Role
	// Expires is when the credential expires. If zero, it does not expire.
	Expires time.Time
}

// ErrUnauthenticated means that a call has no valid credential. Its text is the same for every cause, so that
// a caller learns nothing about credentials.
var ErrUnauthenticated = errors.New("no valid credential")

// RoleError means that the caller's role is too small for a method.
type RoleError struct {
	Method string // full name: "/parley.v1.AdminService/GetStats"
	Need   Access
}

// Error returns a text with the method and the role that it needs.
func (e *RoleError) Error() string {
	if e.Need.WholeServer {
		return fmt.Sprintf("%s needs the role %s for all tenants", e.Method, e.Need.Role)
	}
	return fmt.Sprintf("%s needs the role %s", e.Method, e.Need.Role)
}

// TenantError means that the caller named no tenant but must, or named one that is not its own. The text is
// the same whether the tenant exists or not.
type TenantError struct {
	Named string // tenant that the caller named; empty if none
}

// Error returns a text with the tenant and what to do.
func (e *TenantError) Error() string {
	if e.Named == "" {
		return "the credential is valid for several tenants; name one in the metadata or header " + TenantKey
	}
	return fmt.Sprintf("the caller may not use the tenant %.64q", e.Named)
}

// CheckTenants returns an error if a list of tenants is not valid in an Identity: it must contain names of 1 to
// 64 letters, digits, dots, underscores and hyphens, or only [AllTenants].
func CheckTenants(tenants []string) error {
	if len(tenants) == 0 {
		return fmt.Errorf("no tenant; name at least one, or %q for all", AllTenants)
	}
	for i, t := range tenants {
		switch {
		case t == AllTenants && len(tenants) > 1:
			return fmt.Errorf("%q stands for all tenants; name no other", AllTenants)
		case t != AllTenants && !validTenant(t):
			return fmt.Errorf("tenant %.80q: use 1 to %d letters, digits, dots, underscores and hyphens, "+
				"not starting with a dot or a hyphen", t, MaxTenantBytes)
		case slices.Contains(tenants[:i], t):
			return fmt.Errorf("tenant %q is named twice", t)
		}
	}
	return nil
}

// validTenant reports whether a tenant may have the name, which is part of keys and of log entries.
func validTenant(name string) bool {
	if name == "" || len(name) > MaxTenantBytes || name[0] == '.' || name[0] == '-' {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
