package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// httpServer is a server with its HTTP listener.
type httpServer struct {
	*server
	url string
}

// startHTTPServer starts a server that listens for HTTP.
func startHTTPServer(t *testing.T, dataDir string, flags ...string) *httpServer {
	t.Helper()
	s := startServer(t, dataDir, append([]string{"--http-address=127.0.0.1:0"}, flags...)...)
	return &httpServer{s, fmt.Sprintf("http://%s", s.await(t, "serving http")["address"])}
}

// serverEvent is a server-sent event.
type serverEvent struct{ id, kind, data string }

// eventSource is a stream of server-sent events on its own connection.
type eventSource struct {
	status     int
	body       io.ReadCloser
	lines      *bufio.Scanner
	lastID     string // the last event id, as a browser keeps it
	disconnect func() // resets the connection
	repeat     func() *eventSource
}

// openEvents sends a request for events, with a JSON body unless body is empty.
func (d *httpServer) openEvents(t *testing.T, lastID, path, body string) *eventSource {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	method, content := http.MethodGet, io.Reader(nil)
	if body != "" {
		method, content = http.MethodPost, strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, d.url+path, content)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	reply, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	e := &eventSource{
		status: reply.StatusCode, body: reply.Body, lines: bufio.NewScanner(reply.Body), lastID: lastID, disconnect: cancel,
	}
	e.lines.Buffer(nil, 8<<20)
	e.repeat = func() *eventSource { return d.openEvents(t, e.lastID, path, body) }
	t.Cleanup(func() { cancel(); reply.Body.Close() })
	return e
}

// next reads the next event. It skips comments, and returns io.EOF at the end of the stream.
func (e *eventSource) next() (serverEvent, error) {
	var event serverEvent
	for e.lines.Scan() {
		field, value, _ := strings.Cut(e.lines.Text(), ": ")
		switch field {
		case ":": // A comment is followed by an empty line, as an event is.
			e.lines.Scan()
		case "id":
			event.id, e.lastID = value, value
		case "event":
			event.kind = value
		case "data":
			event.data += value
		case "":
			return event, nil
		default:
			return event, fmt.Errorf("%q is not a line of a server-sent event", e.lines.Text())
		}
	}
	if err := e.lines.Err(); err != nil {
		return event, err
	}
	return event, io.EOF
}

// turnEvents returns the stream as events of a turn and checks that their ids are their indexes.
func (e *eventSource) turnEvents(t *testing.T) *eventStream {
	t.Helper()
	if e.status != http.StatusOK {
		t.Fatalf("status = %d, want 200", e.status)
	}
	return &eventStream{next: func() (*parleyv1.TurnEvent, error) {
		event, err := e.next()
		if err != nil {
			return nil, err
		}
		reply := new(parleyv1.ResumeTurnResponse)
		if err := protojson.Unmarshal([]byte(event.data), reply); err != nil || event.kind != "" {
			return nil, fmt.Errorf("event %q: %w", event, err)
		}
		if index := fmt.Sprint(reply.GetEvent().GetIndex()); event.id != index {
			return nil, fmt.Errorf("event %s has the id %q", index, event.id)
		}
		return reply.GetEvent(), nil
	}}
}

// finalReply returns the server's final reply. A busy server begins a stream that ends without an event
// that has an id, upon which a browser sends the request again.
func (e *eventSource) finalReply(t *testing.T) (status int, text string) {
	t.Helper()
	for e.status == http.StatusOK {
		if event, err := e.next(); err == nil && event.kind != "error" || err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("event %q, %v; want none with an id", event, err)
		}
		e.disconnect()
		e = e.repeat()
	}
	body, err := io.ReadAll(e.body)
	if err != nil {
		t.Fatal(err)
	}
	return e.status, string(body)
}

// wantNoContent checks that no events are left, with the status that stops a browser from reconnecting.
func (e *eventSource) wantNoContent(t *testing.T) {
	t.Helper()
	if status, text := e.finalReply(t); status != http.StatusNoContent || text != "" {
		t.Errorf("reply = %d with %q, want 204", status, text)
	}
}

// wantEventsGone checks for the error EVENTS_GONE with the oldest index that is still there.
func (e *eventSource) wantEventsGone(t *testing.T) {
	t.Helper()
	if status, text := e.finalReply(t); status != http.StatusBadRequest || !strings.Contains(text, `"EVENTS_GONE"`) ||
		!strings.Contains(text, `"oldest_index"`) {
		t.Errorf("reply = %d with %s, want 400 with EVENTS_GONE", status, text)
	}
}

// TestEventSourceFromEveryEvent checks that a client whose connection breaks after any event resumes
// with Last-Event-ID, either at the events of the turn or with the same chat request again.
func TestEventSourceFromEveryEvent(t *testing.T) {
	t.Parallel()
	dataDir, pipes, config := t.TempDir(), t.TempDir(), agents(t, puppetAgents)
	d := startHTTPServer(t, dataDir, config)
	var all []*cutSource
	for _, seen := range cutPoints(1, lastIndex) {
		for _, chats := range []bool{false, true} {
			name := fmt.Sprintf("%d-%t", seen, chats)
			all = append(all, &cutSource{p: newPuppet(t, pipes, name), id: "c:" + name, seen: seen, chats: chats})
		}
	}
	inParallel(len(all), func(i int) {
		t.Run(fmt.Sprintf("cut after %d, chats: %t", all[i].seen, all[i].chats), func(t *testing.T) { all[i].test(t, d) })
	})
	if t.Failed() {
		return
	}
	d.kill()
	d = startHTTPServer(t, dataDir, config)
	for _, c := range all {
		t.Run(fmt.Sprintf("cut after %d, restarted, chats: %t", c.seen, c.chats), func(t *testing.T) {
			c.testRestarted(t, d)
		})
	}
}

// cutSource is a turn whose reader loses its connection.
type cutSource struct {
	p     *puppet
	id    string // id of the conversation
	seen  int    // number of events received before the connection breaks
	chats bool   // resumes with the same chat request instead of the turn's events

	turn string
}

func (c *cutSource) chat(t *testing.T, d *httpServer, lastID string) *eventSource {
	t.Helper()
	return d.openEvents(t, lastID, "/v1/conversations/"+c.id+"/chat",
		fmt.Sprintf(`{"content":%q,"agent":"puppet","request_id":"r"}`, c.p.path))
}

// resume requests the events after lastID.
func (c *cutSource) resume(t *testing.T, d *httpServer, lastID string) *eventSource {
	t.Helper()
	if c.chats {
		return c.chat(t, d, lastID)
	}
	// A browser keeps the first URL when it reconnects.
	return d.openEvents(t, lastID, "/v1/conversations/"+c.id+"/turns/"+c.turn+"/events?after_index=0", "")
}

func (c *cutSource) test(t *testing.T, d *httpServer) {
	t.Helper()
	source := c.chat(t, d, "")
	events := source.turnEvents(t)
	c.p.start(t)
	events.receive(t, 1)
	c.turn = events.events[0].GetTurnId()
	events.sendAndReceive(t, c.p, 1, min(c.seen-1, answerPieces))
	if c.seen == lastIndex {
		c.p.finish()
		events.receive(t, 1)
	}
	source.disconnect()
	again := c.resume(t, d, source.lastID)
	if c.seen == lastIndex {
		again.wantNoContent(t)
		return
	}
	// The response begins before the agent sends more.
	rest := again.turnEvents(t)
	rest.sendAndReceive(t, c.p, c.seen, answerPieces)
	c.p.finish()
	if err := rest.drain(); err != nil {
		t.Errorf("stream after %d events = %v, want its end", c.seen+len(rest.events), err)
	}
	wantCompleteTurn(t, d.server, c.id, c.p, append(events.events, rest.events...))
	c.resume(t, d, again.lastID).wantNoContent(t)
}

// testRestarted resumes with a restarted server, which has all the text in one piece.
func (c *cutSource) testRestarted(t *testing.T, d *httpServer) {
	t.Helper()
	const merged = lastIndex - 1
	source := c.resume(t, d, strconv.Itoa(c.seen))
	switch {
	case c.seen == lastIndex:
		source.wantNoContent(t)
		return
	case c.seen > 1 && c.seen < merged:
		source.wantEventsGone(t)
		return
	}
	rest := source.turnEvents(t)
	if err := rest.drain(); err != nil {
		t.Error(err)
	}
	var got []int
	for _, event := range rest.events {
		got = append(got, int(event.GetIndex()))
	}
	if want := []int{merged, lastIndex}[min(c.seen/2, 1):]; !slices.Equal(got, want) {
		t.Errorf("indexes of the events = %v, want %v", got, want)
	}
	if c.seen == 1 && textOf(rest.events) != completeAnswer() {
		t.Errorf("text = %q, want %q", textOf(rest.events), completeAnswer())
	}
}
