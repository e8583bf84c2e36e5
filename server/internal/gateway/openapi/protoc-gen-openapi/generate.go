package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
)

const about = `Parley keeps multi-turn conversations, has agents answer them, and tells coordinators what they need to route. This is its gRPC API as JSON over HTTP.

Names are in camelCase; what is sent may be in snake_case too, as the descriptions write it: must_exist is mustExist. Fields that are empty, 0 or false are left out of replies. Integers of 64 bits are strings, bytes are base64.

Streams are JSON lines (application/x-ndjson): a reply is a line. With "Accept: text/event-stream" they are server-sent events.

Errors are a google.rpc.Status as JSON. The descriptions name gRPC's codes; their HTTP statuses are 400 for INVALID_ARGUMENT, FAILED_PRECONDITION and OUT_OF_RANGE, 401 for UNAUTHENTICATED, 403 for PERMISSION_DENIED, 404 for NOT_FOUND, 409 for ALREADY_EXISTS and ABORTED, 413 or 429 for RESOURCE_EXHAUSTED, 499 for CANCELLED, 501 for UNIMPLEMENTED, 503 for UNAVAILABLE, 504 for DEADLINE_EXCEEDED, and 500 for all others.`

// generate makes the document of all calls that have a way, in the same bytes for the same
// input. All calls of a service must have one, or none; every way must lead to a call.
func generate(files []*protogen.File, ways map[string][]binding) ([]byte, error) {
	g := generator{schemas: schemas{}, paths: map[string]map[string]*operation{}}
	g.addFixed()
	left := maps.Clone(ways)
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
			Responses: failures(),
			Headers: map[string]*header{"RetryAfter": {
				Description: "Seconds after which the call may succeed, where the server knows.", Schema: &schema{Type: "integer"},
			}},
		},
	}, "\t")
}

type generator struct {
	schemas schemas
	paths   map[string]map[string]*operation
	tags    []tag
}

// service adds the calls of a service, and takes their ways out of left.
func (g *generator) service(service *protogen.Service, left map[string][]binding) error {
	name := string(service.Desc.Name())
	var without []string
	for _, call := range service.Methods {
		ways := left[string(call.Desc.FullName())]
		delete(left, string(call.Desc.FullName()))
		if len(ways) == 0 {
			without = append(without, call.GoName)
			continue
		}
		for i, way := range ways {
			made, err := g.operation(call, ways, way)
			if err != nil {
				return fmt.Errorf("%s: %w", call.Desc.FullName(), err)
			}
			made.OperationID, made.Tags = call.GoName, []string{name}
			if i > 0 {
				made.OperationID += fmt.Sprint(i + 1)
			}
			if err := g.put(way, made); err != nil {
				return fmt.Errorf("%s: %w", call.Desc.FullName(), err)
			}
		}
	}
	switch len(without) {
	case 0:
		g.tags = append(g.tags, tag{Name: name, Description: describe(service.Comments.Leading)})
	case len(service.Methods): // One for other servers: agents.
	default:
		return fmt.Errorf("%s: calls without a path: %s", service.Desc.FullName(), strings.Join(without, ", "))
	}
	return nil
}

func (g *generator) put(way binding, made *operation) error {
	path := way.path
	for _, field := range way.fields {
		path = strings.Replace(path, "{"+field+"}", "{"+pathName(field)+"}", 1)
	}
	if g.paths[path] == nil {
		g.paths[path] = map[string]*operation{}
	}
	if g.paths[path][way.method] != nil {
		return fmt.Errorf("%s %s leads to two calls", way.method, path)
	}
	g.paths[path][way.method] = made
	return nil
}

// addFixed adds the schemas of what comes with every call, or every stream.
func (g *generator) addFixed() {
	g.schemas["Status"] = &schema{
		Type:        "object",
		Description: "Status says why a call failed: google.rpc.Status.",
		Properties: properties{
			{"code", &schema{Type: "integer", Format: "int32", Description: "A google.rpc.Code."}},
			{"message", &schema{Type: "string", Description: "For people: what went wrong and what to do about it."}},
			{"details", &schema{
				Type:        "array",
				Description: "More for programs: a google.rpc.ErrorInfo, whose reason is a stable upper-snake-case word, and others of google.rpc, such as BadRequest with the fields that are wrong.",
				Items: &schema{
					Type:                 "object",
					Required:             []string{"@type"},
					Properties:           properties{{"@type", &schema{Type: "string", Description: `"type.googleapis.com/google.rpc.ErrorInfo".`}}},
					AdditionalProperties: &schema{},
				},
			}},
		},
	}
	g.schemas["StreamError"] = &schema{
		Type:        "object",
		Description: "StreamError is the last line of a stream that failed after its first.",
		Required:    []string{"error"},
		Properties:  properties{{"error", schemaRef("Status")}},
	}
	g.schemas["EventStream"] = &schema{
		Type: "string",
		Description: "Server-sent events. The data of one is the JSON that would be a line. A stream that fails after its first event " +
			"ends with an event of the type error, whose data is a Status.",
	}
}

// failures are the responses that are not what was asked for. Each is an error that HTTP has
// a word for, and that a client may want to tell from others.
func failures() map[string]*response {
	status := content{"application/json": {Schema: schemaRef("Status")}}
	retryAfter := map[string]*header{"Retry-After": {Ref: "#/components/headers/RetryAfter"}}
	return map[string]*response{
		"BadRequest":  {Description: "The request is malformed or breaks a rule, or the state is not one for it.", Content: status},
		"NotFound":    {Description: "What the request names does not exist.", Content: status},
		"Conflict":    {Description: "It exists already, is at another version, or is busy.", Content: status},
		"TooLarge":    {Description: "The body or a message in it is too large.", Content: status},
		"TooMany":     {Description: "A limit has been reached.", Headers: retryAfter, Content: status},
		"Unavailable": {Description: "The server cannot take the call now.", Headers: retryAfter, Content: status},
		"Error":       {Description: "Any other error.", Content: status},
	}
}
