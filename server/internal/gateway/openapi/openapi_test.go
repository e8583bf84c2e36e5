package openapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway/openapi"
)

func TestDocumentIsValid(t *testing.T) {
	document := load(t, servedDocument(t))
	if err := document.Validate(t.Context(), openapi3.EnableMultiError()); err != nil {
		t.Error(err)
	}
}

// TestDocumentHasEveryCall: the operations of the document are the RPCs with the paths of
// http.yaml.
func TestDocumentHasEveryCall(t *testing.T) {
	document := load(t, servedDocument(t))
	described := map[string]string{} // "GET /v1/agents" → "ListAgents"
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			described[method+" "+withoutNames(path)] = strings.TrimRight(operation.OperationID, "0123456789")
		}
	}
	if diff := cmp.Diff(httpRules(t), described); diff != "" {
		t.Errorf("http.yaml and the document differ (-http.yaml +document):\n%s", diff)
	}

	reached := map[string]bool{}
	for _, name := range described {
		reached[name] = true
	}
	for name := range methods() {
		if !reached[name] {
			t.Errorf("call %s is not in the document", name)
		}
	}
}

// httpRules returns the calls in http.yaml by method and path.
func httpRules(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../../../../proto/parley/v1/http.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var service struct {
		HTTP struct{ Rules []map[string]any }
	}
	if err := yaml.Unmarshal(data, &service); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{}
	for _, rule := range service.HTTP.Rules {
		selector, _ := rule["selector"].(string)
		bindings := []any{rule}
		if more, ok := rule["additional_bindings"].([]any); ok {
			bindings = append(bindings, more...)
		}
		for _, each := range bindings {
			binding, _ := each.(map[string]any)
			for key, value := range binding {
				if path, _ := value.(string); strings.HasPrefix(path, "/") {
					paths[strings.ToUpper(key)+" "+withoutNames(path)] = selector[strings.LastIndex(selector, ".")+1:]
				}
			}
		}
	}
	return paths
}

// withoutNames removes the names of parameters from a path, for example "/v1/conversations/{}".
func withoutNames(path string) string {
	return regexp.MustCompile(`\{.*?\}`).ReplaceAllString(path, "{}")
}

// methods returns all RPCs of the services for clients, by name.
func methods() map[string]protoreflect.MethodDescriptor {
	found := map[string]protoreflect.MethodDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{
		parleyv1.File_parley_v1_conversation_service_proto,
		parleyv1.File_parley_v1_interaction_log_service_proto,
		parleyv1.File_parley_v1_record_service_proto,
		parleyv1.File_parley_v1_admin_service_proto,
	} {
		for i := range file.Services().Len() {
			all := file.Services().Get(i).Methods()
			for j := range all.Len() {
				found[string(all.Get(j).Name())] = all.Get(j)
			}
		}
	}
	return found
}

func servedDocument(t *testing.T) []byte {
	t.Helper()
	recorder := httptest.NewRecorder()
	openapi.Serve(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.json", http.NoBody))
	if got := recorder.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type = %q, want application/json", got)
	}
	return recorder.Body.Bytes()
}

func load(t *testing.T, data []byte) *openapi3.T {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// strict returns the document with schemas that do not allow additional properties.
func strict(t *testing.T, data []byte) []byte {
	t.Helper()
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	components, _ := document["components"].(map[string]any)
	schemas, _ := components["schemas"].(map[string]any)
	for _, each := range schemas {
		if schema, _ := each.(map[string]any); schema["type"] == "object" {
			schema["additionalProperties"] = false
		}
	}
	data, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestDocumentContent checks one example of each kind of information in the document.
func TestDocumentContent(t *testing.T) {
	var document any
	if err := json.Unmarshal(servedDocument(t), &document); err != nil {
		t.Fatal(err)
	}
	const pattern = `"^[^\\u0000-\\u001F\\u007F-\\u009F\\u2028\\u2029]*$"`
	for _, test := range []struct{ where, want string }{
		{"components schemas Retention properties maxMessages minimum", `0`},
		{"components schemas Retention properties maxMessages maximum", `1000000`},
		{"components schemas Retention properties ttl pattern", `"^-?[0-9]+(\\.[0-9]{1,9})?s$"`},
		{"components schemas Conversation properties labels maxProperties", `64`},
		{"components schemas Conversation properties labels propertyNames", `{"maxLength": 64, "minLength": 1}`},
		{"components schemas Conversation properties labels additionalProperties", `{"type": "string", "maxLength": 1024}`},
		{"components schemas Conversation required", `null`},
		{"components schemas Message required", `["role"]`},
		{"components schemas Message properties createTime format", `"date-time"`},
		{"components schemas ToolCall required", `["id", "name"]`},
		{"components schemas StructuredData required", `["type", "value"]`},
		{"components schemas AppendMessagesRequest properties messages maxItems", `100`},
		{"components schemas AppendMessagesRequest properties conversationId", `null`},
		{"components schemas ChatRequest properties conversationId pattern", pattern},
		{"components schemas ChatRequest properties conversationId maxLength", `256`},
		{"components schemas ChatRequest properties requestId maxLength", `256`},
		{"components schemas ChatRequest required", `null`},
		{"components schemas ToolCall properties id maxLength", `256`},
		{"components schemas GetStatsResponse properties dataBytes type", `"string"`},
		{
			"components schemas OnDisconnect enum",
			`["ON_DISCONNECT_UNSPECIFIED", "ON_DISCONNECT_CONTINUE", "ON_DISCONNECT_CANCEL"]`,
		},
		{
			"components schemas ForkOrigin description",
			`"ForkOrigin identifies the conversation and the message from which a fork was created."`,
		},
		{
			"paths /v1/conversations/{conversationId} patch requestBody content application/json schema $ref",
			`"#/components/schemas/Conversation"`,
		},
		{"paths /v1/conversations/{conversationId} get parameters 0 schema pattern", pattern},
		{"paths /v1/conversations get parameters 2 style", `"deepObject"`},
		{"paths /v1/conversations/{conversationId}/turns/{turnId}/cancel post requestBody", `null`},
		{
			"paths /v1/import post requestBody content application/x-ndjson schema $ref",
			`"#/components/schemas/ImportConversationsRequest"`,
		},
		{"paths /v1/watch get responses 200 content text/event-stream schema $ref", `"#/components/schemas/EventStream"`},
		{"paths /v1/watch get parameters 5 name", `"Last-Event-ID"`},
		{"paths /v1/export get parameters 2", `null`},
		{
			"paths /v1/chat post summary",
			`"Chat stores the user's message, calls an agent, streams its answer and stores the answer."`,
		},
		{"paths /v1/chat post tags", `["ConversationService"]`},
	} {
		var want any
		if err := json.Unmarshal([]byte(test.want), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, valueAt(document, strings.Fields(test.where))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.where, diff)
		}
	}
}

// valueAt returns the value at a path of keys and indexes, or nil if there is none.
func valueAt(value any, keys []string) any {
	for _, key := range keys {
		switch within := value.(type) {
		case map[string]any:
			value = within[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(within) {
				return nil
			}
			value = within[i]
		default:
			return nil
		}
	}
	return value
}
