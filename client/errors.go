package client

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// Reason returns the stable upper-snake-case word with which the server says why a call
// failed, such as "CONVERSATION_NOT_FOUND" or "VERSION_MISMATCH". It is empty when err is nil
// or was not made by a Parley server: no connection, a deadline, a message over the size
// limit. err may be wrapped; [status.Code] gives its gRPC code.
func Reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "parley" {
			return info.GetReason()
		}
	}
	return ""
}
