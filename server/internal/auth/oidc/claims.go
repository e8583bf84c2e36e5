package oidc

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	gooidc "github.com/coreos/go-oidc/v3/oidc"

	"github.com/parleyhq/parley/server/internal/auth"
)

// maxNameBytes is the maximum length of a caller's name in logs.
const maxNameBytes = 128

// identity returns what a token with a valid signature, issuer and audience states.
func (v *Verifier) identity(token *gooidc.IDToken, now time.Time) (auth.Identity, error) {
	claims := map[string]any{}
	if err := token.Claims(&claims); err != nil {
		return auth.Identity{}, err
	}
	if err := checkTimes(token, claims, now); err != nil {
		return auth.Identity{}, err
	}
	if token.Subject == "" {
		return auth.Identity{}, errors.New("the token has no sub claim")
	}
	tenants := slices.Compact(slices.Sorted(slices.Values(texts(lookup(claims, v.tenantClaim)))))
	if len(tenants) == 0 {
		return auth.Identity{}, fmt.Errorf("the token has no tenant in the claim %q", v.tenantClaim)
	}
	if err := auth.CheckTenants(tenants); err != nil {
		return auth.Identity{}, fmt.Errorf("claim %q: %w", v.tenantClaim, err)
	}
	role := auth.Public
	for _, name := range texts(lookup(claims, v.roleClaim)) {
		if r, err := auth.ParseRole(name); err == nil {
			role = max(role, r)
		}
	}
	if role == auth.Public {
		return auth.Identity{}, fmt.Errorf("the token has no role of this server in the claim %q", v.roleClaim)
	}
	return auth.Identity{
		ID: callerID(token), Name: printable(token.Subject), Tenants: tenants, Role: role,
		Expires: token.Expiry.Add(clockSkew),
	}, nil
}

// callerID returns the ID of the caller with a token: a hash of the issuer and of the subject, which issuers use for
// one caller only. A subject may be as long as a token and contain any character; its hash does not.
func callerID(token *gooidc.IDToken) string {
	hash := sha256.Sum256([]byte(token.Issuer + "\n" + token.Subject)) // A URL has no line break.
	return "oidc:" + hex.EncodeToString(hash[:])
}

// checkTimes returns an error if a token has expired or is not valid yet.
func checkTimes(token *gooidc.IDToken, claims map[string]any, now time.Time) error {
	expires := token.Expiry.Unix()
	switch {
	case claims["exp"] == nil || expires <= 0 || expires > maxExpiry:
		return errors.New("the token has no exp claim with a time before the year 10000")
	case !now.Before(token.Expiry.Add(clockSkew)):
		return fmt.Errorf("the token expired at %s", token.Expiry.UTC().Format(time.RFC3339))
	}
	for _, name := range []string{"nbf", "iat"} {
		start, isNumber := claims[name].(float64)
		switch {
		case claims[name] == nil:
		case !isNumber:
			return fmt.Errorf("the claim %s of the token is not a number", name)
		case start > float64(now.Add(clockSkew).Unix()):
			return fmt.Errorf("the token is not valid yet: its claim %s is in the future", name)
		}
	}
	return nil
}

// lookup returns the claim with a name. Each dot of the name may separate the name of an object from that of its
// member; names of claims may contain dots, too.
func lookup(claims map[string]any, name string) any {
	if value, found := claims[name]; found {
		return value
	}
	for i, c := range name {
		if c != '.' {
			continue
		}
		if object, ok := claims[name[:i]].(map[string]any); ok {
			if value := lookup(object, name[i+1:]); value != nil {
				return value
			}
		}
	}
	return nil
}

// texts returns a claim that is a text or a list of texts as a list. Other values have none.
func texts(claim any) []string {
	switch value := claim.(type) {
	case string:
		return []string{value}
	case []any:
		list := make([]string, 0, len(value))
		for _, item := range value {
			text, ok := item.(string)
			if !ok {
				return nil
			}
			list = append(list, text)
		}
		return list
	}
	return nil
}

// printable returns the first bytes of a name without control characters.
func printable(name string) string {
	name = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name[:min(len(name), maxNameBytes)])
	return strings.ToValidUTF8(name, "?")
}
