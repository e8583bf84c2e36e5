package a2a

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// BenchmarkSend compares a message over each binding with the call of Chat that it becomes, one after the other. It
// reports the medians of what is added until the first piece of the answer and until its end.
func BenchmarkSend(b *testing.B) {
	f := newFixture(b)
	for _, binding := range bindings() {
		b.Run(string(binding), func(b *testing.B) {
			c := f.client(b, "echo", binding)
			var firsts, ends [2][]time.Duration // of Chat, of the binding
			for b.Loop() {
				for i, call := range []func(context.Context) (first time.Time, err error){f.chat, func(ctx context.Context) (
					first time.Time, err error,
				) {
					request := &a2a.SendMessageRequest{Message: question("", "hello")}
					for event, err := range c.SendStreamingMessage(ctx, request) {
						if err != nil {
							return first, err
						}
						if _, ok := event.(*a2a.TaskArtifactUpdateEvent); ok && first.IsZero() {
							first = time.Now()
						}
					}
					return first, nil
				}} {
					began := time.Now()
					first, err := call(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					firsts[i], ends[i] = append(firsts[i], first.Sub(began)), append(ends[i], time.Since(began))
				}
			}
			b.ReportMetric(float64((median(firsts[1]) - median(firsts[0])).Microseconds()), "added-first-µs")
			b.ReportMetric(float64((median(ends[1]) - median(ends[0])).Microseconds()), "added-end-µs")
			b.ReportMetric(float64(median(ends[0]).Microseconds()), "chat-µs")
		})
	}
}

// chat makes the call of the API.
func (f *fixture) chat(ctx context.Context) (first time.Time, err error) {
	stream, err := f.api.Chat(ctx, &parleyv1.ChatRequest{Content: "hello", Agent: "echo"})
	if err != nil {
		return first, err
	}
	for {
		reply, err := stream.Recv()
		if err != nil {
			return first, nil //nolint:nilerr // The end; an early one would be without a first piece.
		}
		if reply.GetEvent().GetTextDelta() != nil && first.IsZero() {
			first = time.Now()
		}
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
