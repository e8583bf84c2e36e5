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

// door is the HTTP side of a server.
type door struct {
	*server
	url string
}

// startDoor starts a server that has one.
func startDoor(t *testing.T, dataDir string, flags ...string) *door {
	t.Helper()
	s := startServer(t, dataDir, append([]string{"--http-address=127.0.0.1:0"}, flags...)...)
	return &door{s, fmt.Sprintf("http://%s", s.await(t, "serving http")["address"])}
}

// serverEvent is a server-sent event.
type serverEvent struct{ id, kind, data string }

// eventSource is a stream of them on a connection of its own.
type eventSource struct {
	status int
	body   io.ReadCloser
	lines  *bufio.Scanner
	lastID string // as a browser keeps it
	leave  func() // resets the connection
	again  func() *eventSource
}

// ask sends a request for events, with a JSON body if there is one.
func (d *door) ask(t *testing.T, lastID, path, body string) *eventSource {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
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
	e := &eventSource{status: reply.StatusCode, body: reply.Body, lines: bufio.NewScanner(reply.Body), lastID: lastID, leave: cancel}
	e.lines.Buffer(nil, 8<<20)
	e.again = func() *eventSource { return d.ask(t, e.lastID, path, body) }
	t.Cleanup(func() { cancel(); reply.Body.Close() })
	return e
}

// next takes the next event; io.EOF at the end of the stream.
func (e *eventSource) next() (serverEvent, error) {
	var event serverEvent
	for e.lines.Scan() {
		field, value, _ := strings.Cut(e.lines.Text(), ": ")
		switch field {
		case "id":
			event.id, e.lastID = value, value
		case "event":
			event.kind = value
		case "data":
			event.data += value
		case "":
			return event, nil
		default:
			return event, fmt.Errorf("the line %q is not of an event", e.lines.Text())
		}
	}
	if err := e.lines.Err(); err != nil {
		return event, err
	}
	return event, io.EOF
}

// turnEvents takes the events of a turn one by one, and checks that their ids are their
// indexes.
func (e *eventSource) turnEvents(t *testing.T) *eventStream {
	t.Helper()
	if e.status != http.StatusOK {
		t.Fatalf("the status is %d", e.status)
	}
	return &eventStream{next: func() (*parleyv1.TurnEvent, error) {
		event, err := e.next()
		if err != nil {
			return nil, err
		}
		reply := new(parleyv1.ResumeTurnResponse)
		if err := protojson.Unmarshal([]byte(event.data), reply); err != nil || event.kind != "" {
			return nil, fmt.Errorf("the event is %q: %w", event, err)
		}
		if index := fmt.Sprint(reply.GetEvent().GetIndex()); event.id != index {
			return nil, fmt.Errorf("event %s has the id %q", index, event.id)
		}
		return reply.GetEvent(), nil
	}}
}

// settled is the answer of a server that took the time to look: one that is too busy begins
// a stream, which then ends without an event that has an id, and a browser asks again.
func (e *eventSource) settled(t *testing.T) (status int, text string) {
	t.Helper()
	for e.status == http.StatusOK {
		if event, err := e.next(); err == nil && event.kind != "error" || err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("there is %q, %v", event, err)
		}
		e.leave()
		e = e.again()
	}
	body, err := io.ReadAll(e.body)
	if err != nil {
		t.Fatal(err)
	}
	return e.status, string(body)
}

// wantNothing checks that there is nothing to be had, in a way that has a browser ask no more.
func (e *eventSource) wantNothing(t *testing.T) {
	t.Helper()
	if status, text := e.settled(t); status != http.StatusNoContent || text != "" {
		t.Errorf("status %d with %q, want 204", status, text)
	}
}

// wantGone checks that the events are gone, and where there are some, which a client reads.
func (e *eventSource) wantGone(t *testing.T) {
	t.Helper()
	if status, text := e.settled(t); status != http.StatusBadRequest || !strings.Contains(text, `"EVENTS_GONE"`) || !strings.Contains(text, `"oldest_index"`) {
		t.Errorf("status %d with %s, want 400, EVENTS_GONE", status, text)
	}
}

// A client whose connection is cut after any event goes on behind it by Last-Event-ID: with
// the events of the turn, or by asking the same once more.
func TestEventSourceFromEveryEvent(t *testing.T) {
	t.Parallel()
	dataDir, pipes, config := t.TempDir(), t.TempDir(), agents(t, puppetAgents)
	d := startDoor(t, dataDir, config)
	all := make([]*cutSource, 2*lastIndex)
	for i := range all {
		all[i] = &cutSource{p: newPuppet(t, pipes, fmt.Sprint(i)), id: fmt.Sprint("c:", i), seen: i/2 + 1, chats: i%2 == 1}
	}
	inParallel(len(all), func(i int) {
		t.Run(fmt.Sprintf("cut after %d, chats: %t", all[i].seen, all[i].chats), func(t *testing.T) { all[i].test(t, d) })
	})
	if t.Failed() {
		return
	}
	d.kill()
	d = startDoor(t, dataDir, config)
	for _, c := range all {
		t.Run(fmt.Sprintf("cut after %d, restarted, chats: %t", c.seen, c.chats), func(t *testing.T) { c.testRestarted(t, d) })
	}
}

// cutSource is a turn whose reader is cut off.
type cutSource struct {
	p     *puppet
	id    string // of the conversation
	seen  int    // events that come before the cut
	chats bool   // goes on by sending the same request again

	turn string
}

func (c *cutSource) chat(t *testing.T, d *door, lastID string) *eventSource {
	t.Helper()
	return d.ask(t, lastID, "/v1/conversations/"+c.id+"/chat", fmt.Sprintf(`{"content":%q,"agent":"puppet","request_id":"r"}`, c.p.path))
}

// goOn asks for what is behind the event that came last.
func (c *cutSource) goOn(t *testing.T, d *door, lastID string) *eventSource {
	t.Helper()
	if c.chats {
		return c.chat(t, d, lastID)
	}
	// The URL stays what it was at first.
	return d.ask(t, lastID, "/v1/conversations/"+c.id+"/turns/"+c.turn+"/events?after_index=0", "")
}

func (c *cutSource) test(t *testing.T, d *door) {
	t.Helper()
	source := c.chat(t, d, "")
	events := source.turnEvents(t)
	c.p.start(t)
	events.take(t, 1)
	c.turn = events.events[0].GetTurnId()
	events.hear(t, c.p, 1, min(c.seen-1, answerPieces))
	if c.seen == lastIndex {
		c.p.end()
		events.take(t, 1)
	}
	source.leave()
	again := c.goOn(t, d, source.lastID)
	if c.seen == lastIndex {
		again.wantNothing(t)
		return
	}
	// The answer has begun though the agent is silent.
	rest := again.turnEvents(t)
	rest.hear(t, c.p, c.seen, answerPieces)
	c.p.end()
	if err := rest.end(); err != nil {
		t.Errorf("after %d events: %v", c.seen+len(rest.events), err)
	}
	wantWhole(t, d.server, c.id, c.p, append(events.events, rest.events...))
	c.goOn(t, d, again.lastID).wantNothing(t)
}

// testRestarted goes on with a server that has all the text in one piece.
func (c *cutSource) testRestarted(t *testing.T, d *door) {
	t.Helper()
	const merged = lastIndex - 1
	source := c.goOn(t, d, strconv.Itoa(c.seen))
	switch {
	case c.seen == lastIndex:
		source.wantNothing(t)
		return
	case c.seen > 1 && c.seen < merged:
		source.wantGone(t)
		return
	}
	rest := source.turnEvents(t)
	if err := rest.end(); err != nil {
		t.Error(err)
	}
	var got []int
	for _, event := range rest.events {
		got = append(got, int(event.GetIndex()))
	}
	if want := []int{merged, lastIndex}[min(c.seen/2, 1):]; !slices.Equal(got, want) {
		t.Errorf("there are the events %v, want %v", got, want)
	}
	if c.seen == 1 && textOf(rest.events) != wholeAnswer() {
		t.Errorf("the text is %q", textOf(rest.events))
	}
}
