package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
)

const about = `Parley stores multi-turn conversations, lets agents answer them, and returns to coordinators the information that they need for routing. This is its gRPC API as JSON over HTTP.

Names are in camelCase; requests may also use snake_case, as the descriptions do: must_exist is mustExist. Fields that are empty, 0 or false are omitted from replies. Integers of 64 bits are strings; bytes are base64.

Ids in paths and queries are percent-encoded: the conversation app/1 is /v1/conversations/app%2F1.

Streams are JSON lines (application/x-ndjson), one reply a line. With "Accept: text/event-stream" they are server-sent events.

Errors are a google.rpc.Status as JSON. The descriptions use the codes of gRPC; their HTTP statuses are 400 for INVALID_ARGUMENT, FAILED_PRECONDITION and OUT_OF_RANGE, 401 for UNAUTHENTICATED, 403 for PERMISSION_DENIED, 404 for NOT_FOUND, 409 for ALREADY_EXISTS and ABORTED, 413 or 429 for RESOURCE_EXHAUSTED, 499 for CANCELLED, 501 for UNIMPLEMENTED, 503 for UNAVAILABLE, 504 for DEADLINE_EXCEEDED, and 500 for all others.`

// generate returns the document of all calls that have bindings. The output depends only on the
// input. Either all calls of a service have bindings or none, and each binding must belong to a
// call.
func generate(files []*protogen.File, bindings map[string][]binding) ([]byte, error) {
	g := generator{schemas: schemas{}, paths: map[string]map[string]*operation{}}
	g.addFixed()
	left := maps.Clone(bindings)
	for _, file := range files {
		for _, service := range file.Services {
			if err := g.service(service, left); err != nil {
				return nil, err
			}
		}
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("paths without a call: %s", strings.Join(slices.Sorted(maps.Keys(left)), ", "))
	}
	return encode(document{
		OpenAPI: "3.1.0",
		Info: info{
			Title: "Parley", Version: "v1", Description: about,
			License: map[string]string{"name": "Apache License 2.0", "identifier": "Apache-2.0"},
		},
		Tags:  g.tags,
		Paths: g.paths,
		Components: components{
			Schemas:   g.schemas,
			Responses: errorResponses(),
			Headers: map[string]*header{"RetryAfter": {
				Description: "Seconds after which a retry may succeed, if known.", Schema: &schema{Type: "integer"},
			}},
		},
	}, "\t")
}

type generator struct {
	schemas schemas
	paths   map[string]map[string]*operation
	tags    []tag
}

// service adds the calls of a service and deletes their bindings from left.
func (g *generator) service(service *protogen.Service, left map[string][]binding) error {
	name := string(service.Desc.Name())
	var without []string
	for _, call := range service.Methods {
		bindings := left[string(call.Desc.FullName())]
		delete(left, string(call.Desc.FullName()))
		if len(bindings) == 0 {
			without = append(without, call.GoName)
			continue
		}
		for i, b := range bindings {
			op, err := g.operation(call, bindings, b)
			if err != nil {
				return fmt.Errorf("%s: %w", call.Desc.FullName(), err)
			}
			op.OperationID, op.Tags = call.GoName, []string{name}
			if i > 0 {
				op.OperationID += fmt.Sprint(i + 1)
			}
			if err := g.addOperation(b, op); err != nil {
				return fmt.Errorf("%s: %w", call.Desc.FullName(), err)
			}
		}
	}
	switch len(without) {
	case 0:
		g.tags = append(g.tags, tag{Name: name, Description: describe(service.Comments.Leading)})
	case len(service.Methods): // The service is not served over HTTP: the AgentService.
	default:
		return fmt.Errorf("%s: calls without a path: %s", service.Desc.FullName(), strings.Join(without, ", "))
	}
	return nil
}

func (g *generator) addOperation(b binding, op *operation) error {
	path := b.path
	for _, field := range b.fields {
		path = strings.Replace(path, "{"+field+"}", "{"+pathName(field)+"}", 1)
	}
	if g.paths[path] == nil {
		g.paths[path] = map[string]*operation{}
	}
	if g.paths[path][b.method] != nil {
		return fmt.Errorf("%s %s leads to two calls", b.method, path)
	}
	g.paths[path][b.method] = op
	return nil
}

// addFixed adds the schemas that do not come from the protos: those of errors and of event streams.
func (g *generator) addFixed() {
	g.schemas["Status"] = &schema{
		Type:        "object",
		Description: "Status describes why a call failed: google.rpc.Status.",
		Properties: properties{
			{"code", &schema{Type: "integer", Format: "int32", Description: "A google.rpc.Code."}},
			{"message", &schema{Type: "string", Description: "For people: what went wrong and what to do."}},
			{"details", &schema{
				Type: "array",
				Description: "For programs: a google.rpc.ErrorInfo, whose reason is a stable upper-snake-case word, and other " +
					"messages of google.rpc, for example BadRequest with the fields that are wrong.",
				Items: &schema{
					Type:     "object",
					Required: []string{"@type"},
					Properties: properties{
						{"@type", &schema{Type: "string", Description: `"type.googleapis.com/google.rpc.ErrorInfo".`}},
					},
					AdditionalProperties: &schema{},
				},
			}},
		},
	}
	g.schemas["StreamError"] = &schema{
		Type:        "object",
		Description: "StreamError is the last line of a stream that failed after its first line.",
		Required:    []string{"error"},
		Properties:  properties{{"error", schemaRef("Status")}},
	}
	g.schemas["EventStream"] = &schema{
		Type: "string",
		Description: "Server-sent events. The data of each event is the JSON of a line. A stream that fails after its " +
			"first event ends with an event of type error, whose data is a Status.",
	}
}

// errorResponses returns the responses for errors. Each is an error that HTTP has a status for and
// that a client may handle differently from others.
func errorResponses() map[string]*response {
	status := content{"application/json": {Schema: schemaRef("Status")}}
	retryAfter := map[string]*header{"Retry-After": {Ref: "#/components/headers/RetryAfter"}}
	return map[string]*response{
		"BadRequest": {
			Description: "The request is malformed, breaks a rule, or is not valid in the current state.", Content: status,
		},
		"NotFound":    {Description: "A resource that the request names does not exist.", Content: status},
		"Conflict":    {Description: "The resource already exists, has another version, or is busy.", Content: status},
		"TooLarge":    {Description: "The body or a message in it is too large.", Content: status},
		"TooMany":     {Description: "A limit is reached.", Headers: retryAfter, Content: status},
		"Unavailable": {Description: "The server cannot handle the call now.", Headers: retryAfter, Content: status},
		"Error":       {Description: "Any other error.", Content: status},
	}
}
