package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// object is a JSON object with its members in their order.
type object []member

type member struct {
	name  string
	value json.RawMessage
}

// kindOf returns the kind of a JSON value in words.
func kindOf(value json.RawMessage) string {
	if len(value) == 0 {
		return "missing"
	}
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// parseObject parses an object. param names it in the error.
func parseObject(text json.RawMessage, param string) (object, error) {
	if kind := kindOf(text); kind != "an object" {
		return nil, invalid(param, "must be an object, is %s", kind)
	}
	if !json.Valid(text) {
		return nil, invalid(param, "is not JSON")
	}
	o := make(object, 0, 8)
	names := make(map[string]struct{}, cap(o)) // To search in o for each name of a large object would take minutes.
	for at := skipSpace(text, 1); text[at] != '}'; at = skipSpace(text, at) {
		if text[at] == ',' {
			at = skipSpace(text, at+1)
		}
		end := valueEnd(text, at)
		m := member{name: textOf(text[at:end])}
		at = skipSpace(text, skipSpace(text, end)+1) // Behind the colon.
		end = valueEnd(text, at)
		m.value, at = text[at:end], end
		if _, twice := names[m.name]; twice {
			return nil, invalid(join(param, m.name), "must not be given twice")
		}
		names[m.name] = struct{}{}
		o = append(o, m)
	}
	return o, nil
}

// skipSpace returns the position of the next byte of valid JSON that is no white space.
func skipSpace(text []byte, at int) int {
	for text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t' {
		at++
	}
	return at
}

// valueEnd returns the position after the value of valid JSON that begins at a position. The value is inside an object.
func valueEnd(text []byte, at int) int {
	for depth := 0; ; at++ {
		switch text[at] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth < 0 {
				return at
			}
		case '"':
			for at++; text[at] != '"'; at++ {
				if text[at] == '\\' {
					at++
				}
			}
		case ',', ':', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return at
			}
			continue
		default:
			continue // A part of a number, true, false or null.
		}
		if depth == 0 {
			return at + 1
		}
	}
}

// parseBody parses the body of a request, which must be an object. If optional is set, an empty body is an empty
// object.
func parseBody(text []byte, optional bool) (object, error) {
	const body = "body"
	text = bytes.TrimSpace(text)
	switch {
	case len(text) == 0 && optional:
		return nil, nil
	case !utf8.Valid(text):
		return nil, invalid(body, "is not JSON: it contains invalid UTF-8")
	case !json.Valid(text):
		return nil, invalid(body, "is not JSON")
	}
	o, err := parseObject(text, body)
	if f, ok := errors.AsType[*fault](err); ok && f.Param != nil && *f.Param != body {
		// A member of the body has no prefix.
		return nil, invalid((*f.Param)[len(body)+1:], "must not be given twice")
	}
	return o, err
}

// join returns the name of a member for errors.
func join(param, name string) string {
	if param == "" {
		return name
	}
	return fmt.Sprintf("%s.%.64s", param, name)
}

// raw returns the value of a member, or nil if there is none.
func (o object) raw(name string) json.RawMessage {
	for i := range o {
		if o[i].name == name {
			return o[i].value
		}
	}
	return nil
}

// get returns the value of a member, or nil if there is none or it is null.
func (o object) get(name string) json.RawMessage {
	if value := o.raw(name); len(value) > 0 && value[0] != 'n' {
		return value
	}
	return nil
}

// text returns the text of a member, or "" if it is not a string. Lone surrogates, which have no UTF-8, are replaced.
func (o object) text(name string) string { return textOf(o.get(name)) }

// textOf returns the text of a JSON string, or "" for another value.
func textOf(value json.RawMessage) string {
	plain := bytes.TrimPrefix(bytes.TrimSuffix(value, []byte{'"'}), []byte{'"'})
	if len(plain) == len(value)-2 && isPlain(plain) {
		return string(plain)
	}
	var s string
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &s) != nil {
		return ""
	}
	return s
}

// decode decodes the value of a member into a pointer. It does nothing if the member is missing or null. want says in
// words what the value must be.
func (o object) decode(param, name, want string, into any) error {
	value := o.get(name)
	if value == nil {
		return nil
	}
	if json.Unmarshal(value, into) != nil {
		return invalid(join(param, name), "must be %s, is %s", want, kindOf(value))
	}
	return nil
}

// set sets a member. A new one is put first.
func (o object) set(name string, value json.RawMessage) object {
	for i := range o {
		if o[i].name == name {
			o[i].value = value
			return o
		}
	}
	return append(object{{name, value}}, o...)
}

// setDefault sets a member that is missing or null. A new one is put last.
func (o object) setDefault(name string, value json.RawMessage) object {
	switch {
	case o.get(name) != nil:
		return o
	case o.raw(name) != nil:
		return o.set(name, value)
	}
	return append(o, member{name, value})
}

// MarshalJSON returns the object with its members in their order.
func (o object) MarshalJSON() ([]byte, error) { return o.appendJSON(nil), nil }

func (o object) appendJSON(b []byte) []byte {
	b = append(b, '{')
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, quote(m.name)...)
		b = append(append(b, ':'), m.value...)
	}
	return append(b, '}')
}

// quote returns a string as JSON.
func quote(s string) json.RawMessage {
	if isPlain([]byte(s)) {
		b := make([]byte, 0, len(s)+len(`""`))
		return append(append(append(b, '"'), s...), '"')
	}
	return toJSON(s)
}

// isPlain reports whether a text is the same in a JSON string.
func isPlain(text []byte) bool {
	for _, c := range text {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// elements returns the elements of a list.
func elements(value json.RawMessage, param string) ([]json.RawMessage, error) {
	var list []json.RawMessage
	if json.Unmarshal(value, &list) != nil {
		return nil, invalid(param, "must be a list, is %s", kindOf(value))
	}
	return list, nil
}
