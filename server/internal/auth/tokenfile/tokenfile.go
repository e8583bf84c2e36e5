// Package tokenfile reads and writes a file with the hashes of bearer tokens, and checks the tokens of
// callers against it.
//
// The file is YAML. It is written by the command "parleyd token" and contains no token, only hashes.
// file.go contains the format and its checks, change.go what the command does. Start at [Open].
package tokenfile

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"sync/atomic"
	"time"

	"github.com/parleyhq/parley/server/internal/auth"
)

const (
	// tokenPrefix makes tokens recognizable, for example to programs that search for leaked secrets.
	tokenPrefix = "parley_"
	// tokenBytes is the number of random bytes in a token.
	tokenBytes = 32
	// idLength is the number of characters of an id.
	idLength = 8
)

// Token is an entry of the file.
type Token struct {
	// ID identifies the token in the file, and is not secret.
	ID string
	// Hash is the SHA-256 of the token.
	Hash [sha256.Size]byte
	// Tenants are the tenants that the caller may name, or only [auth.AllTenants].
	Tenants []string
	// Role is the role of the caller in all of its tenants.
	Role auth.Role
	// Name describes the caller. It may be empty.
	Name string
	// Created is when the token was created.
	Created time.Time
	// Expires is when the token expires. If zero, it does not expire.
	Expires time.Time
}

// callerName returns the name of the caller for logs.
func (t *Token) callerName() string {
	if t.Name == "" {
		return "token " + t.ID
	}
	return t.Name
}

// newToken returns a random token.
func newToken() string {
	secret := make([]byte, tokenBytes)
	_, _ = rand.Read(secret) // It never fails.
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(secret)
}

// newID returns a random id.
func newID() string { return strings.ToLower(rand.Text()[:idLength]) }

// File checks the tokens of callers against a file. Create it with [Open]. Its methods may be called from many
// goroutines.
type File struct {
	path   string
	now    func() time.Time
	tokens atomic.Pointer[map[[sha256.Size]byte]*entry]
	// missing and unknown take the place of an entry that does not exist.
	missing, unknown entry
}

// entry is a token as a caller is checked against it.
type entry struct {
	identity auth.Identity
	expires  int64 // nanoseconds since 1970; the maximum: never
	fault    fault // why the token is rejected after that
}

// Open reads the file path. now is the clock. The error is a [*FaultsError] if the content or the permissions of
// the file have faults.
func Open(path string, now func() time.Time) (*File, error) {
	f := &File{
		path: path, now: now, missing: entry{fault: fault{"no token", ""}}, unknown: entry{fault: fault{"unknown token", ""}},
	}
	if err := f.Reload(); err != nil {
		return nil, err
	}
	return f, nil
}

// Reload reads the file again. After an error the tokens are those of the last successful read.
func (f *File) Reload() error {
	apply, err := f.Prepare()
	if err == nil {
		apply()
	}
	return err
}

// Prepare reads the file again. The tokens change when apply is called, which cannot fail.
func (f *File) Prepare() (apply func(), err error) {
	list, err := List(f.path)
	if err != nil {
		return nil, err
	}
	tokens := make(map[[sha256.Size]byte]*entry, len(list))
	for _, t := range list {
		expires := int64(forever)
		if !t.Expires.IsZero() {
			expires = t.Expires.UnixNano()
		}
		tokens[t.Hash] = &entry{
			auth.Identity{
				ID: "token:" + t.ID, Name: t.callerName(), Tenants: t.Tenants, Role: t.Role, Expires: t.Expires,
			},
			expires,
			fault{"expired token, id ", t.ID},
		}
	}
	return func() { f.tokens.Store(&tokens) }, nil
}

// Verify returns what the token of c states. It does the same work whether the token is missing, malformed,
// unknown, revoked or expired: hash it, look up the hash, compare the time, and return an error of the same type.
// The duration of a lookup depends on the hash, from which a caller learns nothing about tokens that it does not
// have. The tenants of the result must not be changed.
func (f *File) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	presented, absentee := c.Token, &f.unknown
	if presented == "" {
		presented, absentee = absent, &f.missing
	}
	var buffer [2 * len(absent)]byte // A longer token needs memory of its own, but it is none.
	now := f.now().UnixNano()
	found := (*f.tokens.Load())[sha256.Sum256(append(buffer[:0], presented...))]
	if found == nil {
		found = absentee
	}
	if now >= found.expires {
		return auth.Identity{}, &found.fault
	}
	return found.identity, nil
}

// absent is what Verify hashes instead of a missing token. It is as long as a token and is none.
const absent = "________ in place of a token, which is missing ___"

// fault is why a token is not accepted. Its text is only made when it is logged, so that it costs the same in all
// cases.
type fault struct{ reason, id string }

// Error returns the reason. It contains no token.
func (f *fault) Error() string { return "token file: " + f.reason + f.id }
