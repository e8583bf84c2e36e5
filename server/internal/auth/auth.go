// Package auth says who calls. Begin with [Principal].
package auth

// DefaultTenant is everybody's tenant where nobody signs in.
const DefaultTenant = "default"

// Principal is whoever makes a call, as its credential says.
type Principal struct {
	// Tenant whose conversations the caller sees.
	Tenant string
	// Name for logs; empty where nobody signs in.
	Name string
	// Roles beyond that of a caller.
	Roles []string
}

// Anonymous is the caller where nobody signs in.
func Anonymous() Principal { return Principal{Tenant: DefaultTenant} }
