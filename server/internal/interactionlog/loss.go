package interactionlog

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"
)

const (
	// nobody is the tenant of lines that the log writes about itself, and their session.
	reservedID = "*"
	// warnEvery is how often operators are warned at most.
	warnEvery = time.Minute
)

// errClosed is why lines are lost that come after Close.
var errClosed = errors.New("the log is closed")

// failing is what could not be written.
type lossState struct {
	missing int64     // lines of which the log does not tell yet; the log fails while there are any
	since   time.Time // the first of them
	cause   error     // of the latest; nil if a process before has lost them all

	unwarned int64 // lines of which operators were not told
	warned   bool  // they know that the log fails
	warnedAt time.Time
}

// lose counts lines that are not in the log. l.mu is held, as it is below.
func (l *Log) recordLoss(lines int, cause error) {
	if lines == 0 {
		return
	}
	f := &l.loss
	if f.missing == 0 {
		f.since = l.options.Now()
	}
	f.missing, f.unwarned, f.cause = f.missing+int64(lines), f.unwarned+int64(lines), cause
	l.lost.Add(int64(lines))
}

// writeBehindLoss writes lines, which come behind a line break, with a line ahead of them that
// tells of those that are missing. All get into the file or, as far as that can be, none.
func (l *Log) writeWithLossEntry(d day, timestamp, lines []byte) {
	both := l.loss.appendEntry([]byte{'\n'}, timestamp)
	own := len(both) - 1
	both = append(both, lines[1:]...)
	kept, err := l.append(d, both, true)
	if kept >= own {
		l.loss.missing, l.loss.since = 0, time.Time{}
	} else {
		kept = own
	}
	if err != nil {
		l.recordLoss(bytes.Count(both[1+kept:], []byte{'\n'}), err)
	}
}

// appendLine adds the line that tells how many are missing. The time is that of the line behind
// it, so that it is one of the same day.
func (f *lossState) appendEntry(b, timestamp []byte) []byte {
	text := fmt.Sprintf("%d lines could not be written since %s", f.missing, f.since.UTC().Format(timestampLayout))
	if cause, ok := errors.AsType[syscall.Errno](f.cause); ok {
		text += ": " + cause.Error()
	}
	b = append(append(b, timestampKey...), timestamp...)
	b = append(append(b, conversationKey...), reservedID...)
	b = append(append(b, tenantKey...), reservedID...)
	b = appendText(append(b, `","agent":"parley","role":"system","content":"`...), []byte(text))
	b = strconv.AppendInt(append(b, `","metadata":{"turn_number":0,"lost_lines":`...), f.missing, 10)
	b = appendTimestamp(append(b, `,"lost_since":"`...), f.since.UTC())
	return append(b, "\"}}\n"...)
}

// probe tries whether the log can be written again, if it fails: messages may be long in coming.
func (l *Log) probe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loss.missing > 0 {
		now := l.options.Now().UTC()
		l.writeWithLossEntry(dayOf(now), appendTimestamp(nil, now), []byte{'\n'})
	}
}

// report tells operators what was lost, and why files cannot be made durable, once a minute
// unless it is the last word; and when lines are no longer lost.
func (l *Log) reportLoss(unsynced error, last bool) {
	l.mu.Lock()
	f, now := &l.loss, l.options.Now()
	due := last || f.warnedAt.IsZero() || now.Sub(f.warnedAt) >= warnEvery || now.Before(f.warnedAt)
	lost, cause := f.unwarned, f.cause
	warn := due && lost > 0
	if warn {
		f.unwarned, f.warned = 0, true
	}
	recovered := f.warned && f.missing == 0
	f.warned = f.warned && !recovered
	if warn || due && unsynced != nil {
		f.warnedAt = now
	}
	l.mu.Unlock()
	if warn {
		l.options.Log.Warn("interaction log lost lines; it goes on by itself when it can", "lost_lines", lost, "error", cause)
	}
	if due && unsynced != nil {
		l.options.Log.Warn("interaction log may not outlast a power cut", "error", unsynced)
	}
	if recovered {
		l.options.Log.Info("interaction log is written again")
	}
}
