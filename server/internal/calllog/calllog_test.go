package calllog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newLog returns a log whose error texts are CODE/REASON, and what it has written at a level or above.
func newLog(s Settings, level slog.Level) (*Log, *bytes.Buffer) {
	written := new(bytes.Buffer)
	return New(Options{
		Settings: s, Log: slog.New(slog.NewJSONHandler(written, &slog.HandlerOptions{Level: level})),
		CodeOf: func(err error) (code, reason string) {
			code, reason, _ = strings.Cut(err.Error(), "/")
			return code, reason
		},
	}), written
}

// entries returns the entries without their times, and empties the log.
func entries(t *testing.T, written *bytes.Buffer) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(written.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("entry %q: %v", line, err)
		}
		delete(entry, "time")
		all = append(all, entry)
	}
	written.Reset()
	return all
}

const (
	appendMethod = parleyv1.ConversationService_AppendMessages_FullMethodName
	chatMethod   = parleyv1.ConversationService_Chat_FullMethodName
	watchMethod  = parleyv1.ConversationService_WatchConversations_FullMethodName
	waitMethod   = parleyv1.ConversationService_GetRoutingSummary_FullMethodName
	resumeMethod = parleyv1.ConversationService_ResumeTurn_FullMethodName
)

// TestLevels checks which calls have an entry, and its level.
func TestLevels(t *testing.T) {
	waiting := &parleyv1.GetRoutingSummaryRequest{WaitTimeout: durationpb.New(time.Minute)}
	for _, test := range []struct {
		name, method, err string
		request           any
		lasts, firstReply time.Duration
		signedIn          bool
		want              string // levels with off, errors, slow, all
	}{
		{"success", appendMethod, "", nil, 0, 0, true, "-DDI"},
		{"bad request", appendMethod, "INVALID_ARGUMENT/INVALID_REQUEST", nil, 0, 0, true, "-III"},
		{"internal error", appendMethod, "INTERNAL/INTERNAL", nil, 0, 0, true, "-WWW"},
		{"store failed", appendMethod, "UNAVAILABLE/STORE_FAILED", nil, 0, 0, true, "-WWW"},
		{"stop", watchMethod, "UNAVAILABLE/SHUTTING_DOWN", nil, 0, 0, true, "-DDI"},
		{"cancelled", watchMethod, "CANCELLED/CANCELLED", nil, 0, 0, true, "-DDI"},
		{"no credential", appendMethod, "UNAUTHENTICATED/UNAUTHENTICATED", nil, 0, 0, false, "-DDI"},
		{"expired credential", watchMethod, "UNAUTHENTICATED/UNAUTHENTICATED", nil, 0, 0, true, "-III"},
		{"slow", appendMethod, "", nil, 2 * time.Second, 0, true, "-DII"},
		{"as slow as the limit", appendMethod, "", nil, time.Second, 0, true, "-DDI"},
		{"long stream", chatMethod, "", nil, time.Minute, time.Millisecond, true, "-DDI"},
		{"stream with a slow start", chatMethod, "", nil, time.Minute, 2 * time.Second, true, "-DII"},
		{"watch", watchMethod, "", nil, time.Minute, 0, true, "-DDI"},
		{"resumed turn", resumeMethod, "", nil, time.Minute, 30 * time.Second, true, "-DDI"},
		{"wait", waitMethod, "", waiting, time.Minute, 0, true, "-DDI"},
		{"slow without wait", waitMethod, "", &parleyv1.GetRoutingSummaryRequest{}, time.Minute, 0, true, "-DII"},
	} {
		got := ""
		for _, calls := range []Calls{Off, Errors, Slow, All} {
			synctest.Test(t, func(t *testing.T) {
				l, written := newLog(Settings{Calls: calls, SlowAfter: time.Second}, slog.LevelDebug)
				ctx, call := l.Begin(t.Context(), test.method, false)
				if test.signedIn {
					call.SignedIn(auth.Anonymous())
				}
				call.Accepted(test.request)
				if test.firstReply > 0 {
					call.setReplied(time.Now().Add(test.firstReply))
				}
				<-time.After(test.lasts) // The clock of the bubble.
				var err error
				if test.err != "" {
					err = errors.New(test.err)
				}
				l.End(ctx, call, err)
				level := "-"
				for _, entry := range entries(t, written) {
					level = fmt.Sprint(entry["level"])[:1]
				}
				got += level
			})
		}
		if got != test.want {
			t.Errorf("levels of %s with off, errors, slow, all = %q, want %q", test.name, got, test.want)
		}
	}
}

// TestEntry checks the attributes of an entry, and that ids which are not valid are left out.
func TestEntry(t *testing.T) {
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	long := strings.Repeat("x", 129)
	for _, test := range []struct {
		name    string
		sent    metadata.MD
		request any
		want    map[string]any // besides those of all entries
	}{
		{"nothing sent", nil, &parleyv1.AppendMessagesRequest{}, nil},
		{
			"all ids",
			metadata.MD{"x-request-id": {"call-1"}, "traceparent": {"00-" + trace + "-00f067aa0ba902b7-01"}, "parley-peer": {"192.0.2.1:5"}},
			&parleyv1.AppendMessagesRequest{ConversationId: "c", RequestId: "r"},
			map[string]any{"conversation_id": "c", "request_id": "r", "call_id": "call-1", "trace_id": trace, "peer": "192.0.2.1:5"},
		},
		{
			"id in a field", nil, &parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: "c"}},
			map[string]any{"conversation_id": "c"},
		},
		{
			"ids that are not valid",
			metadata.MD{"x-request-id": {long}, "traceparent": {"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01"}},
			&parleyv1.AppendMessagesRequest{ConversationId: "a line\nand another", RequestId: strings.Repeat("x", 257)}, nil,
		},
		{
			"ids of any characters", nil, &parleyv1.AppendMessagesRequest{ConversationId: "app/1 ü", RequestId: "a \"b\""},
			map[string]any{"conversation_id": "app/1 ü", "request_id": `a "b"`},
		},
		{"text with a line end", metadata.MD{"x-request-id": {"a\nb"}, "traceparent": {"short"}}, nil, nil},
	} {
		l, written := newLog(Settings{Calls: All}, slog.LevelInfo)
		ctx, call := l.Begin(metadata.NewIncomingContext(t.Context(), test.sent), appendMethod, true)
		call.SignedIn(auth.Principal{Tenant: "acme", Name: "shop"})
		call.Refused(test.request)
		l.End(ctx, call, errors.New("NOT_FOUND/CONVERSATION_NOT_FOUND"))
		got := entries(t, written)
		want := map[string]any{
			"level": "INFO", "msg": "call", "method": appendMethod, "code": "NOT_FOUND", "reason": "CONVERSATION_NOT_FOUND",
			"tenant": "acme", "caller": "shop", "transport": "http",
		}
		maps.Copy(want, test.want)
		for _, entry := range got {
			delete(entry, "duration")
		}
		if diff := cmp.Diff([]map[string]any{want}, got); diff != "" {
			t.Errorf("entries of a call with %s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestForgedPeer checks that a call over a network cannot choose its address.
func TestForgedPeer(t *testing.T) {
	l, written := newLog(Settings{Calls: All}, slog.LevelInfo)
	ctx, call := l.Begin(metadata.NewIncomingContext(t.Context(), metadata.MD{"parley-peer": {"forged"}}), appendMethod, false)
	l.End(ctx, call, nil)
	if strings.Contains(written.String(), "forged") {
		t.Errorf("entry = %s, want no address from the metadata", written)
	}
}

// TestSignInFailedIsBounded checks that a flood of failed sign-ins has maxEntries entries in a second, and one entry
// with the number of the others, also if the level of the log excludes info.
func TestSignInFailedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, written := newLog(Settings{}, slog.LevelError)
		const flood = 1000
		fail := func() {
			l.SignInFailed(t.Context(), appendMethod, false, auth.Credentials{TokenSent: true, Token: "secret"})
		}
		for range flood {
			fail()
		}
		<-time.After(boundTime)
		synctest.Wait()
		got := entries(t, written)
		if len(got) != maxEntries+1 {
			t.Fatalf("%d failed sign-ins have %d entries, want %d", flood, len(got), maxEntries+1)
		}
		want := map[string]any{
			"level": "INFO", "msg": "audit", "event": "sign_in_failed", "method": appendMethod, "credential": "token",
			"transport": "grpc",
		}
		if diff := cmp.Diff(want, got[0]); diff != "" {
			t.Errorf("first entry (-want +got):\n%s", diff)
		}
		want = map[string]any{"level": "INFO", "msg": "audit", "event": "sign_in_failed", "left_out": float64(flood - maxEntries)}
		if diff := cmp.Diff(want, got[maxEntries]); diff != "" {
			t.Errorf("last entry (-want +got):\n%s", diff)
		}

		fail()
		if got := entries(t, written); len(got) != 1 || got[0]["left_out"] != nil {
			t.Errorf("entries of the next failure = %v, want one without a count", got)
		}
		for range maxEntries {
			fail()
		}
		l.Close()
		if got := entries(t, written); len(got) != maxEntries || got[maxEntries-1]["left_out"] != float64(1) {
			t.Errorf("entries until Close = %v, want %d with the count 1 in the last", got, maxEntries)
		}
	})
}

// TestAudit checks the audit entries of calls.
func TestAudit(t *testing.T) {
	const purge = parleyv1.ConversationService_PurgeConversations_FullMethodName
	const write = parleyv1.RecordService_WriteRecords_FullMethodName
	removal := []*parleyv1.RecordWrite{{Key: "a"}, {Key: "b", Delete: true}}
	admin := auth.Principal{Tenant: "acme", Name: "shop", ID: "token:t1"}
	base := func(method, event string, more map[string]any) []map[string]any {
		entry := map[string]any{
			"level": "INFO", "msg": "audit", "event": event, "method": method, "code": "OK", "transport": "grpc",
			"tenant": "acme", "caller": "shop", "caller_id": "token:t1",
		}
		maps.Copy(entry, more)
		return []map[string]any{entry}
	}
	for _, test := range []struct {
		method         string
		request, reply any
		want           []map[string]any
	}{
		{
			appendMethod,
			&parleyv1.AppendMessagesRequest{ConversationId: "c", Records: []*parleyv1.RecordWrite{{Key: "a"}}}, nil, nil,
		},
		{
			appendMethod, &parleyv1.AppendMessagesRequest{ConversationId: "c", ReplaceAfterSequence: new(int32)}, nil,
			base(appendMethod, "delete", map[string]any{"conversation_id": "c"}),
		},
		{
			appendMethod, &parleyv1.AppendMessagesRequest{ConversationId: "c", Records: removal}, nil,
			base(appendMethod, "delete", map[string]any{"conversation_id": "c"}),
		},
		{chatMethod, &parleyv1.ChatRequest{ConversationId: "c"}, nil, nil},
		{
			chatMethod, &parleyv1.ChatRequest{ConversationId: "c", Records: removal}, nil,
			base(chatMethod, "delete", map[string]any{"conversation_id": "c"}),
		},
		{write, &parleyv1.WriteRecordsRequest{Writes: removal[:1]}, nil, nil},
		{write, &parleyv1.WriteRecordsRequest{Writes: removal}, nil, base(write, "delete", nil)},
		{
			parleyv1.ConversationService_DeleteConversation_FullMethodName,
			&parleyv1.DeleteConversationRequest{ConversationId: "c"}, &parleyv1.DeleteConversationResponse{},
			base(parleyv1.ConversationService_DeleteConversation_FullMethodName, "delete", map[string]any{"conversation_id": "c"}),
		},
		{
			purge, &parleyv1.PurgeConversationsRequest{}, &parleyv1.PurgeConversationsResponse{PurgedCount: 3},
			base(purge, "delete", map[string]any{"deleted": float64(3)}),
		},
		{
			purge, &parleyv1.PurgeConversationsRequest{DryRun: true},
			&parleyv1.PurgeConversationsResponse{PurgedCount: 3}, nil,
		},
		{
			parleyv1.AdminService_GetStats_FullMethodName, &parleyv1.GetStatsRequest{}, nil,
			base(parleyv1.AdminService_GetStats_FullMethodName, "admin_call", nil),
		},
		{
			parleyv1.ConversationService_ExportConversations_FullMethodName, nil, nil,
			base(parleyv1.ConversationService_ExportConversations_FullMethodName, "transfer", nil),
		},
	} {
		l, written := newLog(Settings{Calls: Off}, slog.LevelError)
		ctx, call := l.Begin(t.Context(), test.method, false)
		call.SignedIn(admin)
		Of(ctx).Accepted(test.request)
		Of(ctx).Replied(test.reply)
		l.End(ctx, call, nil)
		if diff := cmp.Diff(test.want, entries(t, written)); diff != "" {
			t.Errorf("audit entries of %s (-want +got):\n%s", test.method, diff)
		}

		ctx, call = l.Begin(t.Context(), test.method, false) // For example a call above the limits of its tenant.
		l.End(ctx, call, errors.New("RESOURCE_EXHAUSTED/TENANT_REQUESTS"))
		if got := entries(t, written); got != nil {
			t.Errorf("audit entries of a refused %s = %v, want none", test.method, got)
		}
	}
}

// TestUnloggedCall checks that code which is called outside of a call works.
func TestUnloggedCall(t *testing.T) {
	call := Of(t.Context())
	call.SignedIn(auth.Anonymous())
	call.SetConversation("c")
	call.Accepted(nil)
	call.Refused(nil)
	call.Replied(nil)
}
