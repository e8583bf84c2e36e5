package main

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// schemas makes those of messages and enums, each once, in the form of protojson.
type schemas map[string]*schema

// message gives a reference to the schema of a message, and makes that and all that it needs
// when it is new. Of the well-known types it gives the schema itself. The fields named in
// without are left out: a request's own, which its path has.
func (s schemas) message(m *protogen.Message, without ...protoreflect.Name) (*schema, error) {
	if known, ok := wellKnown(m.Desc.FullName()); ok {
		return known, nil
	}
	name := string(m.Desc.Name())
	if s[name] != nil {
		return schemaRef(name), nil
	}
	if parent := m.Desc.Parent(); parent != m.Desc.ParentFile() {
		return nil, fmt.Errorf("%s: a message within a message is not supported", m.Desc.FullName())
	}
	made := &schema{Type: "object", Description: describe(m.Comments.Leading)}
	s[name] = made // Ahead of its fields: one of them may lead back here.
	for _, field := range m.Fields {
		if slices.Contains(without, field.Desc.Name()) {
			continue
		}
		of, err := s.field(field)
		if err != nil {
			return nil, err
		}
		made.Properties = append(made.Properties, property{field.Desc.JSONName(), of})
		if isRequired(field) {
			made.Required = append(made.Required, field.Desc.JSONName())
		}
	}
	for _, one := range m.Oneofs {
		if !one.Desc.IsSynthetic() {
			made.Description += "\n\nAt most one of these is set: " + names(one.Fields) + "."
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

// field makes the schema of a field, with its comment and rules.
func (s schemas) field(field *protogen.Field) (*schema, error) {
	var made *schema
	var err error
	switch {
	case field.Desc.IsMap():
		made = &schema{Type: "object"}
		made.AdditionalProperties, err = s.value(field.Message.Fields[1])
	case field.Desc.IsList():
		made = &schema{Type: "array"}
		made.Items, err = s.value(field)
	default:
		made, err = s.value(field)
	}
	if err != nil {
		return nil, err
	}
	made.Description = strings.TrimSpace(describe(field.Comments.Leading) + " " + made.Description)
	return made, constrain(made, field)
}

// value makes the schema of one value of a field.
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
		return s.message(field.Message)
	default:
		return nil, fmt.Errorf("%s: its kind %s is not supported", field.Desc.FullName(), field.Desc.Kind())
	}
}

func (s schemas) enum(e *protogen.Enum) *schema {
	name := string(e.Desc.Name())
	made := &schema{Type: "string", Description: describe(e.Comments.Leading) + "\n"}
	for _, value := range e.Values {
		made.Enum = append(made.Enum, string(value.Desc.Name()))
		made.Description += "\n- `" + string(value.Desc.Name()) + "`: " + describe(value.Comments.Leading)
	}
	s[name] = made
	return schemaRef(name)
}

// wellKnown gives the schema of a type that protojson writes in a form of its own. Its
// description, if it has one, is what comments of fields need not say.
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

// describe makes a text of a comment: its lines one line, its paragraphs kept.
func describe(comment protogen.Comments) string {
	var paragraphs []string
	for paragraph := range strings.SplitSeq(string(comment), "\n\n") {
		if words := strings.Fields(paragraph); len(words) > 0 {
			paragraphs = append(paragraphs, strings.Join(words, " "))
		}
	}
	return strings.Join(paragraphs, "\n\n")
}
