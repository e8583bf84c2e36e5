package interactionlog

import (
	"bytes"
	"errors"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
)

// warnEvery is the minimum interval between warnings.
const warnEvery = time.Minute

// errClosed is the reason for losing entries after Close.
var errClosed = errors.New("the log is closed")

// lossState counts entries that could not be written.
type lossState struct {
	missing int64     // entries that are lost and that no loss entry reports yet; the log is failing if there are any
	since   time.Time // time of the first of them
	cause   error     // of the latest lost entry; nil if a previous process has lost all of them

	unwarned int64 // lost entries that no warning has reported
	warned   bool  // a warning was logged since the log began to fail
	warnedAt time.Time
}

// recordLoss counts entries as lost. The caller holds w.mu.
func (w *writer) recordLoss(entries int, cause error) {
	if entries == 0 {
		return
	}
	loss := &w.loss
	if loss.missing == 0 {
		loss.since = w.options.Now()
	}
	loss.missing, loss.unwarned, loss.cause = loss.missing+int64(entries), loss.unwarned+int64(entries), cause
	w.lost.Add(int64(entries))
}

// writeWithLossEntry writes entries, which begin with a line break, after an entry that reports the lost
// ones. It writes all of them or, if the file system permits, none. The caller holds w.mu.
func (w *writer) writeWithLossEntry(d dayfile.Day, timestamp, entries []byte) {
	all := entry.AppendLoss([]byte{'\n'}, timestamp, w.loss.missing, w.loss.since, w.loss.cause)
	lossLength := len(all) - 1
	all = append(all, entries[1:]...)
	kept, err := w.append(d, all, true)
	if kept >= lossLength {
		w.loss.missing, w.loss.since = 0, time.Time{}
	} else {
		kept = lossLength
	}
	if err != nil {
		w.recordLoss(bytes.Count(all[1+kept:], []byte{'\n'}), err)
	}
}

// probe tries to write again if the log is failing, since the next message may come late.
func (w *writer) probe() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.loss.missing > 0 {
		now := w.options.Now().UTC()
		w.writeWithLossEntry(dayfile.DayOf(now), entry.AppendTimestamp(nil, now), []byte{'\n'})
	}
}

// reportLoss logs lost entries and an error of making files durable, each at most once a minute unless
// final is set. It also logs when the log is written again.
func (w *writer) reportLoss(unsynced error, final bool) {
	w.mu.Lock()
	loss, now := &w.loss, w.options.Now()
	due := final || loss.warnedAt.IsZero() || now.Sub(loss.warnedAt) >= warnEvery || now.Before(loss.warnedAt)
	lost, cause := loss.unwarned, loss.cause
	warn := due && lost > 0
	if warn {
		loss.unwarned, loss.warned = 0, true
	}
	recovered := loss.warned && loss.missing == 0
	loss.warned = loss.warned && !recovered
	if warn || due && unsynced != nil {
		loss.warnedAt = now
	}
	w.mu.Unlock()
	if warn {
		w.options.Log.Warn("interaction log lost entries; writing is retried automatically",
			"lost_lines", lost, "error", cause)
	}
	if due && unsynced != nil {
		w.options.Log.Warn("interaction log may not survive a power cut", "error", unsynced)
	}
	if recovered {
		w.options.Log.Info("interaction log resumed")
	}
}
