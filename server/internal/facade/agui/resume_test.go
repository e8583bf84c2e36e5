package agui

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// answers are the scripts of the tests of resumption.
func answers() map[string][]*parleyv1.RespondResponse {
	cut := []*parleyv1.RespondResponse{
		text("One"), callDelta("c1", "lost", `{"cut`),
		{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "waiter"}},
		callDelta("c2", "lost", `{"cut`),
		{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "cook"}},
		text("Two"),
	}
	return map[string][]*parleyv1.RespondResponse{
		"all": everything(), "cut": cut, "fails": append(everything(), fail()),
		"data first": {data("a", 1.0), text("é"), data("b", 2.0), text("ü"), data("c", 3.0), text("x")},
		"waits":      {reasoning("Hm"), text("Once "), text("upon"), nil, text(" a time."), data("end", true)},
	}
}

// TestResumeAfterEachEvent cuts a stream after each of its events and resumes it by the id of that event: the page has
// the same content as without the cut, while the events of the turn are kept one by one, and when they are replayed from
// the store.
func TestResumeAfterEachEvent(t *testing.T) {
	f := newFixture(t, answers())
	for _, content := range []string{"all", "cut", "fails", "data first"} {
		list := f.run(t, "script", content, content, user("u", content))
		want, err := show(list)
		if err != nil {
			t.Fatal(err)
		}
		for name, server := range map[string]*fixture{"kept": f, "replayed": f.restarted(t)} {
			for i, last := range list[:len(list)-1] {
				for method, path := range map[string]string{
					http.MethodPost: PathPrefix + "script", http.MethodGet: PathPrefix + "script?threadId=" + url.QueryEscape(content),
				} {
					body := ""
					if method == http.MethodPost {
						body = runInput(content, content, user("u", content))
					}
					rest := server.all(t, method, path, body, "Last-Event-ID: "+last.id)
					got, err := show(append(list[:i+1:i+1], rest...))
					if err != nil {
						t.Fatalf("%s, %s, resumed after event %d, %s: %v", content, name, i, last.id, err)
					}
					if diff := cmp.Diff(withoutHistory(want), withoutHistory(got)); diff != "" {
						t.Errorf("%s, %s, resumed after event %d, %s (-want +got):\n%s", content, name, i, last.id, diff)
					}
				}
			}
		}
		r := f.open(t, http.MethodGet, PathPrefix+"script?threadId="+url.QueryEscape(content), "", "Last-Event-ID: "+list[len(list)-1].id)
		if r.StatusCode != http.StatusNoContent {
			t.Errorf("resumed after the last event = %s, want 204", r.Status)
		}
	}
}

// withoutHistory returns what a page shows of the answer. A resumed page may also have the messages before it. The
// server does not store notes of progress.
func withoutHistory(p *page) string {
	q := *p
	q.messages = nil
	q.custom = slices.DeleteFunc(slices.Clone(p.custom), func(s string) bool {
		return strings.HasPrefix(s, "parley.progress")
	})
	for _, m := range sortedByID(p) {
		if m.Role != "user" {
			q.messages = append(q.messages, m)
		}
	}
	return q.String()
}

// TestResumeWhileRunning checks that a page that lost its stream, or was loaded again, misses nothing while the
// turn runs, and that the run survives as its request said.
func TestResumeWhileRunning(t *testing.T) {
	f := newFixture(t, answers())
	first := f.open(t, http.MethodPost, PathPrefix+"script?onDisconnect=continue", runInput("t", "r", user("u", "waits")))
	var list []received
	for one := range events(t, first) {
		list = append(list, one)
		if p, err := show(list); err != nil {
			t.Fatal(err)
		} else if p.text() == "Once upon" {
			break
		}
	}
	<-f.scripts.started
	first.Body.Close()
	id := list[len(list)-1].id
	resumed := f.open(t, http.MethodPost, PathPrefix+"script", runInput("t", "r", user("u", "waits")), "Last-Event-ID: "+id)
	retried := f.open(t, http.MethodPost, PathPrefix+"script", runInput("t", "r", user("u", "waits")))
	reloaded := f.open(t, http.MethodGet, PathPrefix+"script?threadId=t", "")
	f.scripts.release <- struct{}{}
	for one := range events(t, resumed) {
		list = append(list, one)
	}
	want, err := show(list)
	if err != nil || want.text() != "Once upon a time." {
		t.Fatalf("the resumed page shows %q, %v; want the complete text", want.text(), err)
	}
	for name, response := range map[string]*http.Response{"retried": retried, "reloaded": reloaded} {
		p := new(page)
		for one := range events(t, response) {
			if err := p.apply(one.event); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if diff := cmp.Diff(withoutHistory(want), withoutHistory(p)); diff != "" || p.find("u") == nil {
			t.Errorf("the page that was %s (-want +got):\n%s", name, diff)
		}
	}
	if messages := f.stored(t); len(messages) != 2 || messages[1].GetContent() != want.text() {
		t.Errorf("the store has %v, want the message and its answer", messages)
	}
}

// TestClientThatVanishes checks that a run whose client disconnects is cancelled, or continues if its request said so.
func TestClientThatVanishes(t *testing.T) {
	for onDisconnect, want := range map[string]parleyv1.TurnState{
		"":                       parleyv1.TurnState_TURN_STATE_CANCELLED,
		"?onDisconnect=cancel":   parleyv1.TurnState_TURN_STATE_CANCELLED,
		"?onDisconnect=continue": parleyv1.TurnState_TURN_STATE_COMPLETED,
	} {
		f := newFixture(t, answers())
		r := f.open(t, http.MethodPost, PathPrefix+"script"+onDisconnect, runInput("t", "r", user("u", "waits")))
		<-f.scripts.started
		reader, err := f.api.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "t"})
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if want == parleyv1.TurnState_TURN_STATE_COMPLETED {
			f.scripts.release <- struct{}{}
		}
		if got := f.endOfTurn(t, reader.GetTurns()[0].GetId()); got != want {
			t.Errorf("%s: the turn of a client that vanished is %v, want %v", onDisconnect, got, want)
		}
	}
}

// endOfTurn waits for the end of a turn of the conversation "t" without reading its events.
func (f *fixture) endOfTurn(t *testing.T, turnID string) parleyv1.TurnState {
	t.Helper()
	for t.Context().Err() == nil {
		reply, err := f.api.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "t", TurnId: turnID})
		if err != nil {
			t.Fatal(err)
		}
		if state := reply.GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_RUNNING {
			return state
		}
	}
	return 0
}

// TestResumeAmongMergedTexts checks that a page that connects to a long turn, whose texts the server has merged, resumes
// after each event: the merged text comes after data that belongs after its start, and nothing is missing or
// repeated.
func TestResumeAmongMergedTexts(t *testing.T) {
	const merged, perValue = 17_000, 1000 // The server keeps 16,384 events one by one.
	long := []*parleyv1.RespondResponse{reasoning("Hm."), text("First. "), call("c", "n", "{}"), result("c", "r")}
	want := "First. |"
	for i := range merged {
		if i%perValue == perValue/2 {
			long = append(long, data("number", float64(i)))
			continue
		}
		long = append(long, text(fmt.Sprint(i, " é ")))
		want += fmt.Sprint(i, " é ")
	}
	long = append(long, nil, text("end"))
	f := newFixture(t, map[string][]*parleyv1.RespondResponse{"long": long})
	started := f.open(t, http.MethodPost, PathPrefix+"script?onDisconnect=continue", runInput("t", "r", user("u", "long")))
	var early []received
	for one := range events(t, started) {
		early = append(early, one)
		if p, err := show(early); err != nil || len(p.text()) > len("First. |0 é ") {
			break
		}
	}
	<-f.scripts.started
	started.Body.Close()

	var list []received
	reader := f.open(t, http.MethodGet, PathPrefix+"script?threadId=t", "")
	for one := range events(t, reader) {
		list = append(list, one)
		if p, err := show(list); err != nil || p.text() == want {
			break
		}
	}
	reader.Body.Close()
	rest := make([]*http.Response, len(list))
	for i, one := range list {
		if one.id != "" {
			rest[i] = f.open(t, http.MethodGet, PathPrefix+"script?threadId=t", "", "Last-Event-ID: "+one.id)
		}
	}
	late := f.open(t, http.MethodGet, PathPrefix+"script?threadId=t", "", "Last-Event-ID: "+early[len(early)-1].id)
	f.scripts.release <- struct{}{}
	for one := range events(t, late) {
		early = append(early, one)
	}
	if p, err := show(early); err != nil || p.text() != want+"end" {
		t.Errorf("resumed within the text: %d bytes of text, %v; want %d", len(p.text()), err, len(want)+len("end"))
	}
	resumed := 0
	for i, response := range rest {
		if response == nil {
			continue
		}
		all := list[: i+1 : i+1]
		for one := range events(t, response) {
			all = append(all, one)
		}
		p, err := show(all)
		if err != nil {
			t.Fatalf("resumed after event %d, %s: %v", i, list[i].id, err)
		}
		if p.text() != want+"end" || len(p.custom) != merged/perValue || p.end["type"] != "RUN_FINISHED" {
			t.Fatalf("resumed after event %d, %s: %d bytes of text and %d values, %v; want %d and %d", i, list[i].id,
				len(p.text()), len(p.custom), p.end, len(want)+len("end"), merged/perValue)
		}
		resumed++
	}
	if resumed < merged/perValue {
		t.Errorf("%d resumptions, want one for each value at least", resumed)
	}
}
