package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestAGUIKilledInMidStream kills the server while it streams an answer in AG-UI. A client that resumes its run on the
// next server, and a page that is loaded again, have the texts of the store.
func TestAGUIKilledInMidStream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := []string{"--store=bolt", agents(t, puppetAgents)}
	d := startHTTPServer(t, dir, flags...)
	p := newPuppet(t, t.TempDir(), "pipe")
	input := fmt.Sprintf(
		`{"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": %q}]}`, p.path)
	source := d.openEvents(t, "", "/ag-ui/puppet", input)
	p.start(t)
	p.send(t, 1, 1)
	shown := make(aguiTexts)
	for !strings.Contains(shown.all(), answerPiece(1)) {
		shown.next(t, source)
	}
	d.kill()
	for {
		if _, err := source.next(); err != nil {
			break
		}
	}

	d = startHTTPServer(t, dir, flags...)
	rest := d.openEvents(t, source.lastID, "/ag-ui/puppet", input)
	kind := ""
	for kind != "RUN_ERROR" && kind != "RUN_FINISHED" {
		kind = shown.next(t, rest)
	}
	reloaded := make(aguiTexts)
	page := d.openEvents(t, "", "/ag-ui/puppet?threadId=t", "")
	for end := ""; end != "RUN_FINISHED"; {
		end = reloaded.next(t, page)
	}
	reply, err := d.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "t", Ascending: true})
	if err != nil {
		t.Fatal(err)
	}
	stored := ""
	for _, m := range reply.GetMessages() {
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			stored += m.GetContent()
		}
	}
	if kind != "RUN_ERROR" || shown.all() != stored || reloaded.all() != stored {
		t.Errorf("the run ended with %s and the text %q, after a reload %q; the store has %q", kind, shown.all(),
			reloaded.all(), stored)
	}
	p.wantRuns(t, 1)
}

// aguiTexts has the texts of the messages of agents that a client of AG-UI shows, by their ids.
type aguiTexts map[string]string

// all returns all texts. The tests have one answer.
func (a aguiTexts) all() string {
	var b strings.Builder
	for _, text := range a {
		b.WriteString(text)
	}
	return b.String()
}

// next applies the next event of a stream and returns its type.
func (a aguiTexts) next(t *testing.T, from *eventSource) string {
	t.Helper()
	received, err := from.next()
	if err != nil {
		if errors.Is(err, io.EOF) {
			t.Fatal("the stream ended without the end of the run")
		}
		t.Fatal(err)
	}
	var event struct {
		Type, MessageID, Delta string
		Messages               []struct{ ID, Role, Content string }
	}
	if err := json.Unmarshal([]byte(received.data), &event); err != nil {
		t.Fatalf("event %s: %v", received.data, err)
	}
	switch event.Type {
	case "TEXT_MESSAGE_CONTENT":
		a[event.MessageID] += event.Delta
	case "MESSAGES_SNAPSHOT":
		clear(a)
		for _, m := range event.Messages {
			if m.Role == "assistant" {
				a[m.ID] = m.Content
			}
		}
	}
	return event.Type
}
