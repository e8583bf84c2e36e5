package openapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parleyhq/parley/server/internal/gateway"
)

// TestCallsAreAsDescribed makes each call as the document describes it, with every field of the
// request set. The request must reach the server unchanged. The reply, with every field set, must
// match the schema exactly.
func TestCallsAreAsDescribed(t *testing.T) {
	document := load(t, strict(t, servedDocument(t)))
	calls := make(chan received, 1)
	var choice atomic.Int32 // Index of the field that is set in each oneof.
	var authorized string   // method whose caller was authorized last
	handler := serve(t, calls, &choice, &authorized)
	for where, item := range document.Paths.Map() {
		for verb, operation := range item.Operations() {
			method := methods()[strings.TrimRight(operation.OperationID, "0123456789")]
			for i := range 9 { // The largest oneof has 9 fields.
				choice.Store(int32(i))
				t.Run(fmt.Sprintf("%s/%d", operation.OperationID, i), func(t *testing.T) {
					want := filled(method.Input(), i)
					request := describedRequest(t, operation, verb, where, want)
					recorder := httptest.NewRecorder()
					handler.ServeHTTP(recorder, request)
					select {
					case got := <-calls:
						if got.method != string(method.Name()) {
							t.Errorf("%s %s called %s, want %s", verb, request.URL, got.method, method.Name())
						}
						if path.Base(authorized) != got.method {
							t.Errorf("%s %s authorized the caller for %s, want %s", verb, request.URL, authorized, got.method)
						}
						if diff := cmp.Diff(want, got.request, protocmp.Transform()); diff != "" {
							t.Errorf("%s %s (-sent +arrived):\n%s", verb, request.URL, diff)
						}
					default:
						t.Fatalf("%s %s did not arrive: %d %s", verb, request.URL, recorder.Code, recorder.Body)
					}
					checkReply(t, operation, recorder)
				})
			}
		}
	}
}

// describedRequest returns a request in which each field of a message is where the document defines
// it.
func describedRequest(
	t *testing.T, operation *openapi3.Operation, verb, where string, message proto.Message,
) *http.Request {
	t.Helper()
	whole := jsonOf(t, message)
	query := url.Values{}
	for _, ref := range operation.Parameters {
		p := ref.Value
		switch p.In {
		case "path":
			value, ok := lookup(whole, p.Name)
			if !ok {
				value, _ = lookup(whole, "conversation.id")
			}
			where = strings.Replace(where, "{"+p.Name+"}", fmt.Sprint(value), 1)
			check(t, "path "+p.Name, p.Schema, value)
		case "query":
			value, ok := lookup(whole, p.Name)
			if !ok {
				continue // Another field of the oneof is set.
			}
			check(t, "query "+p.Name, p.Schema, value)
			addQuery(query, p.Name, value)
		}
	}
	var body io.Reader = http.NoBody
	if operation.RequestBody != nil {
		for _, content := range operation.RequestBody.Value.Content {
			value := bodyOf(whole, path.Base(content.Schema.Ref), content.Schema.Value, message)
			check(t, "body", content.Schema, value)
			data, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			body = bytes.NewReader(append(data, '\n'))
		}
	}
	target := where
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return httptest.NewRequestWithContext(t.Context(), verb, target, body)
}

// bodyOf returns the part of a request that a schema describes: the fields that the schema names,
// or the field whose type has that name.
func bodyOf(whole map[string]any, name string, schema *openapi3.Schema, message proto.Message) any {
	if d := message.ProtoReflect().Descriptor(); name != string(d.Name()) {
		for i := range d.Fields().Len() {
			if inner := d.Fields().Get(i).Message(); inner != nil && name == string(inner.Name()) {
				return whole[d.Fields().Get(i).JSONName()]
			}
		}
	}
	part := map[string]any{}
	for key := range schema.Properties {
		if value, ok := whole[key]; ok {
			part[key] = value
		}
	}
	return part
}

func addQuery(query url.Values, name string, value any) {
	switch value := value.(type) {
	case []any:
		for _, each := range value {
			query.Add(name, fmt.Sprint(each))
		}
	case map[string]any:
		for key, each := range value {
			query.Add(name+"["+key+"]", fmt.Sprint(each))
		}
	default:
		query.Add(name, fmt.Sprint(value))
	}
}

// lookup returns the value at a dotted name.
func lookup(value any, name string) (any, bool) {
	for part := range strings.SplitSeq(name, ".") {
		object, _ := value.(map[string]any)
		inner, ok := object[part]
		if !ok {
			return nil, false
		}
		value = inner
	}
	return value, true
}

// checkReply fails the test unless the status is 200 and the body matches the schema of its media
// type.
func checkReply(t *testing.T, operation *openapi3.Operation, recorder *httptest.ResponseRecorder) {
	t.Helper()
	mediaType := recorder.Header().Get("Content-Type")
	content := operation.Responses.Value("200").Value.Content.Get(mediaType)
	if recorder.Code != http.StatusOK || content == nil {
		t.Fatalf("status = %d, Content-Type = %q: %s", recorder.Code, mediaType, recorder.Body)
	}
	values := 0
	lines := bufio.NewScanner(recorder.Body)
	for lines.Scan() {
		var value any
		if err := json.Unmarshal(lines.Bytes(), &value); err != nil {
			t.Fatal(err)
		}
		check(t, "reply", content.Schema, value)
		values++
	}
	if values != 1 || lines.Err() != nil {
		t.Errorf("read %d replies, error %v, want 1", values, lines.Err())
	}
}

func check(t *testing.T, what string, schema *openapi3.SchemaRef, value any) {
	t.Helper()
	if err := schema.Value.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.EnableFormatValidation()); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// received is a call that the server received.
type received struct {
	method  string
	request proto.Message
}

// serve returns a handler in front of a server that accepts any call and sends it to calls. The
// server replies once, with every field set; choice selects the field of each oneof. Each request sets
// authorized to the method whose caller the handler authorizes.
func serve(t *testing.T, calls chan<- received, choice *atomic.Int32, authorized *string) http.Handler {
	t.Helper()
	listener := bufconn.Listen(64 << 10)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		full, _ := grpc.MethodFromServerStream(stream)
		method := methods()[path.Base(full)]
		request := dynamicpb.NewMessage(method.Input())
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		calls <- received{path.Base(full), request}
		return stream.SendMsg(filled(method.Output(), int(choice.Load())))
	}))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	connection, err := grpc.NewClient("passthrough:test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.Close()
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	handler, err := gateway.New(t.Context(), connection,
		func(_ context.Context, method string, _ metadata.MD) (func(error), error) {
			*authorized = method
			return func(error) {}, nil
		}, gateway.NewBodies())
	if err != nil {
		t.Fatal(err)
	}
	return handler
}

// filled returns a message with every field set to a valid value, recursively. choice selects the
// field of a oneof, modulo the number of its fields.
func filled(d protoreflect.MessageDescriptor, choice int) proto.Message {
	message := dynamicpb.NewMessage(d)
	switch d.FullName() {
	case "google.protobuf.Value":
		message.Set(d.Fields().ByName("string_value"), protoreflect.ValueOfString("any"))
		return message
	case "google.protobuf.FieldMask":
		paths := message.Mutable(d.Fields().ByName("paths")).List()
		paths.Append(protoreflect.ValueOfString("title"))
		paths.Append(protoreflect.ValueOfString("retention.max_messages"))
		return message
	}
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		if one := field.ContainingOneof(); one != nil && one.Fields().Get(choice%one.Fields().Len()) != field {
			continue
		}
		switch {
		case field.IsMap():
			value := filledValue(field.MapValue(), choice)
			message.Mutable(field).Map().Set(protoreflect.ValueOfString("key").MapKey(), value)
		case field.IsList():
			message.Mutable(field).List().Append(filledValue(field, choice))
		default:
			message.Set(field, filledValue(field, choice))
		}
	}
	return message
}

func filledValue(field protoreflect.FieldDescriptor, choice int) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(7)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("2026-11-20") // It is valid as an id and as a date.
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte{0, 255})
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.MessageKind:
		return protoreflect.ValueOfMessage(filled(field.Message(), choice).ProtoReflect())
	default:
		panic("no value for " + field.Kind().String())
	}
}

func jsonOf(t *testing.T, message proto.Message) map[string]any {
	t.Helper()
	data, err := protojson.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	var value map[string]any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	return value
}
