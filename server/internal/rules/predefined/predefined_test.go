package predefined

import (
	"slices"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rulesv1 "github.com/parleyhq/parley/gen/parley/rules/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestOf checks rules as a plugin of protoc receives them, whose predefined rules are unknown fields.
func TestOf(t *testing.T) {
	t.Parallel()
	file := parleyv1.File_parley_v1_conversation_service_proto
	known := []protowire.Number{
		rulesv1.E_ConversationId.TypeDescriptor().Number(),
		rulesv1.E_RequestId.TypeDescriptor().Number(),
	}
	rules := func(value uint64, numbers ...protowire.Number) *validate.StringRules {
		r := &validate.StringRules{}
		r.SetMaxBytes(7)
		for _, number := range numbers {
			r.ProtoReflect().SetUnknown(protowire.AppendVarint(
				protowire.AppendTag(r.ProtoReflect().GetUnknown(), number, protowire.VarintType), value))
		}
		return r
	}
	decoded := &validate.StringRules{}
	proto.SetExtension(decoded, rulesv1.E_ConversationId, true)
	for _, test := range []struct {
		name  string
		rules *validate.StringRules
		want  []protoreflect.Name
		err   string
	}{
		{"no rules", nil, nil, ""},
		{"other rules", rules(1), nil, ""},
		{"both rules", rules(1, known...), []protoreflect.Name{ConversationID, RequestID}, ""},
		{"a decoded rule", decoded, []protoreflect.Name{ConversationID}, ""},
		{"a rule that is false", rules(0, known[0]), nil, ""},
		{"an unknown rule", rules(1, 100_999), nil, "the rule 100999 of " + file.Path() + " is not defined in an import"},
	} {
		got, err := Of(file, test.rules)
		if !slices.Equal(got, test.want) || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("Of with %s = %q, %v, want %q, %q", test.name, got, err, test.want, test.err)
		}
	}
}
