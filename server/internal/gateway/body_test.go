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
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
)

func TestLargeBodies(t *testing.T) {
	f := newFixture(t)
	fits := strings.Repeat(" ", maxBodyBytes-2) + "{}"
	f.do(t, "POST", "/v1/conversations:load", fits).wantOK(t)
	for _, method := range []string{"POST", "GET"} {
		path := map[string]string{"POST": "/v1/conversations:load", "GET": "/v1/agents"}[method]
		f.do(t, method, path, fits+" ").wantError(t, 413, reasonBodyTooLarge)
	}
	// Without Content-Length, the size is unknown until the body is read.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/conversations:load",
		io.MultiReader(strings.NewReader(fits), strings.NewReader(" ")))
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge || !response.Close {
		t.Errorf("response = %v, want 413 and a closed connection", response)
	}
	// A message may be too large for the store.
	f.do(t, "POST", "/v1/chat", `{"content": "`+strings.Repeat("x", 300<<10)+`"}`).wantError(t, 413, "MESSAGE_TOO_LARGE")
}

// TestLargeMessage: a body within the limit may be a message that exceeds it.
func TestLargeMessage(t *testing.T) {
	f := serve(t, rpctest.Dial(t, fakeServer(&fakeService{
		chat: func(*parleyv1.ChatRequest, grpc.ServerStreamingServer[parleyv1.ChatResponse]) error { return nil },
	})))
	numbers := func(n int) string {
		return `{"structuredData": [{"type": "t", "value": [` + strings.TrimSuffix(strings.Repeat("1,", n), ",") + `]}]}`
	}
	f.do(t, "POST", "/v1/chat", numbers(300_000)).wantOK(t)
	f.do(t, "POST", "/v1/chat", numbers(500_000)).wantError(t, 413, reasonBodyTooLarge)
}

// TestManyLargeBodies: a limited number of large values is handled at the same time; others wait up
// to a limit. The size of a stream is that of its request, and the size of a text is that of its
// value.
func TestManyLargeBodies(t *testing.T) {
	for name, more := range map[string]string{
		"long":  strings.Repeat(" ", largeBodyBytes),
		"dense": strings.TrimSuffix(strings.Repeat("{},", largeBodyBytes/bytesPerDelimiter/2), ","),
	} {
		t.Run(name, func(t *testing.T) { testManyLargeBodies(t, more) })
	}
}

func testManyLargeBodies(t *testing.T, more string) {
	t.Helper()
	started, release := make(chan struct{}), make(chan struct{})
	hold := func(ctx context.Context) {
		select {
		case started <- struct{}{}:
		case <-ctx.Done():
		}
		select {
		case <-release:
		case <-ctx.Done():
		}
	}
	d, err := newHandler(t.Context(), rpctest.Dial(t, fakeServer(&fakeService{
		chat: func(_ *parleyv1.ChatRequest, stream grpc.ServerStreamingServer[parleyv1.ChatResponse]) error {
			hold(stream.Context())
			return nil
		},
		append: func(ctx context.Context, _ *parleyv1.AppendMessagesRequest) (*parleyv1.AppendMessagesResponse, error) {
			hold(ctx)
			return &parleyv1.AppendMessagesResponse{}, nil
		},
	})), nil, NewBodies())
	if err != nil {
		t.Fatal(err)
	}
	d.large.values, d.large.maxWait = semaphore.NewWeighted(largeBodyBytes*3/2), testTimeout
	s := httptest.NewServer(LimitWrites(d))
	defer s.Close()
	f := &fixture{url: s.URL, client: s.Client()}
	var requests sync.WaitGroup
	send := func(path, body string) {
		answered := make(chan struct{})
		requests.Go(func() {
			defer close(answered)
			if a := f.do(t, "POST", path, body); a.code != http.StatusOK {
				t.Errorf("%s: %d %s", path, a.code, a.body)
			}
		})
		select {
		case <-started:
		case <-answered:
			t.Errorf("%s was answered without a call to the service", path)
		}
	}
	const path = "/v1/conversations/c/messages"
	large := `{"messages": [` + more + `]}`
	send("/v1/chat", `{"attachments": [`+more+`]}`)
	send("/v1/chat", `{"attachments": [`+more+`]}`)
	send(path, large)
	d.large.maxWait = time.Millisecond
	a := f.do(t, "POST", path, large, "Grpc-Timeout: 30S")
	a.wantError(t, 429, reasonTooManyBodies)
	if a.header.Get("Retry-After") == "" {
		t.Error("response has no Retry-After")
	}
	send(path, "{}")
	close(release)
	requests.Wait()
	release, d.large.maxWait = make(chan struct{}), testTimeout
	send(path, large)
	close(release)
	requests.Wait()
}

// TestManyLargeReads: a limited number of large bodies is read at the same time, even if clients
// send slowly.
func TestManyLargeReads(t *testing.T) {
	d, err := newHandler(t.Context(), openService(t), nil, NewBodies())
	if err != nil {
		t.Fatal(err)
	}
	d.large.reads, d.large.maxWait, d.large.maxPace = semaphore.NewWeighted(1), time.Second, testTimeout
	s := httptest.NewServer(LimitWrites(d))
	defer s.Close()
	f := &fixture{url: s.URL, client: s.Client()}
	c := rawDial(t, f)
	sendStalled(c)
	// The server waits for its place while this loop has it, for maxWait at most.
	for late := time.Now().Add(testTimeout); d.large.reads.TryAcquire(1); {
		d.large.reads.Release(1)
		if time.Now().After(late) {
			t.Fatal("server does not read the body")
		}
		runtime.Gosched()
	}
	large := strings.Repeat(" ", largeBodyBytes) + "{}"
	f.do(t, "POST", "/v1/conversations:load", large).wantError(t, 429, reasonTooManyBodies)
	f.do(t, "POST", "/v1/conversations:load", "{}").wantOK(t)
	fmt.Fprintf(c, "%9s", "{}")
	if response := readResponse(t, c); response.StatusCode != http.StatusOK {
		t.Errorf("status = %v, want 200", response.Status)
	}
	f.do(t, "POST", "/v1/conversations:load", large).wantOK(t)
}

// sendStalled sends a large body except its last 9 bytes.
func sendStalled(c net.Conn) {
	fmt.Fprintf(c, "POST /v1/conversations:load HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%*s", largeBodyBytes+10,
		largeBodyBytes+1, "")
}

// TestStalledLargeRead: a large body that stalls is refused before maxBodyTime, so that others can
// be read.
func TestStalledLargeRead(t *testing.T) {
	d, err := newHandler(t.Context(), openService(t), nil, NewBodies())
	if err != nil {
		t.Fatal(err)
	}
	d.maxBodyTime, d.large.reads, d.large.maxPace = time.Hour, semaphore.NewWeighted(1), time.Millisecond
	s := httptest.NewServer(LimitWrites(d))
	t.Cleanup(s.Close) // Runs after the connection below is closed.
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
		t.Error("refused body still counts as being read")
	}
}

// TestSteadySender: a client that sendEvents a body of any size steadily within maxBodyTime keeps the
// pace.
func TestSteadySender(t *testing.T) {
	for size := largeBodyBytes + 1; size <= maxBodyBytes; size += 64<<10 - 1 {
		synctest.Test(t, func(t *testing.T) {
			w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
			from := &steadyBody{w: w, left: size, perSecond: size/int(maxBodyTime/time.Second) + 1}
			text, release, err := NewBodies().readBody(w, httptest.NewRequest(http.MethodPost, "/v1/chat", from),
				maxBodyTime)
			release()
			if err != nil || len(text) != size {
				t.Errorf("readBody of %d bytes within %v = %d bytes, %v", size, maxBodyTime, len(text), err)
			}
		})
	}
}

// steadyBody is a body that arrives steadily. Read failNotFound after the last deadline.
type steadyBody struct {
	w               *deadlineRecorder
	left, perSecond int
}

func (s *steadyBody) Read(p []byte) (int, error) {
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

// TestTooManyValues: a request with more values than a message can contain is refused before it is
// decoded.
func TestTooManyValues(t *testing.T) {
	f := newFixture(t)
	many := strings.Repeat("[],", maxDelimiters/2) + "[]"
	f.do(t, "POST", "/v1/chat", `{"structuredData": [{"type": "t", "value": [`+many+`]}]}`).wantError(t, 413,
		reasonBodyTooLarge)
	f.do(t, "POST", "/v1/import", `{"messages": [{"structuredData": [{"type": "t", "value": [`+many+`]}]}]}`).wantError(t,
		413, reasonBodyTooLarge, "line 1")
}

func TestCountDelimiters(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, `{"a": [1, {}, "[,:{"]}`: 6, `["\"[", "\\", ","]`: 3, `["no end [`: 1, `"\`: 0,
	} {
		if got := countDelimiters([]byte(text)); got != want {
			t.Errorf("countDelimiters(%s) = %d, want %d", text, got, want)
		}
	}
}

// TestLargeBodyIsNotReadFirst: a body whose Content-Length is too large is refused without being
// read.
func TestLargeBodyIsNotReadFirst(t *testing.T) {
	f := newFixture(t)
	c := rawDial(t, f)
	fmt.Fprintf(c, "POST /v1/chat HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", maxBodyBytes+1)
	if response := readResponse(t, c); response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status = %v, want 413", response.Status)
	}
}

// TestSlowBody: a body that does not arrive within maxBodyTime is refused.
func TestSlowBody(t *testing.T) {
	d, err := newHandler(t.Context(), openService(t), nil, NewBodies())
	if err != nil {
		t.Fatal(err)
	}
	d.maxBodyTime = time.Millisecond
	s := httptest.NewServer(LimitWrites(d))
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
	f := newFixture(t)
	c := rawDial(t, f)
	fmt.Fprint(c, "POST /v1/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	if tcp, ok := c.(*net.TCPConn); !ok || tcp.CloseWrite() != nil {
		t.Fatal("CloseWrite failed")
	}
	if response := readResponse(t, c); response.StatusCode != http.StatusBadRequest {
		t.Errorf("status = %v, want 400", response.Status)
	}
}

func rawDial(t *testing.T, f *fixture) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(testTimeout))
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

// deadlineRecorder is a response writer that records the read deadlines.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	all []time.Time
}

func (d *deadlineRecorder) SetReadDeadline(t time.Time) error {
	d.all = append(d.all, t)
	return nil
}

// TestBodyDeadlineIsRemoved: the read deadline is removed after the body, because the call may take
// longer.
func TestBodyDeadlineIsRemoved(t *testing.T) {
	w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest(http.MethodPost, "/v1/chat", strings.NewReader("{}"))
	if text, _, err := NewBodies().readBody(w, r, time.Minute); err != nil || string(text) != "{}" {
		t.Fatalf("readBody = %q, %v, want {}", text, err)
	}
	if len(w.all) != 2 || w.all[0].IsZero() || !w.all[1].IsZero() {
		t.Errorf("deadlines = %v, want one that is then removed", w.all)
	}
}
