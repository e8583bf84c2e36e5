package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// The least time between two lines of the same kind.
const (
	countsEvery  = time.Second
	warningEvery = time.Minute
)

// maxLines is how many changes wait to be written to the log.
const maxLines = 4096

// changeLog writes committed changes to the log, and how many conversations there are. It
// does so in a goroutine of its own: a log that nobody reads must not hold up writes.
type changeLog struct {
	log *slog.Logger
	// level is the least that the log takes.
	level slog.Level
	// warnAt is how many bytes of conversations are worth a warning; 0: none are.
	warnAt int64

	lines   chan changeLine
	dropped atomic.Int64 // lines for which there was no room, since the last report
	// changed has a value when counts may have changed since the last report.
	changed chan struct{}
	closing chan struct{}
	closed  chan struct{} // when write has returned

	last   store.Stats // reported; these two belong to write
	warned time.Time
}

// changeLine is what the log says of a change; a change itself would keep its message.
type changeLine struct {
	tenant, id     string
	kind           parleyv1.ChangeKind
	version        int32
	count, trimmed int
	session        bool
}

func newChangeLog(log *slog.Logger, level slog.Level, warnAt int64) *changeLog {
	return &changeLog{
		log: log, level: level, warnAt: warnAt, lines: make(chan changeLine, maxLines),
		changed: make(chan struct{}, 1), closing: make(chan struct{}), closed: make(chan struct{}),
	}
}

// Committed takes the store's changes; it is one of its observers, and never waits.
func (l *changeLog) Committed(changes []store.Change) {
	for i := range changes {
		c := &changes[i]
		if lineLevel(c) < l.level {
			continue
		}
		select {
		case l.lines <- changeLine{c.Tenant, c.ConversationID, c.Kind, c.Version, c.Count, c.Trimmed, c.SessionEnded}:
		default:
			l.dropped.Add(1)
		}
	}
	select {
	case l.changed <- struct{}{}:
	default: // The next report is due anyway.
	}
}

// lineLevel is the highest level of what line writes about a change.
func lineLevel(c *store.Change) slog.Level {
	switch c.Kind {
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		return slog.LevelWarn
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, parleyv1.ChangeKind_CHANGE_KIND_UPDATED:
		if c.Trimmed == 0 {
			return slog.LevelDebug
		}
	default:
	}
	return slog.LevelInfo
}

// write writes what Committed takes, and a report at most once a second, until Close.
func (l *changeLog) write(ctx context.Context, stats func(context.Context) (store.Stats, error)) {
	defer close(l.closed)
	changed := l.changed
	var pause <-chan time.Time // until the next report may come; changed is nil meanwhile
	for {
		select {
		case c := <-l.lines:
			l.line(c)
		case <-changed:
			l.report(ctx, stats)
			changed, pause = nil, time.After(countsEvery)
		case <-pause:
			changed, pause = l.changed, nil
		case <-l.closing:
			for range len(l.lines) {
				l.line(<-l.lines)
			}
			l.reportDropped()
			return
		}
	}
}

// Close has write end when it has written all lines, and waits for that, but not long. No
// change may be committed any more.
func (l *changeLog) Close() {
	close(l.closing)
	select {
	case <-l.closed:
	case <-time.After(lastLines): // Nobody reads the log.
	}
}

// line writes what became of one conversation.
func (l *changeLog) line(c changeLine) {
	tenant, id := slog.String("tenant", c.tenant), slog.String("conversation_id", c.id)
	removed := slog.Int("removed_messages", c.count)
	switch c.kind {
	case parleyv1.ChangeKind_CHANGE_KIND_CREATED:
		l.log.Info("conversation created", tenant, id)
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
		l.log.Debug("message appended", tenant, id, slog.Int("message_count", c.count))
	case parleyv1.ChangeKind_CHANGE_KIND_UPDATED:
		l.log.Debug("conversation updated", tenant, id, slog.Int("version", int(c.version)))
	case parleyv1.ChangeKind_CHANGE_KIND_CLEARED:
		l.log.Info("conversation cleared", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_DELETED:
		if c.session {
			l.log.Info("session memory deleted", tenant, id, removed)
			return
		}
		l.log.Info("conversation deleted", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
		l.log.Info("conversation expired", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		l.log.Warn("conversation evicted to make room; see --max-conversations", tenant, id, removed)
	default:
	}
	if c.trimmed > 0 {
		l.log.Info("conversation trimmed", tenant, id, slog.Int("removed_messages", c.trimmed), slog.Int("message_count", c.count))
	}
}

// report writes how many conversations there are if that has changed, and warns when they
// grow large, at most once a minute.
func (l *changeLog) report(ctx context.Context, stats func(context.Context) (store.Stats, error)) {
	l.reportDropped()
	now, err := stats(ctx)
	if err != nil {
		return // The store is closed, or fails others as well.
	}
	if now.Conversations != l.last.Conversations || now.Bytes != l.last.Bytes {
		l.log.Info("conversations kept", "count", now.Conversations, "estimated_bytes", now.Bytes)
		l.last = now
	}
	if l.warnAt > 0 && now.Bytes > l.warnAt && time.Since(l.warned) >= warningEvery {
		l.log.Warn("conversations take much memory; see --memory-warning-bytes",
			"estimated_bytes", now.Bytes, "warning_bytes", l.warnAt, "count", now.Conversations)
		l.warned = time.Now()
	}
}

func (l *changeLog) reportDropped() {
	if n := l.dropped.Swap(0); n > 0 {
		l.log.Warn("changes are missing in the log: it takes lines too slowly", "count", n)
	}
}
