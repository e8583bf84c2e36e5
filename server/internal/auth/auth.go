// Package auth describes the caller of an API method. Start at [Principal].
package auth

// DefaultTenant is the tenant of all callers when authentication is off.
const DefaultTenant = "default"

// Principal is the caller of a method, as its credential states.
type Principal struct {
	// Tenant owns the conversations that the caller can access.
	Tenant string
	// Name is the caller's name for logs. It is empty when authentication is off.
	Name string
	// Roles are the caller's additional roles, for example "admin". Every caller may call the
	// methods that need no role.
	Roles []string
}

// Anonymous returns the principal of all callers when authentication is off.
func Anonymous() Principal { return Principal{Tenant: DefaultTenant} }
