package auth

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// refusalTime is the minimum time from a call with a faulty credential to its refusal. The checks take less on a server
// that is not overloaded, so the time of a refusal does not show which check failed. It does not cover the first token
// of an issuer, for which the verifier waits until the issuer's keys are read.
const refusalTime = 5 * time.Millisecond

// Verifier checks one kind of credential. Its methods may be called from many goroutines.
type Verifier interface {
	// Verify returns what the credential of its kind in c states. It returns an error if there is no such
	// credential, or if it is not valid. The error contains no secret. The time that Verify takes must not depend
	// on how close a credential is to a valid one. If [IsRecheck], it does not wait for other servers. The caller must
	// not change the tenants of the identity.
	Verify(ctx context.Context, c Credentials) (Identity, error)
}

// Authenticator authenticates and authorizes calls. Create it with New. Its methods may be called from many
// goroutines.
type Authenticator struct {
	verifiers []Verifier
	now       func() time.Time
	access    map[string]Access

	mu      sync.Mutex
	streams map[*stream]struct{}
}

// New returns an authenticator that accepts a credential if one of the verifiers does. Without verifiers sign-in is
// off: every caller is [Anonymous]. now is the clock.
func New(now func() time.Time, verifiers ...Verifier) *Authenticator {
	return &Authenticator{
		verifiers: verifiers, now: now, access: accessTable(), streams: make(map[*stream]struct{}),
	}
}

// Required reports whether callers must sign in.
func (a *Authenticator) Required() bool { return len(a.verifiers) > 0 }

// Public reports whether callers need no credential for a method, even if they must sign in.
func (a *Authenticator) Public(method string) bool { return a.accessOf(method).Role == Public }

// Authorize returns the caller of a method. The error is a [RoleError] or a [TenantError], which have a caller, too,
// or wraps [ErrUnauthenticated]; then it contains the causes for the log, and no secret. A refusal of a
// credential takes at least refusalTime.
func (a *Authenticator) Authorize(ctx context.Context, method string, c Credentials) (Principal, error) {
	start := time.Now()
	p, err := a.authorize(ctx, method, c)
	if errors.Is(err, ErrUnauthenticated) {
		wait := time.NewTimer(refusalTime - time.Since(start))
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
		}
	}
	return p, err
}

func (a *Authenticator) authorize(ctx context.Context, method string, c Credentials) (Principal, error) {
	need := a.accessOf(method)
	if need.Role == Public {
		return Principal{}, nil
	}
	if !a.Required() {
		if c.Tenant != "" && c.Tenant != DefaultTenant {
			return Principal{}, &TenantError{Named: c.Tenant}
		}
		return Anonymous(), nil
	}
	identity, err := a.identify(ctx, c)
	if err != nil {
		return Principal{}, err
	}
	p := Principal{ID: identity.ID, Name: identity.Name, Role: identity.Role, Expires: identity.Expires}
	p.AllTenants = slices.Equal(identity.Tenants, []string{AllTenants})
	p.Tenant, err = chooseTenant(identity, c.Tenant, p.AllTenants && need.AnyTenant)
	if p.Role < need.Role || need.WholeServer && !p.AllTenants {
		return p, &RoleError{Method: method, Need: need}
	}
	return p, err
}

// accessOf returns what a method needs.
func (a *Authenticator) accessOf(method string) Access {
	if need, known := a.access[method]; known {
		return need
	}
	return Access{Role: Admin, WholeServer: true} // The table has no row for the method.
}

// identify returns the identity that the first matching verifier finds. If the caller sent a token, only the token
// counts, even a faulty one.
func (a *Authenticator) identify(ctx context.Context, c Credentials) (Identity, error) {
	if c.TokenSent || c.Token != "" {
		c.Certificate = nil
	}
	causes := make([]error, 0, len(a.verifiers))
	for _, v := range a.verifiers {
		identity, err := v.Verify(ctx, c)
		if err == nil && !identity.Expires.IsZero() && !a.now().Before(identity.Expires) {
			err = errExpired
		}
		if err == nil {
			return identity, nil
		}
		causes = append(causes, err)
	}
	return Identity{}, &unauthenticatedError{causes}
}

// errExpired is why the authenticator does not accept the identity of a verifier.
var errExpired = errors.New("the credential has expired")

// unauthenticatedError contains why each verifier rejected the credentials of a call.
type unauthenticatedError struct{ causes []error }

// Error returns the causes on one line, for the log.
func (e *unauthenticatedError) Error() string {
	texts := []string{ErrUnauthenticated.Error()}
	for _, cause := range e.causes {
		texts = append(texts, cause.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns ErrUnauthenticated.
func (e *unauthenticatedError) Unwrap() error { return ErrUnauthenticated }

// chooseTenant returns the tenant of a call. If optional is set, the caller need not name one.
func chooseTenant(i Identity, named string, optional bool) (string, error) {
	all := i.Tenants[0] == AllTenants
	switch {
	case named == "" && !all && len(i.Tenants) == 1:
		return i.Tenants[0], nil
	case named == "" && optional:
		return "", nil
	case named == "":
		return "", &TenantError{}
	case all && validTenant(named), !all && slices.Contains(i.Tenants, named):
		return named, nil
	}
	return "", &TenantError{Named: named}
}

// stream is a call that lasts longer than the check of its credential.
type stream struct {
	method      string
	credentials Credentials
	principal   Principal
	end         context.CancelCauseFunc
}

// Follow returns a context that ends when the credential of a stream is no longer valid: [Grace] after it has
// expired, or when [Authenticator.Recheck] does not accept it any more. The cause then wraps ErrUnauthenticated. The
// caller must call release at the end of the stream.
func (a *Authenticator) Follow(
	ctx context.Context, method string, c Credentials, p Principal,
) (_ context.Context, release func()) {
	if !a.Required() || a.accessOf(method).Role == Public {
		return ctx, func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	s := &stream{method: method, credentials: c, principal: p, end: end}
	var timer *time.Timer
	if !p.Expires.IsZero() {
		timer = time.AfterFunc(p.Expires.Add(Grace).Sub(a.now()), func() {
			end(fmt.Errorf("%w: %w", ErrUnauthenticated, errExpired))
		})
	}
	a.mu.Lock()
	a.streams[s] = struct{}{}
	a.mu.Unlock()
	a.recheck(ctx, s) // The credentials may have changed after Authorize, before a Recheck could find the stream.
	return ctx, func() {
		a.mu.Lock()
		delete(a.streams, s)
		a.mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		end(nil)
	}
}

// Recheck authenticates the callers of all streams again, after credentials have changed. It ends the streams
// of callers that are not accepted any more or have another role, tenant or expiry. Streams in their grace continue
// until it ends.
func (a *Authenticator) Recheck(ctx context.Context) {
	a.mu.Lock()
	streams := slices.Collect(maps.Keys(a.streams))
	a.mu.Unlock()
	for _, s := range streams {
		a.recheck(ctx, s)
	}
}

// recheckKey is the context key of calls of verifiers by recheck.
type recheckKey struct{}

// IsRecheck reports whether a verifier is called for a stream that runs already. A verifier that waits would delay the
// end of all streams.
func IsRecheck(ctx context.Context) bool { return ctx.Value(recheckKey{}) != nil }

func (a *Authenticator) recheck(ctx context.Context, s *stream) {
	p, err := a.authorize(context.WithValue(ctx, recheckKey{}, true), s.method, s.credentials)
	switch {
	case errors.Is(err, ErrUnauthenticated) && a.inGrace(s.principal):
	case err != nil:
		s.end(fmt.Errorf("%w: %w", ErrUnauthenticated, err))
	case p.Tenant != s.principal.Tenant, p.AllTenants != s.principal.AllTenants, p.Role != s.principal.Role,
		!p.Expires.Equal(s.principal.Expires):
		s.end(fmt.Errorf("%w: the credential has another role, tenant or expiry now", ErrUnauthenticated))
	}
}

// inGrace reports whether the credential of a stream has expired while the stream may continue.
func (a *Authenticator) inGrace(p Principal) bool {
	return !p.Expires.IsZero() && !a.now().Before(p.Expires)
}
