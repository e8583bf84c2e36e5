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
)

// What a fault is in when it is in no field.
const (
	wholeBody  = "body"
	wholeQuery = "query"
)

// Whoever sends faults gets them back: as many, and as much of each, as a person reads.
const (
	maxTextBytes  = 512
	maxFieldBytes = 128
	maxFaultBytes = 256
	maxFaults     = 100
	// maxJudged is how many values are looked at, in the search for those that are faults.
	maxJudged = 5000
)

// faults are what is wrong with a request, by the field that it is wrong with, in the names
// of the protos. They are searched for where a request was refused, so that those that are
// right do not wait for it: protojson stops at the first fault and gives it no path.
type faults struct {
	violations []*errdetails.BadRequest_FieldViolation
	judged     int
}

func (f *faults) add(field, format string, args ...any) {
	if len(f.violations) >= maxFaults {
		return
	}
	f.violations = append(f.violations, &errdetails.BadRequest_FieldViolation{
		Field: clip(field, maxFieldBytes), Description: clip(fmt.Sprintf(format, args...), maxFaultBytes),
	})
}

// full says that the search is over.
func (f *faults) full() bool { return len(f.violations) >= maxFaults || f.judged >= maxJudged }

// status has all of them, as one of package rpc has the rules that a request breaks.
func (f *faults) status() *status.Status {
	var text strings.Builder
	for i, v := range f.violations {
		if i > 0 {
			text.WriteString("; ")
		}
		text.WriteString(v.GetField() + ": " + v.GetDescription())
	}
	return newStatus(codes.InvalidArgument, "INVALID_REQUEST", "invalid request: "+text.String(),
		&errdetails.BadRequest{FieldViolations: f.violations})
}

// err is the status, nil when there are none.
func (f *faults) err() error {
	if len(f.violations) == 0 {
		return nil
	}
	return f.status().Err()
}

// inJSON searches a text that shall be a message, whose fields are called path and what is
// behind it. What protojson refuses has a fault.
func (f *faults) inJSON(path string, text []byte, message protoreflect.MessageDescriptor) {
	whole := wholeBody
	if path != "" {
		whole = path
	}
	if at := invalidUTF8(text); at >= 0 {
		line, column := position(text, at)
		f.add(whole, "is not JSON: line %d, column %d: not a character in UTF-8", line, column)
		return
	}
	var value json.RawMessage
	if err := json.Unmarshal(text, &value); err != nil {
		at := len(text)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Offset > 0 {
			at = min(int(syntax.Offset), len(text))
			if !strings.HasPrefix(err.Error(), "unexpected end") {
				at-- // It is the character that was read last.
			}
		}
		line, column := position(text, at)
		f.add(whole, "is not JSON: line %d, column %d: %v", line, column, err)
		return
	}
	before := len(f.violations)
	f.inMessage(path, value, message)
	if len(f.violations) == before && protojson.Unmarshal(text, dynamicpb.NewMessage(message)) != nil {
		f.add(whole, "is no %s in JSON: a fault in it was not found", message.Name())
	}
}

// inMessage searches an object.
func (f *faults) inMessage(path string, text json.RawMessage, message protoreflect.MessageDescriptor) {
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
			f.add(path+plain(name), "is unknown: %s has %s", message.Name(), strings.Join(names(message), ", "))
			continue
		}
		inner := path + string(field.Name())
		if seen[field.Name()] {
			f.add(inner, "is there twice")
			continue
		}
		seen[field.Name()] = true
		if kindOf(value) == kindNull && !takesNull(field) {
			continue // It is as if it were not there.
		}
		if choice := field.ContainingOneof(); choice != nil && !choice.IsSynthetic() {
			if seen[choice.FullName().Name()+"?"] {
				f.add(inner, "may not be there beside another of %s", choice.Name())
				continue
			}
			seen[choice.FullName().Name()+"?"] = true
		}
		f.inField(inner, value, field)
	}
}

// inField searches the value of a field.
func (f *faults) inField(path string, text json.RawMessage, field protoreflect.FieldDescriptor) {
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
			f.inElement(fmt.Sprintf("%s[%d]", path, i), element, []byte{'['}, []byte{']'}, field, field)
			i++
		}
	case field.IsMap():
		f.inMap(path, text, field)
	default:
		f.inElement(path, text, nil, nil, field, field)
	}
	if len(f.violations) == before {
		f.add(path, "is not what it must be: a fault in it was not found")
	}
}

func (f *faults) inMap(path string, text json.RawMessage, field protoreflect.FieldDescriptor) {
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
			f.add(entry, "is there twice")
			continue
		}
		seen[key] = true
		quoted, err := json.Marshal(key)
		if err != nil {
			continue // Any string has a form in JSON.
		}
		f.inElement(entry, value, slices.Concat([]byte{'{'}, quoted, []byte{':'}), []byte{'}'}, field, field.MapValue())
	}
}

// inElement searches a value that is alone in its field, or an element of it: then ahead and
// behind make it a whole field again. Its type is that of element.
func (f *faults) inElement(path string, text json.RawMessage, ahead, behind []byte, field, element protoreflect.FieldDescriptor) {
	if f.accepts(slices.Concat(ahead, text, behind), field) {
		return
	}
	if message := element.Message(); message != nil && !isLeaf(message) {
		before := len(f.violations)
		f.inMessage(path, text, message)
		if len(f.violations) > before || f.full() {
			return
		}
	}
	expected, natural := expectation(element)
	switch kind := kindOf(text); {
	case !slices.Contains(natural, kind):
		f.add(path, "must be %s, is %s", expected, kind)
	case element.Kind() == protoreflect.StringKind:
		f.add(path, "has an escape sequence that is no character")
	default:
		f.add(path, "must be %s", expected)
	}
}

// accepts has protojson judge a field alone, since it knows best.
func (f *faults) accepts(text []byte, field protoreflect.FieldDescriptor) bool {
	f.judged++
	object := fmt.Appendf(nil, `{"%s":%s}`, field.JSONName(), text)
	return protojson.Unmarshal(object, dynamicpb.NewMessage(field.ContainingMessage())) == nil
}

// members are the names and values of an object, in their order.
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

// elements are those of a list.
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

// invalidUTF8 is where a text is not UTF-8, -1 when it is.
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

// position is a place in a text as an editor shows it, from 1.
func position(text []byte, at int) (line, column int) {
	before := text[:at]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return bytes.Count(before, []byte{'\n'}) + 1, utf8.RuneCount(before[begin:]) + 1
}

// clip shortens a text to so many bytes, at a rune.
func clip(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	end := limit - len(mark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
