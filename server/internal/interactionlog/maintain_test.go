package interactionlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// names returns the names of the files in a directory.
func names(tb testing.TB, dir string) []string {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	must(tb, err)
	var found []string
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	return found
}

// TestRetention checks that the files of old days, and nothing else, are removed at the start and at each
// midnight.
func TestRetention(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "interactions")
	must(t, os.MkdirAll(filepath.Join(dir, "1999-12-01.jsonl"), 0o700))
	stay := []string{
		"1999-12-01.jsonl", "1999-12-02.jsonl", "1999-12-30.jsonl", "1999-12-31.jsonl",
		"2000-01-01.jsonl", "2000-02-01.jsonl", "1999-12-29.jsonl.1", "1999-12-29.json",
	}
	must(t, os.Symlink("1999-12-31.jsonl", filepath.Join(dir, "1999-12-02.jsonl")))
	for _, name := range append([]string{"1999-12-29.jsonl", ".1999-12-29.sessions", "1970-01-01.jsonl"}, stay[2:]...) {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, dayfile.FileMode))
	}
	stay = append(stay, checkpointName)
	slices.Sort(stay)
	synctest.Test(t, func(t *testing.T) {
		w := openTestLog(t, dir, Options{RetentionDays: 2})
		w.options.Now = time.Now // The clock of synctest starts on 2000-01-01.
		startMaintain(t, w.Log)
		check := func() {
			t.Helper()
			synctest.Wait()
			if got := names(t, dir); !slices.Equal(got, stay) {
				t.Errorf("files at %v = %q, want %q", time.Now(), got, stay)
			}
		}
		check()
		if output := w.output.take(); strings.Count(output, "file removed") != 2 {
			t.Errorf("log output = %q, want two removals", output)
		}
		<-time.After(24*time.Hour - 1)
		check()
		<-time.After(2 * time.Second)
		stay = slices.DeleteFunc(stay, func(name string) bool { return name == "1999-12-30.jsonl" })
		check()
	})
}

// TestRetentionOff checks that all files are retained without Options.RetentionDays.
func TestRetentionOff(t *testing.T) {
	w := newTestLog(t)
	must(t, os.WriteFile(w.path("1970-01-01.jsonl"), nil, dayfile.FileMode))
	w.removeOld(dayfile.DayOf(noon))
	if got := names(t, w.dir); !slices.Contains(got, "1970-01-01.jsonl") {
		t.Errorf("files = %q, want the old one, too", got)
	}
}

// TestMaintain checks that entries are durable, and the checkpoint is advanced, within a second.
func TestMaintain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "interactions")
	synctest.Test(t, func(t *testing.T) {
		w := openTestLog(t, dir, Options{})
		w.options.Now = time.Now
		startMaintain(t, w.Log)
		start := time.Now()
		wantUntil := func(want time.Time) {
			t.Helper()
			synctest.Wait()
			c, _, err := readCheckpoint(w.writer.checkpointPath())
			if err != nil || !c.CompleteUntil.Equal(want) || c.Clean {
				t.Errorf("checkpoint at %v = %+v, %v, want complete until %v", time.Now(), c, err, want)
			}
		}
		wantUntil(noon.Add(1)) // The clock that Open has read.
		w.writer.mu.Lock()
		w.writer.pending.saved.CompleteUntil = start
		w.writer.mu.Unlock()
		<-time.After(5500 * time.Millisecond)
		one := messagesAt(w, start.Add(5*time.Second), "one")
		w.Committed(append(one, messagesAt(w, start.Add(5200*time.Millisecond), "two")...))
		<-time.After(time.Second)
		wantUntil(start.Add(5 * time.Second))
		// The log is idle for a long time.
		<-time.After(2*idleMargin - 2*time.Second)
		wantUntil(start.Add(5 * time.Second))
		<-time.After(time.Second)
		synctest.Wait()
		c, _, err := readCheckpoint(w.writer.checkpointPath())
		if ago := time.Since(c.CompleteUntil); err != nil || ago < idleMargin || ago > idleMargin+2*time.Second {
			t.Errorf("checkpoint at %v = %+v, %v, want complete until a minute ago", time.Now(), c, err)
		}
	})
}

// TestCommitDuringSync commits an older message while the files are made durable.
func TestCommitDuringSync(t *testing.T) {
	w := newTestLog(t)
	w.advance(time.Hour)
	w.commit("one")
	u := w.writer.beginSync()
	w.Committed(messagesAt(w, noon.Add(time.Minute), "two"))
	must(t, w.writer.finishSync(u, u.run(w.dir)))
	if until := w.writer.pending.saved.CompleteUntil; !until.Equal(noon.Add(time.Minute)) {
		t.Errorf("complete until %v", until)
	}
	w.commit("three")
	must(t, w.sync())
	if until := w.writer.pending.saved.CompleteUntil; !until.Equal(w.clock()) {
		t.Errorf("complete until %v", until)
	}
	w.commit("four")
	u = w.writer.beginSync()
	w.advance(time.Minute)
	w.commit("five")
	if err := w.writer.finishSync(u, syscall.EIO); !errors.Is(err, syscall.EIO) {
		t.Errorf("finishSync = %v, want an error of the disk", err)
	}
	if until := w.writer.pending.saved.CompleteUntil; !until.Equal(w.clock().Add(-time.Minute)) {
		t.Errorf("complete until %v after an error of the disk", until)
	}
	must(t, w.sync(), w.Close())
	if c, _, err := readCheckpoint(w.writer.checkpointPath()); err != nil || !c.Clean || !c.CompleteUntil.Equal(w.clock()) {
		t.Errorf("checkpoint after a later sync = %+v, %v", c, err)
	}
}

// TestConcurrent writes, maintains and reads concurrently.
func TestConcurrent(t *testing.T) {
	w := newTestLog(t)
	done := make(chan struct{})
	var others sync.WaitGroup
	for _, other := range []func() error{
		func() error { w.maintainOnce(); return nil },
		func() error { w.removeOld(dayfile.DayOf(noon)); return nil },
		func() error {
			_, err := w.List(t.Context(), &List{Tenant: "acme", ConversationID: "c1"})
			return err
		},
	} {
		others.Go(func() {
			for {
				if err := other(); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range 300 {
		w.commit(fmt.Sprint(i), "answer")
		if i%10 == 9 {
			w.advance(12 * time.Hour)
		}
	}
	close(done)
	others.Wait()
	count := 0
	for _, lines := range fileContents(t, w.dir) {
		count += len(lines)
	}
	if count != 600 || w.Lost() != 0 {
		t.Errorf("%d entries, %d lost, want 600 and 0", count, w.Lost())
	}
}
