// Package rules says what the messages of the API must be like: the rules in the protos, and
// those that no rule there can say. The requests of clients and the pieces of agents are held
// to the same ones: [Codec] decodes both without the fields that no rule can know, and [Check]
// finds the rules that they break. Start at [Check].
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
)

// Fault is a rule that a message breaks.
type Fault struct {
	// Field is the path of the field that breaks it, in the names of the protos:
	// "messages[1].structured_data[0].type".
	Field string
	// Rule says what is wrong with the field, in words that follow its name: "is required".
	Rule string
}

// String is the fault in one clause.
func (f Fault) String() string { return f.Field + ": " + f.Rule }

// Compile prepares the rules of the requests of ConversationService and of the pieces of
// agents, so that the first of them need not wait for it; any other message has nothing worth
// waiting for. It fails when the rules in the protos cannot be used at all.
func Compile() error {
	messages := []protoreflect.MessageDescriptor{(*parleyv1.RespondResponse)(nil).ProtoReflect().Descriptor()}
	methods := parleyv1.File_parley_v1_conversation_service_proto.Services().ByName("ConversationService").Methods()
	for i := range methods.Len() {
		messages = append(messages, methods.Get(i).Input())
	}
	for _, m := range messages {
		if _, err := violations(dynamicpb.NewMessage(m)); err != nil {
			return err
		}
	}
	return nil
}

// Check returns everything that is wrong with a message, nothing when it obeys the rules. It
// does not change the message. An error is a fault of the rules, not of the message.
func Check(m proto.Message) ([]Fault, error) {
	broken, err := violations(m)
	if err != nil {
		return nil, err
	}
	var c checker
	for _, v := range broken {
		c.add(violatedField(v), "%s", violatedRule(v))
	}
	c.check(m)
	return c.faults, nil
}

// violations are the rules in the protos that a message breaks. The validator is the one of
// the library: whatever is compiled is compiled once, for requests and for pieces.
func violations(m proto.Message) ([]*protovalidate.Violation, error) {
	err := protovalidate.Validate(m)
	if broken, ok := errors.AsType[*protovalidate.ValidationError](err); ok {
		return broken.Violations, nil
	}
	if err != nil {
		return nil, fmt.Errorf("validate %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return nil, nil
}

// violatedField is the path of the field that breaks a rule. A rule over a whole message,
// which has no path of its own there, has an id whose part after the first dot is the field.
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

// violatedRule says what is wrong with the field.
func violatedRule(v *protovalidate.Violation) string {
	text := v.Proto.GetMessage()
	switch {
	case text == "":
		return "breaks the rule " + v.Proto.GetRuleId()
	case v.Proto.GetRuleId() == "enum.not_in":
		return "is required" // What may not be in an enum is its unspecified value.
	case v.Proto.GetForKey():
		return "key " + text
	case v.Proto.GetRuleId() == "string.min_bytes" && v.RuleValue.IsValid() && v.RuleValue.Uint() == 1:
		return "is required"
	case v.Proto.GetRuleId() == "string.pattern":
		return violatedPattern(v.RuleValue.String(), text)
	}
	return text
}

// violatedPattern puts the patterns in the protos into words; any other keeps its text.
func violatedPattern(pattern, text string) string {
	switch pattern {
	case "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$":
		return "must be 1 to 128 of A-Z, a-z, 0-9 and . _ : -, beginning with a letter or a digit"
	case "^[!-~]{0,64}$":
		return "must be at most 64 printable ASCII characters without blanks"
	case "^[0-9]{4}-[0-9]{2}-[0-9]{2}$":
		return "must be a day as in 2026-11-20"
	}
	return text
}
