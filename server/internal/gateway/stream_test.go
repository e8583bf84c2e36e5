package gateway

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const eventsPath = "/v1/conversations/c/turns/t/events"

func sendEvents(events ...*parleyv1.TurnEvent) func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
	return func(_ *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
		for _, event := range events {
			if err := stream.Send(&parleyv1.ResumeTurnResponse{Event: event}); err != nil {
				return err
			}
		}
		return nil
	}
}

func failNotFound(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
	return NewStatus(codes.NotFound, "TURN_NOT_FOUND", "no turn").Err()
}

// TestStreamHeaders: the status and header of a stream depend on its first reply.
func TestStreamHeaders(t *testing.T) {
	broken := func(r *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
		if err := sendEvents(textEvent(1, "a"))(r, stream); err != nil {
			return err
		}
		return failNotFound(r, stream)
	}
	for _, c := range []struct {
		name   string
		events bool
		resume func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error
		code   int
		media  string
		parts  []string // Parts of the body, in order.
	}{
		{
			"lines", false, sendEvents(textEvent(1, "a"), textEvent(2, "b")), 200, "application/x-ndjson",
			[]string{`{"event":{"index":1,`, "}\n{", `"index":2,`, "}\n"},
		},
		{
			"events", true, sendEvents(textEvent(1, "a"), textEvent(2, "b")), 200, "text/event-stream",
			[]string{"id: 1\ndata: {", "}\n\nid: 2\ndata: {", "}\n\n"},
		},
		{"no lines", false, sendEvents(), 200, "application/x-ndjson", nil},
		{"no events", true, sendEvents(), 204, "", nil},
		{"an error instead of lines", false, failNotFound, 404, "application/json", []string{`{"code":5,`, "TURN_NOT_FOUND"}},
		{"an error instead of events", true, failNotFound, 404, "application/json", []string{`{"code":5,`, "TURN_NOT_FOUND"}},
		{
			"an error after lines", false, broken, 200, "application/x-ndjson",
			[]string{"}\n" + `{"error":{"code":5,`, "TURN_NOT_FOUND", "}\n"},
		},
		{
			"an error after events", true, broken, 200, "text/event-stream",
			[]string{"}\n\nevent: error\ndata: {", "TURN_NOT_FOUND", "}\n\n"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			withFakeService(t, &fakeService{resume: c.resume}, func(t *testing.T, d *memoryClient) {
				t.Helper()
				accept := "Accept: application/json"
				if c.events {
					accept = wantsEvents
				}
				reply := d.do(t, eventsPath, "", accept)
				text, err := io.ReadAll(reply.Body)
				if err != nil || reply.StatusCode != c.code || reply.Header.Get("Content-Type") != c.media {
					t.Fatalf("status = %d, Content-Type = %q, body = %q, error %v", reply.StatusCode, reply.Header.Get("Content-Type"),
						text, err)
				}
				rest := strings.ReplaceAll(string(text), " ", "")
				for _, part := range c.parts {
					_, after, found := strings.Cut(rest, strings.ReplaceAll(part, " ", ""))
					if !found {
						t.Fatalf("part %q is missing or out of order in %q", part, text)
					}
					rest = after
				}
				if rest != "" && c.code == 200 || len(c.parts) == 0 && len(text) > 0 {
					t.Errorf("body = %q, want only the parts", text)
				}
				if c.code < 300 && reply.Header.Get("Cache-Control") != "no-store" {
					t.Error("Cache-Control is not no-store")
				}
				if buffering := reply.Header.Get("X-Accel-Buffering"); c.code == 200 && buffering != "no" {
					t.Errorf("X-Accel-Buffering = %q, want no", buffering)
				}
			})
		})
	}
}

// TestSilentTurn: the response to a silent turn begins after maxSilence, and the later events
// are part of it.
func TestSilentTurn(t *testing.T) {
	const silence = time.Hour
	for _, c := range []struct {
		name  string
		then  func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error
		field string
		want  int
	}{
		{"continues", sendEvents(textEvent(4, "a"), finishedEvent(5)), "id", 2},
		{"ends", sendEvents(), "data", 0},
		{"failNotFound", failNotFound, "event", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			resume := func(r *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
				<-time.After(silence)
				return c.then(r, stream)
			}
			withFakeService(t, &fakeService{resume: resume}, func(t *testing.T, d *memoryClient) {
				t.Helper()
				begin := time.Now()
				reply := d.do(t, eventsPath, "", wantsEvents, "Last-Event-ID: 3")
				if took := time.Since(begin); reply.StatusCode != http.StatusOK || took != maxSilence {
					t.Errorf("status = %d after %v, want 200 after maxSilence", reply.StatusCode, took)
				}
				if values := fieldValues(t, reply, c.field); len(values) != c.want || time.Since(begin) < silence {
					t.Errorf("%s fields = %q after %v, want %d", c.field, values, time.Since(begin), c.want)
				}
			})
		})
	}
}

// TestRepliesAreFlushed: each reply is sent when it arrives.
func TestRepliesAreFlushed(t *testing.T) {
	const pause = time.Minute
	watch := func(_ *parleyv1.WatchConversationsRequest,
		stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
	) error {
		for i := range 3 {
			change := &parleyv1.ConversationChange{Cursor: fmt.Sprint("cursor", i)}
			if err := stream.Send(&parleyv1.WatchConversationsResponse{Change: change}); err != nil {
				return err
			}
			<-time.After(pause)
		}
		return nil
	}
	withFakeService(t, &fakeService{watch: watch}, func(t *testing.T, d *memoryClient) {
		t.Helper()
		begin := time.Now()
		reply := d.do(t, "/v1/watch", "")
		buffer := make([]byte, 1<<10)
		for i := range 3 {
			n, err := reply.Body.Read(buffer)
			if err != nil || !strings.Contains(string(buffer[:n]), fmt.Sprint("cursor", i)) ||
				time.Since(begin) != time.Duration(i)*pause {
				t.Errorf("Read after %v = %q, %v, want cursor%d", time.Since(begin), buffer[:n], err, i)
			}
		}
	})
}

// TestClientThatReadsNothing: if a client does not read for maxWriteTime, its call is cancelled. A
// watch is not: it ends with its connection.
func TestClientThatReadsNothing(t *testing.T) {
	sendUntilError := func(send func() error) time.Duration {
		begin, err := time.Now(), error(nil)
		for err == nil {
			err = send()
		}
		return time.Since(begin)
	}
	var ended chan time.Duration
	word := strings.Repeat("word ", 1000)
	s := &fakeService{
		resume: func(_ *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
			ended <- sendUntilError(func() error { return stream.Send(&parleyv1.ResumeTurnResponse{Event: textEvent(1, word)}) })
			return nil
		},
		watch: func(_ *parleyv1.WatchConversationsRequest,
			stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
		) error {
			ended <- sendUntilError(func() error {
				return stream.Send(&parleyv1.WatchConversationsResponse{Change: &parleyv1.ConversationChange{Cursor: word}})
			})
			return nil
		},
	}
	withFakeService(t, s, func(t *testing.T, d *memoryClient) {
		t.Helper()
		ended = make(chan time.Duration, 1) // A channel of this bubble.
		for _, path := range []string{eventsPath, "/v1/watch"} {
			conn := d.pipes.dial()
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
			if path == eventsPath {
				if took := <-ended; took != maxWriteTime {
					t.Errorf("call cancelled after %v, want maxWriteTime", took)
				}
				conn.Close()
				continue
			}
			<-time.After(time.Hour)
			synctest.Wait()
			select {
			case took := <-ended:
				t.Errorf("watch cancelled after %v, want never", took)
			default:
			}
			conn.Close()
			<-ended
		}
	})
}

// TestConnectionReuse: the deadline of one response does not affect the next response on the
// connection.
func TestConnectionReuse(t *testing.T) {
	watch := func(_ *parleyv1.WatchConversationsRequest,
		stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
	) error {
		for i := range 3 {
			<-time.After(2 * maxWriteTime)
			change := &parleyv1.ConversationChange{Cursor: fmt.Sprint(i)}
			if err := stream.Send(&parleyv1.WatchConversationsResponse{Change: change}); err != nil {
				return err
			}
		}
		return nil
	}
	var got []string
	withFakeService(t, &fakeService{resume: sendEvents(textEvent(1, "a")), watch: watch, importConversations: recordImports(&got).importConversations}, func(t *testing.T, d *memoryClient) {
		t.Helper()
		for _, c := range []struct {
			path, body  string
			want        []string
			connections int
		}{
			{eventsPath, "", []string{"1"}, 1},
			{"/v1/watch", "", []string{"0", "1", "2"}, 1},
			{"/v1/import", fmt.Sprintf(importLine, "a", true), nil, 1},
			{eventsPath, "", []string{"1"}, 1},
		} {
			reply := d.do(t, c.path, c.body, wantsEvents)
			if ids := fieldValues(t, reply, "id"); reply.StatusCode != http.StatusOK || !slices.Equal(ids, c.want) ||
				d.dialled != c.connections {
				t.Errorf("%s: status = %d, ids = %q over %d connections, want %q over %d", c.path, reply.StatusCode, ids, d.dialled,
					c.want, c.connections)
			}
		}
	})
}
