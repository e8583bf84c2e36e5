package main

import (
	"context"
	"log/slog"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// The least time between two lines of the same kind.
const (
	countsEvery  = time.Second
	warningEvery = time.Minute
)

// changeLog writes committed changes to the log, and how many conversations there are.
type changeLog struct {
	log *slog.Logger
	// warnAt is how many bytes of conversations are worth a warning; 0: none are.
	warnAt int64
	// changed has a value when counts may have changed since the last report.
	changed chan struct{}
}

func newChangeLog(log *slog.Logger, warnAt int64) *changeLog {
	return &changeLog{log: log, warnAt: warnAt, changed: make(chan struct{}, 1)}
}

// Committed takes the store's changes; it is one of its observers.
func (l *changeLog) Committed(changes []store.Change) {
	for i := range changes {
		l.line(&changes[i])
	}
	select {
	case l.changed <- struct{}{}:
	default: // The next report is due anyway.
	}
}

// line writes what became of one conversation. It is on the way of every write, so nothing
// is prepared for lines that nobody wants.
func (l *changeLog) line(c *store.Change) {
	tenant, id := slog.String("tenant", c.Tenant), slog.String("conversation_id", c.ConversationID)
	removed := slog.Int("removed_messages", c.Count)
	switch c.Kind {
	case parleyv1.ChangeKind_CHANGE_KIND_CREATED:
		l.log.Info("conversation created", tenant, id)
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
		l.log.Debug("message appended", tenant, id, slog.Int("message_count", c.Count))
	case parleyv1.ChangeKind_CHANGE_KIND_UPDATED:
		l.log.Debug("conversation updated", tenant, id, slog.Int("version", int(c.Version)))
	case parleyv1.ChangeKind_CHANGE_KIND_CLEARED:
		l.log.Info("conversation cleared", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_DELETED:
		l.log.Info("conversation deleted", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
		l.log.Info("conversation expired", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		l.log.Warn("conversation evicted to make room; see --max-conversations", tenant, id, removed)
	default:
	}
	if c.Trimmed > 0 {
		l.log.Info("conversation trimmed", tenant, id, slog.Int("removed_messages", c.Trimmed), slog.Int("message_count", c.Count))
	}
}

// report writes how many conversations there are after changes, at most once a second, and
// warns when they grow large, at most once a minute. It returns when ctx ends.
func (l *changeLog) report(ctx context.Context, s store.Store) {
	var last store.Stats
	var warned time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.changed:
		}
		now, err := s.Stats(ctx)
		if err == nil && (now.Conversations != last.Conversations || now.Bytes != last.Bytes) {
			l.log.Info("conversations kept", "count", now.Conversations, "estimated_bytes", now.Bytes)
			last = now
		}
		if l.warnAt > 0 && now.Bytes > l.warnAt && time.Since(warned) >= warningEvery {
			l.log.Warn("conversations take much memory; see --memory-warning-bytes",
				"estimated_bytes", now.Bytes, "warning_bytes", l.warnAt, "count", now.Conversations)
			warned = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(countsEvery):
		}
	}
}
