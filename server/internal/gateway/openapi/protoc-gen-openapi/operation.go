package main

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	oneJSON = "application/json"
	lines   = "application/x-ndjson"
	events  = "text/event-stream"
)

// operation returns the operation of binding b of a call, without its id and tags. bindings are all
// bindings of the call.
func (g *generator) operation(call *protogen.Method, bindings []binding, b binding) (*operation, error) {
	op := &operation{Responses: map[string]*response{
		"400": responseRef("BadRequest"), "429": responseRef("TooMany"), "503": responseRef("Unavailable"),
		"default": responseRef("Error"),
	}}
	op.Summary, op.Description = headline(describe(call.Comments.Leading))
	var err error
	if op.Parameters, err = g.parameters(call, b); err != nil {
		return nil, err
	}
	if op.RequestBody, err = g.body(call, bindings, b); err != nil {
		return nil, err
	}
	if op.RequestBody != nil {
		op.Responses["413"] = responseRef("TooLarge")
	}
	if slices.ContainsFunc(bindings, func(b binding) bool { return len(b.fields) > 0 }) {
		op.Responses["404"] = responseRef("NotFound")
	}
	if lookup(call.Input, "request_id") != nil || lookup(call.Input, "if_version") != nil {
		op.Responses["409"] = responseRef("Conflict")
	}
	return op, g.addReply(op, call)
}

// addReply describes the response of a successful call.
func (g *generator) addReply(op *operation, call *protogen.Method) error {
	reply, err := g.schemas.message(call.Output)
	if err != nil {
		return err
	}
	ok := &response{Description: describe(call.Output.Comments.Leading), Content: content{oneJSON: {Schema: reply}}}
	inLines := content{lines: {Schema: &schema{AnyOf: []*schema{reply, schemaRef("StreamError")}}}}
	switch {
	case call.Desc.IsStreamingServer() && call.Desc.IsStreamingClient():
		ok.Description, ok.Content = "One per line: "+ok.Description, inLines
	case call.Desc.IsStreamingServer():
		inLines[events] = mediaType{Schema: schemaRef("EventStream")}
		ok.Description, ok.Content = "One per line or event: "+ok.Description, inLines
		op.Responses["204"] = &response{
			Description: "Instead of server-sent events: the stream has ended without an event. " +
				"An EventSource does not reconnect.",
		}
	}
	op.Responses["200"] = ok
	return nil
}

// parameters returns the parameters of the path and the query, and the header that resumes a
// stream.
func (g *generator) parameters(call *protogen.Method, b binding) ([]*parameter, error) {
	var all []*parameter
	for _, name := range b.fields {
		field := lookup(call.Input, name)
		if field == nil {
			return nil, fmt.Errorf("%s: %s has no field %s", b.path, call.Input.Desc.Name(), name)
		}
		of, err := g.schemas.field(field)
		if err != nil {
			return nil, err
		}
		all = append(all, inParameter("path", pathName(name), of, true))
	}
	if b.body != "*" {
		skip := append(slices.Clone(b.fields), b.body)
		query, err := g.query(call.Input, "", "", skip)
		if err != nil {
			return nil, err
		}
		all = append(all, query...)
	}
	if field := lookup(call.Input, "overwrite"); field != nil && call.Desc.IsStreamingClient() {
		of, err := g.schemas.field(field)
		if err != nil {
			return nil, err
		}
		of.Description = "Replaces the value in each line: " + of.Description
		all = append(all, inParameter("query", "overwrite", of, false))
	}
	if text := lastEventIDUse(call); text != "" {
		all = append(all, &parameter{Name: "Last-Event-ID", In: "header", Description: text, Schema: &schema{Type: "string"}})
	}
	return all, nil
}

// query returns the parameters for the fields of a message, except those in skip, which contains
// dotted names. A field of an inner message is "window.maxBytes"; an entry of a map is
// "labels[key]".
func (g *generator) query(m *protogen.Message, prefix, jsonPrefix string, skip []string) ([]*parameter, error) {
	var all []*parameter
	for _, field := range m.Fields {
		name, jsonName := prefix+string(field.Desc.Name()), jsonPrefix+field.Desc.JSONName()
		if slices.Contains(skip, name) {
			continue
		}
		if inner := field.Message; inner != nil && !field.Desc.IsMap() {
			if _, known := wellKnown(inner.Desc.FullName()); !known {
				fields, err := g.query(inner, name+".", jsonName+".", skip)
				if err != nil {
					return nil, err
				}
				all = append(all, fields...)
				continue
			}
		}
		of, err := g.schemas.field(field)
		if err != nil {
			return nil, err
		}
		p := inParameter("query", jsonName, of, isRequired(field))
		if field.Desc.IsMap() {
			p.Style, p.Explode = "deepObject", true
		}
		all = append(all, p)
	}
	return all, nil
}

func inParameter(in, name string, of *schema, required bool) *parameter {
	p := &parameter{Name: name, In: in, Description: of.Description, Required: required, Schema: of}
	of.Description = "" // The parameter contains it.
	return p
}

// body describes the body: the request without the fields that are in the path of every binding of
// the call, or one field of the request. It returns nil if that leaves no field.
func (g *generator) body(call *protogen.Method, bindings []binding, b binding) (*body, error) {
	sent := call.Input
	var described *body
	var inPath []protoreflect.Name
	switch b.body {
	case "":
		return nil, nil
	case "*":
		described = &body{Description: describe(sent.Comments.Leading)}
		for _, name := range b.fields {
			if slices.ContainsFunc(bindings, func(other binding) bool { return !slices.Contains(other.fields, name) }) {
				described.Description += " " + name + " must equal the one in the path."
			} else {
				inPath = append(inPath, protoreflect.Name(name))
			}
		}
		if len(inPath) == len(sent.Fields) {
			return nil, nil
		}
	default:
		field := lookup(sent, b.body)
		if field == nil || field.Message == nil {
			return nil, fmt.Errorf("body: %s has no message %s", sent.Desc.Name(), b.body)
		}
		described, sent = &body{Description: describe(field.Comments.Leading)}, field.Message
	}
	form := oneJSON
	if call.Desc.IsStreamingClient() {
		described.Description, form = "One per line: "+described.Description, lines
	}
	of, err := g.schemas.message(sent, inPath...)
	described.Required, described.Content = true, content{form: {Schema: of}}
	return described, err
}

// lastEventIDUse describes what Last-Event-ID does in a call. It returns "" if the call ignores the
// header.
func lastEventIDUse(call *protogen.Method) string {
	switch call.GoName {
	case "Chat":
		return "With text/event-stream and a request_id: resume after this event, whose id is its index."
	case "ResumeTurn":
		return "With text/event-stream: the id of the last event received; replaces after_index."
	case "WatchConversations":
		return "With text/event-stream: the id of the last event received; replaces cursor."
	default:
		return ""
	}
}

// lookup returns the field with a dotted name, or nil if there is none.
func lookup(m *protogen.Message, name string) *protogen.Field {
	first, rest, deeper := strings.Cut(name, ".")
	for _, field := range m.Fields {
		switch {
		case string(field.Desc.Name()) != first:
		case !deeper:
			return field
		case field.Message != nil:
			return lookup(field.Message, rest)
		}
	}
	return nil
}

// pathName returns the name of a parameter in the path: "conversationId" for both conversation_id
// and conversation.id, since all methods of one path use the same name.
func pathName(field string) string {
	words := strings.FieldsFunc(field, func(r rune) bool { return r == '_' || r == '.' })
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

// headline splits a text into its first sentence and the rest.
func headline(text string) (first, rest string) {
	if at := strings.Index(text, ". "); at >= 0 {
		return text[:at+1], strings.TrimSpace(text[at+1:])
	}
	return text, ""
}
