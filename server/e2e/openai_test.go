package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// openAIEvent is an event of a response in the form of OpenAI.
type openAIEvent struct {
	Type     string
	Number   int `json:"sequence_number"`
	Delta    string
	Response struct {
		ID, Status string
		Output     []struct{ Content []struct{ Text string } }
	}
}

// openAIStream reads a response as a client does.
type openAIStream struct {
	events *eventSource
	id     string // of the response
	text   string // of the deltas
	number int    // of the last event
	status string // of the end
	output string // text of the end
}

// read reads events until the text is as long as want, or to the end if want is 0.
func (s *openAIStream) read(t *testing.T, want int) {
	t.Helper()
	for want == 0 || len(s.text) < want {
		event, err := s.events.next()
		if errors.Is(err, io.EOF) {
			return
		}
		var e openAIEvent
		if err == nil {
			err = json.Unmarshal([]byte(event.data), &e)
		}
		if err != nil {
			t.Fatalf("event %q: %v", event, err)
		}
		s.text, s.number = s.text+e.Delta, e.Number
		if e.Response.ID != "" {
			s.id, s.status, s.output = e.Response.ID, e.Response.Status, ""
			for _, item := range e.Response.Output {
				s.output += item.Content[0].Text
			}
		}
	}
}

// TestOpenAIStreamAfterAKill: the server is killed in the middle of a stream. Each client ends with the text of the
// store: a new one, and one that resumes after its last event.
func TestOpenAIStreamAfterAKill(t *testing.T) {
	t.Parallel()
	const rounds = 5 // A part is stored every second, unless the machine stalls.
	for range rounds {
		if killInMidStream(t) > 0 {
			return
		}
	}
	t.Errorf("no text was stored in %d rounds", rounds)
}

// killInMidStream returns how many bytes of the answer the store has after the kill.
func killInMidStream(t *testing.T) (stored int) {
	t.Helper()
	dir, flags := t.TempDir(), agents(t, puppetAgents)
	d := startHTTPServer(t, dir, flags)
	p := newPuppet(t, t.TempDir(), "pipe")
	const path = "/openai/v1/responses"
	body := fmt.Sprintf(`{"model": "puppet", "input": %q, "stream": true, "metadata": {"a": "b"}}`, p.path)
	first := &openAIStream{events: d.openEvents(t, "", path, body)}
	p.start(t)
	pause := time.NewTicker(2 * time.Second / answerPieces)
	defer pause.Stop()
	sent := 0
	for i := range answerPieces {
		<-pause.C
		p.send(t, i+1, i+1)
		sent += len(answerPiece(i + 1))
		first.read(t, sent)
	}
	if first.id == "" || !strings.HasPrefix(completeAnswer(), first.text) {
		t.Fatalf("response %q with the text %q", first.id, first.text)
	}
	d.kill()
	d = startHTTPServer(t, dir, flags)
	list, err := d.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || len(list.GetConversations()) != 1 {
		t.Fatalf("ListConversations = %v, %v, want 1", list, err)
	}
	reply, err := d.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{
		ConversationId: list.GetConversations()[0].GetConversation().GetId(), Ascending: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, m := range reply.GetMessages()[1:] {
		text += m.GetContent()
	}
	fresh := &openAIStream{events: d.openEvents(t, "", path+"/"+first.id+"?stream=true", "")}
	fresh.read(t, 0)
	if fresh.text != text || fresh.output != text || fresh.status != "failed" {
		t.Errorf("a new client has %q and at the end %q (%s), the store %q", fresh.text, fresh.output, fresh.status, text)
	}
	resumed := &openAIStream{
		events: d.openEvents(t, "", fmt.Sprintf("%s/%s?stream=true&starting_after=%d", path, first.id, first.number), ""),
	}
	resumed.read(t, 0)
	if resumed.output != text || resumed.status != "failed" || resumed.number <= first.number {
		t.Errorf("the client has %q at the end (%s), the store %q", resumed.output, resumed.status, text)
	}
	t.Logf("%d bytes of %d are stored", len(text), sent)
	return len(text)
}
