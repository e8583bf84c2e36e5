package rpc

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
)

// invalidError contains the faults of an invalid request.
type invalidError struct {
	violations []*errdetails.BadRequest_FieldViolation
}

// Error returns the fields with their faults.
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

func validateUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := validate(request); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func validateStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if info.FullMethod == parleyv1.ConversationService_ImportConversations_FullMethodName {
		return handler(srv, stream) // The handler validates: an invalid request must not end the import.
	}
	return handler(srv, &validatedStream{stream})
}

// validatedStream is a stream that validates the messages that it receives.
type validatedStream struct{ grpc.ServerStream }

// RecvMsg receives the next message. It returns an invalidError if the message is invalid.
func (s *validatedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return validate(m)
}

// validate returns an invalidError with all faults of a request, or nil if the request is valid.
func validate(request any) error {
	m, ok := request.(proto.Message)
	if !ok {
		return nil
	}
	broken, err := rules.Check(m)
	if err != nil {
		return err
	}
	faults := new(invalidError)
	for _, fault := range broken {
		faults.add(fault.Field, "%s", fault.Rule)
	}
	if len(faults.violations) > 0 {
		return faults
	}
	return nil
}

// tooLargeError means that a message of a request exceeds Options.MaxMessageBytes.
type tooLargeError struct {
	message     string // path in the request: "messages[3]"
	size, limit int    // bytes in encoded form
}

// Error returns the size, the limit and a remedy.
func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%s has %d bytes in encoded form, the limit is %d; "+
		"shorten it, or store its data elsewhere and attach a reference", e.message, e.size, e.limit)
}
