// Package a2a serves the agents of this server to clients of the A2A protocol, version 1.0, over its three bindings:
// JSON-RPC and HTTP+JSON, see [New], and gRPC, see [Register]. It only translates, and keeps no state: a context is a
// conversation, a task is a turn with the turns that continue it, and each request becomes calls of the API.
//
// The protocol's own SDK reads and writes its messages; see [a2asrv.RequestHandler], which [tasks] implements. Start at
// [New] and [Register].
package a2a

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// Path is the prefix of the paths of all agents. The rest of a path is the name of an agent and, for HTTP+JSON and the
// agent card, what it asks for.
const Path = "/a2a/"

// cardPath is the path of an agent card, below the path of its agent. At the root it is that of the default agent.
const cardPath = a2asrv.WellKnownAgentCardPath

// keepAlive is the time between the comments of a stream without events. It is that of the progress events of turns.
const keepAlive = 15 * time.Second

// SignIn returns the caller of a request that is not a call itself. sent is the metadata of its calls. See
// [rpc.Server.SignIn].
type SignIn func(ctx context.Context, method string, sent metadata.MD) (auth.Principal, error)

// Options are what the services need. Required are Conn and Agents, and for HTTP Authorize and Bodies.
type Options struct {
	// Conn is the connection for the calls. Its server takes the credentials of a call from the metadata. It is not
	// closed.
	Conn grpc.ClientConnInterface
	// Authorize checks a caller before the body of a request is read.
	Authorize gateway.Authorize
	// Bodies limits the memory of the bodies of requests.
	Bodies *gateway.Bodies
	// Agents returns the agents of this server.
	Agents func() []*parleyv1.AgentInfo
	// URL is where clients reach the HTTP listener, without a path, for the agent cards. If empty, cards name the host
	// of the request for the card.
	URL string
	// GRPCPort is the port of the gRPC listener, for the cards. 0 if the service is not registered there.
	GRPCPort int
	// Notifier sends push notifications. If nil, there are none.
	Notifier *Notifier
	// SignIn is required with Notifier, which has a limit for each tenant.
	SignIn SignIn
	// NeedsSignIn is true if callers need a credential. The cards say so.
	NeedsSignIn bool
	// Version is that of the program, for the cards.
	Version string
}

// handler answers the requests of all agents.
type handler struct {
	Options

	started  time.Time // when the cards got their content
	services sync.Map  // by name of the agent: *service
}

// service are the handlers of the SDK for an agent. To make them takes longer than to route a request.
type service struct{ rpc, rest http.Handler }

// service returns the handlers for one of the agents of this server.
func (h *handler) service(agent string) *service {
	found, _ := h.services.Load(agent)
	if made, ok := found.(*service); ok {
		return made
	}
	rpc, rest := h.tasks(), h.tasks()
	rpc.agent, rest.agent, rest.overREST = agent, agent, true
	keep := a2asrv.WithTransportKeepAlive(keepAlive)
	reported := &a2asrv.InterceptedHandler{Handler: rest, Interceptors: []a2asrv.CallInterceptor{reportFailure{}}}
	made := &service{a2asrv.NewJSONRPCHandler(rpc, keep), a2asrv.NewRESTHandler(reported, keep)}
	h.services.Store(agent, made)
	return made
}

// tasks returns the operations without an agent.
func (o Options) tasks() *tasks {
	return &tasks{
		api: parleyv1.NewConversationServiceClient(o.Conn), records: parleyv1.NewRecordServiceClient(o.Conn),
		notifier: o.Notifier, signIn: o.SignIn,
	}
}

// New returns the handler of all paths below [Path] and of the default agent's card at the root. [Serves] reports
// which paths those are.
func New(o Options) http.Handler {
	return gateway.LimitWrites(&handler{Options: o, started: time.Now()})
}

// Serves reports whether a path belongs to the handler.
func Serves(path string) bool { return strings.HasPrefix(path, Path) || path == cardPath }

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	agent, rest := h.route(r.URL)
	if agent == nil {
		h.refuse(w, r, rest, a2a.NewError(errNoPath, fmt.Sprintf(
			"%.80q is not an agent of this server; its agents are %s", unescaped(r.URL), namesOf(h.Agents()))))
		return
	}
	if rest == cardPath {
		h.serveCard(w, r, agent)
		return
	}
	if !isOperation(r.Method, rest) {
		h.refuse(w, r, rest, a2a.NewError(errNoPath, fmt.Sprintf(
			"%.16s %.80q is not an operation of A2A over HTTP; the agent card at %s says where to call", r.Method,
			rest, agentPath(agent.GetName())+cardPath)))
		return
	}
	if err := cmp.Or(checkVersion(r), checkMediaType(r)); err != nil {
		h.refuse(w, r, rest, err)
		return
	}
	// The operation is not known yet. Its calls are authorized again.
	sent := gateway.Metadata(r)
	refused, err := h.Authorize(r.Context(), parleyv1.ConversationService_GetTurn_FullMethodName, sent)
	if err != nil {
		gateway.RefuseUnread(w, r, func() { h.refuseCall(w, r, rest, err) })
		return
	}
	text, release, err := h.Bodies.Read(w, r)
	if err != nil {
		refused(err)
		gateway.RefuseUnread(w, r, func() { h.refuseCall(w, r, rest, err) })
		return
	}
	defer release()
	if err := checkBody(rest, text); err != nil {
		refused(gateway.NewStatus(codes.InvalidArgument, "INVALID_REQUEST", err.Error()).Err())
		writeRefusal(w, rest, err)
		return
	}
	h.serve(w, r.WithContext(metadata.NewOutgoingContext(r.Context(), sent)), agent, rest, text)
}

// serve answers a request whose body is text, and whose context has the metadata of its calls.
func (h *handler) serve(w http.ResponseWriter, r *http.Request, agent *parleyv1.AgentInfo, rest string, text []byte) {
	ctx, failed := withExchange(r.Context())
	called := r.Clone(ctx)
	called.Body, called.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	called.URL.Path, called.URL.RawPath = rest, ""
	service := h.service(agent.GetName())
	if rest == "/" {
		service.rpc.ServeHTTP(&rpcWriter{w}, called)
		return
	}
	failed.query = r.URL.Query()
	if rest == "/tasks" { // ListTasks reads these parameters itself: errors of the SDK do not name them.
		query := r.URL.Query()
		query.Del("historyLength")
		query.Del("statusTimestampAfter")
		called.URL.RawQuery = query.Encode()
	}
	answered := &restWriter{ResponseWriter: w, failed: failed}
	service.rest.ServeHTTP(answered, called)
	answered.end()
}

// route returns the agent that a URL names and the rest of its path, which begins with "/". The agent is nil if this
// server has none with the name.
func (h *handler) route(u *url.URL) (agent *parleyv1.AgentInfo, rest string) {
	agents := h.Agents()
	if u.Path == cardPath {
		i := slices.IndexFunc(agents, (*parleyv1.AgentInfo).GetIsDefault)
		return agents[i], cardPath // Every server has a default agent.
	}
	escaped, rest, _ := strings.Cut(strings.TrimPrefix(u.EscapedPath(), Path), "/")
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, "/" + rest
	}
	if rest, err = url.PathUnescape("/" + rest); err != nil {
		return nil, "/"
	}
	if i := slices.IndexFunc(agents, func(a *parleyv1.AgentInfo) bool { return a.GetName() == name }); i >= 0 {
		return agents[i], rest
	}
	return nil, rest
}

// unescaped returns the part of a URL that should be the name of an agent.
func unescaped(u *url.URL) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(u.Path, Path), "/")
	return name
}

// namesOf returns the names of agents, for error texts.
func namesOf(agents []*parleyv1.AgentInfo) string {
	var all []string
	for _, a := range agents {
		all = append(all, a.GetName())
	}
	return strings.Join(all, ", ")
}

// agentPath returns the path of an agent, at which JSON-RPC is served. Paths of HTTP+JSON are below it.
func agentPath(name string) string { return Path + url.PathEscape(name) }

// isOperation reports whether the SDK serves a method and a path below the path of an agent.
func isOperation(method, path string) bool {
	segments := strings.Split(path, "/")[1:]
	isGet, isPost := method == http.MethodGet, method == http.MethodPost
	switch {
	case path == "/", path == "/message:send", path == "/message:stream":
		return isPost
	case path == "/extendedAgentCard", path == "/tasks":
		return isGet
	case segments[0] != "tasks" || slices.Contains(segments, ""):
		return false
	case len(segments) == 2 && strings.HasSuffix(path, ":cancel"):
		return isPost
	case len(segments) == 2 && strings.HasSuffix(path, ":subscribe"):
		return isGet || isPost // The text of the protocol says POST, its proto GET.
	case len(segments) == 2:
		return isGet
	case segments[2] != "pushNotificationConfigs":
		return false
	case len(segments) == 3:
		return isGet || isPost
	}
	return len(segments) == 4 && (isGet || method == http.MethodDelete)
}

// checkVersion returns an error unless a request has the version of the protocol that this package serves. The
// protocol says that a request without a version is one of 0.3: A2A 1.0, 3.6.2.
func checkVersion(r *http.Request) error {
	version := r.Header.Get(a2a.SvcParamVersion)
	if version == "" {
		version = r.URL.Query().Get(a2a.SvcParamVersion)
	}
	return checkVersionText(version)
}

// checkMediaType returns an error if a request declares a body that is no JSON. The type that curl declares by default
// counts as none.
func checkMediaType(r *http.Request) error {
	declared := r.Header.Get("Content-Type")
	media, _, _ := mime.ParseMediaType(declared)
	if declared == "" || media == mediaJSON || media == "application/x-www-form-urlencoded" ||
		strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json") {
		return nil
	}
	return a2a.NewError(a2a.ErrUnsupportedContentType, fmt.Sprintf("the body is declared as %.80q; send %s", declared,
		mediaJSON))
}

// checkBody returns an error if a body is not one JSON value in UTF-8. The SDK would ignore what follows the value, and
// replace what is not UTF-8. Only requests of HTTP+JSON may have an empty body.
func checkBody(rest string, text []byte) error {
	if rest != "/" && len(bytes.TrimSpace(text)) == 0 || utf8.Valid(text) && json.Valid(text) {
		return nil
	}
	return a2a.NewError(a2a.ErrParseError, "the body is not one JSON value in UTF-8")
}

func checkVersionText(version string) error {
	switch major, minor, _ := strings.Cut(version, "."); {
	case version == "":
		return a2a.NewError(a2a.ErrVersionNotSupported, fmt.Sprintf(
			"a request without the header %s has version 0.3, which this server does not support; send %[1]s: %s",
			a2a.SvcParamVersion, a2a.Version))
	case major == "1" && (minor == "0" || strings.HasPrefix(minor, "0.")):
		return nil
	}
	return a2a.NewError(a2a.ErrVersionNotSupported, fmt.Sprintf(
		"version %.20q of the protocol is not supported; send %s: %s", version, a2a.SvcParamVersion, a2a.Version))
}
