package agui

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// interruptedAPI calls beforeAppend once, before the first call of AppendMessages, and refuses to resume turns.
type interruptedAPI struct {
	parleyv1.ConversationServiceClient

	beforeAppend func()
	resumed      []int32 // ResumeTurnRequest.after_index
	lists        int     // calls of ListMessages
}

func (a *interruptedAPI) ListMessages(
	ctx context.Context, r *parleyv1.ListMessagesRequest, options ...grpc.CallOption,
) (*parleyv1.ListMessagesResponse, error) {
	a.lists++
	return a.ConversationServiceClient.ListMessages(ctx, r, options...)
}

func (a *interruptedAPI) AppendMessages(
	ctx context.Context, r *parleyv1.AppendMessagesRequest, options ...grpc.CallOption,
) (*parleyv1.AppendMessagesResponse, error) {
	if run := a.beforeAppend; run != nil {
		a.beforeAppend = nil
		run()
	}
	return a.ConversationServiceClient.AppendMessages(ctx, r, options...)
}

func (a *interruptedAPI) ResumeTurn(
	_ context.Context, r *parleyv1.ResumeTurnRequest, _ ...grpc.CallOption,
) (grpc.ServerStreamingClient[parleyv1.ResumeTurnResponse], error) {
	a.resumed = append(a.resumed, r.GetAfterIndex())
	return nil, status.Error(codes.Unavailable, "not here")
}

// serve sends a request to a handler with this API.
func (a *interruptedAPI) serve(t *testing.T, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	everyone := func(context.Context, string, metadata.MD) (func(error), error) { return func(error) {}, nil }
	w := httptest.NewRecorder()
	gateway.LimitWrites(&handler{api: a, authorize: everyone, bodies: gateway.NewBodies()}).ServeHTTP(w, r)
	return w
}

// TestAppendBetween checks that a history is compared again if another request has stored it in the meantime.
func TestAppendBetween(t *testing.T) {
	f := newFixture(t, nil)
	body := runInput("t", "r", user("a", "one"), user("b", "two"), user("c", "three"))
	api := &interruptedAPI{ConversationServiceClient: f.api, beforeAppend: func() {
		f.all(t, http.MethodPost, PathPrefix+"echo", body)
	}}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, PathPrefix+"echo", strings.NewReader(body))
	if w := api.serve(t, r); !strings.Contains(w.Body.String(), "RUN_FINISHED") {
		t.Errorf("the second request = %d %s, want the run", w.Code, w.Body)
	}
	var got []string
	for _, m := range f.stored(t) {
		got = append(got, m.GetContent())
	}
	if want := []string{"one", "two", "three", "three"}; !slices.Equal(got, want) {
		t.Errorf("the conversation has %q, want %q", got, want)
	}
}

// TestLongHistory checks that a message without the history before it is stored and answered in a long conversation,
// and that only the newest part of that is read.
func TestLongHistory(t *testing.T) {
	f := newFixture(t, nil)
	if _, err := f.api.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "t", Retention: &parleyv1.Retention{KeepAll: true}},
	}); err != nil {
		t.Fatal(err)
	}
	batch := make([]*parleyv1.Message, maxBatch)
	for i := range batch {
		batch[i] = &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "x"}
	}
	for range (maxTailPages + 1) * maxPage / maxBatch {
		if _, err := f.api.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: "t", Messages: batch,
		}); err != nil {
			t.Fatal(err)
		}
	}
	api := &interruptedAPI{ConversationServiceClient: f.api}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, PathPrefix+"echo",
		strings.NewReader(runInput("t", "r", user("u", "new"))))
	if w := api.serve(t, r); !strings.Contains(w.Body.String(), `"delta":"new"`) || api.lists != maxTailPages {
		t.Errorf("the run = %d %.300s after %d lists, want its answer after %d", w.Code, w.Body, api.lists, maxTailPages)
	}
}

// TestResumeWithPendingText checks that a client that may lack text before its last event reads the turn from its start.
func TestResumeWithPendingText(t *testing.T) {
	api := new(interruptedAPI)
	for _, id := range []string{"turn/7/0/5/0/t", "turn/7~/0/5/0/t"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, PathPrefix+"echo?threadId=t", nil)
		r.Header.Set(lastEventID, id)
		if w := api.serve(t, r); w.Code != http.StatusServiceUnavailable {
			t.Errorf("resumed after %s = %d %s, want the error of the call", id, w.Code, w.Body)
		}
	}
	if want := []int32{7, 0}; !slices.Equal(api.resumed, want) {
		t.Errorf("the turn is resumed after %v, want %v", api.resumed, want)
	}
}

// TestUnsent checks which part of a text is new for a client.
func TestUnsent(t *testing.T) {
	for _, test := range []struct {
		number       int // of the message that arrives; the client has a part of message 1
		offset, sent int
		want         string
	}{
		{1, 0, 0, "abcd"}, {1, 6, 6, "abcd"}, {1, 4, 6, "cd"}, {1, 2, 6, ""}, {1, 0, 6, ""}, {0, 6, 6, ""},
	} {
		translation := &translation{number: test.number, at: position{number: 1}}
		if got := translation.unsent("abcd", test.offset, test.sent); got != test.want {
			t.Errorf("unsent(abcd, %d, %d) of message %d = %q, want %q", test.offset, test.sent, test.number, got, test.want)
		}
	}
}
