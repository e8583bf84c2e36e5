package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestResume(t *testing.T) {
	completed, failed := finished(parleyv1.TurnState_TURN_STATE_COMPLETED),
		finished(parleyv1.TurnState_TURN_STATE_INTERRUPTED)
	failed.GetFinished().GetTurn().Error = &parleyv1.TurnError{Reason: "SHUTTING_DOWN", Message: "the server stopped"}
	tests := []struct {
		name   string
		args   []string
		want   *parleyv1.ResumeTurnRequest
		end    *parleyv1.TurnEvent
		stderr string
		code   int
	}{
		{
			"the running or newest turn",
			[]string{"shop"},
			&parleyv1.ResumeTurnRequest{ConversationId: "shop"}, completed, "",
			0,
		},
		{
			"a turn that did not complete",
			[]string{"shop", "t1"},
			&parleyv1.ResumeTurnRequest{ConversationId: "shop", TurnId: "t1"},
			failed, "parley: the turn was interrupted: the server stopped (SHUTTING_DOWN)\n", 1,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got *parleyv1.ResumeTurnRequest
			f := fake{resume: func(request *parleyv1.ResumeTurnRequest, stream *turnStream) error {
				got = request
				again := started("shop")
				again.GetStarted().Replayed = true
				_, limited := stream.Context().Deadline()
				return send(stream, again, delta(fmt.Sprintf("limited: %t", limited)), test.end)
			}}
			address := f.serve(t)
			stdout, stderr, code := runOnce(t.Context(), "", append([]string{"--address", address, "resume"}, test.args...)...)
			if stdout != "limited: false\n" || stderr != test.stderr || code != test.code {
				t.Errorf("standard output %q, standard error %q, exit code %d; want the text, %q, %d", stdout, stderr, code,
					test.stderr, test.code)
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			stdout, _, code = runOnce(t.Context(), "",
				append([]string{"--address", address, "--timeout", "1h", "--output", "json", "resume"}, test.args...)...)
			if lines := strings.Split(stdout, "\n"); len(lines) != 4 || !strings.Contains(lines[1], `"text":"limited: true"`) ||
				code != test.code {
				t.Errorf("as JSON %q, exit code %d; want 3 lines, %d", stdout, code, test.code)
			}
		})
	}
}
