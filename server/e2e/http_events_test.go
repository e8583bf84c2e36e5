package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// numberAgent is an agent that sends more pieces than the server keeps separate, with a value at
// intervals. It pauses after numbersBeforePause pieces until end is closed.
type numberAgent struct {
	parleyv1.UnimplementedAgentServiceServer
	release chan struct{}
}

const (
	numberPieces       = 18_000
	numbersBeforePause = 17_000 // pieces, more than the 16,384 events that the server keeps
	numbersPerValue    = 1_000  // One piece in this many is a value.
)

func (a *numberAgent) Respond(
	_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	for i := range numberPieces {
		if i == numbersBeforePause {
			select {
			case <-a.release:
			case <-stream.Context().Done():
			}
		}
		piece := &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: numberText(i)}}
		if numberText(i) == "" {
			piece.Piece = &parleyv1.RespondResponse_StructuredData{
				StructuredData: &parleyv1.StructuredData{Type: "number", Value: structpb.NewNumberValue(float64(i))},
			}
		}
		if err := stream.Send(piece); err != nil {
			return err
		}
	}
	return nil
}

// numberText returns the text of a piece, or "" if the piece is a value.
func numberText(i int) string {
	if i%numbersPerValue == numbersPerValue/2 {
		return ""
	}
	return fmt.Sprintf("%d ", i)
}

// TestEventSourceAmongMergedTexts checks that a client that joins a long turn late receives its text as
// one merged piece, after the values that were sent amid that text. If its connection breaks before the
// merged text, resuming fails with EVENTS_GONE, so that the client does not miss text unnoticed.
func TestEventSourceAmongMergedTexts(t *testing.T) {
	t.Parallel()
	agent := &numberAgent{release: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(service, agent)
	go func() { _ = service.Serve(listener) }() // Serve returns after Stop.
	t.Cleanup(service.Stop)
	d := startHTTPServer(t, t.TempDir(),
		agents(t, fmt.Sprintf("agents:\n  numbers: {kind: remote, address: %q}\n", listener.Addr())))
	call := streamOf(d.Chat(timeLimited(t), &parleyv1.ChatRequest{ConversationId: "c", Content: "talk", Agent: "numbers"}))
	call.receive(t, 1+numbersBeforePause)
	path := "/v1/conversations/c/turns/" + call.events[0].GetTurnId() + "/events"

	source := d.openEvents(t, "", path, "")
	var all []*parleyv1.TurnEvent
	next := func(from *eventSource) *parleyv1.TurnEvent {
		t.Helper()
		event, err := from.next()
		reply := new(parleyv1.ResumeTurnResponse)
		if err == nil {
			err = protojson.Unmarshal([]byte(event.data), reply)
		}
		if err != nil {
			t.Fatalf("after %d events: %v", len(all), err)
		}
		all = append(all, reply.GetEvent())
		return reply.GetEvent()
	}
	for next(source).GetTextDelta() == nil {
		d.openEvents(t, source.lastID, path, "").wantEventsGone(t)
	}
	if len(all) != 1+numbersBeforePause/numbersPerValue+1 {
		t.Errorf("the merged text came after %d events, want %d", len(all)-1, 1+numbersBeforePause/numbersPerValue)
	}
	source.disconnect()
	rest := d.openEvents(t, source.lastID, path, "")
	close(agent.release)
	for event := next(rest); event.GetFinished() == nil; {
		event = next(rest)
	}
	var want strings.Builder
	values := 0
	for i := range numberPieces {
		want.WriteString(numberText(i))
	}
	for _, event := range all {
		if event.GetStructuredData() != nil {
			values++
		}
	}
	if got := textOf(all); got != want.String() || values != numberPieces/numbersPerValue {
		t.Errorf("received %d bytes of text and %d values, want %d and %d", len(got), values, want.Len(),
			numberPieces/numbersPerValue)
	}
}

// TestEventSourceOfChanges checks that a watcher whose connection breaks after any change resumes with
// the next change, even if the URL has a cursor. It receives every change exactly once.
func TestEventSourceOfChanges(t *testing.T) {
	t.Parallel()
	const messages = 20
	d := startHTTPServer(t, t.TempDir())
	source := d.openEvents(t, "", "/v1/watch?conversationIds=c", "")
	if _, err := source.next(); err != nil {
		t.Fatal(err)
	}
	begin := source.lastID
	var sequences []int32
	for n := 0; n <= messages; { // including the change CREATED
		reply := new(parleyv1.WatchConversationsResponse)
		add(t, d.server, "other", &parleyv1.Message{Content: "not watched"})
		if n < messages {
			add(t, d.server, "c", &parleyv1.Message{Content: "hello"})
		}
		for reply.GetChange().GetKind() < parleyv1.ChangeKind_CHANGE_KIND_CREATED { // skips heartbeats
			event, err := source.next()
			if err == nil {
				err = protojson.Unmarshal([]byte(event.data), reply)
			}
			if err != nil || event.id != reply.GetChange().GetCursor() ||
				reply.GetChange().GetKind() == parleyv1.ChangeKind_CHANGE_KIND_GAP {
				t.Fatalf("after %d changes: %q, %v", n, event, err)
			}
		}
		n++
		if m := reply.GetChange().GetMessage(); m != nil {
			sequences = append(sequences, m.GetSequence())
		}
		source.disconnect()
		source = d.openEvents(t, source.lastID, "/v1/watch?conversationIds=c&cursor="+url.QueryEscape(begin), "")
	}
	for i, sequence := range sequences {
		if int(sequence) != i+1 {
			t.Fatalf("sequences of the received messages = %v, want 1 to %d", sequences, messages)
		}
	}
	if len(sequences) != messages {
		t.Errorf("%d messages received, want %d", len(sequences), messages)
	}
}

// TestStreamsEndWithTheirClient checks that over HTTP, a turn with ON_DISCONNECT_CANCEL and an ephemeral
// conversation end when their client disconnects.
func TestStreamsEndWithTheirClient(t *testing.T) {
	t.Parallel()
	d := startHTTPServer(t, t.TempDir(), agents(t, puppetAgents))
	watch := d.openEvents(t, "", "/v1/watch?conversationIds=c&deleteAfterDisconnect=0s&includeTurnEvents=true", "")
	if _, err := watch.next(); err != nil { // The first event shows that the watch has started.
		t.Fatal(err)
	}
	p := newPuppet(t, t.TempDir(), "pipe")
	source := d.openEvents(t, "", "/v1/chat",
		fmt.Sprintf(`{"conversationId":"c","content":%q,"agent":"puppet","onDisconnect":"ON_DISCONNECT_CANCEL"}`, p.path))
	events := source.turnEvents(t)
	p.start(t)
	events.receive(t, 1)
	events.sendAndReceive(t, p, 1, 3)
	source.disconnect()
	for {
		event, err := watch.next()
		reply := new(parleyv1.WatchConversationsResponse)
		if err == nil {
			err = protojson.Unmarshal([]byte(event.data), reply)
		}
		if err != nil {
			t.Fatal(err)
		}
		if finished := reply.GetChange().GetTurnEvent().GetFinished(); finished != nil {
			if finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
				t.Errorf("the turn ended with %v, want CANCELLED", finished)
			}
			break
		}
	}
	watch.disconnect()
	d.await(t, "ephemeral conversation deleted", "conversation_id=c")
}

// TestStopEndsStreams checks that streams end when the server stops: a turn with its last event, a watch
// with the reason.
func TestStopEndsStreams(t *testing.T) {
	t.Parallel()
	d := startHTTPServer(t, t.TempDir(), agents(t, puppetAgents))
	watching := d.openEvents(t, "", "/v1/watch", "")
	if _, err := watching.next(); err != nil {
		t.Fatal(err)
	}
	p := newPuppet(t, t.TempDir(), "pipe")
	events := d.openEvents(t, "", "/v1/chat", fmt.Sprintf(`{"conversationId":"c","content":%q,"agent":"puppet"}`, p.path)).turnEvents(t)
	p.start(t)
	events.receive(t, 1)
	d.terminate()
	d.await(t, "stopping")
	events.sendAndReceive(t, p, 1, answerPieces)
	p.finish()
	if err := events.drain(); err != nil {
		t.Error(err)
	}
	if last := events.events[len(events.events)-1]; last.GetFinished().GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED || textOf(events.events) != completeAnswer() {
		t.Errorf("the last event of the turn = %v, want COMPLETED with the complete answer", last)
	}
	var last serverEvent
	for err := error(nil); !errors.Is(err, io.EOF); {
		var event serverEvent
		if event, err = watching.next(); err == nil {
			last = event
		} else if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	if last.kind != "error" || last.id != "" || !strings.Contains(last.data, "SHUTTING_DOWN") {
		t.Errorf("the last event of the watch = %q, want an error SHUTTING_DOWN", last)
	}
	d.wantStop(t)
}

// TestTransferOverHTTP checks that an export over HTTP is unchanged after an import over HTTP, whatever
// the messages contain.
func TestTransferOverHTTP(t *testing.T) {
	t.Parallel()
	from, to := startHTTPServer(t, t.TempDir()), startHTTPServer(t, t.TempDir())
	awkward := "line\nend\r\n, \u2028 and \u2029, \"quoted\" \\ <b> \x00 日本"
	for i := range 50 {
		value, err := structpb.NewValue(map[string]any{"text": awkward, "list": []any{1.5, nil, true}})
		if err != nil {
			t.Fatal(err)
		}
		add(t, from.server, fmt.Sprint("c:", i), &parleyv1.Message{Content: awkward},
			&parleyv1.Message{
				Role: parleyv1.Role_ROLE_ASSISTANT, StructuredData: []*parleyv1.StructuredData{{Type: "t", Value: value}},
			})
	}
	for range 4 { // More than 4 MiB of JSON in one line, since each byte becomes six.
		add(t, from.server, "control", &parleyv1.Message{Content: strings.Repeat("\x01", 200<<10)})
	}
	transfer := func(path, want string) {
		t.Helper()
		exported, err := http.Get(from.url + "/v1/export")
		if err != nil {
			t.Fatal(err)
		}
		defer exported.Body.Close()
		// the content type that curl sends
		reply, err := http.Post(to.url+path, "application/x-www-form-urlencoded", exported.Body)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		if text, err := io.ReadAll(reply.Body); err != nil || reply.StatusCode != http.StatusOK ||
			strings.TrimSpace(string(text)) != want {
			t.Errorf("POST %s = %d with %s, %v; want 200 with %s", path, reply.StatusCode, text, err, want)
		}
	}
	transfer("/v1/import", `{"importedCount":"51"}`)
	transfer("/v1/import", `{"skippedCount":"51"}`)
	transfer("/v1/import?overwrite=true", `{"importedCount":"51"}`)
	if d := cmp.Diff(export(t, from.server), export(t, to.server), protocmp.Transform(), exceptUID()); d != "" {
		t.Errorf("exports before (-) and after (+) the import:\n%s", d)
	}
}
