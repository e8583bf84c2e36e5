package client

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// Reason returns the reason of an error from a Parley server. A reason is a stable word in upper
// snake case, such as "CONVERSATION_NOT_FOUND" or "VERSION_MISMATCH". Reason returns "" if err is
// nil or does not come from a Parley server, for example without a connection, after a deadline,
// or for a message over the size limit. err may be wrapped. [status.Code] returns its gRPC code.
func Reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "parley" {
			return info.GetReason()
		}
	}
	return ""
}
