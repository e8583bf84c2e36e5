package agui

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// BenchmarkRun runs a turn over gRPC and one in AG-UI by turns. It reports the medians of what AG-UI adds until the first
// text and until the end, and its ratio to gRPC.
func BenchmarkRun(b *testing.B) {
	f := newFixture(b, nil)
	var calls, runs, added, first []time.Duration
	for i := 0; b.Loop(); i++ {
		firstCall, call := f.timeCall(b, fmt.Sprint("call ", i))
		firstRun, run := f.timeRun(b, fmt.Sprint("run ", i))
		calls, runs = append(calls, call), append(runs, run)
		added, first = append(added, run-call), append(first, firstRun-firstCall)
	}
	b.ReportMetric(float64(median(added).Microseconds()), "added-µs")
	b.ReportMetric(float64(median(first).Microseconds()), "first-piece-added-µs")
	b.ReportMetric(float64(median(runs))/float64(median(calls)), "ratio-to-gRPC")
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// timeCall returns how long a turn over gRPC takes until its first text and until its end.
func (f *fixture) timeCall(b *testing.B, id string) (first, end time.Duration) {
	b.Helper()
	start := time.Now()
	stream, err := f.api.Chat(b.Context(), &parleyv1.ChatRequest{ConversationId: id, Content: "hi", RequestId: "r"})
	if err != nil {
		b.Fatal(err)
	}
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return first, time.Since(start)
		case err != nil:
			b.Fatal(err)
		case reply.GetEvent().GetTextDelta() != nil:
			first = time.Since(start)
		}
	}
}

// timeRun is like timeCall in AG-UI, without the connection of the client.
func (f *fixture) timeRun(b *testing.B, id string) (first, end time.Duration) {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, PathPrefix+"echo",
		strings.NewReader(runInput(id, "r", user("u", "hi"))))
	if err != nil {
		b.Fatal(err)
	}
	w := &timedWriter{header: make(http.Header), start: time.Now()}
	f.handler.ServeHTTP(w, r)
	if w.first == 0 {
		b.Fatal("the response has no text")
	}
	return w.first, time.Since(w.start)
}

// timedWriter notes when the first text is written.
type timedWriter struct {
	header http.Header
	start  time.Time
	first  time.Duration
}

func (w *timedWriter) Header() http.Header { return w.header }

func (w *timedWriter) WriteHeader(int) {}

func (w *timedWriter) Flush() {}

func (w *timedWriter) Write(p []byte) (int, error) {
	if w.first == 0 && bytes.Contains(p, []byte("TEXT_MESSAGE_CONTENT")) {
		w.first = time.Since(w.start)
	}
	return len(p), nil
}
