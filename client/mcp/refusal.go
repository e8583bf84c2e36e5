package mcp

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// refusal is the gRPC status of a failed call to the Parley server.
type refusal struct {
	status    *status.Status
	info      *errdetails.ErrorInfo // nil if the error does not come from the server
	bad       []*errdetails.BadRequest_FieldViolation
	retryable bool
}

// refusalOf returns the refusal in err, or nil if err has no gRPC status.
func refusalOf(err error) *refusal {
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return nil
	}
	r := &refusal{status: carrier.GRPCStatus()}
	r.retryable = r.status.Code() == codes.Unavailable
	for _, detail := range r.status.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			r.info = d
		case *errdetails.BadRequest:
			r.bad = d.GetFieldViolations()
		case *errdetails.RetryInfo:
			r.retryable = true
		}
	}
	return r
}

// faults returns the faults of the arguments. There are none if the call would also fail with other arguments.
func (r *refusal) faults() []fault {
	message := r.status.Message()
	switch r.info.GetReason() {
	case "CONVERSATION_NOT_FOUND":
		return []fault{{"conversation_id", message + "; list_conversations returns the existing ones"}}
	case "MESSAGE_TOO_LARGE":
		return []fault{{"question", message}}
	case "AGENT_NOT_CONFIGURED":
		return []fault{{"agent", message + "; use one of these: " + r.info.GetMetadata()["known_agents"]}}
	}
	var faults []fault
	for _, violation := range r.bad {
		name := violation.GetField()
		if name == "content" {
			name = "question"
		}
		faults = append(faults, fault{name, violation.GetDescription()})
	}
	return faults
}

// text returns the message of the error and what to do, in the terms of the tools.
func (r *refusal) text() string {
	message, code := r.status.Message(), r.status.Code()
	switch reason := r.info.GetReason(); {
	case reason == "CONVERSATION_BUSY":
		return fmt.Sprintf("turn %s of this conversation is running; try again when it has ended (%s)",
			r.info.GetMetadata()["active_turn_id"], reason)
	case reason == "UNAUTHENTICATED":
		return fmt.Sprintf("%s; parley mcp takes a token from --token-file, PARLEY_TOKEN_FILE or PARLEY_TOKEN (%s)",
			message, reason)
	case reason != "":
		return message + " (" + reason + ")"
	case code == codes.Unavailable:
		return "the Parley server cannot be reached; check that it is running and that the address is correct: " + message
	case code == codes.DeadlineExceeded:
		return "the Parley server did not reply in time"
	default:
		return message + " (" + code.String() + ")"
	}
}

func (r *refusal) data() errorData {
	code := r.status.Code().String()
	data := errorData{Reason: strings.ToUpper(code), Status: code, Retryable: r.retryable}
	if r.info != nil {
		data.Reason, data.Metadata = r.info.GetReason(), r.info.GetMetadata()
	}
	return data
}
