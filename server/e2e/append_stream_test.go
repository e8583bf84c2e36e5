package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestAppendStreamCut cuts a stream of appends several times. The client sends those without a response again, with the
// same request ids. Each message is stored once, in the order in which the client sent them.
func TestAppendStreamCut(t *testing.T) {
	t.Parallel()
	const conversations, messages, responses = 8, 15, 25 // A conversation keeps 20 messages.
	s := startServer(t, t.TempDir())
	var unanswered []*parleyv1.AppendStreamRequest
	for i := range conversations * messages {
		unanswered = append(unanswered, &parleyv1.AppendStreamRequest{Append: &parleyv1.AppendMessagesRequest{
			ConversationId: fmt.Sprint("c", i%conversations), RequestId: fmt.Sprint("r", i),
			Messages: []*parleyv1.Message{messageOf(fmt.Sprint(i / conversations))},
		}})
	}
	replayed, streams := 0, 0
	for ; len(unanswered) > 0; streams++ {
		answers := appendUntilCut(t, s, unanswered, responses)
		if len(answers) < min(responses, len(unanswered)) {
			t.Fatalf("stream %d of %d requests has %d responses", streams, len(unanswered), len(answers))
		}
		unanswered = unanswered[len(answers):]
		for _, answer := range answers {
			if answer.GetResponse() == nil {
				t.Fatalf("response = %v, want an accepted append", answer)
			}
			if answer.GetResponse().GetReplayed() {
				replayed++
			}
		}
	}
	t.Logf("%d streams, %d of %d appends replayed", streams, replayed, conversations*messages)
	var want []string
	for i := range messages {
		want = append(want, fmt.Sprint(i))
	}
	for i := range conversations {
		reply, err := s.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{
			ConversationId: fmt.Sprint("c", i), PageSize: 1000, Ascending: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range reply.GetMessages() {
			got = append(got, m.GetContent())
		}
		if !slices.Equal(got, want) {
			t.Errorf("messages of c%d = %q, want %q", i, got, want)
		}
	}
}

// appendUntilCut sends requests over a stream, which it cuts after a number of responses. It returns these responses.
func appendUntilCut(
	t *testing.T, s *server, requests []*parleyv1.AppendStreamRequest, responses int,
) (answers []*parleyv1.AppendStreamResponse) {
	t.Helper()
	ctx, cut := context.WithCancel(t.Context())
	defer cut()
	stream, err := s.AppendStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for _, r := range requests {
			if stream.Send(r) != nil {
				return // Recv returns why.
			}
		}
		_ = stream.CloseSend()
	}()
	for len(answers) < responses {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, answer)
	}
	cut()
	<-sent
	return answers
}
