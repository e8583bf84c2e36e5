// Package predefined finds the rules of parley.rules.v1 in the options of fields. Plugins of protoc use it: they cannot
// import the generated code of these rules, so their options contain them as unknown fields. Start at [Of].
package predefined

import (
	"fmt"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The names of the rules, which are those of the fields in rules.proto.
const (
	ConversationID protoreflect.Name = "conversation_id"
	RequestID      protoreflect.Name = "request_id"
	RecordKey      protoreflect.Name = "record_key"
)

// Of returns the names of the predefined rules that rules contains, in the order of their numbers. A rule that is false
// does not count. file is the file of the field that has the rules. An error means that no import of file defines one
// of them.
func Of(file protoreflect.FileDescriptor, rules *validate.StringRules) ([]protoreflect.Name, error) {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(rules)
	if err != nil {
		return nil, err
	}
	var names []protoreflect.Name
	for len(encoded) > 0 {
		number, kind, n := protowire.ConsumeTag(encoded)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		size := protowire.ConsumeFieldValue(number, kind, encoded[n:])
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		value := encoded[n : n+size]
		encoded = encoded[n+size:]
		if rules.ProtoReflect().Descriptor().Fields().ByNumber(number) != nil {
			continue
		}
		name := nameOf(file, rules, number)
		if name == "" {
			return nil, fmt.Errorf("the rule %d of %s is not defined in an import", number, file.Path())
		}
		if isTrue, _ := protowire.ConsumeVarint(value); kind == protowire.VarintType && isTrue != 0 {
			names = append(names, name)
		}
	}
	return names, nil
}

// nameOf returns the name of the rule with a number, or "" if no import of the file defines it.
func nameOf(file protoreflect.FileDescriptor, rules proto.Message, number protowire.Number) protoreflect.Name {
	for i := range file.Imports().Len() {
		extensions := file.Imports().Get(i).Extensions()
		for j := range extensions.Len() {
			extension := extensions.Get(j)
			if extension.Number() == number &&
				extension.ContainingMessage().FullName() == rules.ProtoReflect().Descriptor().FullName() {
				return extension.Name()
			}
		}
	}
	return ""
}
