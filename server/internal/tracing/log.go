package tracing

import (
	"context"
	"log/slog"
)

// LogHandler returns a handler of log entries that adds the attribute trace_id to those whose context belongs to a
// trace, and passes all to next.
func LogHandler(next slog.Handler) slog.Handler { return logHandler{next} }

type logHandler struct{ slog.Handler }

// Handle writes an entry.
func (h logHandler) Handle(ctx context.Context, entry slog.Record) error {
	if id := TraceID(ctx); id != "" {
		entry = entry.Clone()
		entry.AddAttrs(slog.String("trace_id", id))
	}
	return h.Handler.Handle(ctx, entry) //nolint:wrapcheck // This handler adds no context.
}

// WithAttrs returns a handler that also writes these attributes.
func (h logHandler) WithAttrs(attributes []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attributes)}
}

// WithGroup returns a handler that writes later attributes in a group.
func (h logHandler) WithGroup(name string) slog.Handler { return logHandler{h.Handler.WithGroup(name)} }
