package rules

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxDataDepth is how many lists and objects of structured data may be inside each other.
const maxDataDepth = 16

// checker collects faults.
type checker struct{ faults []Fault }

func (c *checker) add(field, format string, args ...any) {
	c.faults = append(c.faults, Fault{Field: field, Rule: fmt.Sprintf(format, args...)})
}

// check finds what rules in the protos cannot.
func (c *checker) check(m proto.Message) {
	c.checkDurations("", m.ProtoReflect())
	switch m := m.(type) {
	case *parleyv1.AppendMessagesRequest:
		c.checkMessages(m.GetMessages())
	case *parleyv1.ImportConversationsRequest:
		c.checkMessages(m.GetMessages())
	case *parleyv1.ChatRequest:
		c.checkData("", m.GetStructuredData())
	case *parleyv1.RespondResponse:
		c.checkValue("structured_data.value", m.GetStructuredData().GetValue())
	case *parleyv1.UpdateConversationRequest:
		c.checkMask(m.GetUpdateMask())
	}
}

// checkDurations finds durations that add up to something a rule allows, and yet have no
// form in JSON: 5 s and -7 ns. No list or map of a request has durations in it.
func (c *checker) checkDurations(path string, m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() == nil || field.IsList() || field.IsMap() {
			return true
		}
		name, inner := path+string(field.Name()), value.Message()
		if d, ok := inner.Interface().(*durationpb.Duration); !ok {
			c.checkDurations(name+".", inner)
		} else if !d.IsValid() {
			c.add(name, "must have seconds within 10,000 years, and less than a second of nanos, with the same sign")
		}
		return true
	})
}

func (c *checker) checkMessages(messages []*parleyv1.Message) {
	for i, m := range messages {
		c.checkData(fmt.Sprintf("messages[%d].", i), m.GetStructuredData())
	}
}

func (c *checker) checkData(path string, data []*parleyv1.StructuredData) {
	for i, d := range data {
		c.checkValue(fmt.Sprintf("%sstructured_data[%d].value", path, i), d.GetValue())
	}
}

// checkValue finds what is wrong with the value of structured data. None at all is left to
// the rule that it is required.
func (c *checker) checkValue(field string, v *structpb.Value) {
	if v == nil {
		return
	}
	if fault := valueFault(v, 0); fault != "" {
		c.add(field, "%s", fault)
	}
}

// valueFault says what is wrong with a JSON value inside so many others, "" when nothing.
func valueFault(v *structpb.Value, depth int) string {
	var inner []*structpb.Value
	switch kind := v.GetKind().(type) {
	case nil:
		return "a value in it has no kind: null, number, string, bool, struct or list"
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			return "a number in it is not finite"
		}
		return ""
	case *structpb.Value_StructValue:
		for _, value := range kind.StructValue.GetFields() {
			inner = append(inner, value)
		}
	case *structpb.Value_ListValue:
		inner = kind.ListValue.GetValues()
	default:
		return ""
	}
	if depth == maxDataDepth {
		return fmt.Sprintf("is more than %d levels deep", maxDataDepth)
	}
	for _, value := range inner {
		if fault := valueFault(value, depth+1); fault != "" {
			return fault
		}
	}
	return ""
}

// updatable are the fields that UpdateConversation changes, in the words of its mask.
func updatable() []string {
	return []string{"title", "labels", "agent", "system_prompt", "retention", "retention.max_messages", "retention.ttl"}
}

func (c *checker) checkMask(mask *fieldmaskpb.FieldMask) {
	for i, path := range mask.GetPaths() {
		if !slices.Contains(updatable(), path) {
			c.add(fmt.Sprintf("update_mask.paths[%d]", i), "%.64q cannot be updated, only %s can", path, strings.Join(updatable(), ", "))
		}
	}
}
