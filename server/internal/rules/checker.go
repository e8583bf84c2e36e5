package rules

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxDataDepth is the maximum nesting depth of lists and objects in structured data.
const maxDataDepth = 16

// checker collects the faults of one message.
type checker struct{ faults []Fault }

func (c *checker) add(field, format string, args ...any) {
	c.faults = append(c.faults, Fault{Field: field, Rule: fmt.Sprintf(format, args...)})
}

// check adds the faults that rules in the protos cannot express.
func (c *checker) check(m proto.Message) {
	c.checkDurations("", m.ProtoReflect())
	c.checkContent(m)
}

// checkContent adds the faults of structured data, of records and of update masks.
func (c *checker) checkContent(m proto.Message) {
	switch m := m.(type) {
	case *parleyv1.AppendMessagesRequest:
		c.checkMessages(m.GetMessages())
		c.checkRecords("records", m.GetRecords(), false)
	case *parleyv1.WriteRecordsRequest:
		c.checkRecords("writes", m.GetWrites(), m.GetConversationId() == "")
	case *parleyv1.ImportConversationsRequest:
		c.checkMessages(m.GetMessages())
	case *parleyv1.ChatRequest:
		c.checkData("", m.GetStructuredData())
		c.checkRecords("records", m.GetRecords(), false)
	case *parleyv1.RespondResponse:
		c.checkScope("record", m.GetRecord())
		c.checkValue("structured_data.value", m.GetStructuredData().GetValue())
	case *parleyv1.UpdateConversationRequest:
		c.checkMask(m.GetUpdateMask())
	}
}

// invalidDuration describes the fault of a duration that is not valid.
const invalidDuration = "must be within 10,000 years, with nanos below one second and of the same sign as the seconds"

// checkDurations adds a fault for each invalid duration. The seconds and nanos of such a duration
// may add up to a value that the rules allow, but it has no JSON form. An example is 5 s and -7 ns.
// checkDurations does not check lists and maps. The only durations in them are those of records, see
// checkRecords.
func (c *checker) checkDurations(path string, m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() == nil || field.IsList() || field.IsMap() {
			return true
		}
		name, inner := path+string(field.Name()), value.Message()
		if d, ok := inner.Interface().(*durationpb.Duration); !ok {
			c.checkDurations(name+".", inner)
		} else if !d.IsValid() {
			c.add(name, "%s", invalidDuration)
		}
		return true
	})
}

// checkRecords adds the faults of the writes in a field. If ofTenant is true, all of them are of records of the tenant.
func (c *checker) checkRecords(field string, writes []*parleyv1.RecordWrite, ofTenant bool) {
	type record struct {
		ofTenant bool
		key      string
	}
	var first map[record]int
	if len(writes) > 1 {
		first = make(map[record]int, len(writes))
	}
	for i, w := range writes {
		path := fmt.Sprintf("%s[%d]", field, i)
		if ttl := w.GetTtl(); ttl != nil && !ttl.IsValid() {
			c.add(path+".ttl", "%s", invalidDuration)
		} else if !ofTenant {
			c.checkScope(path, w)
		}
		if first == nil {
			return
		}
		of := record{ofTenant || w.GetTenantScope(), w.GetKey()}
		if n, found := first[of]; found {
			c.add(path+".key", "is the same record as %s[%d]", field, n)
			continue
		}
		first[of] = i
	}
}

// checkScope adds the fault of a record of a conversation that has a ttl.
func (c *checker) checkScope(field string, w *parleyv1.RecordWrite) {
	if w.GetTtl() != nil && !w.GetTenantScope() {
		c.add(field+".ttl", "must not be set for a record of a conversation, which expires with the conversation")
	}
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

// checkValue adds the fault of a structured data value, if it has one. It ignores a nil value,
// because a rule in the protos already requires a value.
func (c *checker) checkValue(field string, v *structpb.Value) {
	if v == nil {
		return
	}
	if fault := valueFault(v, 0); fault != "" {
		c.add(field, "%s", fault)
	}
}

// valueFault returns the first fault of a JSON value, or "" if it has none. depth is the number of
// lists and objects that contain the value.
func valueFault(v *structpb.Value, depth int) string {
	var inner []*structpb.Value
	switch kind := v.GetKind().(type) {
	case nil:
		return "contains a value without a kind: null, number, string, bool, struct or list"
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			return "contains a number that is not finite"
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

// updatable returns the field mask paths that UpdateConversation accepts.
func updatable() []string {
	return []string{
		"title", "labels", "agent", "system_prompt", "retention", "retention.max_messages", "retention.ttl",
		"retention.keep_all", "retention.no_expiry", "retention.no_eviction", "retention.max_turns",
	}
}

func (c *checker) checkMask(mask *fieldmaskpb.FieldMask) {
	for i, path := range mask.GetPaths() {
		if !slices.Contains(updatable(), path) {
			c.add(fmt.Sprintf("update_mask.paths[%d]", i), "%.64q cannot be updated; use title, labels, agent, "+
				"system_prompt, retention, or a field of it as in retention.ttl", path)
		}
	}
}
