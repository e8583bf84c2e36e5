package gateway

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// binding maps a path to a call.
type binding struct{ call, method, path, body string }

// bindings returns the bindings in http.yaml.
func bindings(t *testing.T) []binding {
	t.Helper()
	text, err := os.ReadFile("../../../proto/parley/v1/http.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type rule struct {
		Selector, Get, Put, Post, Patch, Delete, Body string
		AdditionalBindings                            []rule `yaml:"additional_bindings"`
	}
	var file struct{ HTTP struct{ Rules []rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var all []binding
	for _, r := range file.HTTP.Rules {
		for _, b := range append([]rule{r}, r.AdditionalBindings...) {
			for method, path := range map[string]string{"GET": b.Get, "PUT": b.Put, "POST": b.Post, "PATCH": b.Patch, "DELETE": b.Delete} {
				if path != "" {
					all = append(all, binding{call: r.Selector, method: method, path: path, body: b.Body})
				}
			}
		}
	}
	return all
}

// TestEveryCallIsReachable: each call has a path, and the path leads to that call for all forms of
// ids.
func TestEveryCallIsReachable(t *testing.T) {
	var reached string
	f := serveStub(t, func(_ context.Context, method string) error {
		reached = strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
		return NewStatus(10, "REACHED", "").Err() // before a request is read
	})
	param := regexp.MustCompile(`\{[a-z_.]+\}`)
	calls := map[string]bool{}
	for _, b := range bindings(t) {
		calls[b.call] = true
		for _, id := range []string{
			"c", "a:b", "a:load", "load", "1.2_3-4", "x%3Apurge", ":search", "%3Asearch", ":load", "a:batchGet", "messages", "a%2Fb",
			"%2F", "%2F%2E%2E%2F", "%2E%2E", "100%25", "%252F", "a%3Fb%23c", "%C3%BC", "ü", "a%20b", "a+b", "a@b.c", "a;b,c=d&e", "%22",
		} {
			path := param.ReplaceAllString(b.path, id)
			body := ""
			if b.body != "" {
				body = "{}"
			}
			reached = ""
			a := f.do(t, b.method, path, body)
			if reached != b.call || a.code != http.StatusConflict {
				t.Errorf("%s %s called %q, want %q: %d %s", b.method, path, reached, b.call, a.code, a.body)
			}
		}
	}
	files := []protoreflect.FileDescriptor{
		parleyv1.File_parley_v1_conversation_service_proto, parleyv1.File_parley_v1_interaction_log_service_proto,
		parleyv1.File_parley_v1_record_service_proto, parleyv1.File_parley_v1_admin_service_proto,
	}
	methods := 0
	for _, file := range files {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				methods++
				if name := string(service.Methods().Get(j).FullName()); !calls[name] {
					t.Errorf("call %s has no path in http.yaml", name)
				}
			}
		}
	}
	if methods != len(calls) {
		t.Errorf("http.yaml has paths for %d calls, want %d", len(calls), methods)
	}
}

// TestStablePaths: these paths are part of the stable API.
func TestStablePaths(t *testing.T) {
	var got []string
	for _, b := range bindings(t) {
		got = append(got, b.method+" "+strings.ReplaceAll(b.path, "{conversation_id}", "{conversation.id}"))
	}
	slices.Sort(got)
	if unique := slices.Compact(slices.Clone(got)); len(unique) != len(got) {
		t.Errorf("bindings = %q, want no path twice", got)
	}
	const one = "/v1/conversations/{conversation.id}"
	for _, want := range []string{
		"POST /v1/conversations", "GET /v1/conversations", "POST /v1/conversations:load", "POST /v1/conversations:purge",
		"GET " + one, "PATCH " + one, "DELETE " + one,
		"POST " + one + "/messages", "GET " + one + "/messages", "DELETE " + one + "/messages", "GET " + one + "/context",
		"GET " + one + "/routing-summary", "PUT " + one + "/active-agent", "POST " + one + "/fork", "POST " + one + "/chat",
		"GET " + one + "/turns", "GET " + one + "/turns/{turn_id}", "GET " + one + "/turns/{turn_id}/events",
		"POST " + one + "/turns/{turn_id}/cancel", "GET /v1/turns", "GET /v1/turns/{turn_id}",
		"POST /v1/chat", "GET /v1/agents", "POST /v1/routing-summaries:batchGet", "GET /v1/watch", "GET /v1/export",
		"POST /v1/import",
		"GET /v1/records", "POST /v1/records:write", "POST /v1/records:batchGet", "GET /v1/interactions", "GET /v1/interactions:search", "GET /v1/stats",
	} {
		if _, found := slices.BinarySearch(got, want); !found {
			t.Errorf("http.yaml has no %s", want)
		}
	}
}

// TestBodyFields: bodyField finds the body of each call as http.yaml defines it.
func TestBodyFields(t *testing.T) {
	for _, b := range bindings(t) {
		r, err := http.NewRequestWithContext(t.Context(), b.method, "/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		x := &httpCall{request: r, params: map[string]string{}}
		for part := range strings.SplitSeq(b.path, "/") {
			if name, ok := strings.CutPrefix(part, "{"); ok {
				x.params[strings.TrimSuffix(name, "}")] = "c"
			}
		}
		if got := x.bodyField(); got != b.body {
			t.Errorf("bodyField() of %s %s = %q, want %q", b.method, b.path, got, b.body)
		}
	}
}
