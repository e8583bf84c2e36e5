// Package agui serves agents in the AG-UI protocol: the events of a run as server-sent events. It has no state. A
// thread is a conversation, a run is a turn, and the id of a run is its request_id. All rules, limits and errors are
// those of the calls that it makes. Start at [New].
package agui

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// PathPrefix begins the paths that the handler of [New] serves. The percent-encoded name of an agent follows.
const PathPrefix = "/ag-ui/"

// Names of parameters and headers of requests.
const (
	threadIDParameter     = "threadId"
	runIDParameter        = "runId"
	onDisconnectParameter = "onDisconnect"
	lastEventID           = "Last-Event-ID"
)

// handler answers the requests of all paths.
type handler struct {
	api       parleyv1.ConversationServiceClient
	authorize gateway.Authorize
	bodies    *gateway.Bodies
}

// New returns the handler of the paths below [PathPrefix]. The handler makes its calls over conn and does not close
// it. It calls authorize before it reads a body. bodies limits the memory of bodies.
func New(conn grpc.ClientConnInterface, authorize gateway.Authorize, bodies *gateway.Bodies) http.Handler {
	return gateway.LimitWrites(&handler{
		api: parleyv1.NewConversationServiceClient(conn), authorize: authorize, bodies: bodies,
	})
}

// methodOf returns the call for which the caller of a method of HTTP must be authorized, and the parameters of its
// query. It returns false if the paths do not allow the method.
func methodOf(method string) (call string, parameters []string, ok bool) {
	switch method {
	case http.MethodPost:
		return parleyv1.ConversationService_Chat_FullMethodName, []string{onDisconnectParameter}, true
	case http.MethodGet:
		return parleyv1.ConversationService_ResumeTurn_FullMethodName, []string{threadIDParameter, runIDParameter}, true
	case http.MethodDelete:
		return parleyv1.ConversationService_CancelTurn_FullMethodName, []string{threadIDParameter, runIDParameter}, true
	}
	return "", nil, false
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	agent, err := agentOf(r.URL)
	if err != nil {
		gateway.RefuseUnread(w, r, func() { writeError(w, r, err) })
		return
	}
	method, parameters, ok := methodOf(r.Method)
	if !ok {
		w.Header().Set("Allow", "DELETE, GET, POST")
		gateway.RefuseUnread(w, r, func() {
			writeError(w, r, gateway.NewStatus(codes.Unimplemented, "METHOD_NOT_ALLOWED",
				fmt.Sprintf("method %.16s is not allowed; use POST to run an agent, GET to connect to a thread, or DELETE "+
					"to cancel a run", r.Method)).Err())
		})
		return
	}
	sent := gateway.Metadata(r)
	refused, err := h.authorize(r.Context(), method, sent)
	if err != nil {
		gateway.RefuseUnread(w, r, func() { writeError(w, r, err) })
		return
	}
	query, err := queryOf(r.URL, parameters)
	if err != nil {
		refused(err)
		gateway.RefuseUnread(w, r, func() { writeError(w, r, err) })
		return
	}
	ctx := metadata.NewOutgoingContext(r.Context(), sent)
	call := &request{
		api: h.api, agent: agent, query: query, lastEventID: r.Header.Get(lastEventID),
		refuse: func(err error) error {
			refused(err)
			return err
		},
		out: &stream{w: w, control: http.NewResponseController(w)},
	}
	switch r.Method {
	case http.MethodPost:
		err = h.run(ctx, w, r, call)
	case http.MethodGet:
		err = call.connect(ctx)
	case http.MethodDelete:
		if err = call.cancel(ctx); err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
	}
	switch {
	case err == nil:
	case call.out.begun:
		call.out.fail(gateway.StatusOf(r.Context(), err))
	case call.isUnread:
		gateway.RefuseUnread(w, r, func() { writeError(w, r, err) })
	default:
		writeError(w, r, call.rename(err))
	}
}

// run answers a request to run an agent.
func (h *handler) run(ctx context.Context, w http.ResponseWriter, r *http.Request, call *request) error {
	text, release, err := h.bodies.Read(w, r)
	if err != nil {
		call.isUnread = true
		return call.refuse(err)
	}
	call.release = release
	defer release()
	if call.input, err = parseInput(text); err != nil {
		return call.refuse(err)
	}
	return call.run(ctx)
}

// agentOf returns the name of the agent in a path.
func agentOf(u *url.URL) (string, error) {
	escaped := strings.TrimPrefix(cmp.Or(u.RawPath, u.EscapedPath()), PathPrefix)
	agent, err := url.PathUnescape(escaped)
	if err != nil || escaped == "" || strings.Contains(escaped, "/") {
		return "", gateway.NewStatus(codes.NotFound, "PATH_NOT_FOUND", fmt.Sprintf(
			"path %.80q does not exist; use %s and the percent-encoded name of an agent", u.Path, PathPrefix)).Err()
	}
	return agent, nil
}

// queryOf returns the parameters of a URL, which may only be those that are allowed, each once.
func queryOf(u *url.URL, allowed []string) (url.Values, error) {
	var f faults
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		f.add("query", "is malformed: separate parameters by & and percent-encode their values")
	}
	for name, values := range query {
		switch {
		case !slices.Contains(allowed, name):
			f.add(name, "is not a parameter of this request; it has "+strings.Join(allowed, " and "))
		case len(values) > 1:
			f.add(name, "must not be repeated")
		case name == onDisconnectParameter && values[0] != "cancel" && values[0] != "continue":
			f.add(name, `must be "cancel" or "continue"`)
		}
	}
	return query, f.err()
}

// failure is the body of a response that is an error: an event RUN_ERROR.
type failure struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	Code    string `json:"code"`
}

// failureOf returns the event of a status.
func failureOf(st *status.Status) failure {
	return failure{"RUN_ERROR", st.Message(), gateway.Reason(st)}
}

// writeError writes the response of a request that failed before its stream began.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	st := gateway.StatusOf(r.Context(), err)
	body, err := json.Marshal(failureOf(st))
	if err != nil {
		body = []byte(`{"type":"RUN_ERROR","message":"internal error","code":"INTERNAL"}`)
	}
	body = append(body, '\n')
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	gateway.SetErrorHeaders(header, st)
	w.WriteHeader(gateway.HTTPStatus(st))
	// The text quotes the request, but nosniff keeps browsers from reading JSON as HTML.
	_, _ = w.Write(body)
}
