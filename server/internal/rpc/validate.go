package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/calllog"
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

// Bounds of the memory of requests in decoded form.
const (
	// maxDecodedBytes is the maximum for all large requests together. A decoded request needs up to a
	// hundred times the memory of its encoded form. Small requests are not limited, see
	// [rules.RequestCodec].
	maxDecodedBytes = 2 * rules.MaxDecodedBytes
	// maxDecodeWait is how long a large request waits for others.
	maxDecodeWait = 5 * time.Second
)

// errTooManyLarge means that a large request waited in vain until others have ended.
var errTooManyLarge = errors.New("too many large requests")

// decoder decodes the requests that the codec left in encoded form.
type decoder struct {
	codec   *rules.RequestCodec
	memory  *semaphore.Weighted // bytes of decoded requests
	maxWait time.Duration
}

func newDecoder() *decoder {
	return &decoder{
		codec: rules.NewRequestCodec(), memory: semaphore.NewWeighted(maxDecodedBytes), maxWait: maxDecodeWait,
	}
}

// decode decodes a request if the codec left it in encoded form. It acquires the memory that the decoded request
// needs: from own, if that is not nil and has enough, and otherwise from the limit of large requests. The caller must
// release the memory when the request is no longer used.
func (d *decoder) decode(ctx context.Context, request any, own *semaphore.Weighted) (acquired memory, err error) {
	m, ok := request.(proto.Message)
	if !ok {
		return memory{}, nil
	}
	err = d.codec.Decode(m, func(size int64) error {
		if own != nil && own.TryAcquire(size) {
			acquired = memory{of: own, bytes: size}
			return nil
		}
		timely, cancel := context.WithTimeout(ctx, d.maxWait)
		defer cancel()
		if err := d.memory.Acquire(timely, size); err != nil {
			return cmp.Or(ctx.Err(), errTooManyLarge)
		}
		acquired = memory{of: d.memory, bytes: size}
		return nil
	})
	if deep, ok := errors.AsType[*rules.TooDeepError](err); ok {
		faults := new(invalidError)
		// A request of AppendStream names its fields as one of AppendMessages.
		faults.add(strings.TrimPrefix(deep.Field, "append."), "is more than %d levels deep", rules.MaxDepth)
		err = faults
	} else if errors.Is(err, rules.ErrMalformed) {
		err = &malformedError{name: string(m.ProtoReflect().Descriptor().FullName()), err: err}
	}
	if err != nil {
		acquired.release()
	}
	return acquired, err
}

// memory is memory that was acquired for a decoded request. The zero value is none.
type memory struct {
	of    *semaphore.Weighted
	bytes int64
}

// release returns the memory to its limit. A second call does nothing.
func (m *memory) release() {
	if m.bytes > 0 {
		m.of.Release(m.bytes)
		*m = memory{}
	}
}

// malformedError means that a request is not an encoded message of its type.
type malformedError struct {
	name string // of the type
	err  error
}

// Error returns a text with the type of the message.
func (e *malformedError) Error() string { return fmt.Sprintf("request is not a %s: %v", e.name, e.err) }

// Unwrap returns the cause.
func (e *malformedError) Unwrap() error { return e.err }

func malformedRequest(e *malformedError, _ subject) refusal {
	return refuse(codes.InvalidArgument, "INVALID_REQUEST",
		"the request is not an encoded %s; encode it with the protos of this API", e.name)
}

// validateUnary decodes the request if it is large, and validates it.
func (s *Server) validateUnary(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	acquired, err := s.requests.decode(ctx, request, nil)
	if err != nil {
		return nil, err
	}
	defer acquired.release()
	if err := validate(request); err != nil {
		calllog.Of(ctx).Refused(request)
		return nil, err
	}
	return handler(ctx, request)
}

// validateStream decodes the requests of a stream if they are large, and validates them.
func (s *Server) validateStream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if info.FullMethod == parleyv1.ConversationService_AppendStream_FullMethodName {
		return handler(srv, stream) // It handles many requests at a time, see streamedAppends.
	}
	validated := &validatedStream{
		ServerStream: stream, requests: s.requests,
		// The handler of an import validates: an invalid request must not end the import.
		decodeOnly: info.FullMethod == parleyv1.ConversationService_ImportConversations_FullMethodName,
	}
	defer validated.acquired.release()
	return handler(srv, validated)
}

// validatedStream is a stream that decodes and validates the messages that it receives.
type validatedStream struct {
	grpc.ServerStream

	requests   *decoder
	decodeOnly bool
	acquired   memory // of the last request; the handler, which receives and sends, owns it
}

// RecvMsg receives the next message. It returns an invalidError if the message is invalid.
func (s *validatedStream) RecvMsg(m any) error {
	s.acquired.release() // The handler has finished the previous request.
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	var err error
	if s.acquired, err = s.requests.decode(s.Context(), m, nil); err != nil || s.decodeOnly {
		return err
	}
	if err = validateApart(m); err != nil {
		calllog.Of(s.Context()).Refused(m)
		return err
	}
	calllog.Of(s.Context()).Accepted(m)
	return nil
}

// validateApart is like validate, in another goroutine. Validation needs a stack of 16 KiB, which the goroutine of a
// stream would keep as long as the stream lasts. Without validation, 8 KiB are enough for it.
func validateApart(request any) error {
	result := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				result <- panicError(p)
			}
		}()
		result <- validate(request)
	}()
	return <-result
}

// SendMsg sends a message. When a handler sends its first one, it no longer uses its request, so the memory is
// available to other requests. A Chat that waits in a queue sends its position first; package turn holds a copy of its
// request and limits the memory of these copies.
func (s *validatedStream) SendMsg(m any) error {
	s.acquired.release()
	return s.ServerStream.SendMsg(m)
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

// Paths of update masks.
const (
	maxMessagesPath = "retention.max_messages"
	ttlPath         = "retention.ttl"
	keepAllPath     = "retention.keep_all"
	noExpiryPath    = "retention.no_expiry"
	noEvictionPath  = "retention.no_eviction"
	maxTurnsPath    = "retention.max_turns"
)

// retentionIn returns the fields of the retention in c that a server may forbid, as far as fields names them.
func retentionIn(fields []string, c *parleyv1.Conversation) *parleyv1.Retention {
	of := c.GetRetention()
	return &parleyv1.Retention{
		KeepAll:    of.GetKeepAll() && slices.Contains(fields, keepAllPath),
		NoExpiry:   of.GetNoExpiry() && slices.Contains(fields, noExpiryPath),
		NoEviction: of.GetNoEviction() && slices.Contains(fields, noEvictionPath),
	}
}

// updateFields returns the fields to change: those of the update mask, or all fields that are set if
// the mask is empty.
func updateFields(r *parleyv1.UpdateConversationRequest) []string {
	var fields []string
	for _, path := range r.GetUpdateMask().GetPaths() {
		if path == "retention" {
			fields = append(fields, maxMessagesPath, ttlPath, keepAllPath, noExpiryPath, noEvictionPath, maxTurnsPath)
			continue
		}
		fields = append(fields, path)
	}
	if len(fields) > 0 {
		return fields
	}
	c := r.GetConversation()
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"title", c.GetTitle() != ""},
		{"labels", len(c.GetLabels()) > 0},
		{"agent", c.GetAgent() != ""},
		{"system_prompt", c.GetSystemPrompt() != ""},
		{maxMessagesPath, c.GetRetention().GetMaxMessages() != 0},
		{ttlPath, c.GetRetention().GetTtl() != nil},
		{keepAllPath, c.GetRetention().GetKeepAll()},
		{noExpiryPath, c.GetRetention().GetNoExpiry()},
		{noEvictionPath, c.GetRetention().GetNoEviction()},
		{maxTurnsPath, c.GetRetention().GetMaxTurns() != 0},
	} {
		if field.set {
			fields = append(fields, field.name)
		}
	}
	return fields
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
