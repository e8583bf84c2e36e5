package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	tokenKey  = "authorization"
	tenantKey = "parley-tenant"

	// maxTokenBytes leaves space for the other headers: a server accepts 16 KiB of them.
	maxTokenBytes = 12 << 10
)

// WithToken returns an option for [Dial]: each call signs in with the bearer token that source returns.
//
// The client calls source for each attempt of each call, with the context of the call and from many
// goroutines. So source should cache the token and get another one before it expires. If the
// server refuses a token with UNAUTHENTICATED, the client calls source again. If source then returns
// another token, the call is sent again, once, and Chat, ResumeTurn and WatchConversations resume.
// A context with the metadata "authorization" overrides the token for one call.
//
// If source fails, or returns a token with a space, a line break or another character that is not
// printable ASCII, the call fails with UNAUTHENTICATED before anything is sent. If the error of
// source is UNAVAILABLE or that of a context, the call has that code. The client puts no token into
// an error.
//
// The token is sent over the connection of [Dial], which is encrypted unless the server is on this
// machine. With [grpc.WithTransportCredentials] and insecure credentials the token is sent in plaintext.
func WithToken(source func(context.Context) (string, error)) grpc.DialOption {
	return grpc.WithPerRPCCredentials(&tokens{
		source: func(ctx context.Context, _ bool) (string, error) { return source(ctx) },
	})
}

// WithTokenFile is [WithToken] with the token in a file. White space around the token is ignored.
// The client reads the file before the first call, and again when the file has changed or the server
// has refused its token. If the file cannot be read again, or contains no token, the client continues
// with the last token, because a program may be replacing the file.
func WithTokenFile(path string) grpc.DialOption {
	return grpc.WithPerRPCCredentials(&tokens{source: (&tokenFile{path: path}).token})
}

// WithTenant returns an option for [Dial]: each call names a tenant. Callers that may use several tenants
// need it. A context with the metadata "parley-tenant" overrides it for one call. If name is empty,
// calls name no tenant. Calls with an invalid name fail with PERMISSION_DENIED.
func WithTenant(name string) grpc.DialOption {
	valid := regexp.MustCompile(tenantPattern).MatchString(name)
	return grpc.WithPerRPCCredentials(namedTenant{name: name, valid: valid})
}

// tenantPattern describes the names of tenants. The server has the same pattern.
const tenantPattern = `^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}$`

// namedTenant is the tenant that calls name. It implements credentials.PerRPCCredentials.
type namedTenant struct {
	name  string
	valid bool
}

// GetRequestMetadata returns the metadata of a call.
func (n namedTenant) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	switch {
	case n.name == "", hasMetadata(ctx, tenantKey):
		return nil, nil
	case !n.valid:
		return nil, status.Errorf(codes.PermissionDenied, "tenant %.80q: use 1 to 64 letters, digits, dots, "+
			"underscores and hyphens, not starting with a dot or a hyphen", n.name)
	}
	return map[string]string{tenantKey: n.name}, nil
}

// RequireTransportSecurity returns false, because the name of a tenant is not secret.
func (namedTenant) RequireTransportSecurity() bool { return false }

// hasMetadata reports whether the caller has set metadata of a call.
func hasMetadata(ctx context.Context, key string) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	return len(md.Get(key)) > 0
}

// tokens signs calls in. It implements credentials.PerRPCCredentials.
type tokens struct {
	// source returns a token. refused means that the server has refused the previous one.
	source func(ctx context.Context, refused bool) (string, error)
}

// GetRequestMetadata returns the metadata of an attempt of a call. It notes the token in the tokenUse of the
// call.
func (t *tokens) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	if hasMetadata(ctx, tokenKey) {
		return nil, nil
	}
	token, err := t.token(ctx, false)
	if err != nil {
		return nil, err
	}
	if use, ok := ctx.Value(tokenUseKey{}).(*tokenUse); ok {
		use.last.Store(&usedToken{token: token, from: t})
	}
	return map[string]string{tokenKey: "Bearer " + token}, nil
}

// RequireTransportSecurity returns false, because servers on this machine may use plaintext. Dial chooses
// TLS for all others, unless its caller explicitly sets other credentials.
func (*tokens) RequireTransportSecurity() bool { return false }

// token returns a valid token or a *tokenError.
func (t *tokens) token(ctx context.Context, refused bool) (string, error) {
	token, err := t.source(ctx, refused)
	if err == nil {
		err = checkToken(token)
	}
	if err != nil {
		return "", &tokenError{err}
	}
	return token, nil
}

// checkToken returns an error, without the token, if a header cannot contain token.
func checkToken(token string) error {
	if token == "" {
		return errors.New("the token is empty")
	}
	if len(token) > maxTokenBytes {
		return fmt.Errorf("the token is longer than %d bytes", maxTokenBytes)
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return fmt.Errorf("byte %d of the token is a space, a line break or another character that is not "+
				`printable ASCII; use the token alone, without "Bearer"`, i+1)
		}
	}
	return nil
}

// tokenError means that there is no token for a call.
type tokenError struct{ err error }

// Error returns the cause.
func (e *tokenError) Error() string { return "no token: " + e.err.Error() }

// Unwrap returns the cause.
func (e *tokenError) Unwrap() error { return e.err }

// GRPCStatus returns the status of the call.
func (e *tokenError) GRPCStatus() *status.Status {
	code := codes.Unauthenticated
	if ended := status.FromContextError(e.err).Code(); ended != codes.Unknown {
		code = ended
	} else if status.Code(e.err) == codes.Unavailable {
		code = codes.Unavailable
	}
	return status.New(code, e.Error())
}

// tokenFile is a file with a token.
type tokenFile struct {
	path string

	mu    sync.Mutex
	last  string      // The last token; empty if none has been read.
	state fs.FileInfo // The state of the file before last was read.
}

// token returns the token in the file, or the last one if the file cannot be read now. If the server has refused the
// last one, token always reads the file.
func (f *tokenFile) token(_ context.Context, refused bool) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state, err := os.Stat(f.path)
	if err == nil && f.last != "" && (!state.Mode().IsRegular() || !refused && sameState(state, f.state)) {
		return f.last, nil // A pipe can be read only once.
	}
	token, err := readToken(f.path)
	switch {
	case err == nil:
		f.last, f.state = token, state
	case f.last == "" || refused:
		return "", err
	}
	return f.last, nil
}

func sameState(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// readToken returns the token in a file. Its errors contain no part of the file.
func readToken(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, 2*maxTokenBytes))
	if err := errors.Join(err, file.Close()); err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if err := checkToken(token); err != nil {
		return "", fmt.Errorf("file %q: %w", path, err)
	}
	return token, nil
}

// tokenUse notes the token of the newest attempt of a call.
type tokenUse struct{ last atomic.Pointer[usedToken] }

type usedToken struct {
	token string
	from  *tokens
}

// tokenUseKey is the context key of the tokenUse of a call.
type tokenUseKey struct{}

func withTokenUse(ctx context.Context) (context.Context, *tokenUse) {
	use := &tokenUse{}
	return context.WithValue(ctx, tokenUseKey{}, use), use
}

// replaced reports whether the source of the token now returns another one. It returns false if the call had no token.
// refused means that the server has refused the token.
func (u *tokenUse) replaced(ctx context.Context, refused bool) (bool, error) {
	used := u.last.Load()
	if used == nil {
		return false, nil
	}
	token, err := used.from.token(ctx, refused)
	return err == nil && token != used.token, err
}

// signInAgainUnary sends a call again if the server refused its token and the source has another one. A refused call
// has not been executed. It is sent again only once, because a source may return another token each time.
func signInAgainUnary(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	noted, use := withTokenUse(ctx)
	err := invoke(noted, method, request, reply, conn, opts...)
	if status.Code(err) != codes.Unauthenticated {
		return err
	}
	switch replaced, failure := use.replaced(ctx, true); {
	case failure != nil:
		return fmt.Errorf("%w; %w", err, failure)
	case replaced:
		return invoke(ctx, method, request, reply, conn, opts...)
	default:
		return err
	}
}
