package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// runOnce runs the program without a terminal, like a script.
func runOnce(ctx context.Context, input string, args ...string) (stdout, stderr string, code int) {
	var out, errs strings.Builder
	code = run(ctx, args, console{
		program: "parley", in: strings.NewReader(input), out: &out, err: &errs,
		getenv: func(string) string { return "" }, now: time.Now,
	})
	return out.String(), errs.String(), code
}

// TestNotesGoToStandardError checks that notes go to standard error, so that the text of an answer in a
// file is not interrupted.
func TestNotesGoToStandardError(t *testing.T) {
	address := serve(t, func(_ *parleyv1.ChatRequest, stream *turnStream) error {
		return send(stream,
			queued(2), queued(2), queued(1), queued(1),
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
			&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Record{Record: &parleyv1.TurnRecord{Key: "k\x1b"}}},
			&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Record{Record: &parleyv1.TurnRecord{Key: "l", Deleted: true}}},
			handover("other"),
			delta("three\n"),
			&parleyv1.TurnEvent{},
			finished(parleyv1.TurnState_TURN_STATE_CANCELLED))
	})
	stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "chat", "--request-id", "q1", "hello")
	if want := "one \x1b[1mtwo\nthree\n"; stdout != want {
		t.Errorf("standard output = %q, want %q", stdout, want)
	}
	want := `waiting, number 2 in the queue
waiting, number 1 in the queue
this request id was already used; showing the same turn:
structured data list: 1
still looking
tool failure price c1: none
the answer writes record k�
the answer deletes record l
other answers:
ask again with: parley --address ` + address + ` chat -c a --again
parley: the turn was cancelled
`
	if diff := cmp.Diff(want, stderr); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

// TestToolResultHintNamesOpenCalls checks that the command that passes tool results names all open
// calls. Their ids, which the agent chooses, are quoted for the shell.
func TestToolResultHintNamesOpenCalls(t *testing.T) {
	var answer []*parleyv1.Message
	addCalls := func(ids ...string) {
		m := &parleyv1.Message{}
		for _, id := range ids {
			m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: "price"})
		}
		answer = append(answer, m)
	}
	addCalls("c1", "c2")
	answer = append(answer, &parleyv1.Message{ToolResult: &parleyv1.ToolResult{CallId: "c1"}})
	addCalls("c1", "it's $(rm -r x)", "a\x1b[1mb")
	address := serve(t, func(_ *parleyv1.ChatRequest, stream *turnStream) error {
		end := finished(parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED)
		end.GetFinished().Messages = answer
		return send(stream, started("shop"), delta("one"), end)
	})
	stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "chat", "hello")
	if stdout != "one\n" || code != 0 {
		t.Errorf("standard output %q, exit code %d; want the answer, 0", stdout, code)
	}
	want := "the agent waits for the results of its tool calls; continue with: parley --address " + address +
		` chat -c shop --tool-result c2=... --tool-result c1=... --tool-result 'it'\''s $(rm -r x)'=... --tool-result 'a` + "\uFFFD[1mb'=...\n"
	if diff := cmp.Diff(want, stderr); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
}

func TestChatResumesABrokenStream(t *testing.T) {
	f := fake{
		chat: func(_ *parleyv1.ChatRequest, stream *turnStream) error {
			return errors.Join(send(stream, started("shop"), delta("one ")), status.Error(codes.Unavailable, "closing"))
		},
		resume: func(_ *parleyv1.ResumeTurnRequest, stream *turnStream) error {
			return send(stream, delta("two"), finished(parleyv1.TurnState_TURN_STATE_COMPLETED))
		},
	}
	stdout, stderr, code := runOnce(t.Context(), "", "--address", f.serve(t), "chat", "-c", "shop", "hello")
	if stdout != "one two\n" || stderr != "" || code != 0 {
		t.Errorf("standard output %q, standard error %q, exit code %d; want only the answer, 0", stdout, stderr, code)
	}
}

func TestChatWithFullOutput(t *testing.T) {
	address := serve(t, func(_ *parleyv1.ChatRequest, stream *turnStream) error {
		return hang(stream, started("shop"), delta("one "), delta("two "), delta("three "))
	})
	for _, output := range []string{"table", "json"} {
		var errs strings.Builder
		code := run(t.Context(), []string{"--address", address, "--output", output, "chat", "hello"}, console{
			program: "parley", out: fullDisk{}, err: &errs, inTerminal: true,
			getenv: func(string) string { return "" }, now: time.Now,
		})
		if want := "parley: no space left on device\n"; !strings.HasSuffix(errs.String(), want) || code != 1 {
			t.Errorf("--output %s: standard error %q, exit code %d; want %q, 1", output, errs.String(), code, want)
		}
	}
}

func TestChatHasNoDefaultTimeout(t *testing.T) {
	address := serve(t, func(_ *parleyv1.ChatRequest, stream *turnStream) error {
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
		stdout, stderr, code := runOnce(t.Context(), "", append([]string{"--address", address}, args...)...)
		if stdout != want+"\n" || code != 0 {
			t.Errorf("%v: deadline = %q, want %s; exit code %d, %s", args, stdout, want, code, stderr)
		}
	}
}

func TestListsReadAllPages(t *testing.T) {
	address := serve(t, nil)
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"list", "--limit", "0"}, "c1 c2 c3"},
		{[]string{"list", "--limit", "2"}, "c1 c2"},
		{[]string{"list", "--limit", "2", "--page-token", "3"}, "c3"},
		{[]string{"list", "--text", "3"}, "c3"},
		{[]string{"show", "a"}, "[1] [2] [3] [4]"},
	}
	for _, test := range tests {
		stdout, stderr, code := runOnce(t.Context(), "", append([]string{"--address", address}, test.args...)...)
		var got []string
		for line := range strings.Lines(stdout) {
			if word, _, _ := strings.Cut(line, " "); strings.HasPrefix(word, "c") && len(word) == 2 ||
				strings.HasPrefix(word, "[") {
				got = append(got, word)
			}
		}
		if strings.Join(got, " ") != test.want || code != 0 {
			t.Errorf("%v prints %v, want %s; exit code %d, %s", test.args, got, test.want, code, stderr)
		}
	}
}

func TestReadAllRefusesLargeInput(t *testing.T) {
	_, err := (&app{console: console{in: endless{}}}).readAll(t.Context())
	if err == nil || !strings.Contains(err.Error(), "more than 4 MiB") {
		t.Errorf("readAll() error = %v, want one that contains \"more than 4 MiB\"", err)
	}
}

// endless is a reader without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
