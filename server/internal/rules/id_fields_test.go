package rules

import (
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rulesv1 "github.com/parleyhq/parley/gen/parley/rules/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestIDFields checks that each field of a request for the id of a conversation or of a request has the rule of these
// ids, and no other rule.
func TestIDFields(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, file := range []protoreflect.FileDescriptor{
		parleyv1.File_parley_v1_conversation_service_proto, parleyv1.File_parley_v1_interaction_log_service_proto,
		parleyv1.File_parley_v1_record_service_proto, parleyv1.File_parley_v1_admin_service_proto,
	} {
		for i := range file.Messages().Len() {
			message := file.Messages().Get(i)
			if !strings.HasSuffix(string(message.Name()), "Request") {
				continue
			}
			for j := range message.Fields().Len() {
				if field := message.Fields().Get(j); isIDField(field) {
					checked++
					checkIDField(t, field)
				}
			}
		}
	}
	checkIDField(t, (*parleyv1.Conversation)(nil).ProtoReflect().Descriptor().Fields().ByName("id"))
	if checked < 20 {
		t.Errorf("%d fields checked, want at least 20", checked)
	}
}

// isIDField reports whether a field of a request has an id of a conversation or of a request.
func isIDField(field protoreflect.FieldDescriptor) bool {
	name := strings.TrimSuffix(string(field.Name()), "s")
	return field.Kind() == protoreflect.StringKind &&
		(strings.HasSuffix(name, "conversation_id") || strings.HasSuffix(name, "request_id"))
}

func checkIDField(t *testing.T, field protoreflect.FieldDescriptor) {
	t.Helper()
	rules, _ := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
	text := rules.GetString()
	if field.IsList() {
		text = rules.GetRepeated().GetItems().GetString()
	}
	extension, want := rulesv1.E_ConversationId, &validate.StringRules{}
	if strings.HasSuffix(string(field.Name()), "request_id") {
		extension = rulesv1.E_RequestId
	}
	proto.SetExtension(want, extension, true)
	if !proto.Equal(text, want) {
		t.Errorf("rules of %s = %v, want %v", field.FullName(), text, want)
	}
}
