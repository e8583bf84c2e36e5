package logqueue

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
)

// flushLimit is the limit of Close in these tests.
const flushLimit = 2750 * time.Millisecond

// gatedLog is a log whose writes block until open is closed.
type gatedLog struct {
	open  chan struct{}
	lines []string
}

func (g *gatedLog) Write(line []byte) (int, error) {
	<-g.open
	g.lines = append(g.lines, string(line))
	return len(line), nil
}

// TestQueueDrops checks that Write returns and the queue stays bounded while out is not read. Each
// entry is either written or counted as dropped, in the format of the log.
func TestQueueDrops(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"json": `"msg":"log entries dropped","count":%d}`, "text": `msg="log entries dropped" count=%d`} {
		synctest.Test(t, func(t *testing.T) {
			g := &gatedLog{open: make(chan struct{})}
			q := New(t.Context(), g)
			log := q.Logger(format, slog.LevelError)
			log.Error("first")
			synctest.Wait() // The entry is being written.
			const entries = 3000
			for i := range entries {
				log.Error("entry", "number", i, "padding", strings.Repeat("x", 1000))
			}
			if len(q.queued) > maxQueuedBytes {
				t.Errorf("queued = %d bytes, want %d at most", len(q.queued), maxQueuedBytes)
			}
			if _, size := q.State(); size != len(q.queued) {
				t.Errorf("State() = %d queued bytes, want %d", size, len(q.queued))
			}
			close(g.open)
			synctest.Wait()
			log.Error("last")
			q.Close(flushLimit)
			text := strings.Join(g.lines, "")
			lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			written := strings.Count(text, "padding")
			if written == 0 || written == entries {
				t.Fatalf("entries written = %d of %d, want some but not all", written, entries)
			}
			if dropped, size := q.State(); dropped != int64(entries-written) || size != 0 {
				t.Errorf("State() = %d dropped, %d queued bytes, want %d, 0", dropped, size, entries-written)
			}
			if report, end := lines[len(lines)-2], fmt.Sprintf(want, entries-written); !strings.HasSuffix(report, end) {
				t.Errorf("report after %d of %d entries = %q, want the end %q", written, entries, report, end)
			}
			if !strings.Contains(lines[0], "first") || !strings.Contains(lines[len(lines)-1], "last") ||
				len(lines) != written+3 {
				t.Errorf("log = %d lines from %q to %q, want %d lines from first to last", len(lines), lines[0],
					lines[len(lines)-1], written+3)
			}
		})
	}
}

// failingWriter fails with failure unless it is nil.
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

// TestQueueFailure checks that entries which cannot be written, for example because the disk is
// full, are counted as dropped.
func TestQueueFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &failingWriter{failure: errors.New("no space left on device")}
		q := New(t.Context(), w)
		log := q.Logger("json", slog.LevelInfo)
		for range 3 {
			log.Info("lost")
			synctest.Wait()
		}
		w.failure = nil
		log.Info("written")
		q.Close(flushLimit)
		var got []string
		for d := json.NewDecoder(&w.Buffer); d.More(); {
			var line map[string]any
			if err := d.Decode(&line); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(line["msg"], line["count"]))
		}
		if dropped, _ := q.State(); dropped != 3 {
			t.Errorf("State() = %d dropped, want 3", dropped)
		}
		if want := []string{"written<nil>", "log entries dropped3"}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("log = %q, want %q", got, want)
		}
	})
}

// fullDisk is a file on a disk with space free bytes.
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

// TestQueueShortWrite checks the log on a disk that is full for a while. Each entry is either
// complete in the log or counted as dropped, and starts its own line.
func TestQueueShortWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const entries = 200
		for _, space := range []int{0, 1, 4096, maxWriteBytes, maxWriteBytes + 1, 100_000, 1 << 20} {
			d := &fullDisk{space: space}
			g := &gatedWriter{Writer: d, open: make(chan struct{})}
			q := New(t.Context(), g)
			log := q.Logger("json", slog.LevelInfo)
			for i := range entries {
				log.Info("entry", "n", i, "padding", strings.Repeat("x", 1000))
			}
			close(g.open)
			synctest.Wait()
			log.Info("lost as well") // Unless there is enough space.
			synctest.Wait()
			d.space = 1 << 20
			log.Info("written")
			q.Close(flushLimit)
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
				t.Errorf("space %d: entries logged = %v and dropped = %d, want a total of %d and the last entry",
					space, seen, missing, entries+1)
			}
		}
	})
}

// TestQueueLongEntry checks that an entry after one that was cut off between two writes starts a
// new line.
func TestQueueLongEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &fullDisk{space: maxWriteBytes}
		q := New(t.Context(), d)
		fmt.Fprintln(q, strings.Repeat("x", 3*maxWriteBytes))
		synctest.Wait()
		d.space = 1 << 20
		fmt.Fprintln(q, "written")
		q.Close(flushLimit)
		if _, rest, _ := strings.Cut(d.String(), "\n"); !strings.HasPrefix(rest, "written\n") ||
			!strings.Contains(rest, `"count":1}`) {
			t.Errorf("log after the torn entry = %q, want the next entry and a count of 1", rest)
		}
	})
}

// gatedWriter is a writer whose writes block until open is closed.
type gatedWriter struct {
	io.Writer

	open chan struct{}
}

func (g *gatedWriter) Write(p []byte) (int, error) {
	<-g.open
	return g.Writer.Write(p)
}

// slowReader reads perSecond bytes a second continuously.
type slowReader struct {
	perSecond int

	mu   sync.Mutex
	read bytes.Buffer
}

func (r *slowReader) Write(p []byte) (int, error) {
	<-time.After(time.Duration(len(p)) * time.Second / time.Duration(r.perSecond))
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read.Write(p)
}

func (r *slowReader) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read.String()
}

// TestQueueSlowReader checks that Close waits for a slow reader, up to flushLimit.
func TestQueueSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			perSecond int
			complete  bool
		}{{640 << 10, true}, {20 << 10, false}} {
			r := &slowReader{perSecond: test.perSecond}
			q := New(t.Context(), r)
			log := q.Logger("json", slog.LevelInfo)
			log.Info("first")
			synctest.Wait()
			for range 900 {
				log.Info("entry", "padding", strings.Repeat("x", 1000))
			}
			<-time.After(stuckLimit + stuckLimit/5)
			log.Error("last entry")
			start := time.Now()
			q.Close(flushLimit)
			took, read := time.Since(start), r.text()
			if complete := strings.Contains(read, "last entry"); complete != test.complete {
				t.Errorf("at %d B/s: last entry in the log = %v, want %v", test.perSecond, complete, test.complete)
			}
			if (took < flushLimit) != test.complete || took > flushLimit {
				t.Errorf("at %d B/s: Close() took %v, want %v at most, and less only if the log is complete", test.perSecond, took,
					flushLimit)
			}
			<-q.ended
		}
	})
}

// TestQueueClose checks that Close waits for queued entries, but not for a write that has taken
// stuckLimit.
func TestQueueClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, stuck := range []time.Duration{0, stuckLimit / 2, stuckLimit, time.Hour} {
			g := &gatedLog{open: make(chan struct{})}
			q := New(t.Context(), g)
			fmt.Fprintln(q, "entry")
			synctest.Wait()
			<-time.After(stuck)
			start := time.Now()
			q.Close(flushLimit)
			if took, want := time.Since(start), max(0, stuckLimit-stuck); took != want {
				t.Errorf("Close() took %v after a write had blocked for %v, want %v", took, stuck, want)
			}
			close(g.open)
			<-q.ended
		}
		var written bytes.Buffer
		q := New(t.Context(), &written)
		for range 1000 {
			fmt.Fprintln(q, "entry")
		}
		q.Close(flushLimit)
		if n := strings.Count(written.String(), "entry\n"); n != 1000 {
			t.Errorf("entries written when Close() returned = %d, want 1000", n)
		}
	})
}
