package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The kinds of JSON values, as a description of a fault names them.
const (
	kindObject  = "an object"
	kindList    = "a list"
	kindString  = "a string"
	kindNumber  = "a number"
	kindBoolean = "true or false"
	kindNull    = "null"
)

func kindOf(value json.RawMessage) string {
	value = bytes.TrimLeft(value, " \t\r\n")
	if len(value) == 0 {
		return "nothing"
	}
	switch value[0] {
	case '{':
		return kindObject
	case '[':
		return kindList
	case '"':
		return kindString
	case 't', 'f':
		return kindBoolean
	case 'n':
		return kindNull
	}
	return kindNumber
}

// expectation returns what the value of a field, or of each of its elements, must be, and the kinds
// of JSON value that can represent it.
func expectation(field protoreflect.FieldDescriptor) (what string, natural []string) {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return kindBoolean, []string{kindBoolean}
	case protoreflect.StringKind:
		return kindString, []string{kindString}
	case protoreflect.BytesKind:
		return "bytes as base64 in a string", []string{kindString}
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		var all []string
		for i := range values.Len() {
			if values.Get(i).Number() != 0 { // The zero value means unset.
				all = append(all, string(values.Get(i).Name()))
			}
		}
		return "one of " + strings.Join(all, ", "), []string{kindString, kindNumber}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return kindNumber, []string{kindNumber, kindString}
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return messageExpectation(field.Message())
	}
	bits := 32
	switch field.Kind() {
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Uint64Kind,
		protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		bits = 64
	}
	return fmt.Sprintf("a whole number of %d bits", bits), []string{kindNumber, kindString}
}

func messageExpectation(message protoreflect.MessageDescriptor) (what string, natural []string) {
	const validJSON = ", without invalid escape sequences and without duplicate names in an object"
	switch message.FullName() {
	case "google.protobuf.Timestamp":
		return `a time as in "2026-11-20T08:30:00Z"`, []string{kindString}
	case "google.protobuf.Duration":
		return `a time in seconds as in "90s"`, []string{kindString}
	case "google.protobuf.FieldMask":
		return `names of fields as in "title,labels"`, []string{kindString}
	case "google.protobuf.Struct":
		return kindObject + validJSON, []string{kindObject}
	case "google.protobuf.ListValue":
		return kindList + validJSON, []string{kindList}
	case "google.protobuf.Value":
		return "a value in JSON" + validJSON, []string{kindObject, kindList, kindString, kindNumber, kindBoolean, kindNull}
	}
	return kindObject, []string{kindObject}
}

// isLeaf reports whether a message has its own form in JSON, in which its fields do not appear.
func isLeaf(message protoreflect.MessageDescriptor) bool {
	return strings.HasPrefix(string(message.FullName()), "google.protobuf.")
}

// nullIsValue reports whether null is a value of the field instead of its absence.
func nullIsValue(field protoreflect.FieldDescriptor) bool {
	if field.IsList() || field.IsMap() {
		return false
	}
	if enum := field.Enum(); enum != nil {
		return enum.FullName() == "google.protobuf.NullValue"
	}
	return field.Message() != nil && field.Message().FullName() == "google.protobuf.Value"
}

// fieldOf returns the field that has a name in JSON, in either spelling. It returns nil if there is
// none.
func fieldOf(message protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if field := message.Fields().ByJSONName(name); field != nil {
		return field
	}
	return message.Fields().ByTextName(name)
}

// jsonNames returns the names of the fields in JSON.
func jsonNames(message protoreflect.MessageDescriptor) []string {
	fields := message.Fields()
	all := make([]string, fields.Len())
	for i := range all {
		all[i] = fields.Get(i).JSONName()
	}
	return all
}

// quoteName returns a name that a client sent in a form that is safe to show: quoted and shortened if
// needed.
func quoteName(name string) string {
	const most = 40
	if len(name) <= most && name != "" &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == "" {
		return name
	}
	return fmt.Sprintf("%.40q", name)
}
