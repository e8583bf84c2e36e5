package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// Monitor receives events for metrics. Its methods must return quickly.
type Monitor interface {
	// Refused is called when a call exceeds a limit. reason is that of the status. tenant is empty if the caller
	// named none.
	Refused(tenant, reason string)
	// Failed is called when a call fails because of a fault in the server. reason is that of the status.
	Failed(reason string)
	// SignInFailed is called when a call has no valid credential. transport is grpc or http.
	SignInFailed(transport string)
	// Purged is called after a purge with the number of conversations that it deleted.
	Purged(conversations int64)
	// BackupSent is called after a complete copy of the store was sent. began is the instant before the copy.
	BackupSent(began time.Time)
}

// noMonitor ignores everything.
type noMonitor struct{}

// Refused does nothing.
func (noMonitor) Refused(string, string) {}

// Failed does nothing.
func (noMonitor) Failed(string) {}

// SignInFailed does nothing.
func (noMonitor) SignInFailed(string) {}

// Purged does nothing.
func (noMonitor) Purged(int64) {}

// BackupSent does nothing.
func (noMonitor) BackupSent(time.Time) {}

// LimitReasons returns the reasons of limits that calls may exceed, also those of the limits of bodies over HTTP.
func LimitReasons() []string {
	return []string{
		"BACKUP_RUNNING", "BACKUP_SPACE", "BODY_TOO_LARGE", "CONVERSATION_FULL", "HISTORY_TOO_SMALL",
		"MESSAGE_TOO_LARGE", "QUEUE_FULL", "RECORDS_FULL", "REQUEST_TOO_LARGE", "SESSION_MEMORY_FULL", "SLOW_READER",
		"SLOW_SENDER", "STORE_BUSY", "STORE_FULL", "TENANT_APPEND_BYTES", "TENANT_BYTES", "TENANT_IMPORTS",
		"TENANT_REQUESTS", "TENANT_STREAMS", "TENANT_WATCHERS", "TOO_MANY_BODIES", "TOO_MANY_IMPORTS",
		"TOO_MANY_LARGE_REQUESTS", "TOO_MANY_TENANTS", "TOO_MANY_TURNS", "TOO_MANY_WATCHERS",
	}
}

// FailureReasons returns the reasons of faults in the server that are logged.
func FailureReasons() []string {
	return []string{"INTERNAL", "RECORD_CORRUPT", "STORE_FAILED", "STORE_FULL", "STORE_UNAVAILABLE"}
}

// report reports the limit that a call exceeds, or the fault in the server that it met.
func (s *Server) report(ctx context.Context, r refusal) {
	if r.code == codes.ResourceExhausted {
		s.monitor.Refused(calllog.Of(ctx).Tenant(), r.reason)
	}
	if r.internal {
		s.monitor.Failed(r.reason)
	}
}

// askOperator ends the texts of limits that an operator sets for each tenant.
const askOperator = "ask the operator for a higher limit"

// tenantLimit is the refusal of a call that exceeds a limit of its tenant.
func tenantLimit(e *limit.Error, _ subject) refusal {
	reason, do := "TENANT_REQUESTS", "send fewer"
	switch e.Kind {
	case limit.AppendBytes:
		reason, do = "TENANT_APPEND_BYTES", "append less"
	case limit.Streams:
		reason, do = "TENANT_STREAMS", "end some"
	case limit.Imports:
		reason, do = "TENANT_IMPORTS", "retry when one has ended"
	case limit.Requests:
	case limit.ActiveTenants:
		return refuse(codes.ResourceExhausted, "TOO_MANY_TENANTS", "%v; retry", e).retryable()
	}
	r := refuse(codes.ResourceExhausted, reason, "the tenant's %v; %s, or %s", e, do, askOperator).
		with("limit", e.Limit).retryable()
	if e.Retry > 0 {
		r.retry = e.Retry
	}
	return r
}

func tenantBytes(e *store.TenantBytesError, _ subject) refusal {
	return refuse(codes.ResourceExhausted, "TENANT_BYTES", "%v; delete conversations or records, or %s", e, askOperator).
		with("limit", e.Limit).retryable()
}

func tenantWatchers(e *watch.TenantLimitError, _ subject) refusal {
	return refuse(codes.ResourceExhausted, "TENANT_WATCHERS", "%v; end some, or %s", e, askOperator).
		with("limit", e.Limit).retryable()
}
