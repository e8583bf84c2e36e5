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

	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/transfer"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// domain is the ErrorInfo.domain of every status.
const domain = "parley"

// Limits of the texts in a status, in bytes. A status is sent in HTTP/2 trailers, and some clients
// accept at most 8 KiB of them. Details are sent in base64, which adds a third.
const (
	maxTextBytes       = 512
	maxFieldBytes      = 128
	maxFaultBytes      = 256
	maxViolationsBytes = 3 << 10
)

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

// sequenceGoneError means that the message at which a fork ends is not stored.
type sequenceGoneError struct{ sequence int32 }

// Error returns a text with the sequence of the message.
func (e *sequenceGoneError) Error() string {
	return fmt.Sprintf("message %d is not stored", e.sequence)
}

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
	r.metadata = map[string]string{key: rules.Clip(fmt.Sprint(value), maxTextBytes)}
	return r
}

// badField sets the detail to a BadRequest with one field.
func (r refusal) badField(field, fault string) refusal {
	r.detail = &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{
		Field: field, Description: rules.Clip(fault, maxFaultBytes),
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

// toStatus converts an error to a status. It is the only function that makes statuses. An error of
// gRPC itself, for example a broken stream, is returned unchanged. If an error only wraps a status,
// for example one of a remote agent, the client does not receive that status.
func (s *Server) toStatus(ctx context.Context, method string, err error) error {
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	r := refusalOf(err)
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
	st := status.New(r.code, rules.Clip(r.text, maxTextBytes))
	if detailed, err := st.WithDetails(details...); err == nil {
		st = detailed
	}
	return st.Err()
}

// refusalOf maps an error to the parts of its status.
func refusalOf(err error) refusal { //nolint:funlen // one table
	subject, id := "the conversation", ""
	if about, ok := errors.AsType[*conversationError](err); ok {
		subject, id = fmt.Sprintf("conversation %q", about.id), about.id
	}
	var (
		invalid       *invalidError
		version       *store.VersionError
		busy          *store.BusyError
		large         *tooLargeError
		unknown       *turn.UnknownAgentError
		notConfigured *turn.AgentNotConfiguredError
		turnNotFound  *turn.NotFoundError
		events        *turn.EventsGoneError
		sequence      *sequenceGoneError
		noCall        *turn.NoOpenCallError
		noRoom        *turn.NoRoomError
		damaged       *transfer.DamagedError
	)
	switch {
	case errors.As(err, &invalid):
		return invalid.refusal()
	case errors.As(err, &version):
		return refuse(codes.Aborted, "VERSION_MISMATCH",
			"%s is at version %d, not at if_version; read it and decide again",
			subject, version.Current).with("current_version", version.Current)
	case errors.As(err, &busy):
		return refuse(codes.Aborted, "CONVERSATION_BUSY",
			"turn %s is running on %s; wait until it has ended, cancel it, "+
				"or set on_busy to queue or interrupt", busy.TurnID, subject).
			with("active_turn_id", busy.TurnID).retryable()
	case errors.As(err, &large):
		return refuse(codes.ResourceExhausted, "MESSAGE_TOO_LARGE", "%v", large).with("limit_bytes", large.limit)
	case errors.As(err, &unknown):
		return refuse(codes.InvalidArgument, "UNKNOWN_AGENT", "agent: %v", unknown).
			with("known_agents", joinNames(unknown.Known, maxTextBytes)).badField("agent", unknown.Error())
	case errors.As(err, &notConfigured):
		return refuse(codes.FailedPrecondition, "AGENT_NOT_CONFIGURED", "%v", notConfigured).
			with("known_agents", joinNames(notConfigured.Known, maxTextBytes))
	case errors.As(err, &turnNotFound):
		r := refuse(codes.NotFound, "TURN_NOT_FOUND", "%s: %v", subject, turnNotFound)
		r.detail = &errdetails.ResourceInfo{
			ResourceType: "parley.v1.Turn", ResourceName: rules.Clip(turnNotFound.TurnID, maxFieldBytes), Owner: id,
			Description: rules.Clip(r.text, maxFaultBytes),
		}
		return r
	case errors.As(err, &events):
		r := refuse(codes.OutOfRange, "EVENTS_GONE", "%v", events)
		if events.Oldest > 0 {
			r = r.with("oldest_index", events.Oldest)
		}
		return r
	case errors.As(err, &sequence):
		return refuse(
			codes.OutOfRange,
			"SEQUENCE_GONE",
			"at_sequence: message %d of %s is not stored; list the stored messages with ListMessages",
			sequence.sequence,
			subject,
		)
	case errors.As(err, &noCall):
		return refuse(codes.FailedPrecondition, "NOTHING_TO_ANSWER", "tool_results: %v", noCall).
			with("open_call_ids", joinNames(noCall.Open, maxTextBytes))
	case errors.As(err, &noRoom):
		return refusalOfHistory(noRoom)
	case errors.As(err, &damaged):
		return refuse(codes.DataLoss, "RECORD_CORRUPT", "%v; restore them from a backup, or delete them", damaged).
			with("conversation_ids", strings.Join(damaged.IDs, ",")).logged()
	}
	return refusalOfSentinel(err, subject, id)
}

// refusalOfSentinel maps the errors without values.
func refusalOfSentinel(err error, subject, id string) refusal { //nolint:funlen // one table
	const (
		badToken = "is not a token of this list; start again without a token, " +
			"and do not change the other fields between pages"
		badCursor = "is not a cursor of this server; start again without a cursor, or with the watch_cursor of a list"
	)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return notFound(id, subject+" does not exist; it was never created, has expired, or was deleted")
	case errors.Is(err, turn.ErrConversationGone):
		return notFound(id, subject+" was deleted before the turn ended; the answer is not stored")
	case errors.Is(err, store.ErrConversationExists):
		return refuse(codes.AlreadyExists, "CONVERSATION_EXISTS",
			"%s already exists; use another id, or load it with LoadConversation", subject)
	case errors.Is(err, store.ErrRequestReused):
		return refuse(codes.AlreadyExists, "REQUEST_ID_REUSED",
			"request_id: was already used on %s with different content; use a new id", subject)
	case errors.Is(err, store.ErrPageToken):
		return refuse(
			codes.InvalidArgument,
			"INVALID_REQUEST",
			"page_token: %s",
			badToken,
		).badField(
			"page_token",
			badToken,
		)
	case errors.Is(err, watch.ErrCursor):
		return refuse(codes.InvalidArgument, "INVALID_REQUEST", "cursor: %s", badCursor).badField("cursor", badCursor)
	case errors.Is(err, turn.ErrNothingToAnswer):
		return refuse(codes.FailedPrecondition, "NOTHING_TO_ANSWER",
			"answer_pending: %s has no message at its end that needs an answer; "+
				"send content, or tool_results if calls are open", subject)
	case errors.Is(err, turn.ErrShuttingDown), errors.Is(err, store.ErrClosed):
		return refuse(codes.Unavailable, "SHUTTING_DOWN", "the server is shutting down; retry").retryable()
	case errors.Is(err, errInteractionLogOff):
		return refuse(codes.FailedPrecondition, "INTERACTION_LOG_OFF",
			"the interaction log is off; start the server with --interaction-log")
	case errors.Is(err, errBackupUnsupported):
		return refuse(codes.FailedPrecondition, "BACKUP_UNSUPPORTED",
			"the store of this server does not support backups; start the server with --store bolt")
	case errors.Is(err, errUnauthenticated):
		return refuse(codes.Unauthenticated, "UNAUTHENTICATED", "the call has no valid credential; sign in")
	case errors.Is(err, errNotAllowed):
		return refuse(codes.PermissionDenied, "PERMISSION_DENIED", "the caller's credential does not allow this call")
	case errors.Is(err, store.ErrCorrupt):
		return refuse(codes.DataLoss, "RECORD_CORRUPT",
			"%s is damaged in the store and cannot be read; restore it from a backup, or delete it", subject).logged()
	case errors.Is(err, store.ErrFailed):
		return refuse(
			codes.Unavailable,
			"STORE_FAILED",
			"the store has failed, and the change may or may not be committed; retry after a restart of the server",
		).logged()
	}
	if r, ok := refusalOfLimit(err); ok {
		return r
	}
	switch {
	case errors.Is(err, context.Canceled):
		return refuse(codes.Canceled, "CANCELLED", "the caller cancelled the call")
	case errors.Is(err, context.DeadlineExceeded):
		return refuse(codes.DeadlineExceeded, "DEADLINE_EXCEEDED", "the call did not end within its deadline")
	}
	return refuse(codes.Internal, "INTERNAL", "internal error").logged()
}

// refusalOfLimit maps the errors about limits. It returns false for other errors.
func refusalOfLimit(err error) (refusal, bool) {
	const code = codes.ResourceExhausted
	if e, ok := errors.AsType[*store.BackupSpaceError](err); ok {
		return refuse(code, "BACKUP_SPACE", "%v; free space there", e).with("needed_bytes", e.Needed), true
	}
	if e, ok := errors.AsType[*store.HeaderTooLargeError](err); ok {
		return refuse(codes.InvalidArgument, "INVALID_REQUEST", "conversation: %v; shorten its fields", e).
			badField("conversation", e.Error()), true
	}
	switch {
	case errors.Is(err, store.ErrFull):
		return refuse(code, "STORE_FULL", "the limit of conversations is reached, and none can be evicted: "+
			"each one has a running turn or is ephemeral; retry when a turn has ended, or delete some").retryable(), true
	case errors.Is(err, store.ErrNoSpace):
		return refuse(code, "STORE_FULL", "the disk of the store is full; reads and deletes still work").logged(), true
	case errors.Is(err, store.ErrOverloaded):
		return refuse(code, "STORE_BUSY", "too many changes are waiting for the store; retry").retryable(), true
	case errors.Is(err, turn.ErrTooManyTurns):
		return refuse(code, "TOO_MANY_TURNS",
			"the limit of running turns is reached; retry when one has ended").retryable(), true
	case errors.Is(err, turn.ErrQueueFull):
		return refuse(code, "QUEUE_FULL",
			"the queue of turns of the conversation is full; retry when a turn has ended").retryable(), true
	case errors.Is(err, watch.ErrTooMany):
		return refuse(code, "TOO_MANY_WATCHERS", "the limit of watches and waiting calls is reached; retry, "+
			"or call GetRoutingSummary without wait_timeout").retryable(), true
	case errors.Is(err, store.ErrTooManyHolds):
		return refuse(
			code,
			"SESSION_MEMORY_FULL",
			"delete_after_disconnect: the tenant's limit of %d ephemeral conversations "+
				"is reached; end watches that hold some, name fewer conversation_ids, or watch without it",
			store.MaxHolds,
		), true
	case errors.Is(err, transfer.ErrTooManyImports):
		return refuse(code, "TOO_MANY_IMPORTS",
			"the limit of concurrent imports is reached; retry when one has ended").retryable(), true
	case errors.Is(err, store.ErrBackupRunning):
		return refuse(code, "BACKUP_RUNNING", "another backup is running; retry when it has ended").retryable(), true
	case errors.Is(err, errSlowReader):
		return refuse(code, "SLOW_READER", "the client did not read a message of its stream within %s plus 1 s "+
			"for each %d bytes of it; the turn continues, resume it with ResumeTurn; start an export or a backup again",
			maxSendTime, minSendBytes), true
	case errors.Is(err, errSlowSender):
		return refuse(code, "SLOW_SENDER", "the client sent no request on its stream for %s; "+
			"the conversations imported before are stored", maxReceiveTime), true
	}
	return refusal{}, false
}

// refusalOfHistory maps the error about tool results for which the history has no space.
func refusalOfHistory(e *turn.NoRoomError) refusal {
	r := refuse(codes.ResourceExhausted, "HISTORY_TOO_SMALL", "tool_results: %v", e)
	if e.MaxBytes > 0 {
		return r.with("max_conversation_bytes", e.MaxBytes)
	}
	return r.with("max_messages", e.MaxMessages)
}

// notFound returns the refusal for a missing conversation.
func notFound(id, text string) refusal {
	r := refuse(codes.NotFound, "CONVERSATION_NOT_FOUND", "%s", text)
	r.detail = &errdetails.ResourceInfo{ResourceType: "parley.v1.Conversation", ResourceName: id, Description: text}
	return r
}

// refusal returns the refusal with the violations that fit into a status.
func (e *invalidError) refusal() refusal {
	bad, size := new(errdetails.BadRequest), 0
	for _, v := range e.violations {
		v = &errdetails.BadRequest_FieldViolation{
			Field: rules.Clip(v.GetField(), maxFieldBytes), Description: rules.Clip(v.GetDescription(), maxFaultBytes),
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
