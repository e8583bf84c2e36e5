package main

import (
	"fmt"
	"regexp"
	"slices"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
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
		constrainString(of, rules.GetString())
	case rules.HasInt32():
		return constrainInt32(of, rules.GetInt32())
	case rules.HasRepeated():
		of.MinItems, of.MaxItems = rules.GetRepeated().GetMinItems(), rules.GetRepeated().GetMaxItems()
		constrainString(of.Items, rules.GetRepeated().GetItems().GetString())
	case rules.HasMap():
		of.MaxProperties = rules.GetMap().GetMaxPairs()
		of.PropertyNames = &schema{}
		constrainString(of.PropertyNames, rules.GetMap().GetKeys().GetString())
		constrainString(of.AdditionalProperties, rules.GetMap().GetValues().GetString())
	}
	return nil
}

func constrainString(of *schema, rules *validate.StringRules) {
	if rules == nil {
		return
	}
	of.Pattern = rules.GetPattern()
	of.MaxLength = rules.GetMaxBytes()
	of.MinLength = min(rules.GetMinBytes(), 1) // A single character may have several bytes.
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
		return rules.GetString().GetMinBytes() > 0 || err != nil || !matched
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
