package rpc

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/interactionlog"
)

// logTime returns the time of all entries that these tests log.
func logTime() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

// withInteractionLog opens an interaction log. It returns the log's directory and a change of the setup
// that adds the log and then calls change.
func withInteractionLog(t *testing.T, change func(*setup)) (dir string, all func(*setup)) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "interactions")
	l, err := interactionlog.Open(interactionlog.Options{Dir: dir, Log: slog.New(slog.DiscardHandler), Now: logTime})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return dir, func(s *setup) {
		s.Interactions, s.storeOptions.Now = l, logTime
		if change != nil {
			change(s)
		}
	}
}

func contents(interactions []*parleyv1.Interaction) []string {
	found := []string{}
	for _, i := range interactions {
		found = append(found, i.GetContent())
	}
	return found
}

// TestInteractions lists, searches and deletes log entries, also those of a deleted conversation.
func TestInteractions(t *testing.T) {
	dir, withLog := withInteractionLog(t, nil)
	f := open(t, withLog)
	const yesterday = `{"timestamp":"2020-02-29T23:00:00Z","session_id":"old","role":"user","content":"long ago"}` + "\nbroken\n"
	if err := os.WriteFile(filepath.Join(dir, "2020-02-29.jsonl"), []byte(yesterday), 0o600); err != nil {
		t.Fatal(err)
	}
	f.append(t, "a", user("one"), assistant("two"))
	f.append(t, "b", user("THREE"))
	f.append(t, "a", user("four"))
	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "a"}); err != nil {
		t.Fatal(err)
	}
	today := logTime().Format(time.DateOnly)
	tests := map[string]struct {
		list    *parleyv1.ListInteractionsRequest
		want    []string
		skipped int32
	}{
		"today": {
			&parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: today}},
			[]string{"one", "two", "THREE", "four"},
			0,
		},
		"old day": {
			&parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: "2020-02-29"}},
			[]string{"long ago"},
			1,
		},
		"day without entries": {
			&parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: "2020-02-28"}},
			[]string{},
			0,
		},
		"default span": {&parleyv1.ListInteractionsRequest{}, []string{"four", "THREE", "two", "one"}, 0},
		"last hour": {&parleyv1.ListInteractionsRequest{
			ConversationId: "b", Span: &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(time.Hour)},
		}, []string{"THREE"}, 0},
		"deleted conversation": {
			&parleyv1.ListInteractionsRequest{ConversationId: "a"},
			[]string{"one", "two", "four"},
			1,
		},
		"unknown conversation": {&parleyv1.ListInteractionsRequest{ConversationId: "nobody"}, []string{}, 1},
	}
	for name, test := range tests {
		for _, size := range []int32{0, 1, 2} {
			got, skipped := []string{}, int32(0)
			request := proto.CloneOf(test.list)
			request.PageSize = size
			for {
				page, err := f.ListInteractions(t.Context(), request)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if size > 0 && len(page.GetInteractions()) > int(size) {
					t.Errorf("%s: page has %d entries, want at most %d", name, len(page.GetInteractions()), size)
				}
				got, skipped = append(got, contents(page.GetInteractions())...), skipped+page.GetSkippedCount()
				if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" {
					break
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" || skipped != test.skipped {
				t.Errorf(
					"%s, page size %d: skipped = %d, want %d; entries (-want +got):\n%s",
					name,
					size,
					skipped,
					test.skipped,
					diff,
				)
			}
		}
	}

	search := &parleyv1.SearchInteractionsRequest{Query: "o", PageSize: 2}
	first, err := f.SearchInteractions(t.Context(), search)
	if err != nil || !slices.Equal(contents(first.GetInteractions()), []string{"four", "two"}) ||
		first.GetNextPageToken() == "" {
		t.Fatalf("first page of the search = %v, %v", first, err)
	}
	search.PageToken = first.GetNextPageToken()
	if second, err := f.SearchInteractions(t.Context(), search); err != nil ||
		!slices.Equal(contents(second.GetInteractions()), []string{"one"}) {
		t.Errorf("second page of the search = %v, %v", second, err)
	}
	days := int32(logTime().Sub(time.Date(2020, 2, 29, 0, 0, 0, 0, time.UTC))/(24*time.Hour)) + 1
	for request, want := range map[*parleyv1.SearchInteractionsRequest][]string{
		{Query: "three"}:                        {"THREE"},
		{Query: "o", ConversationId: "b"}:       {},
		{Query: "long"}:                         {},
		{Query: "long", Days: days}:             {"long ago"},
		{Query: "t", ConversationId: "b"}:       {"THREE"},
		{Query: "long", ConversationId: "none"}: {},

		{Query: strings.Repeat("x", 1024)}: {},
	} {
		reply, err := f.SearchInteractions(t.Context(), request)
		if err != nil || !slices.Equal(contents(reply.GetInteractions()), want) {
			t.Errorf("SearchInteractions(%v) = %v, %v, want %v", request, reply, err, want)
		}
		if want := min(request.GetDays(), 1); err == nil && reply.GetSkippedCount() != want {
			t.Errorf("SearchInteractions(%v): skipped = %d, want %d", request, reply.GetSkippedCount(), want)
		}
	}

	for _, want := range []int64{3, 0} {
		reply, err := f.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: "a"})
		if err != nil || reply.GetDeletedCount() != want {
			t.Errorf("DeleteInteractions = %d, %v, want %d", reply.GetDeletedCount(), err, want)
		}
	}
	if rest, err := f.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{}); err != nil ||
		!slices.Equal(contents(rest.GetInteractions()), []string{"THREE"}) {
		t.Errorf("ListInteractions after the deletion = %v, %v", rest, err)
	}
}

// TestInvalidInteractionRequests checks that the error for an invalid request names the field.
func TestInvalidInteractionRequests(t *testing.T) {
	_, withLog := withInteractionLog(t, nil)
	f := open(t, withLog)
	f.append(t, "a", user("1"), user("2"))
	page, err := f.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	token := page.GetNextPageToken()
	date := func(date string) *parleyv1.ListInteractionsRequest {
		return &parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: date}}
	}
	for _, test := range []struct {
		field   string
		request proto.Message
	}{
		{"date", date("2026-02-30")},
		{"date", date("2026-13-01")},
		{"date", date("yesterday")},
		{"date", date("")},
		{
			"within",
			&parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(0)}},
		},
		{
			"within",
			&parleyv1.ListInteractionsRequest{
				Span: &parleyv1.ListInteractionsRequest_Within{Within: durationpb.New(-time.Second)},
			},
		},
		{"conversation_id", &parleyv1.ListInteractionsRequest{ConversationId: ".."}},
		{"page_size", &parleyv1.ListInteractionsRequest{PageSize: 1001}},
		{"page_token", &parleyv1.ListInteractionsRequest{PageToken: "x"}},
		{"page_token", &parleyv1.ListInteractionsRequest{PageToken: token, ConversationId: "a"}},
		{"query", &parleyv1.SearchInteractionsRequest{}},
		{"query", &parleyv1.SearchInteractionsRequest{Query: strings.Repeat("x", 1025)}},
		{"days", &parleyv1.SearchInteractionsRequest{Query: "x", Days: -1}},
		{"page_token", &parleyv1.SearchInteractionsRequest{Query: "x", PageToken: token}},
		{"conversation_id", &parleyv1.SearchInteractionsRequest{Query: "x", ConversationId: "."}},
		{"conversation_id", &parleyv1.DeleteInteractionsRequest{}},
	} {
		var err error
		switch r := test.request.(type) {
		case *parleyv1.ListInteractionsRequest:
			_, err = f.ListInteractions(t.Context(), r)
		case *parleyv1.SearchInteractionsRequest:
			_, err = f.SearchInteractions(t.Context(), r)
		case *parleyv1.DeleteInteractionsRequest:
			_, err = f.DeleteInteractions(t.Context(), r)
		}
		got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		if !slices.Equal(got.fields, []string{test.field}) {
			t.Errorf("%v: fields = %v, want %s", test.request, got.fields, test.field)
		}
	}
}

// TestIsolationOfInteractions checks that a caller reads entries of its own tenant only. Only an
// administrator of a tenant can delete them.
func TestIsolationOfInteractions(t *testing.T) {
	_, withLog := withInteractionLog(t, func(s *setup) { s.Auth = byMetadata() })
	f := open(t, withLog)
	for _, tenant := range []string{"a", "b"} {
		request := &parleyv1.AppendMessagesRequest{
			ConversationId: "both",
			Messages:       []*parleyv1.Message{user("of " + tenant)},
		}
		if _, err := f.AppendMessages(withMetadata(t, "tenant", tenant), request); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(tenant string, want ...string) {
		t.Helper()
		list, err := f.ListInteractions(
			withMetadata(t, "tenant", tenant),
			&parleyv1.ListInteractionsRequest{ConversationId: "both"},
		)
		if err != nil || !slices.Equal(contents(list.GetInteractions()), want) {
			t.Errorf("ListInteractions of tenant %s = %v, %v, want %v", tenant, list, err, want)
		}
		found, err := f.SearchInteractions(
			withMetadata(t, "tenant", tenant),
			&parleyv1.SearchInteractionsRequest{Query: "OF"},
		)
		if err != nil || !slices.Equal(contents(found.GetInteractions()), want) {
			t.Errorf("SearchInteractions of tenant %s = %v, %v, want %v", tenant, found, err, want)
		}
	}
	wants("a", "of a")
	wants("b", "of b")
	wants("c")
	_, err := f.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{})
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	request := &parleyv1.DeleteInteractionsRequest{ConversationId: "both"}
	_, err = f.DeleteInteractions(withMetadata(t, "tenant", "a"), request)
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	wants("a", "of a")
	if reply, err := f.DeleteInteractions(withMetadata(t, "tenant", "a", "role", "admin"), request); err != nil ||
		reply.GetDeletedCount() != 1 {
		t.Errorf("DeleteInteractions as administrator = %v, %v", reply, err)
	}
	wants("a")
	wants("b", "of b")
}

// TestNoInteractionLog checks the error of a server without an interaction log.
func TestNoInteractionLog(t *testing.T) {
	f := open(t, nil)
	_, list := f.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{})
	_, search := f.SearchInteractions(t.Context(), &parleyv1.SearchInteractionsRequest{Query: "x"})
	_, erase := f.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: "x"})
	for _, err := range []error{list, search, erase} {
		got := wantError(t, err, codes.FailedPrecondition, "INTERACTION_LOG_OFF")
		if want := "the interaction log is off; start the server with --interaction-log"; got.text != want {
			t.Errorf("text = %q, want %q", got.text, want)
		}
	}
}

// TestInteractionsContext checks that the methods return when the context of the call has ended.
func TestInteractionsContext(t *testing.T) {
	_, withLog := withInteractionLog(t, nil)
	f := open(t, withLog)
	f.append(t, "a", user("one"))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	expired, cancelExpired := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelExpired()
	for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: expired} {
		ctx = context.WithValue(ctx, principalKey{}, auth.Anonymous())
		_, list := f.server.ListInteractions(ctx, &parleyv1.ListInteractionsRequest{})
		_, search := f.server.SearchInteractions(ctx, &parleyv1.SearchInteractionsRequest{Query: "o"})
		_, erase := f.server.DeleteInteractions(ctx, &parleyv1.DeleteInteractionsRequest{ConversationId: "a"})
		for i, err := range []error{list, search, erase} {
			if !errors.Is(err, want) {
				t.Errorf("call %d: error = %v, want %v", i, err, want)
			}
		}
	}
}

// TestInteractionsDirect checks that direct calls return the same as calls over a connection.
func TestInteractionsDirect(t *testing.T) {
	_, withLog := withInteractionLog(t, nil)
	f := open(t, withLog)
	f.append(t, "a", user("one"))
	direct := parleyv1.NewInteractionLogServiceClient(f.direct(t))
	for _, client := range []parleyv1.InteractionLogServiceClient{f, direct} {
		list, err := client.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{})
		if err != nil || len(list.GetInteractions()) != 1 {
			t.Fatalf("%T: ListInteractions = %v, %v, want 1 entry", client, list, err)
		}
		want := &parleyv1.Interaction{ConversationId: "a", Agent: "User", Role: parleyv1.Role_ROLE_USER, Content: "one"}
		if diff := cmp.Diff(want, list.GetInteractions()[0], protocmp.Transform(),
			protocmp.IgnoreFields(want, "timestamp", "metadata")); diff != "" {
			t.Errorf("%T (-want +got):\n%s", client, diff)
		}
		if turn := list.GetInteractions()[0].GetMetadata().GetFields()["turn_number"].GetNumberValue(); turn != 1 {
			t.Errorf("%T: turn_number = %v, want 1", client, turn)
		}
	}
	_, err := direct.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{PageToken: "x"})
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}
