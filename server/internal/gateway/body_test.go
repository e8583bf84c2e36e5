package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestLargeBodies(t *testing.T) {
	f := open(t)
	fits := strings.Repeat(" ", maxBodyBytes-2) + "{}"
	f.do(t, "POST", "/v1/conversations:load", fits).wantOK(t)
	for _, method := range []string{"POST", "GET"} {
		path := map[string]string{"POST": "/v1/conversations:load", "GET": "/v1/agents"}[method]
		f.do(t, method, path, fits+" ").wantError(t, 413, reasonBodyTooLarge)
	}
	// Nobody knows ahead how much will come.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/conversations:load", io.MultiReader(strings.NewReader(fits), strings.NewReader(" ")))
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge || !response.Close {
		t.Errorf("got %v, want 413 and the end of the connection", response)
	}
	// A message may be too large for the store.
	f.do(t, "POST", "/v1/chat", `{"content": "`+strings.Repeat("x", 300<<10)+`"}`).wantError(t, 413, "MESSAGE_TOO_LARGE")
}

// A body that fits may be a message that does not, also where the connection has no bound.
func TestLargeMessage(t *testing.T) {
	f := serve(t, dial(t, scriptedServer(&scripted{
		chat: func(*parleyv1.ChatRequest, grpc.ServerStreamingServer[parleyv1.ChatResponse]) error { return nil },
	})))
	numbers := func(n int) string {
		return `{"structuredData": [{"type": "t", "value": [` + strings.TrimSuffix(strings.Repeat("1,", n), ",") + `]}]}`
	}
	f.do(t, "POST", "/v1/chat", numbers(300_000)).wantOK(t)
	f.do(t, "POST", "/v1/chat", numbers(500_000)).wantError(t, 413, reasonBodyTooLarge)
}

// TestManyLargeBodies: a limited number of large values is handled at once; others wait, up to a
// limit. The size of a stream is that of its request, and the size of a text is that of its value.
func TestManyLargeBodies(t *testing.T) {
	for name, more := range map[string]string{
		"long":  strings.Repeat(" ", largeBodyBytes),
		"dense": strings.TrimSuffix(strings.Repeat("{},", largeBodyBytes/bytesPerMark/2), ","),
	} {
		t.Run(name, func(t *testing.T) { testManyLargeBodies(t, more) })
	}
}

func testManyLargeBodies(t *testing.T, more string) {
	t.Helper()
	begun, leave := make(chan struct{}), make(chan struct{})
	held := func(ctx context.Context) {
		select {
		case begun <- struct{}{}:
		case <-ctx.Done():
		}
		select {
		case <-leave:
		case <-ctx.Done():
		}
	}
	d, err := newDoor(t.Context(), dial(t, scriptedServer(&scripted{
		chat: func(_ *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
			held(stream.Context())
			return nil
		},
		append: func(ctx context.Context, _ *parleyv1.AppendMessagesRequest) (*parleyv1.AppendMessagesResponse, error) {
			held(ctx)
			return &parleyv1.AppendMessagesResponse{}, nil
		},
	})))
	if err != nil {
		t.Fatal(err)
	}
	d.large.values, d.large.maxWait = semaphore.NewWeighted(largeBodyBytes*3/2), patience
	s := httptest.NewServer(withOutlet(d))
	defer s.Close()
	f := &fixture{url: s.URL, client: s.Client()}
	var asking sync.WaitGroup
	ask := func(path, body string) {
		answered := make(chan struct{})
		asking.Go(func() {
			defer close(answered)
			if a := f.do(t, "POST", path, body); a.code != http.StatusOK {
				t.Errorf("%s: %d %s", path, a.code, a.body)
			}
		})
		select {
		case <-begun:
		case <-answered:
			t.Errorf("%s was answered without a call", path)
		}
	}
	const path = "/v1/conversations/c/messages"
	large := `{"messages": [` + more + `]}`
	ask("/v1/chat", `{"attachments": [`+more+`]}`)
	ask("/v1/chat", `{"attachments": [`+more+`]}`)
	ask(path, large)
	d.large.maxWait = time.Millisecond
	a := f.do(t, "POST", path, large, "Grpc-Timeout: 30S")
	a.wantError(t, 429, reasonTooManyBodies)
	if a.header.Get("Retry-After") == "" {
		t.Error("it does not say when to try again")
	}
	ask(path, "{}")
	close(leave)
	asking.Wait()
	leave, d.large.maxWait = make(chan struct{}), patience
	ask(path, large)
	close(leave)
	asking.Wait()
}

// TestManyLargeReads: a limited number of large bodies is read at once. Their senders may be slow.
func TestManyLargeReads(t *testing.T) {
	d, err := newDoor(t.Context(), openService(t))
	if err != nil {
		t.Fatal(err)
	}
	d.large.reads, d.large.maxWait, d.large.maxPace = semaphore.NewWeighted(1), time.Millisecond, patience
	s := httptest.NewServer(withOutlet(d))
	defer s.Close()
	f := &fixture{url: s.URL, client: s.Client()}
	c := rawDial(t, f)
	sendStalled(c)
	for late := time.Now().Add(patience); d.large.reads.TryAcquire(1); {
		d.large.reads.Release(1)
		if time.Now().After(late) {
			t.Fatal("body not read")
		}
		runtime.Gosched()
	}
	large := strings.Repeat(" ", largeBodyBytes) + "{}"
	f.do(t, "POST", "/v1/conversations:load", large).wantError(t, 429, reasonTooManyBodies)
	f.do(t, "POST", "/v1/conversations:load", "{}").wantOK(t)
	fmt.Fprintf(c, "%9s", "{}")
	if response := readResponse(t, c); response.StatusCode != http.StatusOK {
		t.Errorf("got %v", response.Status)
	}
	f.do(t, "POST", "/v1/conversations:load", large).wantOK(t)
}

// sendStalled sends a large body all but its last 9 bytes.
func sendStalled(c net.Conn) {
	fmt.Fprintf(c, "POST /v1/conversations:load HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%*s", largeBodyBytes+10, largeBodyBytes+1, "")
}

// A large body that stalls loses its place to others before its time is over.
func TestStalledLargeRead(t *testing.T) {
	d, err := newDoor(t.Context(), openService(t))
	if err != nil {
		t.Fatal(err)
	}
	d.maxBodyTime, d.large.reads, d.large.maxPace = time.Hour, semaphore.NewWeighted(1), time.Millisecond
	s := httptest.NewServer(withOutlet(d))
	t.Cleanup(s.Close) // After the end of the connection below.
	f := &fixture{url: s.URL, client: s.Client()}
	c := rawDial(t, f)
	sendStalled(c)
	response := readResponse(t, c)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	(&answer{code: response.StatusCode, header: response.Header, body: string(text)}).wantError(t, 408, reasonBodyTooSlow)
	if !d.large.reads.TryAcquire(1) {
		t.Error("it keeps its place after the answer")
	}
}

// TestSteadySender: a client that sends any body steadily within its time keeps the pace.
func TestSteadySender(t *testing.T) {
	for size := largeBodyBytes + 1; size <= maxBodyBytes; size += 64<<10 - 1 {
		synctest.Test(t, func(t *testing.T) {
			w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
			from := &steady{w: w, left: size, perSecond: size/int(maxBodyTime/time.Second) + 1}
			text, leave, err := newLargeBodies().readBody(w, httptest.NewRequest(http.MethodPost, "/v1/chat", from), maxBodyTime)
			leave()
			if err != nil || len(text) != size {
				t.Errorf("%d bytes within %v: read %d, %v", size, maxBodyTime, len(text), err)
			}
		})
	}
}

// steady is a body that comes steadily, up to the last deadline.
type steady struct {
	w               *deadlines
	left, perSecond int
}

func (s *steady) Read(p []byte) (int, error) {
	n := min(len(p), s.left, 1000)
	<-time.After(time.Duration(n) * time.Second / time.Duration(s.perSecond))
	if last := s.w.all[len(s.w.all)-1]; time.Now().After(last) {
		return 0, os.ErrDeadlineExceeded
	}
	if s.left -= n; n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// What has more values than a message can have is refused before it takes their memory.
func TestTooManyValues(t *testing.T) {
	f := open(t)
	many := strings.Repeat("[],", maxMarks/2) + "[]"
	f.do(t, "POST", "/v1/chat", `{"structuredData": [{"type": "t", "value": [`+many+`]}]}`).wantError(t, 413, reasonBodyTooLarge)
	f.do(t, "POST", "/v1/import", `{"messages": [{"structuredData": [{"type": "t", "value": [`+many+`]}]}]}`).wantError(t, 413, reasonBodyTooLarge, "line 1")
}

func TestCountMarks(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, `{"a": [1, {}, "[,:{"]}`: 6, `["\"[", "\\", ","]`: 3, `["no end [`: 1, `"\`: 0,
	} {
		if got := countMarks([]byte(text)); got != want {
			t.Errorf("countMarks(%s) = %d, want %d", text, got, want)
		}
	}
}

// An announced body that is too large is refused before it comes.
func TestLargeBodyIsNotReadFirst(t *testing.T) {
	f := open(t)
	c := rawDial(t, f)
	fmt.Fprintf(c, "POST /v1/chat HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", maxBodyBytes+1)
	if response := readResponse(t, c); response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %v", response.Status)
	}
}

// A body that does not come holds its connection for a while only.
func TestSlowBody(t *testing.T) {
	d, err := newDoor(t.Context(), openService(t))
	if err != nil {
		t.Fatal(err)
	}
	d.maxBodyTime = time.Millisecond
	s := httptest.NewServer(withOutlet(d))
	defer s.Close()
	c := rawDial(t, &fixture{url: s.URL})
	fmt.Fprint(c, "POST /v1/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	response := readResponse(t, c)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	(&answer{code: response.StatusCode, header: response.Header, body: string(text)}).wantError(t, 408, reasonBodyTooSlow)
}

func TestBodyThatEndsEarly(t *testing.T) {
	f := open(t)
	c := rawDial(t, f)
	fmt.Fprint(c, "POST /v1/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	if tcp, ok := c.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
		t.Fatal("cannot close")
	}
	if response := readResponse(t, c); response.StatusCode != http.StatusBadRequest {
		t.Errorf("got %v", response.Status)
	}
}

func rawDial(t *testing.T, f *fixture) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func readResponse(t *testing.T, c net.Conn) *http.Response {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// deadlines is a writer that keeps the last read deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	all []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.all = append(d.all, t)
	return nil
}

// The time for a body ends with the body: the call may take longer.
func TestBodyDeadlineIsLifted(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest(http.MethodPost, "/v1/chat", strings.NewReader("{}"))
	if text, _, err := newLargeBodies().readBody(w, r, time.Minute); err != nil || string(text) != "{}" {
		t.Fatalf("%q, %v", text, err)
	}
	if len(w.all) != 2 || w.all[0].IsZero() || !w.all[1].IsZero() {
		t.Errorf("got the deadlines %v, want one and then none", w.all)
	}
}
