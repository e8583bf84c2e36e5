package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
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
	case "string.max_bytes", "repeated.max_items", "map.max_pairs":
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
	return conditions, err
}

// conditionOf returns the condition of one rule.
func conditionOf(
	value, rule string, bound protoreflect.Value, rules *validate.FieldRules, field *protogen.Field,
) (string, error) {
	if form := comparison(rule); form != "" {
		return fmt.Sprintf(form, value, bound.Interface()), nil
	}
	switch rule {
	case "string.pattern":
		return pattern(value, bound.String())
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
	case "map.keys":
		of, err := conditionsOf("s", rules.GetMap().GetKeys(), field)
		return fmt.Sprintf("keys(%s, func(s string) bool { return %s })", value, conjunction(of)), err
	case "map.values":
		of, err := conditionsOf("s", rules.GetMap().GetValues(), field)
		return fmt.Sprintf("values(%s, func(s string) bool { return %s })", value, conjunction(of)), err
	}
	return "", fmt.Errorf("rule %s is not supported", rule)
}

// pattern returns the condition of a regular expression that is a sequence of classes of ASCII characters, of
// which the last may be repeated.
func pattern(value, expression string) (string, error) {
	unsupported := fmt.Errorf("pattern %s is not supported", expression)
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return "", err
	}
	n := len(tree.Sub)
	if tree.Op != syntax.OpConcat || n < 3 ||
		tree.Sub[0].Op != syntax.OpBeginText || tree.Sub[n-1].Op != syntax.OpEndText {
		return "", unsupported
	}
	least, most := n-2, n-2
	var sets strings.Builder
	for i, part := range tree.Sub[1 : n-1] {
		if part.Op == syntax.OpRepeat && i == n-3 && part.Max >= 1 {
			least, most, part = n-3+part.Min, n-3+part.Max, part.Sub[0]
		}
		if part.Op != syntax.OpCharClass {
			return "", unsupported
		}
		var set [2]uint64
		for i := 0; i < len(part.Rune); i += 2 {
			for c := part.Rune[i]; c <= part.Rune[i+1]; c++ {
				if c >= 128 {
					return "", unsupported
				}
				set[c/64] |= 1 << (c % 64)
			}
		}
		fmt.Fprintf(&sets, ", set{%#x, %#x}", set[0], set[1])
	}
	return fmt.Sprintf("matches(%s, %d, %d%s)", value, least, most, sets.String()), nil
}

// translate returns a rule in CEL as a Go expression of m. It knows comparisons and has and size of fields, which
// differ little in Go.
func translate(m *protogen.Message, rule string) (string, error) {
	var err error
	field := func(pattern, form string, supports func(*protogen.Field) bool) {
		rule = regexp.MustCompile(pattern).ReplaceAllStringFunc(rule, func(call string) string {
			name := strings.TrimSuffix(call[strings.LastIndex(call, ".")+1:], ")")
			for _, f := range m.Fields {
				if string(f.Desc.Name()) == name && supports(f) {
					return fmt.Sprintf(form, "\x00Get"+f.GoName)
				}
			}
			err = fmt.Errorf("%s is not supported in CEL", call)
			return ""
		})
	}
	field(`size\(this\.\w+\)`, "len(%s())", func(f *protogen.Field) bool { return f.Desc.IsList() })
	field(`has\(this\.\w+\)`, "(%s() != nil)", func(f *protogen.Field) bool {
		return f.Message != nil && f.Desc.Cardinality() != protoreflect.Repeated
	})
	field(`this\.\w+`, "%s()", func(f *protogen.Field) bool { return !f.Desc.IsList() && !f.Desc.HasPresence() })
	const known = `^(\x00Get\w+\(\)|len\(\x00Get\w+\(\)\)| != nil|''|\d+|[ ()!=<>&|])*$`
	if err == nil && !regexp.MustCompile(known).MatchString(rule) {
		err = errors.New("the rule in CEL is not supported")
	}
	return strings.NewReplacer("\x00", "m.", "''", `""`).Replace(rule), err
}
