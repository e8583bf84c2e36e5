package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
)

// TestLastEventIDIsPassedOn: the Last-Event-ID header has precedence over the URL.
func TestLastEventIDIsPassedOn(t *testing.T) {
	var received []any
	s := &fakeService{
		resume: func(r *parleyv1.ResumeTurnRequest, _ grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
			received = append(received, r.GetAfterIndex())
			return nil
		},
		watch: func(r *parleyv1.WatchConversationsRequest, _ grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
			received = append(received, r.GetCursor())
			return nil
		},
		export: func(*parleyv1.ExportConversationsRequest, grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]) error {
			received = append(received, "export")
			return nil
		},
	}
	withFakeService(t, s, func(t *testing.T, d *memoryClient) {
		t.Helper()
		for _, c := range []struct {
			path, id string
			want     any
		}{
			{eventsPath, "7", int32(7)},
			{eventsPath + "?after_index=3", "7", int32(7)},
			{eventsPath + "?after_index=3", "0", int32(0)},
			{eventsPath + "?after_index=3", "", int32(3)},
			{"/v1/watch", "that", "that"},
			{"/v1/watch?cursor=this", "that", "that"},
			{"/v1/watch?cursor=this", "", "this"},
			{"/v1/export", "x", "export"},
		} {
			received = nil
			if _, err := io.Copy(io.Discard, d.do(t, c.path, "", "Last-Event-ID: "+c.id).Body); err != nil ||
				!slices.Equal(received, []any{c.want}) {
				t.Errorf("%s with %q sent %v, %v, want %v", c.path, c.id, received, err, c.want)
			}
		}
	})
}

// TestEventIDsAfterIndex: text is pending before a value only if an index is missing between the
// value and the position at which the client resumes. The header and the URL can both give that
// position.
func TestEventIDsAfterIndex(t *testing.T) {
	s := &fakeService{resume: sendEvents(valueEvent(6), finishedEvent(7))}
	withFakeService(t, s, func(t *testing.T, d *memoryClient) {
		t.Helper()
		for _, c := range []struct {
			path, id string
			want     []string
		}{
			{eventsPath + "?afterIndex=5", "", []string{"6", "7"}},
			{eventsPath + "?afterIndex=4", "", []string{"6~", "7"}},
			{eventsPath + "?afterIndex=4", "5", []string{"6", "7"}},
			{eventsPath + "?afterIndex=5", "4", []string{"6~", "7"}},
			{eventsPath, "", []string{"6~", "7"}},
		} {
			if ids := fieldValues(t, d.do(t, c.path, "", wantsEvents, "Last-Event-ID: "+c.id), "id"); !slices.Equal(ids, c.want) {
				t.Errorf("%s with %q: ids = %q, want %q", c.path, c.id, ids, c.want)
			}
		}
	})
}

func TestLastEventIDFaults(t *testing.T) {
	refuse := func(r *parleyv1.WatchConversationsRequest, _ grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
		bad := &errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "cursor", Description: r.GetCursor()}},
		}
		return NewStatus(codes.InvalidArgument, "INVALID_REQUEST", "cursor: is bad", bad).Err()
	}
	f := serve(t, rpctest.Dial(t, fakeServer(&fakeService{watch: refuse})))
	const chat = `{"conversation_id": "c", "content": "hello"}`
	for _, c := range []struct {
		name, method, path, body, id string
		code                         int
		reason                       string
		at                           []string
	}{
		{"not a number", "GET", eventsPath, "", "x", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{"negative", "GET", eventsPath, "", "-1", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{
			"not a number in a chat", "POST", "/v1/chat", `{"content": "hello", "requestId": "r"}`, "x", 400, "INVALID_REQUEST",
			[]string{"Last-Event-ID"},
		},
		{"a chat without request_id", "POST", "/v1/chat", chat, "3", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{"before text", "GET", eventsPath, "", "3~", 400, "EVENTS_GONE", nil},
		{
			"before text in a chat", "POST", "/v1/chat", `{"content": "hello", "requestId": "r"}`, "3~", 400, "EVENTS_GONE", nil,
		},
		{"a bad cursor", "GET", "/v1/watch", "", "x", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{"a bad cursor in the URL", "GET", "/v1/watch?cursor=x", "", "", 400, "INVALID_REQUEST", []string{"cursor"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := f.do(t, c.method, c.path, c.body, wantsEvents, "Last-Event-ID: "+c.id)
			a.wantError(t, c.code, c.reason, c.at...)
			if named := strings.Contains(a.status(t).Message(), "Last-Event-ID"); named != (c.id != "") {
				t.Errorf("message = %q, names the header: %t, want %t", a.status(t).Message(), named, c.id != "")
			}
			if c.reason == "EVENTS_GONE" && !strings.Contains(a.body, `"oldest_index"`) {
				t.Errorf("response = %s, want the oldest index", a.body)
			}
		})
	}
}

// TestChatResumes: a Chat with a Last-Event-ID resumes after that event in each state of the turn.
func TestChatResumes(t *testing.T) {
	eventsGone := func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
		return NewStatus(codes.OutOfRange, "EVENTS_GONE", "eventsGone").Err()
	}
	for _, c := range []struct {
		name  string
		after string
		chat  []*parleyv1.TurnEvent
		// Nil if ResumeTurn must not be called.
		resume func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error
		code   int
		want   []string // Ids of the events.
	}{
		{
			"running turn", "2",
			[]*parleyv1.TurnEvent{startedEvent(1, true)},
			sendEvents(textEvent(3, "b"), finishedEvent(4)),
			200,
			[]string{"3", "4"},
		},
		{"merged", "2", []*parleyv1.TurnEvent{startedEvent(1, true), textEvent(9, "ab")}, eventsGone, 400, nil},
		{"received completely", "4", []*parleyv1.TurnEvent{startedEvent(1, true), finishedEvent(4)}, sendEvents(), 204, nil},
		{
			"same queued turn", "1",
			[]*parleyv1.TurnEvent{queuedEvent(1), queuedEvent(2), startedEvent(3, true), finishedEvent(4)},
			nil, 200,
			[]string{"2", "3", "4"},
		},
		{
			"queued turn that has started", "3",
			[]*parleyv1.TurnEvent{queuedEvent(1), queuedEvent(2), startedEvent(3, true)},
			sendEvents(textEvent(4, "a"), finishedEvent(5)),
			200,
			[]string{"4", "5"},
		},
		{
			"queued turn that has sent more of a text", "4",
			[]*parleyv1.TurnEvent{queuedEvent(1), startedEvent(2, true), textEvent(5, "abc")},
			sendEvents(textEvent(5, "c"), finishedEvent(6)),
			200,
			[]string{"5", "6"},
		},
		{
			"queued again at the end of the queue", "3",
			[]*parleyv1.TurnEvent{queuedEvent(1), startedEvent(2, false), textEvent(3, "a"), finishedEvent(4)},
			nil, 200,
			[]string{"2", "3", "4"},
		},
		{
			"never received by the server", "3",
			[]*parleyv1.TurnEvent{startedEvent(1, false), textEvent(2, "a"), finishedEvent(3)},
			nil, 200,
			[]string{"1", "2", "3"},
		},
		{"cancelled in the queue", "2", []*parleyv1.TurnEvent{queuedEvent(1), finishedEvent(2)}, nil, 204, nil},
		{
			"cancelled after being queued again", "9",
			[]*parleyv1.TurnEvent{queuedEvent(1), finishedEvent(2)},
			nil, 200,
			[]string{"2"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			left, resumed := make(chan struct{}), false
			s := &fakeService{
				chat: func(_ *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
					for _, event := range c.chat {
						if err := stream.Send(&parleyv1.ChatResponse{Event: event}); err != nil {
							return err
						}
					}
					if c.resume != nil { // The turn continues without this reader.
						<-stream.Context().Done()
						close(left)
					}
					return nil
				},
				resume: func(r *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
					resumed = r.GetConversationId() == "c" && r.GetTurnId() == "t" && r.GetAfterIndex() > 0
					if err := c.resume(r, stream); err != nil || c.code != http.StatusOK {
						return err
					}
					<-left // The turn has a reader now, so Chat may end.
					return nil
				},
			}
			withFakeService(t, s, func(t *testing.T, d *memoryClient) {
				t.Helper()
				left = make(chan struct{}) // A channel of this bubble.
				reply := d.do(t, "/v1/conversations/c/chat", `{"content": "hello", "requestId": "r"}`, wantsEvents,
					"Last-Event-ID: "+c.after)
				if ids := fieldValues(t, reply, "id"); reply.StatusCode != c.code || !slices.Equal(ids, c.want) {
					t.Errorf("status = %d, ids = %q, want %d, %q", reply.StatusCode, ids, c.code, c.want)
				}
				if resumed != (c.resume != nil) {
					t.Errorf("ResumeTurn called: %t, want %t", resumed, c.resume != nil)
				}
			})
		})
	}
}
