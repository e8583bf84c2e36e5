package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parleyhq/parley/server/internal/gateway"
)

// httpVariant is a generated request to a path of http.yaml.
type httpVariant struct {
	variant

	verb, path string
	body       string // the field that is the HTTP body; "*" for all that are not in the path
	events     bool   // asks for server-sent events, from the id of an event of another tenant
}

// String returns the request without its values.
func (v httpVariant) String() string {
	return fmt.Sprintf("%s %s %v, events: %t", v.verb, v.path, v.fields, v.events)
}

// httpRule is a rule of http.yaml.
type httpRule struct {
	Selector, Get, Put, Post, Patch, Delete, Body string
	Others                                        []httpRule `yaml:"additional_bindings"`
}

// readHTTPRules returns the rules of http.yaml with one path each.
func readHTTPRules(t *testing.T) []httpRule {
	t.Helper()
	text, err := os.ReadFile("../../../proto/parley/v1/http.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ HTTP struct{ Rules []httpRule } }
	if err := yaml.Unmarshal(text, &file); err != nil || len(file.HTTP.Rules) == 0 {
		t.Fatalf("http.yaml has %d rules, %v; want some", len(file.HTTP.Rules), err)
	}
	var rules []httpRule
	for _, rule := range file.HTTP.Rules {
		rules = append(rules, rule)
		for _, other := range rule.Others {
			other.Selector = rule.Selector
			rules = append(rules, other)
		}
	}
	return rules
}

// httpVariants returns the requests of all paths. Each path has at least one.
func httpVariants(t *testing.T, all []variant) []httpVariant {
	t.Helper()
	var found []httpVariant
	for _, rule := range readHTTPRules(t) {
		before := len(found)
		for verb, path := range map[string]string{
			http.MethodGet: rule.Get, http.MethodPut: rule.Put, http.MethodPost: rule.Post, http.MethodPatch: rule.Patch,
			http.MethodDelete: rule.Delete,
		} {
			for _, v := range all {
				if path == "" || string(v.method.FullName()) != rule.Selector || !v.hasAll(pathFields(path)) {
					continue
				}
				found = append(found, httpVariant{variant: v, verb: verb, path: path, body: rule.Body})
				if v.method.IsStreamingServer() && verb == http.MethodGet {
					found = append(found, httpVariant{variant: v, verb: verb, path: path, body: rule.Body, events: true})
				}
			}
		}
		if len(found) == before {
			t.Errorf("no request for the path of %s: %+v", rule.Selector, rule)
		}
	}
	return found
}

// pathFields returns the parameters in a path.
func pathFields(path string) (fields []string) {
	for _, match := range regexp.MustCompile(`\{([a-z_.]+)\}`).FindAllStringSubmatch(path, -1) {
		fields = append(fields, match[1])
	}
	return fields
}

// hasAll reports whether a request has all these fields.
func (v variant) hasAll(fields []string) bool {
	for _, field := range fields {
		first, _, _ := strings.Cut(field, ".")
		found := false
		for _, name := range v.fields {
			found = found || name == protoreflect.Name(first)
		}
		if !found {
			return false
		}
	}
	return true
}

// httpRequest returns a request over HTTP with these fields.
func (v httpVariant) httpRequest(ctx context.Context, t *testing.T, base string, m proto.Message, lastEvent string,
) *http.Request {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	path := v.path
	for _, field := range pathFields(v.path) {
		in, last := fields, field
		if outer, inner, nested := strings.Cut(field, "."); nested {
			in, last = fields[outer].(map[string]any), inner //nolint:errcheck,forcetypeassert // it is a message
		}
		path = strings.ReplaceAll(path, "{"+field+"}", url.PathEscape(fmt.Sprint(in[last])))
		delete(in, last)
	}
	var body any = fields
	query := url.Values{}
	switch v.body {
	case "*":
	case "":
		body = nil
		addQuery(query, "", fields)
	default:
		body = fields[v.body]
		delete(fields, v.body)
		addQuery(query, "", fields)
	}
	var encoded []byte
	if body != nil {
		if encoded, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, v.verb, base+path+"?"+query.Encode(), bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	if v.events {
		r.Header.Set("Accept", "text/event-stream")
		r.Header.Set("Last-Event-ID", lastEvent)
	}
	return r
}

// addQuery adds the fields of a message to a query.
func addQuery(query url.Values, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			switch path {
			case "":
				addQuery(query, name, inner)
			case "labels", "metadata":
				query.Set(path+"["+name+"]", fmt.Sprint(inner))
			default:
				addQuery(query, path+"."+name, inner)
			}
		}
	case []any:
		for _, inner := range value {
			query.Add(path, fmt.Sprint(inner))
		}
	default:
		query.Set(path, fmt.Sprint(value))
	}
}

// asCaller is a connection whose calls have the credentials of a tenant.
type asCaller struct {
	grpc.ClientConnInterface
	caller metadata.MD
}

// Invoke makes a unary call.
func (c asCaller) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.ClientConnInterface.Invoke(metadata.NewOutgoingContext(ctx, c.caller), method, args, reply, opts...)
}

// NewStream starts a stream.
func (c asCaller) NewStream(
	ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(metadata.NewOutgoingContext(ctx, c.caller), d, method, opts...)
}

// serveHTTP serves the API over HTTP to the tenant a, and returns its address.
func (s *isolatedServer) serveHTTP(t *testing.T) string {
	t.Helper()
	caller, _ := metadata.FromOutgoingContext(s.a)
	handler, err := gateway.New(t.Context(), asCaller{s.conn, caller}, nil, gateway.NewBodies())
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(handler)
	t.Cleanup(served.Close)
	return served.URL
}

// callHTTP makes a request and returns everything that the caller receives, without random values. It reads a watch
// up to the first heartbeat.
func (s *isolatedServer) callHTTP(
	t *testing.T, client *http.Client, base string, v httpVariant, m proto.Message, lastEvent string,
) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer s.handlers.Wait()
	defer cancel()
	reply, err := client.Do(v.httpRequest(ctx, t, base, m, lastEvent))
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	reply.Header.Del("Date")
	reply.Header.Del("Content-Length") // Random values need not have equal lengths.
	text := fmt.Sprintln(reply.StatusCode, reply.Header)
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text += compactJSON(lines.Text()) + "\n"
		if strings.Contains(lines.Text(), "HEARTBEAT") {
			break
		}
	}
	return withoutRandom(text)
}

// compactJSON removes the spaces from JSON, whose number is random. It returns other texts unchanged.
func compactJSON(text string) string {
	prefix, value := "", text
	if data, ok := strings.CutPrefix(text, "data: "); ok {
		prefix, value = "data: ", data
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(value)); err != nil {
		return text
	}
	return prefix + compact.String()
}

// httpDifferences makes requests over HTTP on both servers, and returns those that a can tell apart. If owned is set,
// a has conversations with the same ids.
func (i *isolation) httpDifferences(t *testing.T, all []httpVariant, owned bool) (found []string) {
	t.Helper()
	with, without := i.with.serveHTTP(t), i.without.serveHTTP(t)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, v := range all {
		ids := i.nextIDs(t, owned)
		request := v.request(t, ids)
		if v.hasToken() {
			m := request.ProtoReflect()
			token := i.with.tokenFor(t, v.variant, request)
			m.Set(m.Descriptor().Fields().ByName("page_token"), protoreflect.ValueOfString(token))
		}
		lastEvent := ids.cursor
		if v.method.Name() == "ResumeTurn" {
			lastEvent = "1"
		}
		a := i.without.callHTTP(t, client, without, v, request, lastEvent)
		b := i.with.callHTTP(t, client, with, v, request, lastEvent)
		if diff := cmp.Diff(mergedTexts(a), mergedTexts(b)); diff != "" {
			found = append(found, fmt.Sprintf(differenceText, v, owned, diff))
		}
	}
	return found
}
