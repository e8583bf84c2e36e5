package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Minimum intervals between two reports, and between two warnings.
const (
	reportInterval  = time.Second
	warningInterval = time.Minute
)

// maxQueuedEntries is the maximum number of changes in the queue of a changeLog.
const maxQueuedEntries = 4096

// changeLog logs committed changes and the number of stored conversations. Its run method does so in
// a goroutine of its own, so that a log whose reader is slow does not delay commits.
type changeLog struct {
	log *slog.Logger
	// level is the minimum level that log accepts.
	level slog.Leveler
	// warnAt is the size of all conversations, in bytes, above which a warning is logged. If 0,
	// there is no warning.
	warnAt int64

	queue   chan changeEntry
	dropped atomic.Int64 // entries since the last report that found the queue full
	total   atomic.Int64 // the same since the start
	// changed has a value if the statistics may have changed since the last report.
	changed chan struct{}
	closing chan struct{} // closed by Close
	closed  chan struct{} // closed when run returns

	// These two fields belong to run.
	lastReport  store.Stats
	lastWarning time.Time
}

// changeEntry is the part of a change that is logged. The change itself would keep its message in
// memory.
type changeEntry struct {
	tenant, id     string
	kind           parleyv1.ChangeKind
	version        int32
	count, trimmed int
	ephemeral      bool // deletion: the conversation was ephemeral
}

func newChangeLog(log *slog.Logger, level slog.Leveler, warnAt int64) *changeLog {
	return &changeLog{
		log: log, level: level, warnAt: warnAt, queue: make(chan changeEntry, maxQueuedEntries),
		changed: make(chan struct{}, 1), closing: make(chan struct{}), closed: make(chan struct{}),
	}
}

// Committed queues the changes that this process has made, as one of its observers. It never blocks: an entry that
// finds the queue full is dropped and counted.
func (l *changeLog) Committed(changes []store.Change) {
	for i := range changes {
		c := &changes[i]
		if c.Elsewhere || entryLevel(c) < l.level.Level() {
			continue
		}
		select {
		case l.queue <- changeEntry{c.Tenant, c.ConversationID, c.Kind, c.Version, c.Count, c.Trimmed, c.EphemeralEnded}:
		default:
			l.dropped.Add(1)
			l.total.Add(1)
		}
	}
	select {
	case l.changed <- struct{}{}:
	default: // The next report will include this change.
	}
}

// entryLevel returns the highest level at which writeEntry logs a change.
func entryLevel(c *store.Change) slog.Level {
	switch c.Kind {
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		return slog.LevelWarn
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, parleyv1.ChangeKind_CHANGE_KIND_UPDATED,
		parleyv1.ChangeKind_CHANGE_KIND_RECORD:
		return slog.LevelDebug
	default:
	}
	return slog.LevelInfo
}

// run logs the queued entries, and a report every reportInterval at most, until Close.
func (l *changeLog) run(ctx context.Context, stats func(context.Context) (store.Stats, error)) {
	defer close(l.closed)
	changed := l.changed
	var pause <-chan time.Time // Ends when the next report is allowed. Until then changed is nil.
	for {
		select {
		case c := <-l.queue:
			l.writeEntry(c)
		case <-changed:
			l.report(ctx, stats)
			changed, pause = nil, time.After(reportInterval)
		case <-pause:
			changed, pause = l.changed, nil
		case <-l.closing:
			for range len(l.queue) {
				l.writeEntry(<-l.queue)
			}
			l.reportDropped()
			return
		}
	}
}

// Close stops run and waits until run has logged the queued entries, for changeLogDrainTime at most.
// The store must be closed before.
func (l *changeLog) Close() {
	close(l.closing)
	select {
	case <-l.closed:
	case <-time.After(changeLogDrainTime): // The reader of the log is stuck.
	}
}

// writeEntry logs one change.
func (l *changeLog) writeEntry(c changeEntry) {
	tenant, id := slog.String("tenant", c.tenant), slog.String("conversation_id", c.id)
	removed := slog.Int("removed_messages", c.count)
	switch c.kind {
	case parleyv1.ChangeKind_CHANGE_KIND_CREATED:
		l.log.Info("conversation created", tenant, id)
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
		l.log.Debug("message appended", tenant, id, slog.Int("message_count", c.count))
	case parleyv1.ChangeKind_CHANGE_KIND_UPDATED:
		l.log.Debug("conversation updated", tenant, id, slog.Int("version", int(c.version)))
	case parleyv1.ChangeKind_CHANGE_KIND_RECORD:
		l.log.Debug("record changed", tenant, id, slog.Int("version", int(c.version)))
	case parleyv1.ChangeKind_CHANGE_KIND_CLEARED:
		l.log.Info("conversation cleared", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_DELETED:
		if c.ephemeral {
			l.log.Info("ephemeral conversation deleted", tenant, id, removed)
			return
		}
		l.log.Info("conversation deleted", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
		l.log.Info("conversation expired", tenant, id, removed)
	case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
		l.log.Warn("conversation evicted; limit of --max-conversations reached", tenant, id, removed)
	default:
	}
	if c.trimmed > 0 {
		l.log.Debug("conversation trimmed", tenant, id, slog.Int("removed_messages", c.trimmed),
			slog.Int("message_count", c.count))
	}
}

// report logs the number and size of the stored conversations if they have changed. If the size
// exceeds warnAt, it logs a warning every warningInterval at most.
func (l *changeLog) report(ctx context.Context, stats func(context.Context) (store.Stats, error)) {
	l.reportDropped()
	now, err := stats(ctx)
	if err != nil {
		return // The store is closed, or has failed. Other callers report that.
	}
	if now.Conversations != l.lastReport.Conversations || now.Bytes != l.lastReport.Bytes {
		l.log.Info("conversations stored", "count", now.Conversations, "estimated_bytes", now.Bytes)
		l.lastReport = now
	}
	if l.warnAt > 0 && now.Bytes > l.warnAt && time.Since(l.lastWarning) >= warningInterval {
		l.log.Warn("conversations exceed --memory-warning-bytes",
			"estimated_bytes", now.Bytes, "warning_bytes", l.warnAt, "count", now.Conversations)
		l.lastWarning = time.Now()
	}
}

func (l *changeLog) reportDropped() {
	if n := l.dropped.Swap(0); n > 0 {
		l.log.Warn("changes not logged; the reader of the log is too slow", "count", n)
	}
}
