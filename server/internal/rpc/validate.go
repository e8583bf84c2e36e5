package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxDataDepth is how many lists and objects of structured data may be inside each other.
const maxDataDepth = 16

// invalidError says what is wrong with a request, one violation a fault.
type invalidError struct {
	violations []*errdetails.BadRequest_FieldViolation
}

// Error lists the faults.
func (e *invalidError) Error() string {
	faults := make([]string, len(e.violations))
	for i, v := range e.violations {
		faults[i] = v.GetField() + ": " + v.GetDescription()
	}
	return "invalid request: " + strings.Join(faults, "; ")
}

func (e *invalidError) add(field, format string, args ...any) {
	e.violations = append(e.violations, &errdetails.BadRequest_FieldViolation{
		Field: field, Description: fmt.Sprintf(format, args...),
	})
}

// newRules compiles the rules in the protos. The requests that have some come first; the
// first call of any other compiles nothing worth waiting for.
func newRules() (protovalidate.Validator, error) {
	var requests []protoreflect.MessageDescriptor
	for i := range parleyv1.File_parley_v1_conversation_service_proto.Services().Len() {
		methods := parleyv1.File_parley_v1_conversation_service_proto.Services().Get(i).Methods()
		for j := range methods.Len() {
			requests = append(requests, methods.Get(j).Input())
		}
	}
	return protovalidate.New(protovalidate.WithMessageDescriptors(requests...))
}

func (s *Server) validateUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := s.validate(request); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (s *Server) validateStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == parleyv1.ConversationService_ImportConversations_FullMethodName {
		return handler(srv, stream) // It validates by itself: one invalid request must not end the others.
	}
	return handler(srv, &validStream{ServerStream: stream, server: s})
}

// validStream is a stream whose received messages are valid.
type validStream struct {
	grpc.ServerStream
	server *Server
}

// RecvMsg receives the next message, or an invalidError in its place.
func (s *validStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.server.validate(m)
}

// validate returns an invalidError with everything that is wrong with a request, nil when
// nothing is.
func (s *Server) validate(request any) error {
	m, ok := request.(proto.Message)
	if !ok {
		return nil
	}
	faults := new(invalidError)
	if err := s.rules.Validate(m); err != nil {
		var broken *protovalidate.ValidationError
		if !errors.As(err, &broken) {
			return fmt.Errorf("validate %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
		}
		for _, v := range broken.Violations {
			faults.add(violatedField(v), "%s", violatedRule(v))
		}
	}
	faults.check(m)
	if len(faults.violations) > 0 {
		return faults
	}
	return nil
}

// violatedField is the path of the field that breaks a rule, in the names of the protos.
// A rule over a whole message, which has no path of its own there, has an id whose part
// after the first dot is the field.
func violatedField(v *protovalidate.Violation) string {
	path := protovalidate.FieldPathString(v.Proto.GetField())
	if v.Proto.GetRule() != nil {
		return path
	}
	_, field, _ := strings.Cut(v.Proto.GetRuleId(), ".")
	if path == "" {
		return field
	}
	return path + "." + field
}

// violatedRule says what is wrong with the field.
func violatedRule(v *protovalidate.Violation) string {
	text := v.Proto.GetMessage()
	switch {
	case text == "":
		return "breaks the rule " + v.Proto.GetRuleId()
	case v.Proto.GetRuleId() == "enum.not_in":
		return "is required" // What may not be in an enum is its unspecified value.
	case v.Proto.GetForKey():
		return "key " + text
	case v.Proto.GetRuleId() == "string.pattern":
		return violatedPattern(v.RuleValue.String(), text)
	}
	return text
}

// violatedPattern puts the patterns in the protos into words; any other keeps its text.
func violatedPattern(pattern, text string) string {
	switch pattern {
	case "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$":
		return "must be 1 to 128 of A-Z, a-z, 0-9 and . _ : -, beginning with a letter or a digit"
	case "^[!-~]{0,64}$":
		return "must be at most 64 printable ASCII characters without blanks"
	case "^[0-9]{4}-[0-9]{2}-[0-9]{2}$":
		return "must be a day as in 2026-11-20"
	}
	return text
}

// check finds what rules in the protos cannot.
func (e *invalidError) check(request proto.Message) {
	e.checkDurations("", request.ProtoReflect())
	switch r := request.(type) {
	case *parleyv1.AppendMessagesRequest:
		for i, m := range r.GetMessages() {
			e.checkData(fmt.Sprintf("messages[%d].", i), m.GetStructuredData())
		}
	case *parleyv1.ImportConversationsRequest:
		for i, m := range r.GetMessages() {
			e.checkData(fmt.Sprintf("messages[%d].", i), m.GetStructuredData())
		}
	case *parleyv1.ChatRequest:
		e.checkData("", r.GetStructuredData())
	case *parleyv1.UpdateConversationRequest:
		e.checkMask(r.GetUpdateMask())
	}
}

// checkDurations finds durations that add up to something a rule allows, and yet have no
// form in JSON: 5 s and -7 ns. No list or map of a request has durations in it.
func (e *invalidError) checkDurations(path string, m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Message() == nil || field.IsList() || field.IsMap() {
			return true
		}
		name, inner := path+string(field.Name()), value.Message()
		if d, ok := inner.Interface().(*durationpb.Duration); !ok {
			e.checkDurations(name+".", inner)
		} else if !d.IsValid() {
			e.add(name, "must have seconds within 10,000 years, and less than a second of nanos, with the same sign")
		}
		return true
	})
}

func (e *invalidError) checkData(path string, data []*parleyv1.StructuredData) {
	for i, d := range data {
		if d.GetValue() == nil {
			continue // A rule says that it is required.
		}
		if fault := valueFault(d.GetValue(), 0); fault != "" {
			e.add(fmt.Sprintf("%sstructured_data[%d].value", path, i), "%s", fault)
		}
	}
}

// valueFault says what is wrong with a JSON value inside so many others, "" when nothing.
func valueFault(v *structpb.Value, depth int) string {
	var inner []*structpb.Value
	switch kind := v.GetKind().(type) {
	case nil:
		return "a value in it has no kind: null, number, string, bool, struct or list"
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			return "a number in it is not finite"
		}
		return ""
	case *structpb.Value_StructValue:
		for _, value := range kind.StructValue.GetFields() {
			inner = append(inner, value)
		}
	case *structpb.Value_ListValue:
		inner = kind.ListValue.GetValues()
	default:
		return ""
	}
	if depth == maxDataDepth {
		return fmt.Sprintf("is more than %d levels deep", maxDataDepth)
	}
	for _, value := range inner {
		if fault := valueFault(value, depth+1); fault != "" {
			return fault
		}
	}
	return ""
}

// updatable are the fields that UpdateConversation changes, in the words of its mask.
func updatable() []string {
	return []string{"title", "labels", "agent", "system_prompt", "retention", "retention.max_messages", "retention.ttl"}
}

func (e *invalidError) checkMask(mask *fieldmaskpb.FieldMask) {
	for i, path := range mask.GetPaths() {
		if !slices.Contains(updatable(), path) {
			e.add(fmt.Sprintf("update_mask.paths[%d]", i), "%.64q cannot be updated, only %s can", path, strings.Join(updatable(), ", "))
		}
	}
}
