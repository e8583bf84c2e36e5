package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// reportInterval is the minimum time between two reports of spans that could not be sent.
	reportInterval = time.Minute
	// maxErrorChars is the maximum length of an error in a report. It may contain a page that a collector replied.
	maxErrorChars = 500
)

// errQueueFull means that more spans ended than the collector received.
var errQueueFull = errors.New("the collector is too slow; record fewer traces with OTEL_TRACES_SAMPLER, " +
	"or raise OTEL_BSP_MAX_QUEUE_SIZE")

// queue is a span processor that passes spans on unless too many wait for the collector. The one of the SDK would drop
// them without a report.
type queue struct {
	sdktrace.SpanProcessor
	sender *sender
}

// OnEnd passes on a span that has ended.
func (q *queue) OnEnd(span sdktrace.ReadOnlySpan) {
	switch {
	case !span.SpanContext().IsSampled():
	case q.sender.waiting.Add(1) > q.sender.maxWaiting:
		q.sender.waiting.Add(-1)
		q.sender.lose(1)
	default:
		q.SpanProcessor.OnEnd(span)
	}
}

// sender is an exporter that counts the spans that are lost, and reports them to the log, once in reportInterval.
type sender struct {
	sdktrace.SpanExporter
	log        *slog.Logger
	maxWaiting int64
	waiting    atomic.Int64 // spans that have ended and were neither sent nor lost
	lost       atomic.Int64 // spans since the last report
	totalLost  atomic.Int64 // spans since the start

	mu    sync.Mutex
	last  time.Time // of the last report
	cause error     // of the latest loss
}

// lose counts lost spans.
func (s *sender) lose(spans int) {
	s.lost.Add(int64(spans))
	s.totalLost.Add(int64(spans))
}

// ExportSpans sends spans. It never fails: the spans are lost then, and counted.
func (s *sender) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := s.SpanExporter.ExportSpans(ctx, spans)
	s.waiting.Add(-int64(len(spans)))
	switch {
	case err != nil:
		s.lose(len(spans))
		s.report(ctx, err)
	case s.lost.Load() > 0:
		s.report(ctx, errQueueFull)
	}
	return nil
}

// report reports how many spans were lost, unless a report was made in the last reportInterval.
func (s *sender) report(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cause = fmt.Errorf("%.*s", maxErrorChars, err.Error())
	if errors.Is(err, context.Canceled) || time.Since(s.last) < reportInterval {
		return
	}
	s.log.WarnContext(ctx, "spans not sent to the collector", "error", s.cause, "lost_spans", s.lost.Swap(0))
	s.last = time.Now()
}

// close returns the number of spans that were lost since the last report, or that still wait, and why. err is that of
// the shutdown.
func (s *sender) close(err error) (lost int64, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.waiting.Load()
	s.totalLost.Add(waiting)
	if lost = s.lost.Swap(0) + waiting; lost == 0 {
		return 0, err
	}
	return lost, cmp.Or(err, s.cause, errQueueFull)
}
