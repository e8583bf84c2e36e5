package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// summaryFake records the requests. The text of a summary is the remaining time of the call in whole minutes.
type summaryFake struct {
	parleyv1.UnimplementedConversationServiceServer

	single func(*parleyv1.GetRoutingSummaryRequest)
	batch  func(*parleyv1.BatchGetRoutingSummariesRequest)
}

func (f summaryFake) GetRoutingSummary(
	ctx context.Context, request *parleyv1.GetRoutingSummaryRequest,
) (*parleyv1.GetRoutingSummaryResponse, error) {
	f.single(request)
	text := "no deadline"
	if deadline, limited := ctx.Deadline(); limited {
		text = time.Until(deadline).Round(time.Minute).String()
	}
	return &parleyv1.GetRoutingSummaryResponse{Summary: &parleyv1.RoutingSummary{Text: text}}, nil
}

// BatchGetRoutingSummaries reports conversations whose ids end with 0 as missing.
func (f summaryFake) BatchGetRoutingSummaries(
	_ context.Context, request *parleyv1.BatchGetRoutingSummariesRequest,
) (*parleyv1.BatchGetRoutingSummariesResponse, error) {
	f.batch(request)
	reply := &parleyv1.BatchGetRoutingSummariesResponse{}
	for _, id := range request.GetConversationIds() {
		if strings.HasSuffix(id, "0") {
			reply.MissingIds = append(reply.MissingIds, id)
		} else {
			reply.Summaries = append(reply.Summaries, &parleyv1.RoutingSummary{ConversationId: id})
		}
	}
	return reply, nil
}

// TestSummaryWait checks that the time limit of the call is --timeout plus --wait.
func TestSummaryWait(t *testing.T) {
	var got *parleyv1.GetRoutingSummaryRequest
	address := serveService(t, summaryFake{single: func(request *parleyv1.GetRoutingSummaryRequest) { got = request }})
	tests := []struct {
		args []string
		time string
		want *parleyv1.GetRoutingSummaryRequest
	}{
		{[]string{"--timeout", "2m"}, "2m0s", &parleyv1.GetRoutingSummaryRequest{}},
		{
			[]string{"--known-version", "0", "--timeout", "2m"},
			"2m0s",
			&parleyv1.GetRoutingSummaryRequest{KnownVersion: new(int32)},
		},
		{
			[]string{"--known-version", "7", "--wait", "1d", "--timeout", "2m", "--max-bytes", "9"},
			"24h2m0s",
			&parleyv1.GetRoutingSummaryRequest{
				KnownVersion: new(int32(7)), WaitTimeout: durationpb.New(24 * time.Hour), MaxBytes: 9,
			},
		},
		{
			[]string{"--known-version", "7", "--wait", "60s", "--timeout", "0", "--messages", "0"},
			"no deadline",
			&parleyv1.GetRoutingSummaryRequest{
				KnownVersion: new(int32(7)), WaitTimeout: durationpb.New(time.Minute), MessageLimit: new(int32),
			},
		},
	}
	for _, test := range tests {
		stdout, stderr, code := runOnce(t.Context(), "",
			append([]string{"--address", address, "summary", "a"}, test.args...)...)
		if !strings.HasPrefix(stdout, test.time+"\n") || code != 0 {
			t.Errorf("%v: standard output %q, exit code %d, %s; want the time limit %s", test.args, stdout, code, stderr,
				test.time)
		}
		test.want.ConversationId = "a"
		if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%v: request (-want +got):\n%s", test.args, diff)
		}
	}
}

func TestManySummaries(t *testing.T) {
	var got []*parleyv1.BatchGetRoutingSummariesRequest
	address := serveService(t, summaryFake{
		batch: func(request *parleyv1.BatchGetRoutingSummariesRequest) { got = append(got, request) },
	})
	var ids, found []string
	for i := range 101 {
		id := fmt.Sprintf("c%d", i)
		ids = append(ids, id)
		if i%10 != 0 {
			found = append(found, "conversation "+id+"\nversion  0\n")
		}
	}
	args := append([]string{"--address", address, "summary", "--messages", "1", "--max-bytes", "9"}, ids...)
	stdout, stderr, code := runOnce(t.Context(), "", args...)
	if diff := cmp.Diff(strings.Join(found, "\n"), stdout); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	if want := "parley: not found, or damaged: c0, c10, c20, c30, c40, c50, c60, c70, c80, c90, c100\n"; stderr != want ||
		code != 1 {
		t.Errorf("standard error %q, exit code %d; want %q, 1", stderr, code, want)
	}
	want := []*parleyv1.BatchGetRoutingSummariesRequest{
		{ConversationIds: ids[:100], MessageLimit: new(int32(1)), MaxBytes: 9},
		{ConversationIds: ids[100:], MessageLimit: new(int32(1)), MaxBytes: 9},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	stdout, _, code = runOnce(t.Context(), "", append(args, "--output", "json")...)
	if documents := strings.Count(stdout, "\n}\n"); documents != 2 || code != 1 {
		t.Errorf("%d documents, exit code %d; want 2 documents (one for each reply), 1", documents, code)
	}
}
