package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/peer"
	"github.com/parleyhq/parley/server/internal/rpc/slowstream"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/transfer"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// secret is part of internal errors. No status may contain it.
const secret = "/srv/secret.db"

func TestStatusOfErrors(t *testing.T) {
	known := []string{"echo", "writer"}
	agents := map[string]string{"known_agents": "echo, writer"}
	tests := []struct {
		err      error
		code     codes.Code
		reason   string
		metadata map[string]string
		retry    time.Duration
		logged   bool
		turn     string
	}{
		{err: store.ErrNotFound, code: codes.NotFound, reason: "CONVERSATION_NOT_FOUND"},
		{err: turn.ErrConversationDeleted, code: codes.NotFound, reason: "CONVERSATION_NOT_FOUND"},
		{err: &turn.NotFoundError{TurnID: "t1"}, code: codes.NotFound, reason: "TURN_NOT_FOUND", turn: "t1"},
		{err: &turn.NotFoundError{}, code: codes.NotFound, reason: "TURN_NOT_FOUND"},
		{err: turn.ErrNothingToAnswer, code: codes.FailedPrecondition, reason: "NOTHING_TO_ANSWER"},
		{err: store.ErrConversationExists, code: codes.AlreadyExists, reason: "CONVERSATION_EXISTS"},
		{err: store.ErrRequestReused, code: codes.AlreadyExists, reason: "REQUEST_ID_REUSED"},
		{
			err:      &store.VersionError{Current: 7, Required: 3},
			code:     codes.Aborted,
			reason:   "VERSION_MISMATCH",
			metadata: map[string]string{"current_version": "7"},
		},
		{
			err:      &store.RevisionError{Key: "k/1", TenantScope: true, Current: 7},
			code:     codes.Aborted,
			reason:   "REVISION_MISMATCH",
			metadata: map[string]string{"key": "k/1", "current_revision": "7", "scope": "tenant"},
		},
		{
			err:      &store.RevisionError{Key: "k"},
			code:     codes.Aborted,
			reason:   "REVISION_MISMATCH",
			metadata: map[string]string{"key": "k", "current_revision": "0", "scope": "conversation"},
		},
		{
			err:      &store.RecordsFullError{Bytes: 9, Limit: 8},
			code:     codes.ResourceExhausted,
			reason:   "RECORDS_FULL",
			metadata: map[string]string{"bytes": "9", "limit": "8"},
		},
		{
			err:    &store.CopyTooLargeError{Records: 9, Bytes: 8},
			code:   codes.FailedPrecondition,
			reason: "COPY_TOO_LARGE",
			metadata: map[string]string{
				"records": "9", "bytes": "8", "limit_records": "20000", "limit_bytes": "33554432",
			},
		},
		{
			err:      &store.BusyError{TurnID: "t1"},
			code:     codes.Aborted,
			reason:   "CONVERSATION_BUSY",
			metadata: map[string]string{"active_turn_id": "t1"},
			retry:    time.Second,
		},
		{
			err:      &store.SeparatedError{CallID: "c", Call: 2, Result: 3},
			code:     codes.InvalidArgument,
			reason:   "CALL_SEPARATED",
			metadata: map[string]string{"call_sequence": "2", "result_sequence": "3"},
		},
		{err: store.ErrPageToken, code: codes.InvalidArgument, reason: "INVALID_REQUEST"},
		{
			err:      &turn.UnknownAgentError{Agent: "x", Known: known},
			code:     codes.InvalidArgument,
			reason:   "UNKNOWN_AGENT",
			metadata: agents,
		},
		{
			err:      &turn.AgentNotConfiguredError{Agent: "x", Known: known},
			code:     codes.FailedPrecondition,
			reason:   "AGENT_NOT_CONFIGURED",
			metadata: agents,
		},
		{
			err:      &tooLargeError{message: "messages[3]", size: 9, limit: 8},
			code:     codes.ResourceExhausted,
			reason:   "MESSAGE_TOO_LARGE",
			metadata: map[string]string{"limit_bytes": "8"},
		},
		{err: &store.HeaderTooLargeError{Bytes: 9}, code: codes.InvalidArgument, reason: "INVALID_REQUEST"},
		{
			err:      &limit.Error{Kind: limit.Requests, Limit: 9, Retry: 50 * time.Millisecond},
			code:     codes.ResourceExhausted,
			reason:   "TENANT_REQUESTS",
			metadata: map[string]string{"limit": "9"},
			retry:    50 * time.Millisecond,
		},
		{
			err:      &limit.Error{Kind: limit.AppendBytes, Limit: 9, Retry: 2 * time.Second},
			code:     codes.ResourceExhausted,
			reason:   "TENANT_APPEND_BYTES",
			metadata: map[string]string{"limit": "9"},
			retry:    2 * time.Second,
		},
		{
			err:      &limit.Error{Kind: limit.Streams, Limit: 9},
			code:     codes.ResourceExhausted,
			reason:   "TENANT_STREAMS",
			metadata: map[string]string{"limit": "9"},
			retry:    time.Second,
		},
		{
			err:      &limit.Error{Kind: limit.Imports, Limit: 9},
			code:     codes.ResourceExhausted,
			reason:   "TENANT_IMPORTS",
			metadata: map[string]string{"limit": "9"},
			retry:    time.Second,
		},
		{
			err:    &limit.Error{Kind: limit.ActiveTenants, Limit: 9},
			code:   codes.ResourceExhausted,
			reason: "TOO_MANY_TENANTS",
			retry:  time.Second,
		},
		{
			err:      &store.TenantBytesError{Bytes: 10, Limit: 9},
			code:     codes.ResourceExhausted,
			reason:   "TENANT_BYTES",
			metadata: map[string]string{"limit": "9"},
			retry:    time.Second,
		},
		{
			err:      &watch.TenantLimitError{Limit: 9},
			code:     codes.ResourceExhausted,
			reason:   "TENANT_WATCHERS",
			metadata: map[string]string{"limit": "9"},
			retry:    time.Second,
		},
		{
			err:      &store.ConversationFullError{Bytes: 10, Limit: 9},
			code:     codes.ResourceExhausted,
			reason:   "CONVERSATION_FULL",
			metadata: map[string]string{"limit_bytes": "9"},
		},
		{
			err:      &rules.RetentionError{Field: "keep_all", Flag: "--allow-keep-all"},
			code:     codes.FailedPrecondition,
			reason:   "RETENTION_FORBIDDEN",
			metadata: map[string]string{"field": "retention.keep_all"},
		},
		{err: store.ErrFull, code: codes.ResourceExhausted, reason: "STORE_FULL", retry: time.Second},
		{err: store.ErrNoSpace, code: codes.ResourceExhausted, reason: "STORE_FULL", logged: true},
		{err: store.ErrOverloaded, code: codes.ResourceExhausted, reason: "STORE_BUSY", retry: time.Second},
		{err: turn.ErrTooManyTurns, code: codes.ResourceExhausted, reason: "TOO_MANY_TURNS", retry: time.Second},
		{err: turn.ErrQueueFull, code: codes.ResourceExhausted, reason: "QUEUE_FULL", retry: time.Second},
		{err: watch.ErrTooMany, code: codes.ResourceExhausted, reason: "TOO_MANY_WATCHERS", retry: time.Second},
		{err: store.ErrTooManyHolds, code: codes.ResourceExhausted, reason: "SESSION_MEMORY_FULL"},
		{
			err:    transfer.ErrTooManyImports,
			code:   codes.ResourceExhausted,
			reason: "TOO_MANY_IMPORTS",
			retry:  time.Second,
		},
		{err: store.ErrBackupRunning, code: codes.ResourceExhausted, reason: "BACKUP_RUNNING", retry: time.Second},
		{
			err:      &store.BackupSpaceError{Needed: 9, Free: 8},
			code:     codes.ResourceExhausted,
			reason:   "BACKUP_SPACE",
			metadata: map[string]string{"needed_bytes": "9"},
		},
		{
			err:    errTooManyLarge,
			code:   codes.ResourceExhausted,
			reason: "TOO_MANY_LARGE_REQUESTS",
			retry:  time.Second,
		},
		{err: rules.ErrTooManyValues, code: codes.ResourceExhausted, reason: "REQUEST_TOO_LARGE"},
		{err: &malformedError{name: "x"}, code: codes.InvalidArgument, reason: "INVALID_REQUEST"},
		{err: slowstream.ErrReader, code: codes.ResourceExhausted, reason: "SLOW_READER"},
		{err: slowstream.ErrSender, code: codes.ResourceExhausted, reason: "SLOW_SENDER"},
		{
			err:      &turn.EventsGoneError{Oldest: 5},
			code:     codes.OutOfRange,
			reason:   "EVENTS_GONE",
			metadata: map[string]string{"oldest_index": "5"},
		},
		{err: &turn.EventsGoneError{}, code: codes.OutOfRange, reason: "EVENTS_GONE"},
		{
			err:      &turn.EventsGoneError{After: 9, Oldest: 1, Last: 8},
			code:     codes.OutOfRange,
			reason:   "EVENTS_GONE",
			metadata: map[string]string{"oldest_index": "1"},
		},
		{err: &sequenceGoneError{sequence: 4}, code: codes.OutOfRange, reason: "SEQUENCE_GONE"},
		{
			err:      &turn.NoOpenCallError{CallID: "x", Open: []string{"a", "b"}},
			code:     codes.FailedPrecondition,
			reason:   "NOTHING_TO_ANSWER",
			metadata: map[string]string{"open_call_ids": "a, b"},
		},
		{
			err:      &turn.HistoryTooSmallError{CallID: "x", MaxMessages: 20},
			code:     codes.ResourceExhausted,
			reason:   "HISTORY_TOO_SMALL",
			metadata: map[string]string{"max_messages": "20"},
		},
		{
			err:      &turn.HistoryTooSmallError{CallID: "x", MaxMessages: 20, MaxBytes: 9},
			code:     codes.ResourceExhausted,
			reason:   "HISTORY_TOO_SMALL",
			metadata: map[string]string{"max_conversation_bytes": "9"},
		},
		{err: interactionlog.ErrOff, code: codes.FailedPrecondition, reason: "INTERACTION_LOG_OFF"},
		{err: errBackupUnsupported, code: codes.FailedPrecondition, reason: "BACKUP_UNSUPPORTED"},
		{err: auth.ErrUnauthenticated, code: codes.Unauthenticated, reason: "UNAUTHENTICATED"},
		{
			err:      &auth.RoleError{Need: auth.Access{Role: auth.Admin}},
			code:     codes.PermissionDenied,
			reason:   "PERMISSION_DENIED",
			metadata: map[string]string{"needed_role": "admin"},
		},
		{err: &auth.TenantError{Named: "other"}, code: codes.PermissionDenied, reason: "PERMISSION_DENIED"},
		{err: &auth.TenantError{}, code: codes.InvalidArgument, reason: "TENANT_REQUIRED"},
		{err: store.ErrCorrupt, code: codes.DataLoss, reason: "RECORD_CORRUPT", logged: true},
		{err: store.ErrClosed, code: codes.Unavailable, reason: "SHUTTING_DOWN", retry: time.Second},
		{err: turn.ErrShuttingDown, code: codes.Unavailable, reason: "SHUTTING_DOWN", retry: time.Second},
		{err: store.ErrFailed, code: codes.Unavailable, reason: "STORE_FAILED", logged: true},
		{
			err: store.ErrUnavailable, code: codes.Unavailable, reason: "STORE_UNAVAILABLE", retry: time.Second, logged: true,
		},
		{err: peer.ErrUnreachable, code: codes.Unavailable, reason: "SERVER_UNREACHABLE", retry: time.Second},
		{
			err: &peer.EraseError{Failures: []peer.Failure{
				{Address: "a:1", Err: peer.ErrUnreachable}, {Address: "b:2", Err: peer.ErrUnreachable},
			}},
			code: codes.Unavailable, reason: "SERVER_UNREACHABLE", metadata: map[string]string{"servers": "a:1, b:2"},
			retry: time.Second,
		},
		{err: context.Canceled, code: codes.Canceled, reason: "CANCELLED"},
		{err: context.DeadlineExceeded, code: codes.DeadlineExceeded, reason: "DEADLINE_EXCEEDED"},
		{err: store.ErrTurnEnded, code: codes.Internal, reason: "INTERNAL", logged: true},
		{err: errors.New("anything else"), code: codes.Internal, reason: "INTERNAL", logged: true},
		{
			err:    fmt.Errorf("agent: %w", status.Error(codes.NotFound, secret)),
			code:   codes.Internal,
			reason: "INTERNAL",
			logged: true,
		},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%T %v", test.err, test.err), func(t *testing.T) {
			log := new(logBuffer)
			s := &Server{
				monitor: noMonitor{}, log: slog.New(slog.NewTextHandler(log, nil)), refusals: refusals(),
				hub: watch.New(watch.Options{}), store: memstore.New(store.Options{}), now: time.Now,
			}
			err := inConversation("c1", fmt.Errorf("read %s: %w", secret, test.err))
			got := statusOf(s.toStatus(t.Context(), "/parley.v1.ConversationService/GetConversation", err))
			if test.code == codes.ResourceExhausted && !slices.Contains(LimitReasons(), test.reason) {
				t.Errorf("LimitReasons() lacks %s", test.reason)
			}
			if test.logged && !slices.Contains(FailureReasons(), test.reason) {
				t.Errorf("FailureReasons() lacks %s", test.reason)
			}
			if got.code != test.code || got.reason != test.reason || got.retry != test.retry {
				t.Errorf("status = %v %q, retry after %v, want %v %q, %v",
					got.code, got.reason, got.retry, test.code, test.reason, test.retry)
			}
			if diff := cmp.Diff(test.metadata, got.metadata); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
			if strings.Contains(got.text, secret) || got.text == "" {
				t.Errorf("text = %q, want a text without internals", got.text)
			}
			if test.code == codes.Internal && got.text != "internal error" {
				t.Errorf("text = %q, want %q", got.text, "internal error")
			}
			want := &errdetails.ResourceInfo{
				ResourceType: "parley.v1.Conversation",
				ResourceName: "c1",
				Description:  got.text,
			}
			if test.reason == "TURN_NOT_FOUND" {
				want = &errdetails.ResourceInfo{
					ResourceType: "parley.v1.Turn",
					ResourceName: test.turn,
					Owner:        "c1",
					Description:  got.text,
				}
			}
			if diff := cmp.Diff(want, got.resource, protocmp.Transform()); test.code == codes.NotFound && diff != "" {
				t.Errorf("resource (-want +got):\n%s", diff)
			}
			if logged := len(log.lines(secret, "GetConversation", test.reason)) == 1; logged != test.logged {
				t.Errorf("logged = %t, want %t", logged, test.logged)
			}
		})
	}
}

// TestStatusesAreIndependent checks that the status of an error contains nothing of an earlier error.
func TestStatusesAreIndependent(t *testing.T) {
	s := &Server{
		monitor: noMonitor{}, log: slog.New(slog.DiscardHandler), refusals: refusals(),
		hub: watch.New(watch.Options{}), store: memstore.New(store.Options{}), now: time.Now,
	}
	for _, cause := range []error{store.ErrNotFound, store.ErrCorrupt, store.ErrRequestReused, &store.BusyError{TurnID: "t"}} {
		for _, id := range []string{"first", "second"} {
			got := statusOf(s.toStatus(t.Context(), "/x", inConversation(id, cause)))
			if !strings.Contains(got.text, id) || got.resource != nil && got.resource.GetResourceName() != id {
				t.Errorf("status of %v in %q = %q, %v", cause, id, got.text, got.resource)
			}
		}
		if got := statusOf(s.toStatus(t.Context(), "/x", cause)); !strings.Contains(got.text, "the conversation") {
			t.Errorf("status of %v = %q, want no id", cause, got.text)
		}
	}
}

// TestStatusOfGRPC checks that an error of gRPC itself is returned unchanged, unless the connection of the client has
// ended: that is no fault of the server.
func TestStatusOfGRPC(t *testing.T) {
	s := &Server{refusals: refusals()}
	own := status.Error(codes.Internal, "message cannot be decoded")
	if got := s.toStatus(t.Context(), "/x", own); !errors.Is(got, own) || statusOf(got).text != "message cannot be decoded" {
		t.Errorf("toStatus(%v) = %v, want it unchanged", own, got)
	}
	broken := status.Error(codes.Unavailable, "transport is closing")
	if got := s.toStatus(t.Context(), "/x", broken); status.Code(got) != codes.Canceled {
		t.Errorf("toStatus(%v) = %v, want code Canceled", broken, got)
	}
	failed := s.toStatus(t.Context(), "/x", turn.ErrShuttingDown)
	if got := s.toStatus(t.Context(), "/x", failed); !errors.Is(got, failed) {
		t.Errorf("toStatus(%v) = %v, want it unchanged", failed, got)
	}
}

func TestJoinNames(t *testing.T) {
	tests := []struct {
		names []string
		limit int
		want  string
	}{
		{
			nil,
			5,
			"",
		}, {[]string{"a", "b"}, 4, "a, b"}, {[]string{"a", "bc"}, 4, "a"}, {[]string{"a", "bc", "d"}, 5, "a, bc"}, {[]string{"abcdef", "b"}, 5, ""},
	}
	for _, test := range tests {
		if got := joinNames(test.names, test.limit); got != test.want {
			t.Errorf("joinNames(%q, %d) = %q, want %q", test.names, test.limit, got, test.want)
		}
	}
	open := make([]string, 64)
	for i := range open {
		open[i] = fmt.Sprintf("call_%032d", i)
	}
	got := statusOf((&Server{refusals: refusals()}).toStatus(t.Context(), "/x",
		&turn.NoOpenCallError{CallID: "x", Open: open})).metadata["open_call_ids"]
	if want := strings.Join(open[:13], ", "); got != want {
		t.Errorf("open_call_ids = %q, want %q", got, want)
	}
}
