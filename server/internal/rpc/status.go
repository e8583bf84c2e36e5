package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/peer"
	"github.com/parleyhq/parley/server/internal/rpc/receive"
	"github.com/parleyhq/parley/server/internal/rpc/slowstream"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/transfer"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// domain is the ErrorInfo.domain of every status.
const domain = "parley"

// maxViolationsBytes is the maximum size of all violations of a status. A status is sent in HTTP/2 trailers, and some
// clients accept at most 8 KiB of them. Details are sent in base64, which adds a third. Package rules limits each text.
const maxViolationsBytes = 3 << 10

// retryDelay is the RetryInfo.retry_delay of errors that are temporary.
const retryDelay = time.Second

// conversationError adds the id of the conversation to an error.
type conversationError struct {
	id  string
	err error
}

// Error returns the text of the cause, in which the store names the conversation.
func (e *conversationError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *conversationError) Unwrap() error { return e.err }

func inConversation(id string, err error) error { return &conversationError{id: id, err: err} }

// refusal contains the parts of a status.
type refusal struct {
	code     codes.Code
	reason   string // of ErrorInfo
	text     string
	metadata map[string]string // of ErrorInfo
	// detail is sent in addition to ErrorInfo. If nil, there is none.
	detail protoadapt.MessageV1
	// retry is the time after which the same call may succeed. If 0, the status has no RetryInfo.
	retry time.Duration
	// internal is true if the cause is in the server. The server logs the error.
	internal bool
}

func refuse(code codes.Code, reason, format string, args ...any) refusal {
	return refusal{code: code, reason: reason, text: fmt.Sprintf(format, args...)}
}

// with sets the metadata to one entry.
func (r refusal) with(key string, value any) refusal {
	r.metadata = map[string]string{key: rules.Clip(fmt.Sprint(value), rules.MaxTextBytes)}
	return r
}

// badField sets the detail to a BadRequest with one field.
func (r refusal) badField(field, fault string) refusal {
	r.detail = &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{
		Field: field, Description: rules.Clip(fault, rules.MaxFaultBytes),
	}}}
	return r
}

func (r refusal) retryable() refusal {
	r.retry = retryDelay
	return r
}

func (r refusal) logged() refusal {
	r.internal = true
	return r
}

// toStatus converts an error to a status. It is the only function that makes statuses. An error of gRPC itself is
// returned unchanged, unless the connection ended. If an error only wraps a status, for example one of a remote
// agent, the client does not receive that status.
func (s *Server) toStatus(ctx context.Context, method string, err error) error {
	if own, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		if !connectionEnded(own.GRPCStatus()) {
			return err
		}
		err = context.Canceled // The client has disconnected. Logs and metrics must not count that as a fault of the server.
	}
	if answered, ok := errors.AsType[*peer.StatusError](err); ok {
		return answered.Status.Err() // The server that has answered has reported it.
	}
	r := s.addEnding(ctx, s.refusalOf(err), err)
	s.report(ctx, r)
	if r.internal {
		s.log.ErrorContext(ctx, "call failed", "method", method, "reason", r.reason, "error", err)
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: r.reason, Domain: domain, Metadata: r.metadata}}
	if r.detail != nil {
		details = append(details, r.detail)
	}
	if r.retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.retry)})
	}
	st := status.New(r.code, rules.Clip(r.text, rules.MaxTextBytes))
	if detailed, err := st.WithDetails(details...); err == nil {
		st = detailed
	}
	return st.Err()
}

// subject is what an error is about: a conversation or the tenant's records.
type subject struct {
	id   string // of the conversation; empty if the error is not about one
	name string // in texts
}

func subjectOf(err error) subject {
	if about, ok := errors.AsType[*conversationError](err); ok {
		return subject{id: about.id, name: fmt.Sprintf("conversation %q", about.id)}
	}
	if _, ok := errors.AsType[*tenantRecordsError](err); ok {
		return subject{name: "the tenant's records"}
	}
	return subject{name: "the conversation"}
}

// refusalOf returns the refusal of the first row of the table that matches an error. If none matches, it
// is an internal error, and the client does not receive its text.
func (s *Server) refusalOf(err error) refusal {
	about := subjectOf(err)
	for _, row := range s.refusals {
		if r, ok := row(err, about); ok {
			return r
		}
	}
	return refuse(codes.Internal, "INTERNAL", "internal error").logged()
}

// row is a row of the table of errors. It returns the refusal of an error, or false if it does not match
// the error.
type row func(err error, about subject) (refusal, bool)

// subjectMark stands for the name of the subject in the texts of rows.
const subjectMark = "{subject}"

// is returns a row that matches errors that wrap target. Their refusal is the template with the name of the
// subject in its text.
func is(target error, template refusal) row {
	return func(err error, about subject) (refusal, bool) {
		if !errors.Is(err, target) {
			return refusal{}, false
		}
		r := template // Rows are shared by all calls.
		r.text = strings.ReplaceAll(r.text, subjectMark, about.name)
		if r.code == codes.NotFound {
			r.detail = &errdetails.ResourceInfo{
				ResourceType: "parley.v1.Conversation", ResourceName: about.id, Description: r.text,
			}
		}
		return r, true
	}
}

// as returns a row that matches errors that wrap an E. toRefusal returns their refusal.
func as[E error](toRefusal func(e E, about subject) refusal) row {
	return func(err error, about subject) (refusal, bool) {
		e, ok := errors.AsType[E](err)
		if !ok {
			return refusal{}, false
		}
		return toRefusal(e, about), true
	}
}

// refusals returns the table of errors. The first row that matches an error applies, so rows with values
// come first, and the errors of contexts, which others wrap, come last.
func refusals() []row { //nolint:funlen // one table
	const limit = codes.ResourceExhausted
	return []row{
		// Errors with values.
		as(func(e *invalidError, _ subject) refusal { return e.refusal() }),
		as(versionMismatch),
		as(conversationBusy), as(callSeparated), as(revisionMismatch),
		as(func(e *tooLargeError, _ subject) refusal {
			return refuse(limit, "MESSAGE_TOO_LARGE", "%v", e).with("limit_bytes", e.limit)
		}),
		as(roleTooSmall),
		as(wrongTenant),
		as(func(e *turn.UnknownAgentError, _ subject) refusal {
			return refuse(codes.InvalidArgument, "UNKNOWN_AGENT", "agent: %v", e).
				with("known_agents", joinNames(e.Known, rules.MaxTextBytes)).badField("agent", e.Error())
		}),
		as(func(e *turn.AgentNotConfiguredError, _ subject) refusal {
			return refuse(codes.FailedPrecondition, "AGENT_NOT_CONFIGURED", "%v", e).
				with("known_agents", joinNames(e.Known, rules.MaxTextBytes))
		}),
		as(turnNotFound),
		as(eventsGone),
		as(func(e *sequenceGoneError, about subject) refusal {
			return refuse(codes.OutOfRange, "SEQUENCE_GONE", "at_sequence: message %d of %s is not stored; "+
				"list the stored messages with ListMessages", e.sequence, about.name)
		}),
		as(func(e *turn.NoOpenCallError, _ subject) refusal {
			return refuse(codes.FailedPrecondition, "NOTHING_TO_ANSWER", "tool_results: %v", e).
				with("open_call_ids", joinNames(e.Open, rules.MaxTextBytes))
		}),
		as(historyTooSmall),
		as(conversationFull), as(recordsFull), as(copyTooLarge),
		as(retentionForbidden),
		as(eraseIncomplete), interactionLogOff(),
		as(tenantLimit),
		as(tenantBytes),
		as(tenantWatchers),
		as(malformedRequest),
		as(func(e *transfer.DamagedError, _ subject) refusal {
			return refuse(codes.DataLoss, "RECORD_CORRUPT", "%v; restore them from a backup, or delete them", e).
				with("conversation_ids", e.JoinedIDs()).logged()
		}),
		as(func(e *store.BackupSpaceError, _ subject) refusal {
			return refuse(limit, "BACKUP_SPACE", "%v; free space there", e).with("needed_bytes", e.Needed)
		}),
		as(func(e *store.HeaderTooLargeError, _ subject) refusal {
			return refuse(codes.InvalidArgument, "INVALID_REQUEST", "conversation: %v; shorten its fields", e).
				badField("conversation", e.Error())
		}),

		// Requests that do not fit the state of the conversation or the server.
		is(store.ErrNotFound, refuse(codes.NotFound, notFoundReason,
			subjectMark+" does not exist; it was never created, or it has expired, was evicted or was deleted")),
		is(turn.ErrConversationDeleted, refuse(codes.NotFound, notFoundReason,
			subjectMark+" was deleted before the turn ended; the answer is not stored")),
		is(store.ErrConversationExists, refuse(codes.AlreadyExists, "CONVERSATION_EXISTS",
			subjectMark+" already exists; use another id, or load it with LoadConversation")),
		is(store.ErrRequestReused, refuse(codes.AlreadyExists, "REQUEST_ID_REUSED",
			"request_id: was already used on "+subjectMark+" with different content; use a new id")),
		is(store.ErrPageToken, badField("page_token", "is not a token of this list; start again without a token, "+
			"and do not change the other fields between pages")),
		is(watch.ErrCursor, badField("cursor", "is not a cursor of this server; start again without a cursor, "+
			"or with the watch_cursor of a list")),
		is(turn.ErrNothingToAnswer, refuse(codes.FailedPrecondition, "NOTHING_TO_ANSWER",
			"answer_pending: "+subjectMark+" has no message at its end that needs an answer; "+
				"send content, or tool_results if calls are open")),
		is(errBackupUnsupported, refuse(codes.FailedPrecondition, "BACKUP_UNSUPPORTED",
			"the store of this server does not support backups; use --store bolt, or the tools of Redis with --store redis")),
		// The text is the same for every cause: a caller must not learn what is wrong with a credential.
		is(auth.ErrUnauthenticated, refuse(codes.Unauthenticated, "UNAUTHENTICATED",
			"the call has no valid credential; send a token in the metadata "+auth.TokenKey+
				", or use a client certificate")),

		// Failures of the server.
		is(turn.ErrShuttingDown, shuttingDown()),
		is(peer.ErrUnreachable, refuse(codes.Unavailable, "SERVER_UNREACHABLE",
			"another server, which is needed for this call, cannot be reached; the call may have been made all the same, so "+
				"retry it with the same request_id").retryable()),
		is(store.ErrClosed, shuttingDown()),
		is(store.ErrCorrupt, refuse(codes.DataLoss, "RECORD_CORRUPT",
			"the store is damaged and cannot read "+subjectMark+"; restore from a backup, or delete what is damaged").
			logged()),
		is(store.ErrFailed, refuse(codes.Unavailable, "STORE_FAILED",
			"the store has failed, and the change may or may not be committed; retry after a restart of the server").
			logged()),
		is(store.ErrUnavailable, refuse(codes.Unavailable, "STORE_UNAVAILABLE",
			"the store does not answer, and a change may or may not be committed; retry with the same request_id").
			retryable().logged()),

		// Limits.
		is(store.ErrFull, refuse(limit, "STORE_FULL",
			"the limit of conversations is reached, and none can be evicted: each one has a running turn, is "+
				"ephemeral or has no_eviction; retry when a turn has ended, or delete some").retryable()),
		is(store.ErrNoSpace, refuse(limit, "STORE_FULL",
			"the disk of the store is full; reads and deletes still work").logged()),
		is(store.ErrOverloaded, refuse(limit, "STORE_BUSY",
			"too many changes are waiting for the store; retry").retryable()),
		is(turn.ErrTooManyTurns, refuse(limit, "TOO_MANY_TURNS",
			"the limit of running turns is reached; retry when one has ended").retryable()),
		is(turn.ErrQueueFull, refuse(limit, "QUEUE_FULL",
			"the queue of turns of the conversation, or the memory of all queues, is full; retry when a turn has ended").
			retryable()),
		is(watch.ErrTooMany, refuse(limit, "TOO_MANY_WATCHERS",
			"the limit of watches and waiting calls is reached; retry, "+
				"or call GetRoutingSummary without wait_timeout").retryable()),
		is(store.ErrTooManyHolds, refuse(limit, "SESSION_MEMORY_FULL",
			"delete_after_disconnect: the tenant's limit of %d ephemeral conversations is reached; "+
				"end watches that hold some, name fewer conversation_ids, or watch without it", store.MaxHolds)),
		is(transfer.ErrTooManyImports, refuse(limit, "TOO_MANY_IMPORTS",
			"the limit of concurrent imports is reached; retry when one has ended").retryable()),
		is(store.ErrBackupRunning, refuse(limit, "BACKUP_RUNNING",
			"another backup is running; retry when it has ended").retryable()),
		is(errTooManyLarge, refuse(limit, "TOO_MANY_LARGE_REQUESTS",
			"the limit of the memory of large requests is reached; send fewer of them at once and retry this one").
			retryable()),
		is(rules.ErrTooManyValues, refuse(limit, "REQUEST_TOO_LARGE",
			"the request has too many values: it would need more than %d bytes of memory; send less in one request",
			rules.MaxDecodedBytes)),
		is(slowstream.ErrReader, refuse(limit, "SLOW_READER",
			"the client did not read a message of its stream within %s plus 1 s for each %d bytes of it; "+
				"resume the turn with ResumeTurn; start an export or a backup again; send appends without a response again",
			slowstream.MaxSendTime, slowstream.MinSendBytes)),
		is(slowstream.ErrSender, refuse(limit, "SLOW_SENDER",
			"the client sent no request on its stream for %s; this does not affect earlier requests",
			slowstream.MaxReceiveTime)),
		is(receive.ErrTooMany, refuse(limit, "TOO_MANY_LARGE_REQUESTS",
			"too many requests arrive slowly; retry").retryable()),

		is(context.Canceled, refuse(codes.Canceled, "CANCELLED", "the caller cancelled the call")),
		is(context.DeadlineExceeded, refuse(codes.DeadlineExceeded, "DEADLINE_EXCEEDED",
			"the call did not end within its deadline")),
	}
}

func roleTooSmall(e *auth.RoleError, _ subject) refusal {
	return refuse(codes.PermissionDenied, "PERMISSION_DENIED", "%v; use a credential that has it", e).
		with("needed_role", e.Need.Role)
}

func wrongTenant(e *auth.TenantError, _ subject) refusal {
	if e.Named == "" {
		return refuse(codes.InvalidArgument, "TENANT_REQUIRED", "%v", e)
	}
	return refuse(codes.PermissionDenied, "PERMISSION_DENIED", "%v", e)
}

func versionMismatch(e *store.VersionError, about subject) refusal {
	return refuse(codes.Aborted, "VERSION_MISMATCH", "%s %s; read it and decide again", about.name,
		e.Fault()).with("current_version", e.Current)
}

func conversationBusy(e *store.BusyError, about subject) refusal {
	return refuse(codes.Aborted, "CONVERSATION_BUSY", "turn %s is running on %s; wait until it has ended, cancel it, "+
		"or set on_busy to queue or interrupt", e.TurnID, about.name).with("active_turn_id", e.TurnID).retryable()
}

func eventsGone(e *turn.EventsGoneError, _ subject) refusal {
	r := refuse(codes.OutOfRange, "EVENTS_GONE", "%v", e)
	if e.Oldest > 0 {
		r = r.with("oldest_index", e.Oldest)
	}
	return r
}

// badField returns the refusal of a request with one invalid field.
func badField(field, fault string) refusal {
	return refuse(codes.InvalidArgument, "INVALID_REQUEST", "%s: %s", field, fault).badField(field, fault)
}

func shuttingDown() refusal {
	return refuse(codes.Unavailable, "SHUTTING_DOWN", "the server is shutting down; retry").retryable()
}

// refusal returns the refusal with the violations that fit into a status.
func (e *invalidError) refusal() refusal {
	bad, size := new(errdetails.BadRequest), 0
	for _, v := range e.violations {
		v = &errdetails.BadRequest_FieldViolation{
			Field:       rules.Clip(v.GetField(), rules.MaxFieldBytes),
			Description: rules.Clip(v.GetDescription(), rules.MaxFaultBytes),
		}
		if size += len(v.GetField()) + len(v.GetDescription()); size > maxViolationsBytes {
			break
		}
		bad.FieldViolations = append(bad.FieldViolations, v)
	}
	r := refuse(codes.InvalidArgument, "INVALID_REQUEST", "%v", e)
	if all := len(e.violations); len(bad.GetFieldViolations()) < all {
		r = r.with("violation_count", all)
	}
	r.detail = bad
	return r
}

// joinNames joins the first names that fit into limit bytes. It does not truncate names, because
// programs may read them.
func joinNames(names []string, limit int) string {
	const separator = ", "
	size := -len(separator)
	for i, name := range names {
		if size += len(separator) + len(name); size > limit {
			names = names[:i]
			break
		}
	}
	return strings.Join(names, separator)
}
