package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestTurnTable(t *testing.T) {
	now := time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
	turns := []*parleyv1.Turn{
		{Id: "t5", State: parleyv1.TurnState_TURN_STATE_QUEUED, Agent: "writer", CreateTime: ago(-time.Second)},
		{
			Id: "t4", State: parleyv1.TurnState_TURN_STATE_RUNNING, Agent: "writer", InputSequence: 7,
			CreateTime: ago(90 * time.Second),
		},
		{
			Id: "t3", State: parleyv1.TurnState_TURN_STATE_FAILED, Agent: "broken", InputSequence: 6, CreateTime: ago(time.Hour),
			FinishTime: ago(time.Hour - 1500*time.Millisecond),
			Error:      &parleyv1.TurnError{Reason: "AGENT_FAILED", Message: "out of ideas"},
		},
		{
			Id: "t2", State: parleyv1.TurnState_TURN_STATE_COMPLETED, Agent: "writer", InputSequence: 2, FirstAnswerSequence: 3,
			LastAnswerSequence: 5, CreateTime: ago(2 * time.Hour), FinishTime: ago(2*time.Hour - 12345*time.Microsecond),
		},
		{
			Id: "t1", State: parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED, InputSequence: 1, FirstAnswerSequence: 1,
			LastAnswerSequence: 1, CreateTime: ago(2 * time.Hour), FinishTime: ago(2 * time.Hour),
		},
	}
	var got strings.Builder
	(&app{console: console{now: func() time.Time { return now }}}).turnTable(&got, turns, false)
	want := `
ID  STATE           AGENT   CREATED  DURATION  INPUT  ANSWER  ERROR
t5  queued          writer  in 1s    0s        0              
t4  running         writer  1m ago   1m30s     7              
t3  failed          broken  1h ago   1.5s      6              AGENT_FAILED
t2  completed       writer  2h ago   12ms      2      3-5     
t1  input_required          2h ago   0s        1      1       
`
	if diff := cmp.Diff(want, "\n"+got.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// TestStatesFlag: states are separated by commas, and the flag may be repeated.
func TestStatesFlag(t *testing.T) {
	var states []parleyv1.TurnState
	f := statesFlag{&states}
	for _, good := range []string{"running,failed", "Input_Required"} {
		if err := f.Set(good); err != nil {
			t.Errorf("Set(%q) = %v", good, err)
		}
	}
	want := []parleyv1.TurnState{
		parleyv1.TurnState_TURN_STATE_RUNNING, parleyv1.TurnState_TURN_STATE_FAILED,
		parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED,
	}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "unspecified", "running,", "running, failed", "TURN_STATE_RUNNING"} {
		if err := f.Set(bad); err == nil {
			t.Errorf("Set(%q) = nil, want an error", bad)
		}
	}
}

func TestCancel(t *testing.T) {
	turn := &parleyv1.Turn{
		Id: "t1", State: parleyv1.TurnState_TURN_STATE_CANCELLED, FirstAnswerSequence: 2, LastAnswerSequence: 2,
	}
	tests := []struct {
		name   string
		args   []string
		active string
		want   *parleyv1.CancelTurnRequest // nil for no request
		stdout string
		stderr string
		code   int
	}{
		{
			"the running one",
			[]string{"shop"},
			"t1",
			&parleyv1.CancelTurnRequest{ConversationId: "shop", TurnId: "t1"}, "turn t1 ended: cancelled, answer 2\n", "", 0,
		},
		{
			"a named one",
			[]string{"shop", "t0"},
			"t1",
			&parleyv1.CancelTurnRequest{ConversationId: "shop", TurnId: "t0"}, "turn t1 ended: cancelled, answer 2\n", "", 0,
		},
		{
			"none runs",
			[]string{"shop"},
			"", nil, "",
			"parley: no turn is running in conversation shop; list the latest turns with: parley --address ADDRESS turns shop\n",
			1,
		},
		{
			"a missing one",
			[]string{"shop", "none"},
			"",
			&parleyv1.CancelTurnRequest{ConversationId: "shop", TurnId: "none"}, "", "parley: no such turn (NotFound)\n", 1,
		},
		{
			"too many words",
			[]string{"shop", "t1", "t2"},
			"", nil, "",
			"parley: accepts between 1 and 2 arg(s), received 3; see 'parley cancel --help'\n", 64,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got *parleyv1.CancelTurnRequest
			cancel := func(_ context.Context, request *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error) {
				got = request
				if request.GetTurnId() == "none" {
					return nil, status.Error(codes.NotFound, "no such turn")
				}
				return turn, nil
			}
			f := fake{active: test.active, cancel: cancel}
			address := f.serve(t)
			stdout, stderr, code := runOnce(t.Context(), "", append([]string{"--address", address, "cancel"}, test.args...)...)
			stderr = strings.ReplaceAll(stderr, address, "ADDRESS")
			if stdout != test.stdout || stderr != test.stderr || code != test.code {
				t.Errorf("standard output %q, standard error %q, exit code %d; want %q, %q, %d", stdout, stderr, code, test.stdout,
					test.stderr, test.code)
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCancelPrintsTheAnswer(t *testing.T) {
	tests := map[string]*parleyv1.Turn{
		"turn t1 ended: cancelled, no answer\n": {Id: "t1", State: parleyv1.TurnState_TURN_STATE_CANCELLED},
		"turn t1 ended: completed, answer 4-6\n": {
			Id: "t1", State: parleyv1.TurnState_TURN_STATE_COMPLETED, FirstAnswerSequence: 4, LastAnswerSequence: 6,
		},
	}
	for want, turn := range tests {
		f := fake{cancel: func(context.Context, *parleyv1.CancelTurnRequest) (*parleyv1.Turn, error) { return turn, nil }}
		address := f.serve(t)
		if got, stderr, code := runOnce(t.Context(), "", "--address", address, "cancel", "shop", "t1"); got != want ||
			code != 0 {
			t.Errorf("standard output %q, want %q; exit code %d, %s", got, want, code, stderr)
		}
		got, stderr, code := runOnce(t.Context(), "", "--address", address, "cancel", "shop", "t1", "--output", "json")
		if !strings.HasPrefix(got, "{\n  \"turn\": {\n    \"id\": \"t1\",\n") || code != 0 {
			t.Errorf("standard output %q, want one document; exit code %d, %s", got, code, stderr)
		}
	}
}
