package main

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// once runs the program as a script does, without a terminal.
func once(ctx context.Context, input string, args ...string) (stdout, stderr string, code int) {
	var out, errs strings.Builder
	code = run(ctx, args, console{
		program: "parley", in: strings.NewReader(input), out: &out, err: &errs,
		getenv: func(string) string { return "" }, now: time.Now,
	})
	return out.String(), errs.String(), code
}

// What is beside an answer must not part its text where that goes to a file.
func TestNotesStayOutOfTheAnswer(t *testing.T) {
	address := serve(t, func(_ *parleyv1.ChatRequest, stream chatStream) error {
		return send(stream,
			&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: 1}}},
			&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{
				Conversation: &parleyv1.Conversation{Id: "a"}, Created: true, Replayed: true,
			}}},
			&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}}},
			delta("one \x1b[1m"),
			&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_StructuredData{
				StructuredData: &parleyv1.StructuredData{Type: "list", Value: structpb.NewNumberValue(1)},
			}},
			&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: "still\nlooking"}}},
			delta("two"),
			&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolResult{
				ToolResult: &parleyv1.ToolResult{CallId: "c1", Name: "price", Content: "none", IsError: true},
			}},
			handover("other"),
			delta("three\n"),
			&parleyv1.TurnEvent{},
			finished(parleyv1.TurnState_TURN_STATE_CANCELLED))
	})
	stdout, stderr, code := once(t.Context(), "", "--address", address, "chat", "hello")
	if want := "one \x1b[1mtwo\nthree\n"; stdout != want {
		t.Errorf("standard output = %q, want %q", stdout, want)
	}
	want := `waiting, number 1 in the queue
this request id was asked before; that turn again:
structured data list: 1
still looking
tool failure price c1: none
other answers:
continue with: parley --address ` + address + ` chat -c a ...
parley: the turn was cancelled
`
	if diff := cmp.Diff(want, stderr); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

func TestOnlyChatWaitsForever(t *testing.T) {
	address := serve(t, func(_ *parleyv1.ChatRequest, stream chatStream) error {
		_, limited := stream.Context().Deadline()
		return send(stream,
			delta(strconv.FormatBool(limited)),
			finished(parleyv1.TurnState_TURN_STATE_COMPLETED))
	})
	tests := map[string][]string{
		"false": {"chat", "hello"},
		"true":  {"--timeout", "1h", "chat", "hello"},
	}
	for want, args := range tests {
		stdout, stderr, code := once(t.Context(), "", append([]string{"--address", address}, args...)...)
		if stdout != want+"\n" || code != 0 {
			t.Errorf("%v: deadline = %q, want %s; exit code %d, %s", args, stdout, want, code, stderr)
		}
	}
}

func TestListsAreReadToTheirEnd(t *testing.T) {
	address := serve(t, nil)
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"list", "--limit", "0"}, "c1 c2 c3"},
		{[]string{"list", "--limit", "2"}, "c1 c2"},
		{[]string{"list", "--limit", "2", "--page-token", "3"}, "c3"},
		{[]string{"show", "a"}, "[1] [2] [3] [4]"},
	}
	for _, test := range tests {
		stdout, stderr, code := once(t.Context(), "", append([]string{"--address", address}, test.args...)...)
		var got []string
		for line := range strings.Lines(stdout) {
			if word, _, _ := strings.Cut(line, " "); strings.HasPrefix(word, "c") && len(word) == 2 || strings.HasPrefix(word, "[") {
				got = append(got, word)
			}
		}
		if strings.Join(got, " ") != test.want || code != 0 {
			t.Errorf("%v shows %v, want %s; exit code %d, %s", test.args, got, test.want, code, stderr)
		}
	}
}

func TestInputIsBounded(t *testing.T) {
	_, err := (&app{console: console{in: endless{}}}).readAll(t.Context())
	if err == nil || !strings.Contains(err.Error(), "more than 4 MiB") {
		t.Errorf("error = %v, want one about the size", err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
