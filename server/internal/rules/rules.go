// Package rules validates the messages of the API: the requests of clients and the pieces of
// agents. It applies the rules in the protos and the rules that the protos cannot express.
// [Codec] decodes messages without their unknown fields, which no rule covers. [Check] returns the
// rules that a message breaks. Start at [Check].
package rules

import (
	"errors"
	"fmt"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules/checks"
)

// Fault is a rule that a message breaks.
type Fault struct {
	// Field is the path of the invalid field, with the field names of the protos:
	// "messages[1].structured_data[0].type".
	Field string
	// Rule describes the fault as a clause that follows the field's name: "is required".
	Rule string
}

// String returns the field and the rule as one clause.
func (f Fault) String() string { return f.Field + ": " + f.Rule }

// Compile compiles the rules of the pieces of agents and of the requests of ConversationService and RecordService.
// Check compiles the rules of a message at its first use: those of other messages are few. Compile returns an error if
// the rules in the protos cannot be compiled.
func Compile() error {
	messages := []protoreflect.MessageDescriptor{(*parleyv1.RespondResponse)(nil).ProtoReflect().Descriptor()}
	for _, services := range []protoreflect.ServiceDescriptors{
		parleyv1.File_parley_v1_conversation_service_proto.Services(),
		parleyv1.File_parley_v1_record_service_proto.Services(),
	} {
		methods := services.Get(0).Methods()
		for i := range methods.Len() {
			messages = append(messages, methods.Get(i).Input())
		}
	}
	for _, m := range messages {
		if _, err := violations(dynamicpb.NewMessage(m)); err != nil {
			return fmt.Errorf("compile the rules of the API: %w", err)
		}
	}
	return nil
}

// maxExplained is the number of elements of lists and maps in a message up to which all its faults are
// searched. A message can have millions of elements, each with faults, which would need gigabytes.
const maxExplained = 10_000

// Check returns all rules that a message breaks, or no faults if the message is valid. If the message has
// more than maxExplained elements, Check returns only the first rule in the protos that the message breaks. It
// does not change the message. An error means that the rules themselves are broken, not that m is invalid.
func Check(m proto.Message) ([]Fault, error) {
	var c checker
	if checks.Valid(m) { // Most requests are valid, and protovalidate takes longer.
		c.checkContent(m)
		return c.faults, nil
	}
	broken, err := violations(m, protovalidate.WithFailFast())
	if err == nil && len(broken) > 0 {
		if left := maxExplained; !countElements(m.ProtoReflect(), &left) {
			c.add(violatedField(broken[0]), "%s", violatedRule(broken[0]))
			return c.faults, nil
		}
		broken, err = violations(m)
	}
	if err != nil {
		return nil, err
	}
	for _, v := range broken {
		c.add(violatedField(v), "%s", violatedRule(v))
	}
	c.check(m)
	return c.faults, nil
}

// countElements subtracts the number of elements of lists and maps in m from left. It returns false as soon as
// left is negative.
func countElements(m protoreflect.Message, left *int) bool {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if *left -= value.Map().Len(); *left >= 0 && field.MapValue().Message() != nil {
				value.Map().Range(func(_ protoreflect.MapKey, inner protoreflect.Value) bool {
					return countElements(inner.Message(), left)
				})
			}
		case field.IsList():
			*left -= value.List().Len()
			for i := 0; field.Message() != nil && *left >= 0 && i < value.List().Len(); i++ {
				countElements(value.List().Get(i).Message(), left)
			}
		case field.Message() != nil:
			countElements(value.Message(), left)
		}
		return *left >= 0
	})
	return *left >= 0
}

// violations returns the rules in the protos that a message breaks. It uses the library's global
// validator, which compiles the rules of each message type once.
func violations(m proto.Message, options ...protovalidate.ValidationOption) ([]*protovalidate.Violation, error) {
	err := protovalidate.Validate(m, options...)
	if broken, ok := errors.AsType[*protovalidate.ValidationError](err); ok {
		return broken.Violations, nil
	}
	if err != nil {
		return nil, fmt.Errorf("validate %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return nil, nil
}

// violatedField returns the path of the field that breaks a rule. A rule of a complete message has
// no field path. The part of its id after the first dot names the field.
func violatedField(v *protovalidate.Violation) string {
	path := protovalidate.FieldPathString(v.Proto.GetField())
	if v.Proto.GetRule() != nil {
		return path
	}
	_, field, _ := strings.Cut(v.Proto.GetRuleId(), ".")
	if path == "" {
		return field
	}
	return path + "." + field
}

// datePattern is the only pattern in the protos.
const datePattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"

// violatedRule describes the fault as a clause that follows the field's name.
func violatedRule(v *protovalidate.Violation) string {
	text := v.Proto.GetMessage()
	switch {
	case text == "":
		return "breaks the rule " + v.Proto.GetRuleId()
	case v.Proto.GetRuleId() == "enum.not_in":
		return "is required" // The only values that the protos exclude are the unspecified ones.
	case v.Proto.GetForKey():
		return "key " + text
	case v.Proto.GetRuleId() == "string.min_bytes" && v.RuleValue.IsValid() && v.RuleValue.Uint() == 1:
		return "is required"
	case v.Proto.GetRuleId() == "string.conversation_id" && v.FieldValue.IsValid() && v.FieldValue.String() == "":
		return "is required"
	case v.Proto.GetRuleId() == "string.pattern" && v.RuleValue.String() == datePattern:
		return "must be a date like 2026-11-20"
	}
	return text
}
