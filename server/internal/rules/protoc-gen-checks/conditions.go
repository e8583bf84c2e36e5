package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parleyhq/parley/server/internal/rules/predefined"
)

// conjunction joins conditions.
func conjunction(conditions []string) string {
	return cmp.Or(strings.Join(conditions, " &&\n"), "true")
}

// comparison returns the form of a rule that compares a value with a number, or "" for other rules.
func comparison(rule string) string {
	switch rule {
	case "string.min_bytes", "repeated.min_items":
		return "len(%s) >= %v"
	case "string.max_bytes", "bytes.max_len", "repeated.max_items", "map.max_pairs":
		return "len(%s) <= %v"
	case "int32.gte", "int64.gte":
		return "%s >= %v"
	case "int32.lte", "int64.lte":
		return "%s <= %v"
	}
	return ""
}

// conditionsOf returns the conditions of a value, and an error if it has rules that are not supported.
func conditionsOf(value string, rules *validate.FieldRules, field *protogen.Field) (conditions []string, err error) {
	rules.ProtoReflect().Range(func(kind protoreflect.FieldDescriptor, of protoreflect.Value) bool {
		switch {
		case kind.Name() == "ignore": // The caller applies it.
		case kind.Name() == "required" && field.Message != nil && !field.Desc.IsMap() && !field.Desc.IsList():
			conditions = append(conditions, value+" != nil")
		case kind.Message() == nil || kind.IsList():
			err = fmt.Errorf("rules %s are not supported", kind.Name())
		default:
			of.Message().Range(func(rule protoreflect.FieldDescriptor, bound protoreflect.Value) bool {
				if rule.IsExtension() {
					return true
				}
				name := string(kind.Name()) + "." + string(rule.Name())
				condition, unsupported := conditionOf(value, name, bound, rules, field)
				if err = cmp.Or(err, unsupported); unsupported == nil {
					conditions = append(conditions, condition)
				}
				return true
			})
		}
		return true
	})
	slices.Sort(conditions) // Range has no order.
	names, unknown := predefined.Of(field.Desc.ParentFile(), rules.GetString())
	for _, name := range names {
		condition, unsupported := predefinedCondition(value, name)
		conditions, err = append(conditions, condition), cmp.Or(err, unsupported)
	}
	return conditions, cmp.Or(err, unknown)
}

// predefinedCondition returns the condition of a predefined rule.
func predefinedCondition(value string, rule protoreflect.Name) (string, error) {
	switch rule {
	case predefined.ConversationID:
		return "ids.IsConversation(" + value + ")", nil
	case predefined.RequestID:
		return "ids.IsRequest(" + value + ")", nil
	case predefined.RecordKey:
		return "ids.IsKey(" + value + ")", nil
	}
	return "", fmt.Errorf("rule %s is not supported", rule)
}

// conditionOf returns the condition of one rule.
func conditionOf(
	value, rule string, bound protoreflect.Value, rules *validate.FieldRules, field *protogen.Field,
) (string, error) {
	if form := comparison(rule); form != "" {
		return fmt.Sprintf(form, value, bound.Interface()), nil
	}
	switch rule {
	case "enum.not_in":
		var conditions []string
		for i := range bound.List().Len() {
			conditions = append(conditions, fmt.Sprintf("%s != %d", value, bound.List().Get(i).Int()))
		}
		return strings.Join(conditions, " && "), nil
	case "enum.defined_only":
		values := field.Enum.Desc.Values()
		for i := range values.Len() {
			if values.Get(i).Number() != protoreflect.EnumNumber(i) {
				return "", errors.New("the numbers of the enum have gaps")
			}
		}
		return fmt.Sprintf("%s >= 0 && %[1]s < %d", value, values.Len()), nil
	case "repeated.items":
		if field.Desc.Kind() != protoreflect.StringKind {
			return "", errors.New("rules of elements are only supported for texts")
		}
		of, err := conditionsOf("s", rules.GetRepeated().GetItems(), field)
		return fmt.Sprintf("all(%s, func(s string) bool { return %s })", value, conjunction(of)), err
	case "map.keys":
		of, err := conditionsOf("s", rules.GetMap().GetKeys(), field)
		return fmt.Sprintf("keys(%s, func(s string) bool { return %s })", value, conjunction(of)), err
	case "map.values":
		of, err := conditionsOf("s", rules.GetMap().GetValues(), field)
		return fmt.Sprintf("values(%s, func(s string) bool { return %s })", value, conjunction(of)), err
	}
	return "", fmt.Errorf("rule %s is not supported", rule)
}

// translate returns a rule in CEL as a Go expression of m. It knows comparisons and has and size of fields, and fields
// of messages in m, which differ little in Go.
func translate(m *protogen.Message, rule string) (string, error) {
	var err error
	// form returns a format of the field's name in Go, or "" if the field is not supported.
	field := func(pattern string, form func(*protogen.Field) string) {
		rule = regexp.MustCompile(pattern).ReplaceAllStringFunc(rule, func(call string) string {
			name := strings.TrimSuffix(call[strings.LastIndex(call, ".")+1:], ")")
			for _, f := range m.Fields {
				if string(f.Desc.Name()) == name && form(f) != "" {
					return fmt.Sprintf(form(f), f.GoName)
				}
			}
			err = fmt.Errorf("%s is not supported in CEL", call)
			return ""
		})
	}
	field(`size\(this\.\w+\)`, func(f *protogen.Field) string {
		if f.Desc.IsList() || f.Desc.IsMap() || f.Desc.Kind() == protoreflect.BytesKind {
			return "len(\x00Get%s())"
		}
		return ""
	})
	field(`has\(this\.\w+\)`, func(f *protogen.Field) string {
		switch {
		case f.Desc.Cardinality() == protoreflect.Repeated:
			return ""
		case f.Message != nil:
			return "(\x00Get%s() != nil)"
		case f.Desc.HasOptionalKeyword():
			return "(\x00%s != nil)"
		}
		return ""
	})
	rule = regexp.MustCompile(`this\.(\w+)\.(\w+)`).ReplaceAllStringFunc(rule, func(path string) string {
		names := strings.Split(path, ".")
		for _, f := range m.Fields {
			if string(f.Desc.Name()) != names[1] || f.Message == nil || f.Desc.Cardinality() == protoreflect.Repeated {
				continue
			}
			for _, inner := range f.Message.Fields {
				if string(inner.Desc.Name()) == names[2] && !inner.Desc.IsList() && !inner.Desc.HasPresence() {
					return "\x00Get" + f.GoName + "().Get" + inner.GoName + "()" // The getters accept nil.
				}
			}
		}
		err = fmt.Errorf("%s is not supported in CEL", path)
		return ""
	})
	field(`this\.\w+`, func(f *protogen.Field) string {
		if !f.Desc.IsList() && !f.Desc.HasPresence() {
			return "\x00Get%s()"
		}
		return ""
	})
	const known = `^(\x00Get\w+\(\)(\.Get\w+\(\))?|\x00\w+ != nil|len\(\x00Get\w+\(\)\)| != nil|''|\d+|[ ()!=<>&|])*$`
	if err == nil && !regexp.MustCompile(known).MatchString(rule) {
		err = errors.New("the rule in CEL is not supported")
	}
	return strings.NewReplacer("\x00", "m.", "''", `""`).Replace(rule), err
}
