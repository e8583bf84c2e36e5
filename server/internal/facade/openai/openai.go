// Package openai serves the Conversations and Responses APIs of OpenAI over the API of Parley, so that an unmodified
// client of OpenAI works with another base URL. It keeps no state: each request becomes calls over the connection
// passed to [New], and the ids of responses and items contain what finds them again. server/http.md lists what is
// served. Start at [New].
package openai

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// Prefix is the start of all paths of the handler.
const Prefix = "/openai/v1/"

// handler answers the requests of all paths.
type handler struct {
	api       parleyv1.ConversationServiceClient
	records   parleyv1.RecordServiceClient
	authorize gateway.Authorize
	bodies    *gateway.Bodies
	routes    []route
}

// route is a path with a method. Segments of the pattern that are "*" are arguments.
type route struct {
	method, pattern string
	call            string // Full name of the main call, which the caller must be allowed to make.
	serve           func(*request) error
}

// request is a request to a route.
type request struct {
	context.Context // With the metadata of the calls.

	w       http.ResponseWriter
	header  http.Header
	args    []string
	query   url.Values
	body    []byte
	started bool // The response has begun, so an error cannot be sent as one.
}

// New returns the handler of all paths that begin with [Prefix]. The handler makes its calls over conn and does not
// close it. It calls authorize before it reads a body; if authorize is nil, only the server behind conn checks the
// callers. bodies limits the memory of requests together with other handlers.
func New(conn grpc.ClientConnInterface, authorize gateway.Authorize, bodies *gateway.Bodies) http.Handler {
	if authorize == nil {
		authorize = func(context.Context, string, metadata.MD) (func(error), error) { return func(error) {}, nil }
	}
	h := &handler{
		api: parleyv1.NewConversationServiceClient(conn), records: parleyv1.NewRecordServiceClient(conn),
		authorize: authorize, bodies: bodies,
	}
	h.routes = h.allRoutes()
	return gateway.LimitWrites(h)
}

func (h *handler) allRoutes() []route {
	const (
		get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete

		chat       = parleyv1.ConversationService_Chat_FullMethodName
		getTurn    = parleyv1.ConversationService_GetTurn_FullMethodName
		listAgents = parleyv1.ConversationService_ListAgents_FullMethodName
		list       = parleyv1.ConversationService_ListMessages_FullMethodName
	)
	return []route{
		{post, "conversations", parleyv1.ConversationService_CreateConversation_FullMethodName, h.createConversation},
		{get, "conversations/*", parleyv1.ConversationService_GetConversation_FullMethodName, h.getConversation},
		{post, "conversations/*", parleyv1.ConversationService_UpdateConversation_FullMethodName, h.updateConversation},
		{del, "conversations/*", parleyv1.ConversationService_DeleteConversation_FullMethodName, h.deleteConversation},
		{post, "conversations/*/items", parleyv1.ConversationService_AppendMessages_FullMethodName, h.createItems},
		{get, "conversations/*/items", list, h.listItems},
		{get, "conversations/*/items/*", list, h.getItem},
		{del, "conversations/*/items/*", parleyv1.ConversationService_ClearConversation_FullMethodName, h.deleteItem},
		{post, "responses", chat, h.createResponse},
		{get, "responses/*", getTurn, h.getResponse},
		{post, "responses/*/cancel", parleyv1.ConversationService_CancelTurn_FullMethodName, h.cancelResponse},
		{get, "responses/*/input_items", list, h.listInputItems},
		{get, "models", listAgents, h.listModels},
		{get, "models/*", listAgents, h.getModel},
		{del, "responses/*", getTurn, unsupported("deleting a response", "delete its conversation or its items")},
		{post, "responses/compact", getTurn, unsupported("compacting", "the agents of the server choose their window")},
		{post, "responses/input_tokens", getTurn, unsupported("counting tokens", "the usage of a response has them")},
	}
}

// unsupported refuses an operation by its name.
func unsupported(operation, instead string) func(*request) error {
	return func(*request) error {
		return &fault{
			status: http.StatusBadRequest, Type: typeInvalid, Code: "unsupported_operation",
			Message: operation + " is not supported by this server: " + instead,
		}
	}
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, args, allowed := h.find(r)
	if found == nil {
		if len(allowed) > 0 {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
		}
		f := notRouted(r, allowed)
		gateway.RefuseUnread(w, r, func() { f.write(w) })
		return
	}
	md := gateway.Metadata(r)
	refused, err := h.authorize(r.Context(), found.call, md)
	if err != nil {
		gateway.RefuseUnread(w, r, func() { faultOf(r.Context(), err).write(w) })
		return
	}
	q := &request{
		Context: metadata.NewOutgoingContext(r.Context(), md), w: w, header: r.Header, args: args,
	}
	if q.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		refused(gateway.NewStatus(invalidCode, invalidReason, "the query is malformed").Err())
		gateway.RefuseUnread(w, r, func() {
			invalid("query", "is malformed: encode it as application/x-www-form-urlencoded").write(w)
		})
		return
	}
	if r.Method == http.MethodPost {
		text, release, err := h.bodies.Read(w, r)
		defer release()
		if err != nil {
			refused(err)
			gateway.RefuseUnread(w, r, func() { faultOf(r.Context(), err).write(w) })
			return
		}
		q.body = text
	}
	if err := found.serve(q); err != nil {
		f := faultOf(r.Context(), err)
		if f.local {
			refused(gateway.NewStatus(invalidCode, invalidReason, f.Message).Err())
		}
		if !q.started {
			f.protectRetry(r)
			f.write(w)
		}
	}
}

// find returns the route of a request with its arguments, or the methods that its path allows.
func (h *handler) find(r *http.Request) (found *route, args, allowed []string) {
	path, _ := strings.CutPrefix(cmp.Or(r.URL.RawPath, r.URL.EscapedPath()), Prefix)
	segments := strings.Split(strings.TrimSuffix(path, "/"), "/")
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	fixed := false
	for i := range h.routes {
		candidate := &h.routes[i]
		values, ok := match(candidate.pattern, segments)
		if !ok {
			continue
		}
		if !slices.Contains(allowed, candidate.method) {
			allowed = append(allowed, candidate.method)
		}
		// A path with fewer arguments is more specific.
		if isFixed := len(values) == 0; candidate.method == method && (found == nil || isFixed && !fixed) {
			found, args, fixed = candidate, values, isFixed
		}
	}
	return found, args, allowed
}

// match returns the arguments of a path.
func match(pattern string, segments []string) (args []string, ok bool) {
	parts := strings.Split(pattern, "/")
	if len(parts) != len(segments) {
		return nil, false
	}
	for i, part := range parts {
		value, err := url.PathUnescape(segments[i])
		switch {
		case err != nil, value == "":
			return nil, false
		case part == "*":
			args = append(args, value)
		case part != value:
			return nil, false
		}
	}
	return args, true
}
