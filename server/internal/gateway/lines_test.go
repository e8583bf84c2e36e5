package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
)

const importLine = `{"conversation":{"id":%q,"version":1,"createTime":"2026-01-01T00:00:00Z","updateTime":"2026-01-01T00:00:00Z",` +
	`"lastAppendTime":"2099-01-01T00:00:00Z"},"overwrite":%t}`

// recordImports accepts an import and appends the id and the overwrite flag of each line to got.
func recordImports(got *[]string) *fakeService {
	return &fakeService{importConversations: func(stream grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error {
		for {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return stream.SendAndClose(&parleyv1.ImportConversationsResponse{ImportedCount: int64(len(*got))})
			}
			if err != nil {
				return err
			}
			*got = append(*got, fmt.Sprint(r.GetConversation().GetId(), " ", r.GetOverwrite()))
		}
	}}
}

func fakeServer(s *fakeService) *grpc.Server {
	g := grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(2*maxBodyBytes))
	parleyv1.RegisterConversationServiceServer(g, s)
	return g
}

func TestImportLines(t *testing.T) {
	a, b := fmt.Sprintf(importLine, "a", false), fmt.Sprintf(importLine, "b", true)
	for _, c := range []struct {
		name, query, body string
		want              string
	}{
		{"nothing", "", "", "[]"},
		{"lines", "", a + "\n" + b + "\n", "[a false b true]"},
		{"no line break at the end", "", a + "\n" + b, "[a false b true]"},
		{"blank lines, from Windows", "", "\r\n" + a + "\r\n \t\r\n\n" + b + "\r\n\r\n", "[a false b true]"},
		{"overwrite all", "?overwrite=true", a + "\n" + b, "[a true b true]"},
		{"overwrite none", "?overwrite=false", a + "\n" + b, "[a false b false]"},
		{"a long line", "", strings.Replace(a, "{", "{"+strings.Repeat(" ", 1<<20), 1) + "\n" + b, "[a false b true]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := []string{}
			f := serve(t, rpctest.Dial(t, fakeServer(recordImports(&got))))
			reply := new(parleyv1.ImportConversationsResponse)
			text := f.do(t, "POST", "/v1/import"+c.query, c.body).wantOK(t)
			if err := protojson.Unmarshal([]byte(text), reply); err != nil || int(reply.GetImportedCount()) != len(got) ||
				fmt.Sprint(got) != c.want {
				t.Errorf("response = %s, imported %v, want %s; error %v", text, got, c.want, err)
			}
		})
	}
}

// TestImportFaults: a line with a fault ends the import. The error names the line and reports what
// was imported before it.
func TestImportFaults(t *testing.T) {
	good := func(id string) string { return fmt.Sprintf(importLine, id, false) + "\n" }
	for _, c := range []struct {
		name, query, body string
		code              int
		reason            string
		at                []string
		imported          int
	}{
		{"cut off", "", good("a") + "\n" + good("b") + `{"conversation":{`, 400, "INVALID_REQUEST", []string{"line 4"}, 2},
		{"not JSON", "", "id,title\n" + good("a"), 400, "INVALID_REQUEST", []string{"line 1"}, 0},
		{"a list", "", good("a") + "[" + strings.TrimSpace(good("b")) + "]\n", 400, "INVALID_REQUEST", []string{"line 2"}, 1},
		{
			"two values in a line", "", good("a") + strings.TrimSpace(good("b")) + good("c"), 400, "INVALID_REQUEST",
			[]string{"line 2"},
			1,
		},
		{
			"fields", "", good("a") + `{"conversation":{"titel":"t","version":"x"}}`, 400, "INVALID_REQUEST",
			[]string{"line 2.conversation.titel", "line 2.conversation.version"},
			1,
		},
		{
			"too large a message", "", good("a") + `{"conversation":{"title":"` + strings.Repeat("x", maxBodyBytes) + `"}}`, 413,
			reasonBodyTooLarge,
			[]string{"line 2"},
			1,
		},
		{
			"too long", "", good("a") + strings.Repeat(" ", maxLineBytes+100<<10), 413, reasonBodyTooLarge,
			[]string{"line 2"},
			1,
		},
		{"not a boolean", "?overwrite=all", good("a"), 400, "INVALID_REQUEST", []string{"overwrite"}, -1},
		{"another parameter", "?overwrite=true&force=1", good("a"), 400, "INVALID_REQUEST", []string{"force"}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := []string{}
			f := serve(t, rpctest.Dial(t, fakeServer(recordImports(&got))))
			a := f.do(t, "POST", "/v1/import"+c.query, c.body)
			a.wantError(t, c.code, c.reason, c.at...)
			reported := -1
			for _, detail := range a.status(t).Details() {
				if taken, ok := detail.(*parleyv1.ImportConversationsResponse); ok {
					reported = int(taken.GetImportedCount())
				}
			}
			if reported != c.imported || len(got) != max(0, c.imported) {
				t.Errorf("error reports %d imported, want %d; imported %v: %s", reported, c.imported, got, a.body)
			}
		})
	}
}

// TestImportEndsEarly: an error of the server is sent before the body ends, whether the client
// continues or is silent.
func TestImportEndsEarly(t *testing.T) {
	full := func(stream grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		return NewStatus(codes.ResourceExhausted, "STORE_FULL", "full").Err()
	}
	for _, silent := range []bool{true, false} {
		t.Run(fmt.Sprint("silent: ", silent), func(t *testing.T) {
			f := serve(t, rpctest.Dial(t, fakeServer(&fakeService{importConversations: full})))
			from, to := io.Pipe()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				for range 1000 {
					if _, err := fmt.Fprintf(to, importLine+"\n", "a", false); err != nil || silent {
						return
					}
				}
				to.Close()
			}()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/import", from)
			if err != nil {
				t.Fatal(err)
			}
			reply, err := f.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer reply.Body.Close()
			text, err := io.ReadAll(reply.Body)
			if err != nil || reply.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(text), "STORE_FULL") {
				t.Errorf("status = %d, body = %s, error %v", reply.StatusCode, text, err)
			}
			from.Close()
			<-sent
		})
	}
}

// TestImportBreaksOff: a body that breaks off ends in a line with a fault. If the client is still
// connected, it receives what was imported before. If it is not, the call ends.
func TestImportBreaksOff(t *testing.T) {
	line := fmt.Sprintf(importLine, "a", false) + "\n"
	for _, c := range []struct{ name, head, body string }{
		{"short", "Content-Length: 5000", line + `{"conversation":`},
		{"no more chunks", "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n", len(line), line)},
	} {
		for _, disconnected := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, ", disconnected: ", disconnected), func(t *testing.T) {
				var got []string
				first, ended := make(chan struct{}), make(chan struct{})
				take := func(stream grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error {
					defer close(ended)
					if _, err := stream.Recv(); err != nil {
						return err
					}
					close(first)
					got = append(got, "a")
					return recordImports(&got).importConversations(stream)
				}
				f := serve(t, rpctest.Dial(t, fakeServer(&fakeService{importConversations: take})))
				conn := rawDial(t, f)
				fmt.Fprintf(conn, "POST /v1/import HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", c.head, c.body)
				<-first
				if disconnected {
					conn.Close()
					<-ended
					return
				}
				if tcp, ok := conn.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
					t.Fatal("cannot close")
				}
				reply := readResponse(t, conn)
				text, err := io.ReadAll(reply.Body)
				if err != nil {
					t.Fatal(err)
				}
				a := &answer{code: reply.StatusCode, header: reply.Header, body: string(text)}
				a.wantError(t, 400, "INVALID_REQUEST", "line 2")
				if !strings.Contains(a.body, "is not complete") || !strings.Contains(a.body, "1 conversations were imported") {
					t.Errorf("error = %s, want the number of imported conversations", a.body)
				}
			})
		}
	}
}

// TestImportTimeout: an import that continues without its client ends at the Grpc-Timeout.
func TestImportTimeout(t *testing.T) {
	f := serve(t, rpctest.Dial(t, fakeServer(&fakeService{
		importConversations: func(stream grpc.ClientStreamingServer[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]) error {
			<-stream.Context().Done()
			return stream.Context().Err()
		},
	})))
	f.do(t, "POST", "/v1/import", fmt.Sprintf(importLine, "a", false), "Grpc-Timeout: 20m").wantError(t, 504,
		"DEADLINE_EXCEEDED")
}

// answerAppends answers each request with its conversation id as the id of the conversation, and one without an
// append with an error. It fails instead of answering the conversation "full".
func answerAppends(stream grpc.BidiStreamingServer[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if r.GetAppend().GetConversationId() == "full" {
			return NewStatus(codes.ResourceExhausted, "STORE_FULL", "full").Err()
		}
		reply := &parleyv1.AppendStreamResponse{Result: &parleyv1.AppendStreamResponse_Response{
			Response: &parleyv1.AppendMessagesResponse{Conversation: &parleyv1.Conversation{Id: r.GetAppend().GetConversationId()}},
		}}
		if r.GetAppend() == nil {
			reply.Result = &parleyv1.AppendStreamResponse_Error{
				Error: NewStatus(codes.InvalidArgument, "INVALID_REQUEST", "append: is required").Proto(),
			}
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

const appendLine = `{"append":{"conversationId":%q}}` + "\n"

// TestAppendLines sends lines, and reads the reply to each before it sends the next.
func TestAppendLines(t *testing.T) {
	f := serve(t, rpctest.Dial(t, fakeServer(&fakeService{appendStream: answerAppends})))
	from, to := io.Pipe()
	defer from.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/append", from)
	if err != nil {
		t.Fatal(err)
	}
	go fmt.Fprintf(to, appendLine, "a") // Do returns after the first reply.
	reply, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if got := reply.Header.Get("Content-Type"); reply.StatusCode != http.StatusOK || got != mediaLines {
		t.Errorf("status = %d, Content-Type = %q, want 200 and %q", reply.StatusCode, got, mediaLines)
	}
	lines := bufio.NewScanner(reply.Body)
	for _, c := range []struct{ next, want string }{
		{"", `{"response":{"conversation":{"id":"a"}}}`},
		{fmt.Sprintf(appendLine, "b"), `{"response":{"conversation":{"id":"b"}}}`},
		{"{}\n", `"append: is required"`},
		{"\n" + fmt.Sprintf(appendLine, "c"), `{"response":{"conversation":{"id":"c"}}}`},
		{`{"append":{"conversation":"c"}}` + "\n", `"line 6.append.conversation"`},
	} {
		if _, err := io.WriteString(to, c.next); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || !strings.Contains(strings.ReplaceAll(lines.Text(), " ", ""), strings.ReplaceAll(c.want, " ", "")) {
			t.Fatalf("reply to %q = %s, %v, want %s", c.next, lines.Text(), lines.Err(), c.want)
		}
	}
	to.Close()
	if lines.Scan() {
		t.Errorf("reply after the end: %s", lines.Text())
	}
}

// TestAppendLinesEnd checks replies of requests that end at once.
func TestAppendLinesEnd(t *testing.T) {
	for _, c := range []struct {
		name, query, body string
		code              int
		reason, at        string
		replies           int
	}{
		{"nothing", "", "\n\n", 200, "", "", 0},
		{"no line break at the end", "", strings.TrimSpace(fmt.Sprintf(appendLine, "a")), 200, "", "", 1},
		{"a malformed first line", "", "a,b\n", 400, "INVALID_REQUEST", "line 1", 0},
		{"a parameter", "?overwrite=true", "", 400, "INVALID_REQUEST", "overwrite", 0},
		{"an error of the server", "", fmt.Sprintf(appendLine, "full"), 429, "STORE_FULL", "", 0},
		{"an error after a reply", "", fmt.Sprintf(appendLine+appendLine, "a", "full"), 200, "STORE_FULL", "", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, rpctest.Dial(t, fakeServer(&fakeService{appendStream: answerAppends})))
			a := f.do(t, "POST", "/v1/append"+c.query, c.body)
			if a.code != c.code || !strings.Contains(a.body, c.reason) || !strings.Contains(a.body, c.at) {
				t.Errorf("response = %d %s, want %d, %q, %q", a.code, a.body, c.code, c.reason, c.at)
			}
			if c.code == http.StatusOK && strings.Count(a.body, "\n") != c.replies {
				t.Errorf("response = %s, want %d lines", a.body, c.replies)
			}
		})
	}
}
