package oidc_test

import (
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/oidc"
)

func TestVerify(t *testing.T) {
	for _, algorithm := range []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.EdDSA} {
		t.Run(string(algorithm), func(t *testing.T) {
			s := newSigner(t, "k1", algorithm)
			f := newFixture(t, newIssuer(t, s), nil)
			want := auth.Identity{
				ID:   fmt.Sprintf("oidc:%x", sha256.Sum256([]byte(f.url+"\nshop"))),
				Name: "shop", Tenants: []string{"acme"}, Role: auth.Writer, Expires: start().Add(time.Hour + time.Minute),
			}
			for range 2 { // The second is from the cache.
				got, err := f.verify(s.sign(t, f.claims(nil)))
				got.Expires = got.Expires.UTC()
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("Verify() = error %v, want none; identity (-want +got):\n%s", err, diff)
				}
			}
		})
	}
}

func TestClaims(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	at := func(d time.Duration) int64 { return start().Add(d).Unix() }
	tests := []struct {
		changes map[string]any
		tenants string // separated by commas
		role    auth.Role
		fault   string
	}{
		{map[string]any{"tenant": []string{"b", "a", "b"}}, "a,b", auth.Writer, ""},
		{map[string]any{"tenant": "*", "role": "admin"}, "*", auth.Admin, ""},
		{map[string]any{"role": []string{"offline_access", "reader", "admin", "writer"}}, "acme", auth.Admin, ""},
		{map[string]any{"aud": []string{"other", "parley"}}, "acme", auth.Writer, ""},
		{map[string]any{"exp": at(-59 * time.Second)}, "acme", auth.Writer, ""},
		{map[string]any{"nbf": at(60 * time.Second)}, "acme", auth.Writer, ""},
		{map[string]any{"iat": at(60 * time.Second)}, "acme", auth.Writer, ""},
		{map[string]any{"iat": nil}, "acme", auth.Writer, ""},

		{map[string]any{"tenant": nil}, "", 0, `the token has no tenant in the claim "tenant"`},
		{map[string]any{"tenant": []string{}}, "", 0, "has no tenant"},
		{map[string]any{"tenant": 7}, "", 0, "has no tenant"},
		{map[string]any{"tenant": []any{"acme", 7}}, "", 0, "has no tenant"},
		{map[string]any{"tenant": map[string]any{"acme": true}}, "", 0, "has no tenant"},
		{map[string]any{"tenant": ""}, "", 0, `claim "tenant": tenant ""`},
		{map[string]any{"tenant": []string{"acme", "/x"}}, "", 0, `claim "tenant": tenant "/x"`},
		{map[string]any{"tenant": []string{"acme", "*"}}, "", 0, "stands for all tenants"},
		{map[string]any{"role": nil}, "", 0, `the token has no role of this server in the claim "role"`},
		{map[string]any{"role": "root"}, "", 0, "has no role"},
		{map[string]any{"role": "Admin"}, "", 0, "has no role"},
		{map[string]any{"role": "public"}, "", 0, "has no role"},
		{map[string]any{"role": []any{"admin", 1}}, "", 0, "has no role"},
		{map[string]any{"sub": nil}, "", 0, "has no sub claim"},
		{map[string]any{"aud": "other"}, "", 0, `expected audience "parley"`},
		{map[string]any{"aud": nil}, "", 0, `expected audience "parley"`},
		{map[string]any{"aud": "parley2"}, "", 0, `expected audience "parley"`},
		{map[string]any{"iss": "https://issuer.example"}, "", 0, "issued by a different provider"},
		{map[string]any{"iss": nil}, "", 0, "issued by a different provider"},
		{map[string]any{"exp": at(-60 * time.Second)}, "", 0, "the token expired at 2026-11-23T11:59:00Z"},
		{map[string]any{"exp": nil}, "", 0, "has no exp claim"},
		{map[string]any{"exp": 1e300}, "", 0, "has no exp claim"},
		{map[string]any{"exp": 1e15}, "", 0, "has no exp claim"},
		{map[string]any{"exp": -1}, "", 0, "has no exp claim"},
		{map[string]any{"exp": true}, "", 0, "failed to unmarshal claims"},
		{map[string]any{"nbf": at(61 * time.Second)}, "", 0, "is not valid yet: its claim nbf"},
		{map[string]any{"iat": at(61 * time.Second)}, "", 0, "is not valid yet: its claim iat"},
		{map[string]any{"nbf": 1e300}, "", 0, "is not valid yet: its claim nbf"},
	}
	f := newFixture(t, newIssuer(t, s), nil)
	for _, test := range tests {
		token := s.sign(t, f.claims(test.changes))
		got, err := f.verify(token)
		switch {
		case test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)):
			t.Errorf("Verify(claims with %v) = %+v, %v, want an error with %q", test.changes, got, err, test.fault)
		case test.fault == "" && (err != nil || strings.Join(got.Tenants, ",") != test.tenants || got.Role != test.role):
			t.Errorf("Verify(claims with %v) = %+v, %v, want the tenants %s and the role %s", test.changes, got, err,
				test.tenants, test.role)
		}
	}
}

// TestCallerID checks that callers with the same name in logs have different IDs, and that a caller has the same one with
// each token.
func TestCallerID(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	f, other := newFixture(t, newIssuer(t, s), nil), newFixture(t, newIssuer(t, s), nil)
	long := strings.Repeat("a", 128)
	ids := map[string]string{}
	for what, test := range map[string]struct {
		*fixture
		subject string
	}{
		"a caller": {f, "a\nb"}, "another control character": {f, "a\tb"}, "another issuer": {other, "a\nb"},
		"a long subject": {f, long + "a"}, "another long subject": {f, long + "b"},
	} {
		var id string
		for n := range 2 {
			token := s.sign(t, test.claims(map[string]any{"sub": test.subject, "jti": fmt.Sprint(n)}))
			got, err := test.verify(token)
			if err != nil || got.ID == "" || n > 0 && got.ID != id {
				t.Errorf("Verify(token %d of %s) = %+v, %v, want the ID %q", n, what, got, err, id)
			}
			id = got.ID
		}
		if first, twice := ids[id]; twice {
			t.Errorf("ID of %s = %s, want another than that of %s", what, id, first)
		}
		ids[id] = what
	}
}

func TestNamesOfClaims(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	i := newIssuer(t, s)
	for _, test := range []struct {
		tenant, role string
		claims       map[string]any
	}{
		{"org", "realm_access.roles", map[string]any{
			"org": "a", "realm_access": map[string]any{"roles": []string{"x", "reader"}},
		}},
		{"https://a.example/tenant", "https://a.example/role", map[string]any{
			"https://a.example/tenant": "a", "https://a.example/role": "reader",
		}},
		{"x.y.z", "resource_access.parley.api.roles", map[string]any{
			"x":               map[string]any{"y": map[string]any{"z": "a"}},
			"resource_access": map[string]any{"parley.api": map[string]any{"roles": "reader"}},
		}},
	} {
		f := newFixture(t, i, func(o *oidc.Options) { o.TenantClaim, o.RoleClaim = test.tenant, test.role })
		got, err := f.verify(s.sign(t, f.claims(test.claims)))
		if err != nil || len(got.Tenants) != 1 || got.Tenants[0] != "a" || got.Role != auth.Reader {
			t.Errorf("Verify() with the claims %s and %s of %v = %+v, %v, want a reader of a", test.tenant, test.role,
				test.claims, got, err)
		}
	}
}

// TestSignatures checks tokens that the issuer has not signed.
func TestSignatures(t *testing.T) {
	s, foreign := newSigner(t, "k1", jose.RS256), newSigner(t, "k1", jose.RS256)
	f := newFixture(t, newIssuer(t, s), nil)
	good := s.sign(t, f.claims(nil))
	header, payload, signature := cut(good)
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

	public, ok := s.public.(*rsa.PublicKey)
	if !ok {
		t.Fatalf("public key is a %T", s.public)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	secret := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	hmac := &signer{id: "k1", algorithm: jose.HS256, private: secret}
	unknown := newSigner(t, "k2", jose.RS256)
	nameless := *foreign
	nameless.id = ""

	f.accept("valid token", good)
	f.advance(time.Minute) // so that the verifier may read the keys again
	for _, test := range []struct{ what, token, want string }{
		{"missing token", "", "no token"},
		{"not a JWT", "parley_x", "not a JSON Web Token"},
		{"dots only", "..", "malformed jwt"},
		{"five parts", good + "..", "not a JSON Web Token"},
		{"huge token", good + strings.Repeat("A", 16<<10), "not a JSON Web Token"},
		{"HS256 with the public key", hmac.sign(t, f.claims(nil)), "unexpected signature algorithm"},
		{"none", encode(`{"alg":"none"}`) + "." + payload + ".", "unexpected signature algorithm"},
		{"None", encode(`{"alg":"None"}`) + "." + payload + ".", "unexpected signature algorithm"},
		{"no algorithm", encode(`{}`) + "." + payload + "." + signature, "unexpected signature algorithm"},
		{"another key with the same id", foreign.sign(t, f.claims(nil)), "failed to verify signature"},
		{"another key without id", nameless.sign(t, f.claims(nil)), "failed to verify signature"},
		{"unknown key", unknown.sign(t, f.claims(nil)), "no key with the id and algorithm"},
		{"another algorithm of the key", (&signer{"k1", jose.PS256, s.private, nil}).sign(t, f.claims(nil)), "no key with"},
		{"no signature", header + "." + payload + ".", "failed to verify signature"},
		{"cut signature", good[:len(good)-4], "failed to verify signature"},
		{
			"other claims", header + "." + encode(strings.Replace(decode(t, payload), "writer", "admin", 1)) + "." + signature,
			"failed to verify signature",
		},
		{"key in the header", withKey(t, foreign, f.claims(nil)), "failed to verify signature"},
	} {
		f.reject(test.what, test.token, test.want)
	}
	f.accept("valid token after the others", good)
}

func cut(token string) (header, payload, signature string) {
	parts := strings.Split(token, ".")
	return parts[0], parts[1], parts[2]
}

func decode(t *testing.T, part string) string {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// withKey returns a token that contains the public key that verifies it.
func withKey(t *testing.T, s *signer, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: s.algorithm, Key: s.private}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(fmt.Appendf(nil, `{"iss":%q}`, claims["iss"]))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestOptions(t *testing.T) {
	for issuer, valid := range map[string]bool{
		"https://issuer.example": true, "https://issuer.example/realms/a": true, "http://127.0.0.1:9000": true,
		"http://localhost/x": true, "http://[::1]:9000": true,
		"": false, "issuer.example": false, "http://issuer.example": false, "http://10.0.0.1": false, "https://": false,
		"https://user@issuer.example": false, "https://issuer.example?x=1": false, "https://issuer.example#x": false,
		"ftp://issuer.example": false, "http://localhost.example": false, "http://127.0.0.1.example": false,
	} {
		v, err := oidc.New(oidc.Options{Issuer: issuer, Audience: "parley"})
		if (err == nil) != valid {
			t.Errorf("New(issuer %q) = %v, want valid %t", issuer, err, valid)
		}
		if err == nil {
			v.Close()
		}
	}
	if _, err := oidc.New(oidc.Options{Issuer: "https://issuer.example"}); err == nil {
		t.Error("New(no audience) = nil, want an error")
	}
}

// TestFaultyKeys checks answers of the issuer that are no keys.
func TestFaultyKeys(t *testing.T) {
	s := newSigner(t, "k1", jose.ES256)
	for what, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"away":      {away, "503"},
		"no JSON":   {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "not a JSON Web Key Set"},
		"no key":    {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[]}`) }, "no key for signatures"},
		"other key": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[{"kty":"OKP","crv":"Ed448"}]}`) }, "no key"},
		"secret": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"keys":[{"kty":"oct","kid":"k1","k":"c2VjcmV0"}]}`)
		}, "no key for signatures"},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for chunk := []byte(strings.Repeat(" ", 64<<10)); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, "too large"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://issuer.example/keys", http.StatusFound)
		}, "must begin with https://"},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t, newIssuer(t, s), nil)
			f.setAnswer(test.answer)
			token := s.sign(t, f.claims(nil))
			f.reject("token", token, test.want)
			if got := strings.Count(f.log.String(), "keys of the OIDC issuer not read"); got != 1 {
				t.Errorf("the log has %d entries about the failure, want 1:\n%s", got, f.log)
			}
			f.setAnswer(nil)
			f.reject("token at once after the failure", token, "requested less than 5s ago")
			f.advance(5 * time.Second)
			f.accept("token after the interval", token)
		})
	}
}
