// Package console serves the console: a web page on which people see the conversations, turns and logs of one server,
// and change them. The page calls the API over HTTP as any other client. Its sources are in web, and dist has the files
// that make generate builds of them. Start at [New].
package console

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/gateway"
)

//go:embed dist
var dist embed.FS

// Paths of the replies that depend on the caller. The other files are the same for all.
const (
	sessionPath  = "/console/session"
	settingsPath = "/console/settings"
)

// policy is the Content-Security-Policy of the page. The page runs only the script of this server, calls only this
// server, and is in no frame. Nothing on it parses HTML: trusted types refuse it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Options are the settings of the console.
type Options struct {
	// ReadOnly makes the page show no button that changes anything. It does not limit what a credential may do.
	ReadOnly bool
	// Version of the server.
	Version string
	// SignInRequired is true if callers must have a credential.
	SignInRequired bool
	// SignIn returns the caller of a request that may call a method. Its error says why the caller may not. It wraps
	// [auth.ErrUnauthenticated] if there is no valid credential.
	SignIn func(ctx context.Context, method string, sent metadata.MD) (auth.Principal, error)
	// WriteSettings writes the settings in effect, without secrets.
	WriteSettings func(io.Writer) error
}

// Console serves the page. Create it with New.
type Console struct {
	options Options
	files   func() map[string]file
}

// file is a file of the page, as it is sent.
type file struct {
	kind, tag     string // media type and entity tag
	plain, zipped []byte
}

// New returns the console. It prepares its files at the first request, because most servers are never asked for them.
func New(o Options) *Console { return &Console{options: o, files: sync.OnceValue(readFiles)} }

// IsFile reports whether a path is that of a file of the page. The files contain no data of the server, so pages of any
// origin may link to them.
func IsFile(p string) bool { return p == "/" || strings.HasPrefix(p, "/console/") && !IsReply(p) }

// IsReply reports whether a path is that of a reply that depends on the caller.
func IsReply(p string) bool { return p == sessionPath || p == settingsPath }

// ServeHTTP answers a request for which IsFile or IsReply is true.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Path {
	case sessionPath:
		c.serveSession(w, r)
	case settingsPath:
		c.serveSettings(w, r)
	default:
		c.serveFile(w, r)
	}
}

func (c *Console) serveFile(w http.ResponseWriter, r *http.Request) {
	f, ok := c.files()[r.URL.Path]
	if !ok {
		http.Error(w, "the console has no such file; it begins at /", http.StatusNotFound)
		return
	}
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "no-referrer") // Attachments are links to other hosts.
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-cache") // Browsers ask whether the tag is still the same.
	header.Set("Vary", "Accept-Encoding")
	header.Set("Content-Type", f.kind)
	body, tag := f.plain, f.tag
	if acceptsGzip(r) {
		body, tag = f.zipped, f.tag+"-gzip"
		header.Set("Content-Encoding", "gzip")
	}
	header.Set("Etag", strconv.Quote(tag))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// acceptsGzip reports whether a client names gzip with a weight other than 0.
func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(coding), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return strings.TrimRight(strings.TrimPrefix(strings.TrimSpace(weight), "q="), "0.") != "" || weight == ""
		}
	}
	return false
}

// session is what the page knows of its caller and of the server.
type session struct {
	SignInRequired bool    `json:"signInRequired"`
	ReadOnly       bool    `json:"readOnly"`
	Caller         *caller `json:"caller"` // nil if the request has no credential
	Version        string  `json:"version,omitempty"`
}

// caller is who has signed in.
type caller struct {
	Name       string `json:"name"`
	Role       string `json:"role"`
	Tenant     string `json:"tenant"` // empty if the caller may see all tenants and has named none
	AllTenants bool   `json:"allTenants"`
}

// serveSession answers who the caller is. A request without a credential is not refused, so that the first view of the
// page is no failed sign-in for the log.
func (c *Console) serveSession(w http.ResponseWriter, r *http.Request) {
	reply := session{SignInRequired: c.options.SignInRequired, ReadOnly: c.options.ReadOnly}
	sent := gateway.Metadata(r)
	credentials := auth.FromProcess(metadata.NewIncomingContext(r.Context(), sent))
	if !reply.SignInRequired || credentials.TokenSent || credentials.Certificate != nil {
		// Every caller may list the agents.
		p, err := c.options.SignIn(r.Context(), parleyv1.ConversationService_ListAgents_FullMethodName, sent)
		if err != nil {
			refuse(w, r, err)
			return
		}
		reply.Version = c.options.Version
		reply.Caller = &caller{Name: p.Name, Role: p.Role.String(), Tenant: p.Tenant, AllTenants: p.AllTenants}
	}
	body, err := json.Marshal(reply)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeReply(w, "application/json", body)
}

// serveSettings answers with the settings in effect, to those who may copy the whole store.
func (c *Console) serveSettings(w http.ResponseWriter, r *http.Request) {
	_, err := c.options.SignIn(r.Context(), parleyv1.AdminService_BackupStore_FullMethodName, gateway.Metadata(r))
	if err != nil {
		refuse(w, r, err)
		return
	}
	var text bytes.Buffer
	if err := c.options.WriteSettings(&text); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeReply(w, "text/plain; charset=utf-8", text.Bytes())
}

func writeReply(w http.ResponseWriter, kind string, body []byte) {
	header := w.Header()
	header.Set("Content-Type", kind)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body)
}

// refuse answers a request whose caller may not make it.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	code, text := http.StatusForbidden, err.Error()
	if errors.Is(err, auth.ErrUnauthenticated) {
		code, text = http.StatusUnauthorized, "the server does not accept this token; sign in with another one"
		if r.Header.Get("Authorization") == "" {
			text = "the server accepts no client certificate of this browser; sign in with a token"
		}
		w.Header().Set("Www-Authenticate", `Bearer realm="parley"`)
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, text, code)
}

// readFiles returns the files of the page by their paths.
func readFiles() map[string]file {
	files := make(map[string]file)
	entries, err := dist.ReadDir("dist")
	for _, entry := range entries {
		var f file
		if f, err = readFile(entry.Name()); err != nil {
			break
		}
		name := "/console/" + entry.Name()
		if entry.Name() == "index.html" {
			name = "/"
		}
		files[name] = f
	}
	if err != nil {
		panic("read an embedded file: " + err.Error()) // It is part of the program.
	}
	return files
}

func readFile(name string) (file, error) {
	plain, err := dist.ReadFile("dist/" + name)
	if err != nil {
		return file{}, err
	}
	var zipped bytes.Buffer
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(plain)
	}
	if err := errors.Join(err, z.Close()); err != nil {
		return file{}, err
	}
	sum := sha256.Sum256(plain)
	kinds := map[string]string{
		".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
		".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
	}
	return file{
		kind: kinds[path.Ext(name)], tag: base64.RawURLEncoding.EncodeToString(sum[:12]),
		plain: plain, zipped: zipped.Bytes(),
	}, nil
}
