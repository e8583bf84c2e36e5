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

func sends(events ...*parleyv1.TurnEvent) func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
	return func(_ *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
		for _, event := range events {
			if err := stream.Send(&parleyv1.ResumeTurnResponse{Event: event}); err != nil {
				return err
			}
		}
		return nil
	}
}

func fails(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
	return newStatus(codes.NotFound, "TURN_NOT_FOUND", "no turn").Err()
}

// How an answer begins depends on what the stream begins with.
func TestHowStreamsBegin(t *testing.T) {
	broken := func(r *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
		if err := sends(textEvent(1, "a"))(r, stream); err != nil {
			return err
		}
		return fails(r, stream)
	}
	for _, c := range []struct {
		name   string
		events bool
		resume func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error
		code   int
		media  string
		parts  []string // of the body, in their order
	}{
		{"lines", false, sends(textEvent(1, "a"), textEvent(2, "b")), 200, "application/x-ndjson", []string{`{"event":{"index":1,`, "}\n{", `"index":2,`, "}\n"}},
		{"events", true, sends(textEvent(1, "a"), textEvent(2, "b")), 200, "text/event-stream", []string{"id: 1\ndata: {", "}\n\nid: 2\ndata: {", "}\n\n"}},
		{"no lines", false, sends(), 200, "application/x-ndjson", nil},
		{"no events", true, sends(), 204, "", nil},
		{"an error instead of lines", false, fails, 404, "application/json", []string{`{"code":5,`, "TURN_NOT_FOUND"}},
		{"an error instead of events", true, fails, 404, "application/json", []string{`{"code":5,`, "TURN_NOT_FOUND"}},
		{"an error after lines", false, broken, 200, "application/x-ndjson", []string{"}\n" + `{"error":{"code":5,`, "TURN_NOT_FOUND", "}\n"}},
		{"an error after events", true, broken, 200, "text/event-stream", []string{"}\n\nevent: error\ndata: {", "TURN_NOT_FOUND", "}\n\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, &scripted{resume: c.resume}, func(t *testing.T, d *inMemory) {
				t.Helper()
				accept := "Accept: application/json"
				if c.events {
					accept = wantsEvents
				}
				reply := d.ask(t, eventsPath, "", accept)
				text, err := io.ReadAll(reply.Body)
				if err != nil || reply.StatusCode != c.code || reply.Header.Get("Content-Type") != c.media {
					t.Fatalf("status %d, type %q: %q, %v", reply.StatusCode, reply.Header.Get("Content-Type"), text, err)
				}
				rest := strings.ReplaceAll(string(text), " ", "")
				for _, part := range c.parts {
					_, behind, found := strings.Cut(rest, strings.ReplaceAll(part, " ", ""))
					if !found {
						t.Fatalf("the body has no %q in its place: %q", part, text)
					}
					rest = behind
				}
				if rest != "" && c.code == 200 || len(c.parts) == 0 && len(text) > 0 {
					t.Errorf("the body is %q", text)
				}
				if c.code < 300 && reply.Header.Get("Cache-Control") != "no-store" {
					t.Error("it may be stored")
				}
				if buffering := reply.Header.Get("X-Accel-Buffering"); c.code == 200 && buffering != "no" {
					t.Errorf("X-Accel-Buffering is %q", buffering)
				}
			})
		})
	}
}

// A turn that says nothing for now has its answer begin all the same; what comes then is
// part of it.
func TestSilentTurn(t *testing.T) {
	const silence = time.Hour
	for _, c := range []struct {
		name  string
		then  func(*parleyv1.ResumeTurnRequest, grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error
		field string
		want  int
	}{
		{"speaks", sends(textEvent(4, "a"), finishedEvent(5)), "id", 2},
		{"ends", sends(), "data", 0},
		{"fails", fails, "event", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			resume := func(r *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
				<-time.After(silence)
				return c.then(r, stream)
			}
			inBubble(t, &scripted{resume: resume}, func(t *testing.T, d *inMemory) {
				t.Helper()
				begin := time.Now()
				reply := d.ask(t, eventsPath, "", wantsEvents, "Last-Event-ID: 3")
				if took := time.Since(begin); reply.StatusCode != http.StatusOK || took != maxSilence {
					t.Errorf("status %d after %v", reply.StatusCode, took)
				}
				if values := fieldsOf(t, reply, c.field); len(values) != c.want || time.Since(begin) < silence {
					t.Errorf("the %ss are %q after %v", c.field, values, time.Since(begin))
				}
			})
		})
	}
}

// Each reply leaves when it comes.
func TestRepliesAreFlushed(t *testing.T) {
	const pause = time.Minute
	watch := func(_ *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
		for i := range 3 {
			change := &parleyv1.ConversationChange{Cursor: fmt.Sprint("cursor", i)}
			if err := stream.Send(&parleyv1.WatchConversationsResponse{Change: change}); err != nil {
				return err
			}
			<-time.After(pause)
		}
		return nil
	}
	inBubble(t, &scripted{watch: watch}, func(t *testing.T, d *inMemory) {
		t.Helper()
		begin := time.Now()
		reply := d.ask(t, "/v1/watch", "")
		buffer := make([]byte, 1<<10)
		for i := range 3 {
			n, err := reply.Body.Read(buffer)
			if err != nil || !strings.Contains(string(buffer[:n]), fmt.Sprint("cursor", i)) || time.Since(begin) != time.Duration(i)*pause {
				t.Errorf("after %v: %q, %v", time.Since(begin), buffer[:n], err)
			}
		}
	})
}

// A client that takes nothing is given up, and its call with it; but for a watch, which ends
// with its connection. The next request on a connection begins with new time.
func TestClientThatReadsNothing(t *testing.T) {
	forever := func(send func() error) time.Duration {
		begin, err := time.Now(), error(nil)
		for err == nil {
			err = send()
		}
		return time.Since(begin)
	}
	var ended chan time.Duration
	word := strings.Repeat("word ", 1000)
	s := &scripted{
		resume: func(_ *parleyv1.ResumeTurnRequest, stream grpc.ServerStreamingServer[parleyv1.ResumeTurnResponse]) error {
			ended <- forever(func() error { return stream.Send(&parleyv1.ResumeTurnResponse{Event: textEvent(1, word)}) })
			return nil
		},
		watch: func(_ *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
			ended <- forever(func() error {
				return stream.Send(&parleyv1.WatchConversationsResponse{Change: &parleyv1.ConversationChange{Cursor: word}})
			})
			return nil
		},
	}
	inBubble(t, s, func(t *testing.T, d *inMemory) {
		t.Helper()
		ended = make(chan time.Duration, 1) // of this bubble
		for _, path := range []string{eventsPath, "/v1/watch"} {
			conn := d.pipes.dial()
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
			if path == eventsPath {
				if took := <-ended; took != maxWriteTime {
					t.Errorf("it is given up after %v", took)
				}
				conn.Close()
				continue
			}
			<-time.After(time.Hour)
			synctest.Wait()
			select {
			case took := <-ended:
				t.Errorf("a watch was given up after %v", took)
			default:
			}
			conn.Close()
			<-ended
		}
	})
}

// The time that one answer had is not that of the next one on its connection.
func TestConnectionIsNoneTheWorse(t *testing.T) {
	watch := func(_ *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
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
	inBubble(t, &scripted{resume: sends(textEvent(1, "a")), watch: watch, take: takesAll(&got).take}, func(t *testing.T, d *inMemory) {
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
			reply := d.ask(t, c.path, c.body, wantsEvents)
			if ids := fieldsOf(t, reply, "id"); reply.StatusCode != http.StatusOK || !slices.Equal(ids, c.want) || d.dialled != c.connections {
				t.Errorf("%s: status %d, the ids are %q over %d connections, want %q over %d", c.path, reply.StatusCode, ids, d.dialled, c.want, c.connections)
			}
		}
	})
}
