package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// domain is the ErrorInfo.domain of every status made here.
const domain = "parley"

// A status travels in HTTP/2 trailers, of which some clients take 8 KiB at most; details
// grow by a third on the way.
const (
	maxTextBytes       = 512
	maxFieldBytes      = 128
	maxFaultBytes      = 256
	maxViolationsBytes = 3 << 10
)

// retrySoon is when to try again what waiting helps.
const retrySoon = time.Second

// conversationError says which conversation an error is about.
type conversationError struct {
	id  string
	err error
}

// Error is that of the cause, in which the store has named the conversation.
func (e *conversationError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *conversationError) Unwrap() error { return e.err }

func inConversation(id string, err error) error { return &conversationError{id: id, err: err} }

// tooLargeError says that a message is larger than any may be.
type tooLargeError struct {
	message     string // what the request calls it: "messages[3]"
	size, limit int    // bytes of the encoded form
}

// Error says what to do about it.
func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%s has %d bytes in encoded form, the limit is %d: "+
		"shorten it, or keep its data elsewhere and attach a reference", e.message, e.size, e.limit)
}

// sequenceGoneError says that a fork asks for a message that is not kept.
type sequenceGoneError struct{ sequence int32 }

// Error names the message.
func (e *sequenceGoneError) Error() string {
	return fmt.Sprintf("message %d is not kept", e.sequence)
}

// refusal is what a client is told of an error.
type refusal struct {
	code     codes.Code
	reason   string
	text     string
	metadata map[string]string
	// detail goes along with ErrorInfo, nil for none.
	detail protoadapt.MessageV1
	// retry is after how long the same call may succeed; 0: who knows.
	retry time.Duration
	// fault is the server's: the log gets what the client is not told.
	fault bool
}

func refuse(code codes.Code, reason, format string, args ...any) refusal {
	return refusal{code: code, reason: reason, text: fmt.Sprintf(format, args...)}
}

// with adds to the metadata.
func (r refusal) with(key string, value any) refusal {
	r.metadata = map[string]string{key: clip(fmt.Sprint(value), maxTextBytes)}
	return r
}

// badField adds the field that is wrong.
func (r refusal) badField(field, fault string) refusal {
	r.detail = &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{
		Field: field, Description: clip(fault, maxFaultBytes),
	}}}
	return r
}

func (r refusal) retryable() refusal {
	r.retry = retrySoon
	return r
}

func (r refusal) logged() refusal {
	r.fault = true
	return r
}

// toStatus makes an error a status, the only place that does. What grpc itself answered,
// say that a stream is broken, stays as it is; a status that is merely the cause of an
// error of ours is not for this client.
func (s *Server) toStatus(ctx context.Context, method string, err error) error {
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	r := refusalOf(err)
	if r.fault {
		s.log.ErrorContext(ctx, "call failed", "method", method, "reason", r.reason, "error", err)
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: r.reason, Domain: domain, Metadata: r.metadata}}
	if r.detail != nil {
		details = append(details, r.detail)
	}
	if r.retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.retry)})
	}
	st := status.New(r.code, clip(r.text, maxTextBytes))
	if detailed, err := st.WithDetails(details...); err == nil {
		st = detailed
	}
	return st.Err()
}

// refusalOf is the table of errors.
func refusalOf(err error) refusal {
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
		damaged       *damagedError
	)
	switch {
	case errors.As(err, &invalid):
		return invalid.refusal()
	case errors.As(err, &version):
		return refuse(codes.Aborted, "VERSION_MISMATCH", "%s is at version %d, which is not if_version: read it and decide anew",
			subject, version.Current).with("current_version", version.Current)
	case errors.As(err, &busy):
		return refuse(codes.Aborted, "CONVERSATION_BUSY", "turn %s is running on %s: wait until it has ended, cancel it, or say with on_busy to queue or to interrupt",
			busy.TurnID, subject).with("active_turn_id", busy.TurnID).retryable()
	case errors.As(err, &large):
		return refuse(codes.ResourceExhausted, "MESSAGE_TOO_LARGE", "%v", large).with("limit_bytes", large.limit)
	case errors.As(err, &unknown):
		return refuse(codes.InvalidArgument, "UNKNOWN_AGENT", "agent: %v", unknown).
			with("known_agents", listed(unknown.Known, maxTextBytes)).badField("agent", unknown.Error())
	case errors.As(err, &notConfigured):
		return refuse(codes.FailedPrecondition, "AGENT_NOT_CONFIGURED", "%v", notConfigured).
			with("known_agents", listed(notConfigured.Known, maxTextBytes))
	case errors.As(err, &turnNotFound):
		r := refuse(codes.NotFound, "TURN_NOT_FOUND", "%s: %v", subject, turnNotFound)
		r.detail = &errdetails.ResourceInfo{
			ResourceType: "parley.v1.Turn", ResourceName: clip(turnNotFound.TurnID, maxFieldBytes), Owner: id, Description: clip(r.text, maxFaultBytes),
		}
		return r
	case errors.As(err, &events):
		r := refuse(codes.OutOfRange, "EVENTS_GONE", "%v", events)
		if events.Oldest > 0 {
			r = r.with("oldest_index", events.Oldest)
		}
		return r
	case errors.As(err, &sequence):
		return refuse(codes.OutOfRange, "SEQUENCE_GONE", "at_sequence: message %d of %s is not kept; ListMessages tells which are",
			sequence.sequence, subject)
	case errors.As(err, &noCall):
		return refuse(codes.FailedPrecondition, "NOTHING_TO_ANSWER", "tool_results: %v", noCall).
			with("open_call_ids", listed(noCall.Open, maxTextBytes))
	case errors.As(err, &noRoom):
		return refusalOfRoom(noRoom)
	case errors.As(err, &damaged):
		return damaged.refusal()
	}
	return refusalOfSentinel(err, subject, id)
}

// refusalOfSentinel is the part of the table whose errors carry nothing.
func refusalOfSentinel(err error, subject, id string) refusal {
	const (
		badToken  = "is not from this list: begin again without one, and leave the other fields as they are"
		badCursor = "is none that this server has given: begin again without one, or with the watch_cursor of a list"
	)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return notFound(id, subject+" does not exist: it was never made, has expired, or was deleted")
	case errors.Is(err, turn.ErrConversationGone):
		return notFound(id, subject+" was deleted before the turn had ended; the answer is not kept")
	case errors.Is(err, store.ErrConversationExists):
		return refuse(codes.AlreadyExists, "CONVERSATION_EXISTS", "%s exists already: choose another id, or take it with LoadConversation", subject)
	case errors.Is(err, store.ErrRequestReused):
		return refuse(codes.AlreadyExists, "REQUEST_ID_REUSED", "request_id: was used on %s for something else; every new request needs a new one", subject)
	case errors.Is(err, store.ErrPageToken):
		return refuse(codes.InvalidArgument, "INVALID_REQUEST", "page_token: %s", badToken).badField("page_token", badToken)
	case errors.Is(err, watch.ErrCursor):
		return refuse(codes.InvalidArgument, "INVALID_REQUEST", "cursor: %s", badCursor).badField("cursor", badCursor)
	case errors.Is(err, turn.ErrNothingToAnswer):
		return refuse(codes.FailedPrecondition, "NOTHING_TO_ANSWER", "answer_pending: the history of %s ends with nothing that waits for an answer: "+
			"send content, or tool_results where calls are open", subject)
	case errors.Is(err, turn.ErrShuttingDown), errors.Is(err, store.ErrClosed):
		return refuse(codes.Unavailable, "SHUTTING_DOWN", "the server is shutting down: try again").retryable()
	case errors.Is(err, errInteractionLogOff):
		return refuse(codes.FailedPrecondition, "INTERACTION_LOG_OFF", "this server keeps no interaction log: start it with --interaction-log")
	case errors.Is(err, errBackupUnsupported):
		return refuse(codes.FailedPrecondition, "BACKUP_UNSUPPORTED", "the store of this server has no backup: only one that was started with --store bolt has")
	case errors.Is(err, errUnauthenticated):
		return refuse(codes.Unauthenticated, "UNAUTHENTICATED", "sign in: the call carries no credential that is good here")
	case errors.Is(err, errNotAllowed):
		return refuse(codes.PermissionDenied, "PERMISSION_DENIED", "the caller's credential does not allow this call")
	case errors.Is(err, store.ErrCorrupt):
		return refuse(codes.DataLoss, "RECORD_CORRUPT", "%s is damaged in the store and cannot be read: restore it from a backup, or delete it", subject).logged()
	case errors.Is(err, store.ErrFailed):
		return refuse(codes.Unavailable, "STORE_FAILED", "the store has failed, and what was to be changed may be kept or not: try again after a restart").logged()
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

// refusalOfLimit is the part of the table about limits that are reached.
func refusalOfLimit(err error) (refusal, bool) {
	const code = codes.ResourceExhausted
	if e, ok := errors.AsType[*store.BackupSpaceError](err); ok {
		return refuse(code, "BACKUP_SPACE", "%v: make room there", e).with("needed_bytes", e.Needed), true
	}
	if e, ok := errors.AsType[*store.HeaderTooLargeError](err); ok {
		return refuse(codes.InvalidArgument, "INVALID_REQUEST", "conversation: %v; shorten its fields", e).badField("conversation", e.Error()), true
	}
	switch {
	case errors.Is(err, store.ErrFull):
		return refuse(code, "STORE_FULL", "there is no room for another conversation, and each that could make some has a turn that runs or is session memory: "+
			"try again when one has ended, or delete some").retryable(), true
	case errors.Is(err, store.ErrNoSpace):
		return refuse(code, "STORE_FULL", "the disk of the store is full; reads and deletes go on").logged(), true
	case errors.Is(err, store.ErrOverloaded):
		return refuse(code, "STORE_BUSY", "too many changes are waiting for the store: try again").retryable(), true
	case errors.Is(err, turn.ErrTooManyTurns):
		return refuse(code, "TOO_MANY_TURNS", "as many turns are running as may: try again when one has ended").retryable(), true
	case errors.Is(err, turn.ErrQueueFull):
		return refuse(code, "QUEUE_FULL", "as many turns wait for the conversation as may: try again when one has ended").retryable(), true
	case errors.Is(err, watch.ErrTooMany):
		return refuse(code, "TOO_MANY_WATCHERS", "as many watch and wait as may: try again; GetRoutingSummary without wait_timeout is not among them").retryable(), true
	case errors.Is(err, store.ErrTooManyHolds):
		return refuse(code, "SESSION_MEMORY_FULL", "delete_after_disconnect: %d conversations of the tenant are session memory, no more may be: "+
			"end watches that hold some, name fewer in conversation_ids, or watch without it", store.MaxHolds), true
	case errors.Is(err, errTooManyImports):
		return refuse(code, "TOO_MANY_IMPORTS", "as many imports are under way as may: try again when one has ended").retryable(), true
	case errors.Is(err, store.ErrBackupRunning):
		return refuse(code, "BACKUP_RUNNING", "another backup is under way: try again when it has ended").retryable(), true
	case errors.Is(err, errSlowReader):
		return refuse(code, "SLOW_READER", "the client did not read a message of its stream within %s plus 1 s for each %d bytes of it; "+
			"the turn continues, resume it with ResumeTurn; start an export or a backup again", maxSendTime, minSendBytes), true
	case errors.Is(err, errSlowSender):
		return refuse(code, "SLOW_SENDER", "the client sent no request on its stream for %s; what was imported by then stays", maxReceiveTime), true
	}
	return refusal{}, false
}

func refusalOfRoom(e *turn.NoRoomError) refusal {
	r := refuse(codes.ResourceExhausted, "HISTORY_TOO_SMALL", "tool_results: %v", e)
	if e.MaxBytes > 0 {
		return r.with("max_conversation_bytes", e.MaxBytes)
	}
	return r.with("max_messages", e.MaxMessages)
}

func notFound(id, text string) refusal {
	r := refuse(codes.NotFound, "CONVERSATION_NOT_FOUND", "%s", text)
	r.detail = &errdetails.ResourceInfo{ResourceType: "parley.v1.Conversation", ResourceName: id, Description: text}
	return r
}

// refusal lists the violations, as many as a status has room for.
func (e *invalidError) refusal() refusal {
	bad, size := new(errdetails.BadRequest), 0
	for _, v := range e.violations {
		v = &errdetails.BadRequest_FieldViolation{Field: clip(v.GetField(), maxFieldBytes), Description: clip(v.GetDescription(), maxFaultBytes)}
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

// listed joins names, those at the front that fit into so many bytes: a program may take each
// for a whole one.
func listed(names []string, limit int) string {
	const between = ", "
	size := -len(between)
	for i, name := range names {
		if size += len(between) + len(name); size > limit {
			names = names[:i]
			break
		}
	}
	return strings.Join(names, between)
}

// clip shortens a text to so many bytes, at a rune.
func clip(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	end := limit - len(mark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
