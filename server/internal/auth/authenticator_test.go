package auth_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	read    = parleyv1.ConversationService_GetConversation_FullMethodName
	write   = parleyv1.ConversationService_AppendMessages_FullMethodName
	erase   = parleyv1.InteractionLogService_DeleteInteractions_FullMethodName
	stats   = parleyv1.AdminService_GetStats_FullMethodName
	backup  = parleyv1.AdminService_BackupStore_FullMethodName
	watch   = parleyv1.ConversationService_WatchConversations_FullMethodName
	health  = "/grpc.health.v1.Health/Check"
	unknown = "/parley.v1.ConversationService/Future"
)

// identities is a verifier with a changeable identity for each token.
type identities map[string]auth.Identity

// Verify returns the identity of a token.
func (v identities) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if i, ok := v[c.Token]; ok {
		return i, nil
	}
	return auth.Identity{}, errors.New("unknown token")
}

func one(role auth.Role, tenants ...string) identities {
	return identities{"t": {Name: "caller", Tenants: tenants, Role: role}}
}

// outcome describes the result of Authorize.
func outcome(p auth.Principal, err error) string {
	var role *auth.RoleError
	var tenant *auth.TenantError
	switch {
	case errors.As(err, &role):
		return "role: " + role.Error()
	case errors.As(err, &tenant):
		return "tenant: " + tenant.Error()
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("%s of %q, all %t", p.Role, p.Tenant, p.AllTenants)
}

func TestAuthorize(t *testing.T) {
	const several = "tenant: the credential is valid for several tenants; name one in the metadata or header parley-tenant"
	foreign := func(name string) string { return fmt.Sprintf("tenant: the caller may not use the tenant %q", name) }
	needs := func(method, need string) string { return "role: " + method + " needs the role " + need }
	tests := []struct {
		verifier      identities
		method, named string
		want          string
	}{
		{one(auth.Reader, "acme"), read, "", `reader of "acme", all false`},
		{one(auth.Reader, "acme"), watch, "acme", `reader of "acme", all false`},
		{one(auth.Reader, "acme"), write, "", needs(write, "writer")},
		{one(auth.Writer, "acme"), read, "", `writer of "acme", all false`},
		{one(auth.Writer, "acme"), write, "", `writer of "acme", all false`},
		{one(auth.Writer, "acme"), erase, "", needs(erase, "admin")},
		{one(auth.Writer, "acme"), stats, "", needs(stats, "admin")},
		{one(auth.Admin, "acme"), erase, "", `admin of "acme", all false`},
		{one(auth.Admin, "acme"), stats, "", `admin of "acme", all false`},
		{one(auth.Admin, "acme"), backup, "", needs(backup, "admin for all tenants")},
		{one(auth.Admin, "acme"), unknown, "", needs(unknown, "admin for all tenants")},
		{one(auth.Writer, "*"), backup, "", needs(backup, "admin for all tenants")},
		{one(auth.Admin, "*"), backup, "", `admin of "", all true`},
		{one(auth.Admin, "*"), backup, "acme", `admin of "acme", all true`},
		{one(auth.Admin, "*"), unknown, "acme", `admin of "acme", all true`},
		{one(auth.Admin, "*"), stats, "", `admin of "", all true`},
		{one(auth.Admin, "*"), read, "", several},
		{one(auth.Admin, "*"), read, "acme", `admin of "acme", all true`},
		{one(auth.Admin, "*"), read, "*", foreign("*")},
		{one(auth.Admin, "*"), read, "a/b", foreign("a/b")},
		{one(auth.Admin, "*"), read, strings.Repeat("a", 65), foreign(strings.Repeat("a", 64))},
		{one(auth.Admin, "*"), read, "acme,other", foreign("acme,other")},
		{one(auth.Admin, "acme", "other"), backup, "acme", needs(backup, "admin for all tenants")},
		{one(auth.Reader, "acme", "other"), read, "", several},
		{one(auth.Reader, "acme", "other"), read, "other", `reader of "other", all false`},
		{one(auth.Reader, "acme", "other"), read, "third", foreign("third")},
		{one(auth.Reader, "acme", "other"), read, "*", foreign("*")},
		{one(auth.Reader, "acme"), read, "other", foreign("other")},
		{one(auth.Reader, "acme"), read, "*", foreign("*")},
		{one(auth.Reader, "acme"), read, "ACME", foreign("ACME")},
		{identities{}, read, "", "no valid credential; unknown token; unknown token"},
		{identities{}, health, "", `public of "", all false`},
	}
	for _, test := range tests {
		a := auth.New(time.Now, identities{}, test.verifier)
		p, err := a.Authorize(t.Context(), test.method, auth.Credentials{Token: "t", Tenant: test.named})
		if got := outcome(p, err); got != test.want {
			t.Errorf("Authorize(%s, tenant %q) of %+v = %q, want %q", test.method, test.named, test.verifier["t"], got, test.want)
		}
	}
}

// TestPrincipal checks that the principal has the ID and the name of the identity.
func TestPrincipal(t *testing.T) {
	v := identities{"t": {ID: "test:1", Name: "caller", Tenants: []string{"acme"}, Role: auth.Reader}}
	got, err := auth.New(time.Now, v).Authorize(t.Context(), read, auth.Credentials{Token: "t"})
	want := auth.Principal{ID: "test:1", Name: "caller", Tenant: "acme", Role: auth.Reader}
	if err != nil || got != want {
		t.Errorf("Authorize() = %+v, %v, want %+v", got, err, want)
	}
}

func TestAuthorizeWithoutSignIn(t *testing.T) {
	a := auth.New(time.Now)
	for named, want := range map[string]string{
		"": `admin of "default", all true`, "default": `admin of "default", all true`,
		"acme": `tenant: the caller may not use the tenant "acme"`,
	} {
		if got := outcome(a.Authorize(t.Context(), backup, auth.Credentials{Tenant: named})); got != want {
			t.Errorf("Authorize(tenant %q) = %q, want %q", named, got, want)
		}
	}
}

// TestRefusalTime checks that a refusal takes exactly the same time on the clock of the bubble, whatever the cause. A
// check that returned early would take no time.
func TestRefusalTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := one(auth.Reader, "acme")
		expired["e"] = auth.Identity{Tenants: []string{"acme"}, Role: auth.Reader, Expires: time.Now()}
		a := auth.New(time.Now, slow{}, expired)
		times := map[time.Duration]int{}
		for i := range 10_000 {
			start := time.Now()
			token := []string{"", "x", "e", "slow", strings.Repeat("x", 1000)}[i%5]
			if _, err := a.Authorize(t.Context(), read, auth.Credentials{Token: token}); !errors.Is(err, auth.ErrUnauthenticated) {
				t.Fatalf("Authorize(%q) = %v, want ErrUnauthenticated", token, err)
			}
			times[time.Since(start)]++
		}
		if len(times) != 1 || times[0] > 0 {
			t.Errorf("times of refusals = %v, want one that is not 0", times)
		}
	})
}

// slow is a verifier that needs a millisecond for one token, as a signature may.
type slow struct{}

// Verify rejects every token.
func (slow) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Token == "slow" {
		<-time.After(time.Millisecond)
	}
	return auth.Identity{}, errors.New("rejected")
}

func TestRefusalEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		_, err := auth.New(time.Now, identities{}).Authorize(ctx, read, auth.Credentials{})
		if !errors.Is(err, auth.ErrUnauthenticated) || time.Since(start) != 0 {
			t.Errorf("Authorize() with an ended context = %v after %s, want ErrUnauthenticated at once", err, time.Since(start))
		}
	})
}

// follow opens a stream of the token "t".
func follow(t *testing.T, a *auth.Authenticator) (ctx context.Context, release func()) {
	t.Helper()
	c := auth.Credentials{Token: "t"}
	p, err := a.Authorize(t.Context(), watch, c)
	if err != nil {
		t.Fatal(err)
	}
	return a.Follow(t.Context(), watch, c, p)
}

func TestFollowUntilGraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := one(auth.Reader, "acme")
		v["t"] = auth.Identity{Tenants: []string{"acme"}, Role: auth.Reader, Expires: time.Now().Add(time.Hour)}
		a := auth.New(time.Now, v)
		start := time.Now()
		ctx, release := follow(t, a)
		defer release()

		<-time.After(time.Hour + auth.Grace/2)
		if _, err := a.Authorize(t.Context(), watch, auth.Credentials{Token: "t"}); !errors.Is(err, auth.ErrUnauthenticated) {
			t.Errorf("Authorize() with an expired credential = %v, want ErrUnauthenticated", err)
		}
		a.Recheck(t.Context())
		if err := context.Cause(ctx); err != nil {
			t.Errorf("cause in the grace after Recheck = %v, want none", err)
		}
		<-ctx.Done()
		if err := context.Cause(ctx); time.Since(start) != time.Hour+auth.Grace || !errors.Is(err, auth.ErrUnauthenticated) {
			t.Errorf("stream ended after %s with cause %v, want after %s with ErrUnauthenticated", time.Since(start), err,
				time.Hour+auth.Grace)
		}
	})
}

func TestRecheck(t *testing.T) {
	expires := time.Now().Add(time.Hour)
	tests := []struct {
		name    string
		after   *auth.Identity
		remains bool
	}{
		{"unchanged", &auth.Identity{Tenants: []string{"acme"}, Role: auth.Writer, Expires: expires}, true},
		{"renamed", &auth.Identity{Name: "x", Tenants: []string{"acme"}, Role: auth.Writer, Expires: expires}, true},
		{"revoked", nil, false},
		{"smaller role", &auth.Identity{Tenants: []string{"acme"}, Role: auth.Reader, Expires: expires}, false},
		{"larger role", &auth.Identity{Tenants: []string{"acme"}, Role: auth.Admin, Expires: expires}, false},
		{"other tenant", &auth.Identity{Tenants: []string{"other"}, Role: auth.Writer, Expires: expires}, false},
		{"more tenants", &auth.Identity{Tenants: []string{"acme", "other"}, Role: auth.Writer, Expires: expires}, false},
		{"never expires", &auth.Identity{Tenants: []string{"acme"}, Role: auth.Writer}, false},
	}
	for _, test := range tests {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, before Follow %t", test.name, before), func(t *testing.T) {
				v := identities{"t": {Tenants: []string{"acme"}, Role: auth.Writer, Expires: expires}}
				change := func() {
					delete(v, "t")
					if test.after != nil {
						v["t"] = *test.after
					}
				}
				a := auth.New(time.Now, v)
				c := auth.Credentials{Token: "t"}
				p, err := a.Authorize(t.Context(), watch, c)
				if err != nil {
					t.Fatal(err)
				}
				if before { // The stream is not yet known when the credentials change.
					change()
					a.Recheck(t.Context())
				}
				ctx, release := a.Follow(t.Context(), watch, c, p)
				defer release()
				if !before {
					change()
					a.Recheck(t.Context())
				}
				err = context.Cause(ctx)
				if remains := err == nil; remains != test.remains || !remains && !errors.Is(err, auth.ErrUnauthenticated) {
					t.Errorf("cause after the change = %v, want none: %t", err, test.remains)
				}
			})
		}
	}
}

// TestRelease checks that a released stream leaves nothing; goleak finds its timer's goroutine, Recheck the
// stream.
func TestRelease(t *testing.T) {
	v := one(auth.Reader, "acme")
	a := auth.New(time.Now, v)
	ctx, release := follow(t, a)
	release()
	delete(v, "t")
	a.Recheck(t.Context())
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cause after release and Recheck = %v, want context.Canceled", err)
	}
}

func TestCheckTenants(t *testing.T) {
	long := strings.Repeat("a", auth.MaxTenantBytes)
	for _, valid := range [][]string{{"acme"}, {"a.B_c-9"}, {"_"}, {long}, {"a", "b"}, {"*"}} {
		if err := auth.CheckTenants(valid); err != nil {
			t.Errorf("CheckTenants(%q) = %v, want no error", valid, err)
		}
	}
	for _, invalid := range [][]string{
		nil, {""}, {".a"}, {"-a"}, {"a b"}, {"a/b"}, {"a\n"}, {"ä"}, {long + "a"}, {"*", "a"}, {"a", "*"}, {"a", "a"}, {"**"},
	} {
		if err := auth.CheckTenants(invalid); err == nil {
			t.Errorf("CheckTenants(%q) = nil, want an error", invalid)
		}
	}
}

func TestParseRole(t *testing.T) {
	for _, r := range []auth.Role{auth.Reader, auth.Writer, auth.Admin} {
		if got, err := auth.ParseRole(r.String()); got != r || err != nil {
			t.Errorf("ParseRole(%q) = %v, %v, want %v", r, got, err, r)
		}
	}
	for _, name := range []string{"", "public", "Admin", "root"} {
		if got, err := auth.ParseRole(name); err == nil {
			t.Errorf("ParseRole(%q) = %v, want an error", name, got)
		}
	}
}
