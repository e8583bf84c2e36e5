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

// checkRequest looks at a message that the generated code has made of a request, for what
// that code passes over: parameters that nobody knows, and ids that the path overrules. It
// is the check of [conn].
func checkRequest(x *exchange, request proto.Message) error {
	input := request.ProtoReflect().Descriptor()
	var f faults
	f.inQuery(x, input)
	f.againstPath(x, input)
	if err := f.err(); err != nil {
		return err
	}
	if update, ok := request.(*parleyv1.UpdateConversationRequest); ok {
		fitMask(x, update)
	}
	return nil
}

// faults searches a request that the generated code has refused.
func (x *exchange) faults(ctx context.Context, refusal *status.Status) *faults {
	f := new(faults)
	if input := inputOf(ctx); input != nil {
		if len(bytes.TrimSpace(x.text)) > 0 {
			switch field := x.bodyField(); field {
			case "", "*":
				f.inJSON("", x.text, input)
			default:
				f.inJSON(field, x.text, input.Fields().ByName(protoreflect.Name(field)).Message())
			}
		}
		f.inQuery(x, input)
		f.againstPath(x, input)
	}
	if len(f.violations) == 0 {
		f.add(wholeBody, "cannot be read: %s", refusal.Message())
	}
	return f
}

// inputOf is the request message of the call that a context belongs to, nil when it is not
// known.
func inputOf(ctx context.Context) protoreflect.MessageDescriptor {
	name, _ := runtime.RPCMethod(ctx)
	method := methodOf(name)
	if method == nil {
		return nil
	}
	return method.Input()
}

// methodOf finds a method by its name on the wire, "/package.Service/Method"; nil when there
// is none.
func methodOf(name string) protoreflect.MethodDescriptor {
	name = strings.ReplaceAll(strings.TrimPrefix(name, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	method, _ := found.(protoreflect.MethodDescriptor)
	return method
}

// inPath searches the parameters in the path, each of which may be any bytes but "/".
func (f *faults) inPath(params map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if !utf8.ValidString(params[name]) {
			f.add(name, "must be UTF-8")
		}
	}
}

// inQuery searches the parameters in the query.
func (f *faults) inQuery(x *exchange, input protoreflect.MessageDescriptor) {
	if len(x.query) == 0 {
		return
	}
	taken := make(map[string]string)
	for _, key := range slices.Sorted(maps.Keys(x.query)) {
		if f.full() {
			return
		}
		f.inParameter(x, input, key, taken)
	}
}

// inParameter checks one parameter. taken maps each field, entry of a map and oneof with a value to
// the parameter that set it.
func (f *faults) inParameter(x *exchange, input protoreflect.MessageDescriptor, key string, taken map[string]string) {
	name, _, _ := strings.Cut(key, "[")
	index := key[len(name):]
	path, field := fieldAt(input, name)
	if field == nil || index != "" && (!field.IsMap() || !isIndex(index)) {
		f.add(plain(key), "is no parameter: %s", parametersOf(x, input))
		return
	}
	if other, found := taken[path+index]; found {
		f.add(path, "must be given once, but was given as %s and as %s", plain(other), plain(key))
		return
	}
	taken[path+index] = key
	if inPath, ok := x.params[path]; ok {
		if values := x.query[key]; slices.ContainsFunc(values, func(v string) bool { return v != inPath }) {
			f.add(path, "differs from the one in the path")
		}
		return
	}
	if body := x.bodyField(); body == "*" || path == body || strings.HasPrefix(path, body+".") && body != "" {
		f.add(path, "goes into the body, which is JSON, and not into the query")
		return
	}
	if choice := field.ContainingOneof(); choice != nil && !choice.IsSynthetic() {
		if _, found := taken[string(choice.FullName())]; found {
			f.add(path, "may not be there beside another of %s", choice.Name())
			return
		}
		taken[string(choice.FullName())] = key
	}
	if !utf8.ValidString(key) || slices.ContainsFunc(x.query[key], func(v string) bool { return !utf8.ValidString(v) }) {
		f.add(path, "must be UTF-8")
		return
	}
	// The generated code knows best what it takes.
	alone := url.Values{key: x.query[key]}
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
		f.add(path, "must be given once for each key, as in %s[key]=value, and be %s", field.JSONName(), what)
	case field.Message() != nil && !isLeaf(field.Message()):
		f.add(path, "must be given by its fields, as in %s.%s", field.JSONName(), names(field.Message())[0])
	case !field.IsList() && len(x.query[key]) > 1:
		f.add(path, "must be given once")
	default:
		f.add(path, "must be %s", what)
	}
}

// isIndex reports whether end, the part of a parameter from its first "[", is one key of a map. The
// generated code silently ignores a parameter with another form.
func isIndex(end string) bool {
	return strings.HasSuffix(end, "]") && strings.Count(end, "[") == 1
}

// parametersOf says which parameters a call takes in its query.
func parametersOf(x *exchange, input protoreflect.MessageDescriptor) string {
	body := x.bodyField()
	if body == "*" {
		return "this call takes all in the body, which is JSON"
	}
	var all []string
	for i := range input.Fields().Len() {
		field := input.Fields().Get(i)
		if _, inPath := x.params[string(field.Name())]; !inPath && string(field.Name()) != body {
			all = append(all, field.JSONName())
		}
	}
	if len(all) == 0 {
		return "this call takes none"
	}
	return "this call takes " + strings.Join(all, ", ")
}

// fieldAt is the field that a name with dots leads to, in either spelling, with its path in
// the names of the protos; nil when it leads nowhere.
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

// againstPath searches the body for fields that are something else in the path.
func (f *faults) againstPath(x *exchange, input protoreflect.MessageDescriptor) {
	if len(x.text) == 0 {
		return
	}
	for _, param := range slices.Sorted(maps.Keys(x.params)) {
		_, field := fieldAt(input, param)
		if field == nil {
			continue
		}
		camel, snake := field.JSONName(), string(field.Name())
		if !bytes.Contains(x.text, fmt.Appendf(nil, "%q", camel)) && !bytes.Contains(x.text, fmt.Appendf(nil, "%q", snake)) {
			continue // Few bodies must be read again.
		}
		var fields map[string]json.RawMessage
		if json.Unmarshal(x.text, &fields) != nil {
			return // That is a fault of its own.
		}
		for _, name := range slices.Compact([]string{camel, snake}) {
			var value string
			if json.Unmarshal(fields[name], &value) == nil && value != "" && value != x.params[param] {
				f.add(param, "differs from the one in the path")
			}
		}
	}
}

// fitMask makes an update of a conversation that a client has read, changed and sent back as a
// whole. Fields that only the server sets, and fields that are null, change nothing. A mask in the
// query may name fields in either spelling. A field that the mask names and the body lacks is
// cleared.
func fitMask(x *exchange, update *parleyv1.UpdateConversationRequest) {
	conversation := (*parleyv1.Conversation)(nil).ProtoReflect().Descriptor()
	if !x.query.Has("update_mask") && !x.query.Has("updateMask") {
		paths := pathsIn("", x.text, conversation)
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

// pathsIn returns the paths of the fields that a message in JSON has, in the names of the protos,
// with prefix before them. A message counts by its fields, so one without fields changes nothing. A
// field that is null counts as absent.
func pathsIn(prefix string, text json.RawMessage, message protoreflect.MessageDescriptor) []string {
	var paths []string
	for name, value := range members(text) {
		field := fieldOf(message, name)
		if field == nil || kindOf(value) == kindNull {
			continue
		}
		path := prefix + string(field.Name())
		if m := field.Message(); m != nil && field.Cardinality() != protoreflect.Repeated && !isLeaf(m) {
			paths = append(paths, pathsIn(path+".", value, m)...)
			continue
		}
		paths = append(paths, path)
	}
	return paths
}
