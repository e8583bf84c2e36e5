package calllog

import (
	"context"
	"log/slog"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

// Event is the kind of an audit entry.
type Event string

// The kinds of audit entries.
const (
	SignInFailed     Event = "sign_in_failed"    // no valid credential
	PermissionDenied Event = "permission_denied" // the role or the tenant of a caller does not suffice
	AdminCall        Event = "admin_call"        // a call that needs the role admin
	Delete           Event = "delete"            // a caller removed conversations, messages, records or log entries
	Transfer         Event = "transfer"          // an export or an import
)

// auditedMethods returns the methods whose calls always have an audit entry. Calls of other methods have one if they
// remove something, see [Call].
func auditedMethods() map[string]Event {
	events := map[string]Event{
		parleyv1.ConversationService_DeleteConversation_FullMethodName:   Delete,
		parleyv1.ConversationService_ClearConversation_FullMethodName:    Delete,
		parleyv1.ConversationService_PurgeConversations_FullMethodName:   Delete,
		parleyv1.InteractionLogService_DeleteInteractions_FullMethodName: Delete,

		parleyv1.ConversationService_ExportConversations_FullMethodName: Transfer,
		parleyv1.ConversationService_ImportConversations_FullMethodName: Transfer,
	}
	for method, role := range auth.Roles() {
		if _, known := events[method]; role == auth.Admin && !known {
			events[method] = AdminCall
		}
	}
	return events
}

// auditEvent returns the kind of the audit entry of a call that has ended, or false if it has none.
func (l *Log) auditEvent(c *Call) (Event, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	event, audited := l.events[c.method]
	if !audited && c.removes {
		event, audited = Delete, true
	}
	return event, audited && c.accepted
}

// SignInFailed writes an audit entry about a call whose credential is missing or not valid. At most maxEntries are
// written in a second.
func (l *Log) SignInFailed(ctx context.Context, method string, inProcess bool, sent auth.Credentials) {
	if !l.signIns.allow(ctx, l.now()) {
		return
	}
	from := origin(ctx, inProcess)
	attributes := []slog.Attr{slog.String("method", method), slog.String("credential", sent.Kind())}
	attributes = appendText(attributes, "transport", from.transport)
	attributes = appendText(attributes, "peer", from.peer)
	attributes = appendText(attributes, "call_id", from.callID)
	l.write(ctx, SignInFailed, l.appendTraceID(ctx, attributes))
}

// PermissionDenied writes an audit entry about a call whose caller may not make it. The entry contains the error,
// which must contain no credential. At most maxEntries are written in a second.
func (l *Log) PermissionDenied(ctx context.Context, method string, inProcess bool, p auth.Principal, why error) {
	if !l.refusals.allow(ctx, l.now()) {
		return
	}
	c := &Call{inProcess: inProcess, principal: p}
	attributes := []slog.Attr{slog.String("method", method), slog.String("error", why.Error())}
	attributes = appendText(attributes, "caller_id", p.ID)
	l.write(ctx, PermissionDenied, l.appendAbout(ctx, attributes, c))
}

// auditCall writes the audit entry of a call that has ended.
func (l *Log) auditCall(ctx context.Context, c *Call, event Event, code, reason string) {
	c.mu.Lock()
	dryRun, deleted, callerID := c.dryRun, c.deleted, c.principal.ID
	c.mu.Unlock()
	if dryRun {
		return
	}
	attributes := make([]slog.Attr, 0, maxAttributes)
	attributes = append(attributes, slog.String("method", c.method), slog.String("code", code))
	attributes = appendText(attributes, "reason", reason)
	if deleted >= 0 {
		attributes = append(attributes, slog.Int64("deleted", deleted))
	}
	attributes = appendText(attributes, "caller_id", callerID)
	l.write(ctx, event, l.appendAbout(ctx, attributes, c))
}

// reportLeftOut returns a function that writes how many audit entries of a kind were left out.
func (l *Log) reportLeftOut(event Event) func(context.Context, int) {
	return func(ctx context.Context, count int) { l.write(ctx, event, []slog.Attr{slog.Int("left_out", count)}) }
}

// write writes an audit entry. The level of the log does not apply.
func (l *Log) write(ctx context.Context, event Event, attributes []slog.Attr) {
	entry := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	entry.AddAttrs(slog.String("event", string(event)))
	entry.AddAttrs(attributes...)
	_ = l.log.Handler().Handle(ctx, entry) // The queue of the log never fails.
}
