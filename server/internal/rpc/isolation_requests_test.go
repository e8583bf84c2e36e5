package rpc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
)

// isolatedMethods returns all RPCs of the server, from the descriptors.
func isolatedMethods() []protoreflect.MethodDescriptor {
	var methods []protoreflect.MethodDescriptor
	for _, file := range []protoreflect.FileDescriptor{
		parleyv1.File_parley_v1_conversation_service_proto, parleyv1.File_parley_v1_record_service_proto,
		parleyv1.File_parley_v1_interaction_log_service_proto, parleyv1.File_parley_v1_admin_service_proto,
	} {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				methods = append(methods, file.Services().Get(i).Methods().Get(j))
			}
		}
	}
	return methods
}

// fullMethod returns the name of an RPC as gRPC writes it.
func fullMethod(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// foreignIDs are ids of another tenant. Each request has its own, because a call may create something with the id.
type foreignIDs struct {
	conversation string // has a turn, messages and a request
	held         string // is ephemeral and held by a watch of its tenant
	turn         string
	request      string
	message      string
	record       string // begins the keys of a record of the tenant, with true, and of one of the conversation, with false
	header       *parleyv1.Conversation
	cursor       string
}

// variant selects the fields of a generated request.
type variant struct {
	method protoreflect.MethodDescriptor
	fields []protoreflect.Name
}

// String returns the method and the fields.
func (v variant) String() string { return fmt.Sprint(v.method.Name(), v.fields) }

// hasToken reports whether the request has a page token, which its tenant must first get.
func (v variant) hasToken() bool { return slices.Contains(v.fields, "page_token") }

// variants returns the requests of a method: an empty one, one with all fields, one with the fields that it must
// have, and for each other field one that has this field, too.
func variants(t *testing.T, method protoreflect.MethodDescriptor) []variant {
	t.Helper()
	isValid := func(fields []protoreflect.Name) bool {
		broken, err := rules.Check(variant{method, fields}.request(t, sampleIDs()))
		if err != nil {
			t.Fatal(err)
		}
		return len(broken) == 0
	}
	var ids, all []protoreflect.Name
	for i := range method.Input().Fields().Len() {
		name := method.Input().Fields().Get(i).Name()
		all = append(all, name)
		if slices.Contains([]protoreflect.Name{"conversation_id", "conversation_ids", "conversation", "turn_id"}, name) {
			ids = append(ids, name)
		}
	}
	base := slices.Clone(ids)
	for i := 0; i < len(all) && !isValid(base); i++ {
		if !slices.Contains(base, all[i]) {
			base = append(base, all[i])
		}
	}
	found := []variant{{method, nil}, {method, base}, {method, all}}
	for _, name := range all {
		switch with := append(slices.Clone(ids), name); {
		case slices.Contains(base, name):
		case isValid(with):
			found = append(found, variant{method, with})
		default:
			found = append(found, variant{method, append(slices.Clone(base), name)})
		}
	}
	return found
}

// mainVariants returns two requests of each isolated method: with the fields that it must have, and with all fields.
func mainVariants(t *testing.T) (all []variant) {
	t.Helper()
	for _, m := range isolatedMethods() {
		all = append(all, variants(t, m)[1:3]...)
	}
	return all
}

func sampleIDs() *foreignIDs {
	return &foreignIDs{
		conversation: "c", held: "h", turn: "t", request: "r", message: "m", record: "k",
		header: &parleyv1.Conversation{Id: "c"},
		cursor: "AAAAAAAAAAAAAAAAAAAAAA",
	}
}

// request returns the request with values for its fields.
func (v variant) request(t *testing.T, ids *foreignIDs) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(v.method.Input().FullName())
	if err != nil {
		t.Fatal(err)
	}
	m := kind.New()
	for _, name := range v.fields {
		ids.fill(t, m, v.method.Input().Fields().ByName(name))
	}
	return m.Interface()
}

// fill sets a field.
func (f *foreignIDs) fill(t *testing.T, m protoreflect.Message, field protoreflect.FieldDescriptor) {
	t.Helper()
	switch {
	case field.IsMap():
		m.Mutable(field).Map().Set(protoreflect.ValueOfString("key").MapKey(), protoreflect.ValueOfString("value"))
	case field.Name() == "conversation_ids":
		list := m.Mutable(field).List()
		list.Append(protoreflect.ValueOfString(f.conversation))
		list.Append(protoreflect.ValueOfString(f.held))
	case field.IsList() && field.Message() != nil && field.Message().Name() == "RecordWrite":
		for _, ofTenant := range []bool{false, true} {
			m.Mutable(field).List().Append(protoreflect.ValueOfMessage((&parleyv1.RecordWrite{
				Key: fmt.Sprint(f.record, ofTenant), Value: []byte("of a"), TenantScope: ofTenant,
			}).ProtoReflect()))
		}
	case field.IsList():
		m.Mutable(field).List().Append(f.value(t, field))
	default:
		m.Set(field, f.value(t, field))
	}
}

// value returns the value of a field, or of an element of a list.
func (f *foreignIDs) value(t *testing.T, field protoreflect.FieldDescriptor) protoreflect.Value {
	t.Helper()
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(f.text(t, field))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		if name := field.Name(); name == "if_version" || name == "known_version" {
			return protoreflect.ValueOfInt32(f.header.GetVersion())
		}
		return protoreflect.ValueOfInt32(1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.MessageKind:
		return protoreflect.ValueOfMessage(f.nested(t, field).ProtoReflect())
	default:
	}
	t.Fatalf("%s has the new type %s: decide which value of another tenant belongs into it", field.FullName(),
		field.Kind())
	return protoreflect.Value{}
}

// text returns the value of a field of type string. Each field must be here, so that none is forgotten in
// which a caller can name something of another tenant.
func (f *foreignIDs) text(t *testing.T, field protoreflect.FieldDescriptor) string {
	t.Helper()
	text, known := map[protoreflect.Name]string{
		"conversation_id": f.conversation, "new_conversation_id": f.held, "turn_id": f.turn,
		"request_id": f.request, "known_uid": f.header.GetUid(), "cursor": f.cursor, "page_token": "no token",
		"agent": "echo", "content": secretContent, "query": secretContent, "reason": "because",
		"system_prompt": "Be brief.", "structured_data_type": "list", "date": logTime().Format(time.DateOnly),
		"text":        f.conversation,
		"message_ids": f.message, "keys": f.record + "true", "prefix": f.record, "record_prefixes": f.record, "after_key": "a",
	}[field.Name()]
	if !known {
		t.Fatalf("%s is a new field: decide which value of another tenant belongs into it", field.FullName())
	}
	return text
}

// secretContent is the content of a message of another tenant.
const secretContent = "the secret of a tenant"

// nested returns the value of a field of a message type.
func (f *foreignIDs) nested(t *testing.T, field protoreflect.FieldDescriptor) proto.Message {
	t.Helper()
	switch name := field.Message().Name(); name {
	case "Conversation":
		c := proto.CloneOf(f.header)
		c.MessageCount, c.RecordCount = 0, 0 // An import with another number of messages or records is invalid.
		return c
	case "Message":
		return &parleyv1.Message{
			Id: f.message, Role: parleyv1.Role_ROLE_USER, Content: secretContent, Sequence: 1,
			CreateTime: timestamppb.New(logTime().Add(-isolatedAge)),
		}
	case "Record":
		return &parleyv1.Record{Key: f.record, Value: []byte("imported")}
	case "AppendMessagesRequest":
		return &parleyv1.AppendMessagesRequest{
			ConversationId: f.conversation, RequestId: f.request, MustExist: true,
			Messages: []*parleyv1.Message{{Id: f.message, Role: parleyv1.Role_ROLE_USER, Content: secretContent}},
		}
	case "Duration":
		if field.Name() == "wait_timeout" {
			return durationpb.New(time.Millisecond)
		}
		if field.Name() == "delete_after_disconnect" {
			return durationpb.New(0)
		}
		return durationpb.New(30 * time.Second) // less than isolatedAge
	case "FieldMask":
		return &fieldmaskpb.FieldMask{Paths: []string{"title"}}
	case "StructuredData":
		return &parleyv1.StructuredData{Type: "list", Value: structpb.NewStringValue("value")}
	case "ToolResult":
		return &parleyv1.ToolResult{CallId: "call", Content: "result"}
	case "Attachment":
		return &parleyv1.Attachment{Uri: "https://example.com/file"}
	case "ContextWindow":
		return &parleyv1.ContextWindow{MaxMessages: 1}
	default:
		t.Fatalf("%s has the new type %s: decide which value of another tenant belongs into it", field.FullName(), name)
		return nil
	}
}
