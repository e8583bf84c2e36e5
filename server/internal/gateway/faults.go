package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/parleyhq/parley/server/internal/rules"
)

// Names of the field of a fault that is in no single field.
const (
	wholeBody  = "body"
	wholeQuery = "query"
)

// Limits of the search for faults.
const (
	// maxFaults is the maximum number of faults in an error: as many as a person reads.
	maxFaults = 100
	// maxCheckedValues is the maximum number of values that are checked in the search for faults.
	maxCheckedValues = 5000
)

// faults collects what is wrong with a request, by field, in the names of JSON. protojson
// stops at the first fault and reports no path, so a refused request is searched again. Valid
// requests are not slowed down by that.
type faults struct {
	violations    []*errdetails.BadRequest_FieldViolation
	checkedValues int
}

func (f *faults) add(field, format string, args ...any) {
	if len(f.violations) >= maxFaults {
		return
	}
	f.violations = append(f.violations, &errdetails.BadRequest_FieldViolation{
		Field:       rules.Clip(field, rules.MaxFieldBytes),
		Description: rules.Clip(fmt.Sprintf(format, args...), rules.MaxFaultBytes),
	})
}

// full reports whether the search must stop because a limit is reached.
func (f *faults) full() bool {
	return len(f.violations) >= maxFaults || f.checkedValues >= maxCheckedValues
}

// status returns the faults as an error of the same form as package rpc's for broken rules.
func (f *faults) status() *status.Status {
	var text strings.Builder
	for i, v := range f.violations {
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(v.GetField() + ": " + v.GetDescription())
	}
	return NewStatus(codes.InvalidArgument, "INVALID_REQUEST", "invalid request: "+text.String(),
		&errdetails.BadRequest{FieldViolations: f.violations})
}

// err returns the status as an error, or nil if there are no faults.
func (f *faults) err() error {
	if len(f.violations) == 0 {
		return nil
	}
	return f.status().Err()
}

// checkJSON checks a text that must be a message in JSON. The names of its fields begin with path.
// It finds at least one fault in every text that protojson refuses.
func (f *faults) checkJSON(path string, text []byte, message protoreflect.MessageDescriptor) {
	whole := wholeBody
	if path != "" {
		whole = path
	}
	if at := invalidUTF8(text); at >= 0 {
		line, column := position(text, at)
		f.add(whole, "is not JSON: line %d, column %d: invalid UTF-8", line, column)
		return
	}
	var value json.RawMessage
	if err := json.Unmarshal(text, &value); err != nil {
		at := len(text)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Offset > 0 {
			at = min(int(syntax.Offset), len(text))
			if !strings.HasPrefix(err.Error(), "unexpected end") {
				at-- // Offset counts the character that was read last.
			}
		}
		line, column := position(text, at)
		f.add(whole, "is not JSON: line %d, column %d: %v", line, column, err)
		return
	}
	before := len(f.violations)
	f.checkMessage(path, value, message)
	if len(f.violations) == before && protojson.Unmarshal(text, dynamicpb.NewMessage(message)) != nil {
		f.add(whole, "is not a valid %s in JSON, for an unknown reason", message.Name())
	}
}

// checkMessage checks a JSON object.
func (f *faults) checkMessage(path string, text json.RawMessage, message protoreflect.MessageDescriptor) {
	if kindOf(text) != kindObject {
		if path == "" {
			path = wholeBody
		}
		f.add(path, "must be an object, is %s", kindOf(text))
		return
	}
	if path != "" {
		path += "."
	}
	seen := make(map[protoreflect.Name]bool)
	for name, value := range members(text) {
		if f.full() {
			return
		}
		field := fieldOf(message, name)
		if field == nil {
			f.add(path+quoteName(name), "is unknown: the fields of %s are %s", message.Name(),
				strings.Join(jsonNames(message), ", "))
			continue
		}
		inner := path + field.JSONName()
		if seen[field.Name()] {
			f.add(inner, "must not be given twice")
			continue
		}
		seen[field.Name()] = true
		if kindOf(value) == kindNull && !nullIsValue(field) {
			continue // Null means unset.
		}
		if choice := field.ContainingOneof(); choice != nil && !choice.IsSynthetic() {
			if seen[choice.FullName().Name()+"?"] {
				f.add(inner, "must not be set together with another field of %s", choice.Name())
				continue
			}
			seen[choice.FullName().Name()+"?"] = true
		}
		f.checkField(inner, value, field)
	}
}

// checkField checks the value of a field.
func (f *faults) checkField(path string, text json.RawMessage, field protoreflect.FieldDescriptor) {
	if f.accepts(text, field) {
		return
	}
	before := len(f.violations)
	switch {
	case field.IsList():
		if kindOf(text) != kindList {
			f.add(path, "must be a list, is %s", kindOf(text))
			return
		}
		i := 0
		for element := range elements(text) {
			if f.full() {
				return
			}
			f.checkElement(fmt.Sprintf("%s[%d]", path, i), element, []byte{'['}, []byte{']'}, field, field)
			i++
		}
	case field.IsMap():
		f.checkMap(path, text, field)
	default:
		f.checkElement(path, text, nil, nil, field, field)
	}
	if len(f.violations) == before {
		f.add(path, "is not valid, for an unknown reason")
	}
}

func (f *faults) checkMap(path string, text json.RawMessage, field protoreflect.FieldDescriptor) {
	if kindOf(text) != kindObject {
		f.add(path, "must be an object, is %s", kindOf(text))
		return
	}
	seen := make(map[string]bool)
	for key, value := range members(text) {
		if f.full() {
			return
		}
		entry := fmt.Sprintf("%s[%.64q]", path, key)
		if seen[key] {
			f.add(entry, "must not be given twice")
			continue
		}
		seen[key] = true
		quoted, err := json.Marshal(key)
		if err != nil {
			continue // It cannot fail: any string can be encoded.
		}
		f.checkElement(entry, value, slices.Concat([]byte{'{'}, quoted, []byte{':'}), []byte{'}'}, field, field.MapValue())
	}
}

// checkElement checks the only value of a field, or one element of a list or map. prefix and suffix
// complete an element to a value of the field. element is the descriptor of the element.
func (f *faults) checkElement(
	path string, text json.RawMessage, prefix, suffix []byte, field, element protoreflect.FieldDescriptor,
) {
	if f.accepts(slices.Concat(prefix, text, suffix), field) {
		return
	}
	if message := element.Message(); message != nil && !isLeaf(message) {
		before := len(f.violations)
		f.checkMessage(path, text, message)
		if len(f.violations) > before || f.full() {
			return
		}
	}
	expected, natural := expectation(element)
	switch kind := kindOf(text); {
	case !slices.Contains(natural, kind):
		f.add(path, "must be %s, is %s", expected, kind)
	case element.Kind() == protoreflect.StringKind:
		f.add(path, "has an invalid escape sequence")
	default:
		f.add(path, "must be %s", expected)
	}
}

// accepts reports whether protojson accepts a value of a field. protojson decides which values are
// valid.
func (f *faults) accepts(text []byte, field protoreflect.FieldDescriptor) bool {
	f.checkedValues++
	object := fmt.Appendf(nil, `{"%s":%s}`, field.JSONName(), text)
	return protojson.Unmarshal(object, dynamicpb.NewMessage(field.ContainingMessage())) == nil
}

// members returns the names and values of an object, in their order.
func members(object json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		decoder := json.NewDecoder(bytes.NewReader(object))
		_, err := decoder.Token()
		for err == nil && decoder.More() {
			var name json.Token
			if name, err = decoder.Token(); err != nil {
				return
			}
			text, _ := name.(string)
			var value json.RawMessage
			if err = decoder.Decode(&value); err != nil || !yield(text, value) {
				return
			}
		}
	}
}

// elements returns the values of a list.
func elements(list json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		decoder := json.NewDecoder(bytes.NewReader(list))
		_, err := decoder.Token()
		for err == nil && decoder.More() {
			var value json.RawMessage
			if err = decoder.Decode(&value); err != nil || !yield(value) {
				return
			}
		}
	}
}

// invalidUTF8 returns the position of the first byte that is not UTF-8, or -1 if there is none.
func invalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	at := 0
	for at < len(text) {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	return at
}

// position returns the line and column of an offset in a text, both from 1.
func position(text []byte, at int) (line, column int) {
	before := text[:at]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte{'\n'}) + 1, utf8.RuneCount(before[begin:]) + 1
}
