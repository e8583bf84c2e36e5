package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhq/parley/server/internal/config"
)

// TestLogQueueDrops: while out is not read, Write returns and the queue stays bounded. Each entry
// is either written or counted as dropped, in the format of the log.
func TestLogQueueDrops(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"msg":"log entries dropped","count":%d}`, "text": `msg="log entries dropped" count=%d`} {
		synctest.Test(t, func(t *testing.T) {
			g := &gatedLog{open: make(chan struct{})}
			q := newLogQueue(g)
			log := newLogger(&config.Config{LogFormat: format, LogLevel: slog.LevelError}, q)
			log.Error("first")
			synctest.Wait() // The entry is being written.
			const entries = 3000
			for i := range entries {
				log.Error("entry", "number", i, "padding", strings.Repeat("x", 1000))
			}
			if len(q.waiting) > maxQueuedLog {
				t.Errorf("%d bytes queued, want %d at most", len(q.waiting), maxQueuedLog)
			}
			close(g.open)
			synctest.Wait()
			log.Error("last")
			q.close()
			text := strings.Join(g.lines, "")
			lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			kept := strings.Count(text, "padding")
			if kept == 0 || kept == entries {
				t.Fatalf("%d of %d entries were written, want some", kept, entries)
			}
			if report := lines[len(lines)-2]; !strings.HasSuffix(report, fmt.Sprintf(want, entries-kept)) {
				t.Errorf("%d of %d entries were written, then the report %s", kept, entries, report)
			}
			if !strings.Contains(lines[0], "first") || !strings.Contains(lines[len(lines)-1], "last") || len(lines) != kept+3 {
				t.Errorf("%d lines, want %d; the first is %s, the last %s", len(lines), kept+3, lines[0], lines[len(lines)-1])
			}
		})
	}
}

// failingWriter fails while failure is set.
type failingWriter struct {
	bytes.Buffer

	failure error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.failure != nil {
		return 0, w.failure
	}
	return w.Buffer.Write(p)
}

// TestLogQueueFailure: entries that cannot be written, as on a full disk, are counted too.
func TestLogQueueFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &failingWriter{failure: errors.New("no space left on device")}
		q := newLogQueue(w)
		log := newLogger(&config.Config{LogFormat: "json"}, q)
		for range 3 {
			log.Info("lost")
			synctest.Wait()
		}
		w.failure = nil
		log.Info("written")
		q.close()
		var got []string
		for d := json.NewDecoder(&w.Buffer); d.More(); {
			var line logLine
			if err := d.Decode(&line); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(line["msg"], line["count"]))
		}
		if want := []string{"written<nil>", "log entries dropped3"}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("log = %q, want %q", got, want)
		}
	})
}

// fullDisk takes no more than there is space for, as a file does.
type fullDisk struct {
	bytes.Buffer

	space int
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.space)
	d.space -= n
	d.Buffer.Write(p[:n])
	if n < len(p) {
		return n, errors.New("no space left on device")
	}
	return n, nil
}

// TestLogQueueShortWrite: on a disk that is full for a while, each entry is either whole in
// the log or counted, and none is glued to what was left of another.
func TestLogQueueShortWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const entries = 200
		for _, space := range []int{0, 1, 4096, maxLogPiece, maxLogPiece + 1, 100_000, 1 << 20} {
			d := &fullDisk{space: space}
			g := &gatedWriter{Writer: d, open: make(chan struct{})}
			q := newLogQueue(g)
			log := newLogger(&config.Config{LogFormat: "json"}, q)
			for i := range entries {
				log.Info("entry", "n", i, "padding", strings.Repeat("x", 1000))
			}
			close(g.open)
			synctest.Wait()
			log.Info("lost as well") // Unless there is space.
			synctest.Wait()
			d.space = 1 << 20
			log.Info("written")
			q.close()
			seen, missing := map[string]int{}, 0
			for line := range strings.Lines(d.String()) {
				var entry struct {
					Msg   string
					Count int
				}
				if json.Unmarshal([]byte(line), &entry) == nil {
					seen[entry.Msg]++
					missing += entry.Count
				}
			}
			if got := seen["entry"] + seen["lost as well"] + missing; got != entries+1 || seen["written"] != 1 {
				t.Errorf("with space for %d bytes, %v are in the log and %d counted as dropped, want %d together and the last one",
					space, seen, missing, entries+1)
			}
		}
	})
}

// TestLogQueueLongEntry: an entry of several pieces is torn where a piece ends.
func TestLogQueueLongEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &fullDisk{space: maxLogPiece}
		q := newLogQueue(d)
		fmt.Fprintln(q, strings.Repeat("x", 3*maxLogPiece))
		synctest.Wait()
		d.space = 1 << 20
		fmt.Fprintln(q, "written")
		q.close()
		if _, rest, _ := strings.Cut(d.String(), "\n"); !strings.HasPrefix(rest, "written\n") || !strings.Contains(rest, `"count":1}`) {
			t.Errorf("after the torn entry the log has %q", rest)
		}
	})
}

// gatedWriter takes nothing before open is closed.
type gatedWriter struct {
	io.Writer

	open chan struct{}
}

func (g *gatedWriter) Write(p []byte) (int, error) {
	<-g.open
	return g.Writer.Write(p)
}

// slowReader takes that many bytes a second, without a pause.
type slowReader struct {
	perSecond int

	mu    sync.Mutex
	taken bytes.Buffer
}

func (r *slowReader) Write(p []byte) (int, error) {
	<-time.After(time.Duration(len(p)) * time.Second / time.Duration(r.perSecond))
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken.Write(p)
}

func (r *slowReader) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken.String()
}

// TestLogQueueSlowReader: the end waits for one who is reading, up to flushTotal.
func TestLogQueueSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			perSecond int
			whole     bool
		}{{640 << 10, true}, {20 << 10, false}} {
			r := &slowReader{perSecond: test.perSecond}
			q := newLogQueue(r)
			log := newLogger(&config.Config{LogFormat: "json"}, q)
			log.Info("first")
			synctest.Wait()
			for range 900 {
				log.Info("entry", "padding", strings.Repeat("x", 1000))
			}
			<-time.After(flushLimit + flushLimit/5)
			log.Error("why the process ends")
			begun := time.Now()
			q.close()
			took, taken := time.Since(begun), r.text()
			if whole := strings.Contains(taken, "why the process ends"); whole != test.whole {
				t.Errorf("at %d B/s the last entry is in the log: %v, want %v", test.perSecond, whole, test.whole)
			}
			if (took < flushTotal) != test.whole || took > flushTotal {
				t.Errorf("at %d B/s close took %v", test.perSecond, took)
			}
			<-q.ended
		}
	})
}

// TestLogQueueClose: the end waits for entries to be written, but not for one who has taken
// nothing for flushLimit.
func TestLogQueueClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, stuck := range []time.Duration{0, flushLimit / 2, flushLimit, time.Hour} {
			g := &gatedLog{open: make(chan struct{})}
			q := newLogQueue(g)
			fmt.Fprintln(q, "entry")
			synctest.Wait()
			<-time.After(stuck)
			begun := time.Now()
			q.close()
			if took, want := time.Since(begun), max(0, flushLimit-stuck); took != want {
				t.Errorf("close took %v while a write hung for %v, want %v", took, stuck, want)
			}
			close(g.open)
			<-q.ended
		}
		var written bytes.Buffer
		q := newLogQueue(&written)
		for range 1000 {
			fmt.Fprintln(q, "entry")
		}
		q.close()
		if n := strings.Count(written.String(), "entry\n"); n != 1000 {
			t.Errorf("%d entries were written before close returned, want 1000", n)
		}
	})
}
