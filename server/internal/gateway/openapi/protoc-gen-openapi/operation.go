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

// operation describes one of the ways to a call, all but its name.
func (g *generator) operation(call *protogen.Method, ways []binding, way binding) (*operation, error) {
	made := &operation{Responses: map[string]*response{
		"400": responseRef("BadRequest"), "429": responseRef("TooMany"), "503": responseRef("Unavailable"), "default": responseRef("Error"),
	}}
	made.Summary, made.Description = headline(describe(call.Comments.Leading))
	var err error
	if made.Parameters, err = g.parameters(call, way); err != nil {
		return nil, err
	}
	if made.RequestBody, err = g.body(call, ways, way); err != nil {
		return nil, err
	}
	if made.RequestBody != nil {
		made.Responses["413"] = responseRef("TooLarge")
	}
	if slices.ContainsFunc(ways, func(b binding) bool { return len(b.fields) > 0 }) {
		made.Responses["404"] = responseRef("NotFound")
	}
	if lookup(call.Input, "request_id") != nil || lookup(call.Input, "if_version") != nil {
		made.Responses["409"] = responseRef("Conflict")
	}
	return made, g.addReply(made, call)
}

// addReply describes what comes back when all is well.
func (g *generator) addReply(made *operation, call *protogen.Method) error {
	reply, err := g.schemas.message(call.Output)
	if err != nil {
		return err
	}
	ok := &response{Description: describe(call.Output.Comments.Leading), Content: content{oneJSON: {Schema: reply}}}
	if call.Desc.IsStreamingServer() {
		ok.Description = "One a line, or an event: " + ok.Description
		ok.Content = content{
			lines:  {Schema: &schema{AnyOf: []*schema{reply, schemaRef("StreamError")}}},
			events: {Schema: schemaRef("EventStream")},
		}
		made.Responses["204"] = &response{Description: "Instead of server-sent events: there is nothing to send, and will not be. An EventSource stays closed."}
	}
	made.Responses["200"] = ok
	return nil
}

// parameters are the fields of the path, those of the query, and the header that resumes.
func (g *generator) parameters(call *protogen.Method, way binding) ([]*parameter, error) {
	var made []*parameter
	for _, name := range way.fields {
		field := lookup(call.Input, name)
		if field == nil {
			return nil, fmt.Errorf("%s: %s has no field %s", way.path, call.Input.Desc.Name(), name)
		}
		of, err := g.schemas.field(field)
		if err != nil {
			return nil, err
		}
		made = append(made, inParameter("path", pathName(name), of, true))
	}
	if way.body != "*" {
		taken := append(slices.Clone(way.fields), way.body)
		query, err := g.query(call.Input, "", "", taken)
		if err != nil {
			return nil, err
		}
		made = append(made, query...)
	}
	if field := lookup(call.Input, "overwrite"); field != nil && call.Desc.IsStreamingClient() {
		of, err := g.schemas.field(field)
		if err != nil {
			return nil, err
		}
		of.Description = "Instead of what each line says: " + of.Description
		made = append(made, inParameter("query", "overwrite", of, false))
	}
	if text := resuming(call); text != "" {
		made = append(made, &parameter{Name: "Last-Event-ID", In: "header", Description: text, Schema: &schema{Type: "string"}})
	}
	return made, nil
}

// query makes parameters of the fields of a message, but for those that are taken, which are
// dotted names. Those of a message within are "window.maxBytes"; of a map, "labels[key]".
func (g *generator) query(m *protogen.Message, prefix, jsonPrefix string, taken []string) ([]*parameter, error) {
	var made []*parameter
	for _, field := range m.Fields {
		name, jsonName := prefix+string(field.Desc.Name()), jsonPrefix+field.Desc.JSONName()
		if slices.Contains(taken, name) {
			continue
		}
		if inner := field.Message; inner != nil && !field.Desc.IsMap() {
			if _, known := wellKnown(inner.Desc.FullName()); !known {
				fields, err := g.query(inner, name+".", jsonName+".", taken)
				if err != nil {
					return nil, err
				}
				made = append(made, fields...)
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
		made = append(made, p)
	}
	return made, nil
}

func inParameter(in, name string, of *schema, required bool) *parameter {
	p := &parameter{Name: name, In: in, Description: of.Description, Required: required, Schema: of}
	of.Description = "" // The parameter has it.
	return p
}

// body describes what is sent: the request without the fields that every way to the call has
// in its path, or one field of it. It is nil when that leaves nothing to send.
func (g *generator) body(call *protogen.Method, ways []binding, way binding) (*body, error) {
	sent := call.Input
	var made *body
	var inPath []protoreflect.Name
	switch way.body {
	case "":
		return nil, nil
	case "*":
		made = &body{Description: describe(sent.Comments.Leading)}
		for _, name := range way.fields {
			if slices.ContainsFunc(ways, func(b binding) bool { return !slices.Contains(b.fields, name) }) {
				made.Description += " " + name + " is that of the path."
			} else {
				inPath = append(inPath, protoreflect.Name(name))
			}
		}
		if len(inPath) == len(sent.Fields) {
			return nil, nil
		}
	default:
		field := lookup(sent, way.body)
		if field == nil || field.Message == nil {
			return nil, fmt.Errorf("body: %s has no message %s", sent.Desc.Name(), way.body)
		}
		made, sent = &body{Description: describe(field.Comments.Leading)}, field.Message
	}
	form := oneJSON
	if call.Desc.IsStreamingClient() {
		made.Description, form = "One a line: "+made.Description, lines
	}
	of, err := g.schemas.message(sent, inPath...)
	made.Required, made.Content = true, content{form: {Schema: of}}
	return made, err
}

// resuming says what Last-Event-ID means to a call, "" if nothing.
func resuming(call *protogen.Method) string {
	switch call.GoName {
	case "Chat":
		return "With text/event-stream and a request_id: go on behind this event, whose id was its index."
	case "ResumeTurn":
		return "With text/event-stream: instead of after_index, the id of the last event received."
	case "WatchConversations":
		return "With text/event-stream: instead of cursor, the id of the last event received."
	default:
		return ""
	}
}

// lookup finds a field by its dotted name, nil when there is none.
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

// pathName is the name of a path's parameter: "conversationId" for both conversation_id and
// conversation.id, since one path has one name for it, whatever the method.
func pathName(field string) string {
	words := strings.FieldsFunc(field, func(r rune) bool { return r == '_' || r == '.' })
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

// headline parts the first sentence from the rest.
func headline(text string) (first, rest string) {
	if at := strings.Index(text, ". "); at >= 0 {
		return text[:at+1], strings.TrimSpace(text[at+1:])
	}
	return text, ""
}
