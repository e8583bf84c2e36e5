package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/grpc-ecosystem/grpc-gateway/v2/utilities"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// checkRequest checks a request message that the generated code has decoded. It finds what that
// code ignores: unknown parameters, and ids in the query or body that differ from the path. It also
// sets the mask of an update.
func checkRequest(call *httpCall, request proto.Message) error {
	input := request.ProtoReflect().Descriptor()
	var f faults
	f.checkQuery(call, input)
	f.checkBodyIDs(call, input)
	if err := f.err(); err != nil {
		return err
	}
	if update, ok := request.(*parleyv1.UpdateConversationRequest); ok {
		setUpdateMask(call, update)
	}
	return nil
}

// faults returns the faults of a request that the generated code refused with refusal.
func (c *httpCall) faults(ctx context.Context, refusal *status.Status) *faults {
	f := new(faults)
	if input := inputOf(ctx); input != nil {
		if len(bytes.TrimSpace(c.text)) > 0 {
			switch field := c.bodyField(); field {
			case "", "*":
				f.checkJSON("", c.text, input)
			default:
				f.checkJSON(jsonPath(field), c.text, input.Fields().ByName(protoreflect.Name(field)).Message())
			}
		}
		f.checkQuery(c, input)
		f.checkBodyIDs(c, input)
	}
	if len(f.violations) == 0 {
		f.add(wholeBody, "cannot be decoded: %s", refusal.Message())
	}
	return f
}

// inputOf returns the descriptor of the request message of the call that ctx belongs to, or nil if
// the call is unknown.
func inputOf(ctx context.Context) protoreflect.MessageDescriptor {
	name, _ := runtime.RPCMethod(ctx)
	method := methodOf(name)
	if method == nil {
		return nil
	}
	return method.Input()
}

// methodOf finds a method by its full name "/package.Service/Method". It returns nil if there is
// none.
func methodOf(name string) protoreflect.MethodDescriptor {
	name = strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	method, _ := found.(protoreflect.MethodDescriptor)
	return method
}

// checkPath checks the parameters in the path. Decoded, each may contain any bytes. The id of a conversation must not
// be empty: some calls have an optional conversation_id, and a request for one conversation would become one for all
// conversations of the tenant.
func (f *faults) checkPath(params map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		switch {
		case params[name] == "" && (name == "conversation_id" || name == "conversation.id"):
			f.add(jsonPath(name), "is required")
		case !utf8.ValidString(params[name]):
			f.add(jsonPath(name), "must be UTF-8")
		}
	}
}

// checkQuery checks the parameters in the query.
func (f *faults) checkQuery(call *httpCall, input protoreflect.MessageDescriptor) {
	if len(call.query) == 0 {
		return
	}
	taken := make(map[string]string)
	for _, key := range slices.Sorted(maps.Keys(call.query)) {
		if f.full() {
			return
		}
		f.checkParameter(call, input, key, taken)
	}
}

// checkParameter checks one parameter. taken maps each field, entry of a map and oneof that already
// has a value to the parameter that set it.
func (f *faults) checkParameter(
	call *httpCall, input protoreflect.MessageDescriptor, key string, taken map[string]string,
) {
	name, _, _ := strings.Cut(key, "[")
	index := key[len(name):]
	path, field := fieldAt(input, name)
	if field == nil || index != "" && (!field.IsMap() || !isIndex(index)) {
		f.add(quoteName(key), "is not a parameter: %s", remedy(call, input, field))
		return
	}
	if strings.Contains(index, "\n") { // The generated code would ignore the parameter.
		f.add(jsonPath(path), "cannot have a key with a line break in a query; use gRPC")
		return
	}
	if other, found := taken[path+index]; found {
		f.add(jsonPath(path), "must be given once, but was given as %s and as %s", quoteName(other), quoteName(key))
		return
	}
	taken[path+index] = key
	if inPath, ok := call.params[path]; ok {
		if values := call.query[key]; slices.ContainsFunc(values, func(v string) bool { return v != inPath }) {
			f.add(jsonPath(path), "differs from the one in the path")
		}
		return
	}
	if body := call.bodyField(); body == "*" || path == body || strings.HasPrefix(path, body+".") && body != "" {
		f.add(jsonPath(path), "must be in the JSON body, not in the query")
		return
	}
	if choice := field.ContainingOneof(); choice != nil && !choice.IsSynthetic() {
		if _, found := taken[string(choice.FullName())]; found {
			f.add(jsonPath(path), "must not be set together with another field of %s", choice.Name())
			return
		}
		taken[string(choice.FullName())] = key
	}
	if !utf8.ValidString(key) ||
		slices.ContainsFunc(call.query[key], func(v string) bool { return !utf8.ValidString(v) }) {
		f.add(jsonPath(path), "must be UTF-8")
		return
	}
	// The generated code decides which values are valid.
	alone := url.Values{key: call.query[key]}
	if runtime.PopulateQueryParameters(dynamicpb.NewMessage(input), alone, utilities.NewDoubleArray(nil)) == nil {
		return
	}
	element := field
	if field.IsMap() {
		element = field.MapValue()
	}
	what, _ := expectation(element)
	switch {
	case field.IsMap():
		f.add(jsonPath(path), "must be given once for each key, as in %s[key]=value, and be %s", field.JSONName(), what)
	case field.Message() != nil && !isLeaf(field.Message()):
		f.add(jsonPath(path), "must be given by its fields, as in %s.%s", field.JSONName(), jsonNames(field.Message())[0])
	case !field.IsList() && len(call.query[key]) > 1:
		f.add(jsonPath(path), "must be given once")
	case field.IsList():
		f.add(jsonPath(path), "each value must be %s; %s", what, repeatedly(field))
	default:
		f.add(jsonPath(path), "must be %s", what)
	}
}

// repeatedly says how a query contains the values of a list.
func repeatedly(field protoreflect.FieldDescriptor) string {
	return fmt.Sprintf("give the parameter once for each value, as in %[1]s=…&%[1]s=…", field.JSONName())
}

// isIndex reports whether end, the part of a parameter from its first "[", is one key of a map. The
// generated code silently ignores a parameter with another form.
func isIndex(end string) bool {
	return strings.HasSuffix(end, "]") && strings.Count(end, "[") == 1
}

// remedy says what a call accepts instead of a parameter. field is the one that the parameter names, nil if there is
// none.
func remedy(call *httpCall, input protoreflect.MessageDescriptor, field protoreflect.FieldDescriptor) string {
	if field != nil && field.IsList() {
		return repeatedly(field)
	}
	return parametersOf(call, input)
}

// parametersOf describes which parameters a call accepts in its query.
func parametersOf(call *httpCall, input protoreflect.MessageDescriptor) string {
	body := call.bodyField()
	if body == "*" {
		return "this call accepts a JSON body only"
	}
	var all []string
	for i := range input.Fields().Len() {
		field := input.Fields().Get(i)
		if _, inPath := call.params[string(field.Name())]; !inPath && string(field.Name()) != body {
			all = append(all, field.JSONName())
		}
	}
	if len(all) == 0 {
		return "this call accepts none"
	}
	return "this call accepts " + strings.Join(all, ", ")
}

// fieldAt returns the field that a dotted name leads to, and its path in the names of the protos.
// Each part of the name may be in either spelling. It returns nil if there is no such field.
func fieldAt(message protoreflect.MessageDescriptor, name string) (string, protoreflect.FieldDescriptor) {
	var path []string
	var field protoreflect.FieldDescriptor
	for part := range strings.SplitSeq(name, ".") {
		if message == nil {
			return "", nil
		}
		if field = fieldOf(message, part); field == nil {
			return "", nil
		}
		path = append(path, string(field.Name()))
		message = field.Message()
		if field.Cardinality() == protoreflect.Repeated || message != nil && isLeaf(message) {
			message = nil
		}
	}
	return strings.Join(path, "."), field
}

// checkBodyIDs checks the body for fields whose values differ from the path.
func (f *faults) checkBodyIDs(call *httpCall, input protoreflect.MessageDescriptor) {
	if len(call.text) == 0 {
		return
	}
	for _, param := range slices.Sorted(maps.Keys(call.params)) {
		_, field := fieldAt(input, param)
		if field == nil {
			continue
		}
		camel, snake := field.JSONName(), string(field.Name())
		if !bytes.Contains(call.text, fmt.Appendf(nil, "%q", camel)) &&
			!bytes.Contains(call.text, fmt.Appendf(nil, "%q", snake)) {
			continue // Decoding the body twice is only needed if it contains the name.
		}
		var fields map[string]json.RawMessage
		if json.Unmarshal(call.text, &fields) != nil {
			return // checkJSON reports malformed JSON.
		}
		for _, name := range slices.Compact([]string{camel, snake}) {
			var value string
			if json.Unmarshal(fields[name], &value) == nil && value != "" && value != call.params[param] {
				f.add(jsonPath(param), "differs from the one in the path")
			}
		}
	}
}

// setUpdateMask lets a client read a conversation, change it and send it back completely. Without a
// mask in the query, the mask becomes the fields of the body, except fields that only the server
// sets and fields that are null. A mask in the query may name fields in either spelling. A field
// that is in the mask and not in the body is cleared.
func setUpdateMask(call *httpCall, update *parleyv1.UpdateConversationRequest) {
	conversation := (*parleyv1.Conversation)(nil).ProtoReflect().Descriptor()
	if !call.query.Has("update_mask") && !call.query.Has("updateMask") {
		paths := fieldPaths("", call.text, conversation)
		update.UpdateMask = &fieldmaskpb.FieldMask{Paths: slices.DeleteFunc(paths, isSetByServer)}
		return
	}
	for i, name := range update.GetUpdateMask().GetPaths() {
		if path, field := fieldAt(conversation, strings.TrimSpace(name)); field != nil {
			update.UpdateMask.Paths[i] = path
		}
	}
}

// isSetByServer reports whether clients cannot change the field of a conversation at a path.
func isSetByServer(path string) bool {
	switch field, _, _ := strings.Cut(path, "."); field {
	case "title", "labels", "agent", "system_prompt", "retention":
		return false
	}
	return true
}

// fieldPaths returns the paths of the fields that are set in a JSON message, in the names of the
// protos and with prefix before them. A field that contains a message is represented by the fields
// of that message, so an empty message changes nothing. A field that is null counts as absent.
func fieldPaths(prefix string, text json.RawMessage, message protoreflect.MessageDescriptor) []string {
	var paths []string
	for name, value := range members(text) {
		field := fieldOf(message, name)
		if field == nil || kindOf(value) == kindNull {
			continue
		}
		path := prefix + string(field.Name())
		if m := field.Message(); m != nil && field.Cardinality() != protoreflect.Repeated && !isLeaf(m) {
			paths = append(paths, fieldPaths(path+".", value, m)...)
			continue
		}
		paths = append(paths, path)
	}
	return paths
}
