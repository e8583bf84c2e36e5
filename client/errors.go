package client

import (
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// Reason returns the reason of an error from a Parley server. A reason is a stable word in upper
// snake case, such as "CONVERSATION_NOT_FOUND" or "VERSION_MISMATCH". Reason returns "" if err is
// nil or does not come from a Parley server, for example without a connection, after a deadline,
// or for a message over the size limit. err may be wrapped. [status.Code] returns its gRPC code.
func Reason(err error) string { return errorInfo(err).GetReason() }

// errorInfo returns the google.rpc.ErrorInfo that a Parley server added to err, or nil if there is none.
func errorInfo(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == "parley" {
			return info
		}
	}
	return nil
}

// Mismatch says which record did not have the revision that its write required.
type Mismatch struct {
	// Key of the record.
	Key string
	// CurrentRevision is the revision of the record; 0 if it does not exist.
	CurrentRevision int64
	// TenantScope is true if the record belongs to the tenant, false if it belongs to the conversation of the request.
	TenantScope bool
}

// RevisionMismatch returns the record whose revision differs from if_revision, if a call failed for this reason and
// wrote nothing. The bool is false if err has another reason than REVISION_MISMATCH. err may be wrapped.
func RevisionMismatch(err error) (Mismatch, bool) {
	info := errorInfo(err)
	if info.GetReason() != "REVISION_MISMATCH" {
		return Mismatch{}, false
	}
	current, err := strconv.ParseInt(info.GetMetadata()["current_revision"], 10, 64)
	return Mismatch{
		Key: info.GetMetadata()["key"], CurrentRevision: current, TenantScope: info.GetMetadata()["scope"] == "tenant",
	}, err == nil
}
