package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/server/internal/rules/ids"
	"github.com/parleyhq/parley/server/internal/rules/predefined"
)

func fieldRules(field *protogen.Field) *validate.FieldRules {
	rules, _ := proto.GetExtension(field.Desc.Options(), validate.E_Field).(*validate.FieldRules)
	return rules
}

// constrain adds to a field's schema what the rules of protovalidate require, as far as JSON Schema
// can express it. The schema never requires more than the rules, with one exception: an empty value
// that the rules allow must be omitted. max_bytes becomes maxLength, which counts characters.
func constrain(of *schema, field *protogen.Field) error {
	rules := fieldRules(field)
	switch {
	case rules.HasString():
		return constrainString(of, rules.GetString(), field)
	case rules.HasInt32():
		return constrainInt32(of, rules.GetInt32())
	case rules.HasRepeated():
		of.MinItems, of.MaxItems = rules.GetRepeated().GetMinItems(), rules.GetRepeated().GetMaxItems()
		return constrainString(of.Items, rules.GetRepeated().GetItems().GetString(), field)
	case rules.HasMap():
		of.MaxProperties = rules.GetMap().GetMaxPairs()
		of.PropertyNames = &schema{}
		err := constrainString(of.PropertyNames, rules.GetMap().GetKeys().GetString(), field)
		return cmp.Or(err, constrainString(of.AdditionalProperties, rules.GetMap().GetValues().GetString(), field))
	}
	return nil
}

// idPattern is what all regular expressions can say about an id: it has no control characters and no line breaks.
const idPattern = `^[^\u0000-\u001F\u007F-\u009F\u2028\u2029]*$`

// constrainString adds the rules of a text of the field.
func constrainString(of *schema, rules *validate.StringRules, field *protogen.Field) error {
	if rules == nil {
		return nil
	}
	of.Pattern = rules.GetPattern()
	of.MaxLength = rules.GetMaxBytes()
	of.MinLength = min(rules.GetMinBytes(), 1) // A single character may have several bytes.
	names, err := predefined.Of(field.Desc.ParentFile(), rules)
	for _, name := range names {
		switch name {
		case predefined.ConversationID:
			of.Pattern, of.MinLength, of.MaxLength = idPattern, 1, ids.MaxBytes
		case predefined.RequestID:
			of.Pattern, of.MaxLength = idPattern, ids.MaxBytes
		case predefined.RecordKey:
			of.Pattern, of.MinLength, of.MaxLength = idPattern, 1, ids.MaxKeyBytes
		default:
			return fmt.Errorf("%s: the rule %s is not supported", field.Desc.FullName(), name)
		}
	}
	return err
}

func constrainInt32(of *schema, rules *validate.Int32Rules) error {
	if rules.HasGt() || rules.HasLt() {
		return fmt.Errorf("gt and lt of %v are not supported; use gte and lte", rules)
	}
	if rules.HasGte() {
		of.Minimum = new(rules.GetGte())
	}
	if rules.HasLte() {
		of.Maximum = new(rules.GetLte())
	}
	return nil
}

// isRequired reports whether the rules refuse a message in which the field is not set.
func isRequired(field *protogen.Field) bool {
	rules := fieldRules(field)
	if rules.GetRequired() {
		return true
	}
	if field.Desc.HasPresence() || rules.GetIgnore() == validate.Ignore_IGNORE_IF_ZERO_VALUE {
		return false // Rules apply only to a field that is set.
	}
	switch {
	case rules.HasString():
		matched, err := regexp.MatchString(rules.GetString().GetPattern(), "")
		names, _ := predefined.Of(field.Desc.ParentFile(), rules.GetString()) // constrain returns the error.
		return rules.GetString().GetMinBytes() > 0 || err != nil || !matched ||
			slices.Contains(names, predefined.ConversationID) || slices.Contains(names, predefined.RecordKey)
	case rules.HasInt32():
		return rules.GetInt32().GetGte() > 0
	case rules.HasRepeated():
		return rules.GetRepeated().GetMinItems() > 0
	case rules.HasEnum():
		return slices.Contains(rules.GetEnum().GetNotIn(), 0)
	default:
		return false
	}
}
