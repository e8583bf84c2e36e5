package agui

import (
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/server/internal/gateway"
)

// maxFaults is the maximum number of faults of a kind in an error. Others are not collected: a body can have millions.
const maxFaults = 100

// faults collects what is wrong with a request, by field.
type faults struct {
	invalid     []*errdetails.BadRequest_FieldViolation
	unsupported []*errdetails.BadRequest_FieldViolation
}

// add adds a fault of a field.
func (f *faults) add(field, why string) { f.invalid = withFault(f.invalid, field, why) }

// isFull reports whether no more faults are collected, so that the rest of a list need not be decoded.
func (f *faults) isFull() bool { return len(f.invalid) >= maxFaults }

// unsupport adds a field that the protocol has and the server does not support.
func (f *faults) unsupport(field, why string) { f.unsupported = withFault(f.unsupported, field, why) }

func withFault(
	fields []*errdetails.BadRequest_FieldViolation, field, why string,
) []*errdetails.BadRequest_FieldViolation {
	if len(fields) >= maxFaults {
		return fields
	}
	return append(fields, &errdetails.BadRequest_FieldViolation{Field: field, Description: why})
}

// err returns the error with all faults, which is a status, or nil if there is none.
func (f *faults) err() error {
	switch {
	case len(f.invalid) > 0:
		return statusOf(codes.InvalidArgument, "INVALID_REQUEST", "invalid request", f.invalid).Err()
	case len(f.unsupported) > 0:
		return statusOf(codes.Unimplemented, "UNSUPPORTED", "not supported", f.unsupported).Err()
	}
	return nil
}

// statusOf returns a status that names fields.
func statusOf(
	code codes.Code, reason, about string, fields []*errdetails.BadRequest_FieldViolation,
) *status.Status {
	slices.SortStableFunc(fields, func(a, b *errdetails.BadRequest_FieldViolation) int {
		return strings.Compare(a.GetField(), b.GetField())
	})
	fields = fields[:min(len(fields), maxFaults)]
	texts := make([]string, len(fields))
	for i, v := range fields {
		texts[i] = v.GetField() + ": " + v.GetDescription()
	}
	return gateway.NewStatus(code, reason, about+": "+strings.Join(texts, "; "),
		&errdetails.BadRequest{FieldViolations: fields})
}

// rename returns an error of a call in which the fields have the names that they have in the request.
func (c *request) rename(err error) error {
	st := status.Convert(err)
	for _, detail := range st.Details() {
		bad, ok := detail.(*errdetails.BadRequest)
		if !ok || gateway.Reason(st) != "INVALID_REQUEST" || len(bad.GetFieldViolations()) == 0 {
			continue
		}
		fields := make([]*errdetails.BadRequest_FieldViolation, 0, len(bad.GetFieldViolations()))
		for _, v := range bad.GetFieldViolations() {
			fields = append(fields, &errdetails.BadRequest_FieldViolation{
				Field: c.fieldName(v.GetField()), Description: v.GetDescription(),
			})
		}
		return statusOf(st.Code(), "INVALID_REQUEST", "invalid request", fields).Err()
	}
	return err
}

// fieldName returns the name in the request of a field of the call that was made for it.
func (c *request) fieldName(field string) string {
	switch field {
	case "conversation_id":
		return threadIDParameter
	case "request_id":
		return runIDParameter
	}
	for _, part := range c.parts {
		if rest, ok := strings.CutPrefix(field, part.called); ok {
			return part.named + rest
		}
	}
	return field
}

// part maps the beginning of the names of fields of a call to that of the names in the request.
type part struct{ called, named string }
