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
)

// The Last-Event-ID wins over what the URL says.
func TestLastEventIDIsSentOn(t *testing.T) {
	var asked []any
	s := &scripted{
		resume: func(r *parleyv1.ResumeTurnRequest, _ grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
			asked = append(asked, r.GetAfterIndex())
			return nil
		},
		watch: func(r *parleyv1.WatchConversationsRequest, _ grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
			asked = append(asked, r.GetCursor())
			return nil
		},
		export: func(*parleyv1.ExportConversationsRequest, grpc.ServerStreamingServer[parleyv1.ExportConversationsResponse]) error {
			asked = append(asked, "export")
			return nil
		},
	}
	inBubble(t, s, func(t *testing.T, d *inMemory) {
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
			asked = nil
			if _, err := io.Copy(io.Discard, d.ask(t, c.path, "", "Last-Event-ID: "+c.id).Body); err != nil || !slices.Equal(asked, []any{c.want}) {
				t.Errorf("%s with %q asks for %v, %v, want %v", c.path, c.id, asked, err, c.want)
			}
		}
	})
}

// Text is missing ahead of a value only if there is room for it behind where the client goes
// on, which the URL says as well as the header.
func TestEventIDsBehindAfterIndex(t *testing.T) {
	s := &scripted{resume: sends(valueEvent(6), finishedEvent(7))}
	inBubble(t, s, func(t *testing.T, d *inMemory) {
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
			if ids := fieldsOf(t, d.ask(t, c.path, "", wantsEvents, "Last-Event-ID: "+c.id), "id"); !slices.Equal(ids, c.want) {
				t.Errorf("%s with %q has the ids %q, want %q", c.path, c.id, ids, c.want)
			}
		}
	})
}

func TestLastEventIDFaults(t *testing.T) {
	refuse := func(r *parleyv1.WatchConversationsRequest, _ grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
		bad := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "cursor", Description: r.GetCursor()}}}
		return newStatus(codes.InvalidArgument, "INVALID_REQUEST", "cursor: is bad", bad).Err()
	}
	f := serve(t, dial(t, scriptedServer(&scripted{watch: refuse})))
	const chat = `{"conversation_id": "c", "content": "hello"}`
	for _, c := range []struct {
		name, method, path, body, id string
		code                         int
		reason                       string
		at                           []string
	}{
		{"no number", "GET", eventsPath, "", "x", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{"negative", "GET", eventsPath, "", "-1", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{"no number in a chat", "POST", "/v1/chat", `{"content": "hello", "requestId": "r"}`, "x", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{"a chat without request_id", "POST", "/v1/chat", chat, "3", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{"ahead of text", "GET", eventsPath, "", "3~", 400, "EVENTS_GONE", nil},
		{"ahead of text in a chat", "POST", "/v1/chat", `{"content": "hello", "requestId": "r"}`, "3~", 400, "EVENTS_GONE", nil},
		{"a bad cursor", "GET", "/v1/watch", "", "x", 400, "INVALID_REQUEST", []string{"Last-Event-ID"}},
		{"a bad cursor in the URL", "GET", "/v1/watch?cursor=x", "", "", 400, "INVALID_REQUEST", []string{"cursor"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := f.do(t, c.method, c.path, c.body, wantsEvents, "Last-Event-ID: "+c.id)
			a.wantError(t, c.code, c.reason, c.at...)
			if named := strings.Contains(a.status(t).Message(), "Last-Event-ID"); named != (c.id != "") {
				t.Errorf("the text is %q", a.status(t).Message())
			}
			if c.reason == "EVENTS_GONE" && !strings.Contains(a.body, `"oldest_index"`) {
				t.Errorf("it does not say from where: %s", a.body)
			}
		})
	}
}

// A Chat with a Last-Event-ID goes on behind it, whatever has become of the turn.
func TestChatGoesOn(t *testing.T) {
	gone := func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
		return newStatus(codes.OutOfRange, "EVENTS_GONE", "gone").Err()
	}
	for _, c := range []struct {
		name   string
		after  string
		chat   []*parleyv1.TurnEvent
		resume func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error // Nil: is not called.
		code   int
		want   []string // ids
	}{
		{"a turn that runs", "2", []*parleyv1.TurnEvent{startedEvent(1, true)}, sends(textEvent(3, "b"), finishedEvent(4)), 200, []string{"3", "4"}},
		{"merged", "2", []*parleyv1.TurnEvent{startedEvent(1, true), textEvent(9, "ab")}, gone, 400, nil},
		{"read to its end", "4", []*parleyv1.TurnEvent{startedEvent(1, true), finishedEvent(4)}, sends(), 204, nil},
		{"waits, is the same", "1", []*parleyv1.TurnEvent{queuedEvent(1), queuedEvent(2), startedEvent(3, true), finishedEvent(4)}, nil, 200, []string{"2", "3", "4"}},
		{"waited, has started", "3", []*parleyv1.TurnEvent{queuedEvent(1), queuedEvent(2), startedEvent(3, true), textEvent(4, "a"), finishedEvent(5)}, nil, 200, []string{"4", "5"}},
		{"waits again, from the end of the line", "3", []*parleyv1.TurnEvent{queuedEvent(1), startedEvent(2, false), textEvent(3, "a"), finishedEvent(4)}, nil, 200, []string{"2", "3", "4"}},
		{"never came to the server", "3", []*parleyv1.TurnEvent{startedEvent(1, false), textEvent(2, "a"), finishedEvent(3)}, nil, 200, []string{"1", "2", "3"}},
		{"cancelled as it waited", "2", []*parleyv1.TurnEvent{queuedEvent(1), finishedEvent(2)}, nil, 204, nil},
		{"cancelled as it waited again", "9", []*parleyv1.TurnEvent{queuedEvent(1), finishedEvent(2)}, nil, 200, []string{"2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			left, resumed := make(chan struct{}), false
			s := &scripted{
				chat: func(_ *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
					for _, event := range c.chat {
						if err := stream.Send(&parleyv1.ChatResponse{Event: event}); err != nil {
							return err
						}
					}
					if c.resume != nil { // The turn goes on, for others.
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
					<-left // The turn has this reader now.
					return nil
				},
			}
			inBubble(t, s, func(t *testing.T, d *inMemory) {
				t.Helper()
				left = make(chan struct{}) // of this bubble
				reply := d.ask(t, "/v1/conversations/c/chat", `{"content": "hello", "requestId": "r"}`, wantsEvents, "Last-Event-ID: "+c.after)
				if ids := fieldsOf(t, reply, "id"); reply.StatusCode != c.code || !slices.Equal(ids, c.want) {
					t.Errorf("status %d with the ids %q, want %d with %q", reply.StatusCode, ids, c.code, c.want)
				}
				if resumed != (c.resume != nil) {
					t.Errorf("resumed: %t", resumed)
				}
			})
		})
	}
}
