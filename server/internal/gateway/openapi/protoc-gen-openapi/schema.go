package main

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// schemas maps the names of messages and enums to their schemas, in the form of protojson.
type schemas map[string]*schema

// message returns a reference to the schema of a message and adds that schema, and all that it
// refers to, if needed. For a well-known type it returns the schema itself. Fields named in without
// are omitted: the path contains them.
func (s schemas) message(m *protogen.Message, without ...protoreflect.Name) (*schema, error) {
	if known, ok := wellKnown(m.Desc.FullName()); ok {
		return known, nil
	}
	return s.named(string(m.Desc.Name()), m, without...)
}

// named returns the schema of a message that is not well-known, like message, under another name.
func (s schemas) named(name string, m *protogen.Message, without ...protoreflect.Name) (*schema, error) {
	if s[name] != nil {
		return schemaRef(name), nil
	}
	if parent := m.Desc.Parent(); parent != m.Desc.ParentFile() {
		return nil, fmt.Errorf("%s: nested messages are not supported", m.Desc.FullName())
	}
	result := &schema{Type: "object", Description: describe(m.Comments.Leading)}
	s[name] = result // Before its fields, because a message may contain itself.
	for _, field := range m.Fields {
		if slices.Contains(without, field.Desc.Name()) {
			continue
		}
		of, err := s.field(field)
		if err != nil {
			return nil, err
		}
		result.Properties = append(result.Properties, property{field.Desc.JSONName(), of})
		if isRequired(field) {
			result.Required = append(result.Required, field.Desc.JSONName())
		}
	}
	for _, one := range m.Oneofs {
		if !one.Desc.IsSynthetic() {
			result.Description += "\n\nAt most one of these is set: " + names(one.Fields) + "."
		}
	}
	return schemaRef(name), nil
}

func names(fields []*protogen.Field) string {
	quoted := make([]string, len(fields))
	for i, field := range fields {
		quoted[i] = "`" + field.Desc.JSONName() + "`"
	}
	return strings.Join(quoted, ", ")
}

// field returns the schema of a field, with its comment and rules.
func (s schemas) field(field *protogen.Field) (*schema, error) {
	var result *schema
	var err error
	switch {
	case field.Desc.IsMap():
		result = &schema{Type: "object"}
		result.AdditionalProperties, err = s.value(field.Message.Fields[1])
	case field.Desc.IsList():
		result = &schema{Type: "array"}
		result.Items, err = s.value(field)
	default:
		result, err = s.value(field)
	}
	if err != nil {
		return nil, err
	}
	result.Description = strings.TrimSpace(describe(field.Comments.Leading) + " " + result.Description)
	return result, constrain(result, field)
}

// value returns the schema of one value of a field.
func (s schemas) value(field *protogen.Field) (*schema, error) {
	switch field.Desc.Kind() {
	case protoreflect.BoolKind:
		return &schema{Type: "boolean"}, nil
	case protoreflect.Int32Kind:
		return &schema{Type: "integer", Format: "int32"}, nil
	case protoreflect.Int64Kind:
		return &schema{Type: "string", Format: "int64"}, nil
	case protoreflect.StringKind:
		return &schema{Type: "string"}, nil
	case protoreflect.BytesKind:
		return &schema{Type: "string", ContentEncoding: "base64"}, nil
	case protoreflect.EnumKind:
		return s.enum(field.Enum), nil
	case protoreflect.MessageKind:
		if name := string(field.Message.Desc.Name()); strings.HasSuffix(name, "Request") {
			return s.named("Complete"+name, field.Message) // No path contains fields of a request within another one.
		}
		return s.message(field.Message)
	default:
		return nil, fmt.Errorf("%s: its kind %s is not supported", field.Desc.FullName(), field.Desc.Kind())
	}
}

func (s schemas) enum(e *protogen.Enum) *schema {
	name := string(e.Desc.Name())
	result := &schema{Type: "string", Description: describe(e.Comments.Leading) + "\n"}
	for _, value := range e.Values {
		result.Enum = append(result.Enum, string(value.Desc.Name()))
		result.Description += "\n- `" + string(value.Desc.Name()) + "`: " + describe(value.Comments.Leading)
	}
	s[name] = result
	return schemaRef(name)
}

// wellKnown returns the schema of a type that has its own form in protojson. The comments of fields
// need not repeat its description.
func wellKnown(name protoreflect.FullName) (*schema, bool) {
	switch name {
	case "google.protobuf.Timestamp":
		return &schema{Type: "string", Format: "date-time"}, true
	case "google.protobuf.Duration":
		return &schema{Type: "string", Pattern: `^-?[0-9]+(\.[0-9]{1,9})?s$`, Description: `Seconds: "3.5s".`}, true
	case "google.protobuf.FieldMask":
		return &schema{Type: "string", Description: "Separated by commas."}, true
	case "google.protobuf.Struct":
		return &schema{Type: "object"}, true
	case "google.protobuf.Value":
		return &schema{}, true
	default:
		return nil, false
	}
}

// describe converts a comment to text: each paragraph becomes one line.
func describe(comment protogen.Comments) string {
	var paragraphs []string
	for paragraph := range strings.SplitSeq(string(comment), "\n\n") {
		if words := strings.Fields(paragraph); len(words) > 0 {
			paragraphs = append(paragraphs, strings.Join(words, " "))
		}
	}
	return strings.Join(paragraphs, "\n\n")
}
