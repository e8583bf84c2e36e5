package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/turn"
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
	return []string{"INTERNAL", "RECORD_CORRUPT", "STORE_FAILED", "STORE_FULL"}
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

// historyTooSmall is the refusal of tool results for which the history has no space.
func historyTooSmall(e *turn.HistoryTooSmallError, _ subject) refusal {
	r := refuse(codes.ResourceExhausted, "HISTORY_TOO_SMALL", "tool_results: %v", e)
	if e.MaxBytes > 0 {
		return r.with("max_conversation_bytes", e.MaxBytes)
	}
	return r.with("max_messages", e.MaxMessages)
}

// conversationFull is the refusal of a write to a conversation that keeps all messages.
func conversationFull(e *store.ConversationFullError, about subject) refusal {
	return refuse(codes.ResourceExhausted, "CONVERSATION_FULL", "%s is full: %v; remove messages with ClearConversation, "+
		"or set its retention.keep_all to false", about.name, e).with("limit_bytes", e.Limit)
}

// retentionForbidden is the refusal of a retention that the settings of the server forbid.
func retentionForbidden(e *rules.RetentionError, _ subject) refusal {
	return refuse(codes.FailedPrecondition, "RETENTION_FORBIDDEN", "%v", e).with("field", "retention."+e.Field)
}

// notFoundReason is the reason of calls that name a conversation that does not exist.
const notFoundReason = "CONVERSATION_NOT_FOUND"

// addEnding adds to the refusal of a call why and when the conversation ended, if the hub remembers it.
func (s *Server) addEnding(ctx context.Context, r refusal, err error) refusal {
	about := subjectOf(err)
	if r.reason != notFoundReason || about.id == "" {
		return r
	}
	ending, ok := s.hub.Ended(calllog.Of(ctx).Tenant(), about.id, s.now())
	if !ok {
		return r
	}
	at := ending.At.UTC().Format(time.RFC3339)
	how, why, kind := "was deleted", "", strings.TrimPrefix(ending.Kind.String(), "CHANGE_KIND_")
	switch ending.Kind {
	case parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
		how = "expired"
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		how, why = "was evicted", " because its tenant was at its capacity"
	default:
	}
	r.metadata = map[string]string{"ended": kind, "at": at}
	if errors.Is(err, store.ErrNotFound) {
		r.text = fmt.Sprintf("%s does not exist: it %s at %s%s", about.name, how, at, why)
	}
	if info, ok := r.detail.(*errdetails.ResourceInfo); ok {
		info.Description = r.text
	}
	return r
}
