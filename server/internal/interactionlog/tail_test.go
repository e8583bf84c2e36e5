package interactionlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// failSync makes a sync fail for all entries that are not durable yet, as on a disk with an error.
func (s *testService) failSync() {
	s.tb.Helper()
	if err := s.log.writer.finishSync(s.log.writer.beginSync(), syscall.EIO); !errors.Is(err, syscall.EIO) {
		s.tb.Fatalf("finishSync = %v, want %v", err, syscall.EIO)
	}
}

// TestFailedSync checks that the checkpoint does not advance after a failed sync until one succeeds.
func TestFailedSync(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	must(t, s.log.sync())
	before := s.log.writer.pending.saved.CompleteUntil
	s.now = s.now.Add(time.Hour)
	s.add("acme", "c1", "two")
	failed := s.now
	s.failSync()
	for range 3 {
		s.now = s.now.Add(time.Hour)
		s.add("acme", "c2", "more")
		s.failSync()
		if until := s.log.writer.pending.saved.CompleteUntil; until.Before(before) || until.After(failed) {
			t.Errorf("log complete until %v while syncs fail, want %v to %v", until, before, failed)
		}
	}
	must(t, s.log.sync())
	if until := s.log.writer.pending.saved.CompleteUntil; !until.Equal(s.now) {
		t.Errorf("log complete until %v after a sync, want %v", until, s.now)
	}
	s.wantEntries("one", "two", "more", "more", "more")
	must(t, s.log.Close())
	if c, _, err := readCheckpoint(s.log.writer.checkpointPath()); err != nil || !c.Clean {
		t.Errorf("checkpoint after Close = %+v, %v, want clean", c, err)
	}
}

// TestFailedSyncThenErase checks that an Erase that replaces a file ends the effect of a failed sync, unless
// the old file has lost entries.
func TestFailedSyncThenErase(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost ", lost), func(t *testing.T) {
			s := newTestService(t, logDir(t))
			s.add("acme", "c1", "one")
			s.add("acme", "c2", "two")
			s.failSync()
			if lost {
				f, err := os.OpenFile(s.log.path(dayfile.DayOf(noon).FileName()), os.O_WRONLY, 0)
				must(t, err)
				_, err = f.WriteAt(make([]byte, 20), 0)
				must(t, err, f.Close())
			}
			s.log.erase("c2", 1)
			s.now = s.now.Add(time.Hour)
			s.add("acme", "c1", "three")
			must(t, s.log.sync())
			if until := s.log.writer.pending.saved.CompleteUntil; until.Equal(s.now) == lost || s.log.writer.pending.needsCatchUp != lost {
				t.Errorf("log complete until %v after a sync, now is %v", until, s.now)
			}
			must(t, s.log.Close())
			if c, _, err := readCheckpoint(s.log.writer.checkpointPath()); err != nil || c.Clean == lost {
				t.Errorf("checkpoint after Close = %+v, %v, want clean %t", c, err, !lost)
			}
		})
	}
}

// lockHookContext is a context that calls a function each time that it is checked while a lock is held.
type lockHookContext struct {
	context.Context

	lock *sync.Mutex
	call func()
}

// Err implements context.Context.
func (u *lockHookContext) Err() error {
	if u.lock.TryLock() {
		u.lock.Unlock()
	} else {
		u.call()
	}
	return u.Context.Err()
}

// TestEraseDuringSync checks that Erase replaces no file during a sync. Otherwise the log would mistake the new
// file for one that has lost entries if the sync failed.
func TestEraseDuringSync(t *testing.T) {
	w := newTestLog(t)
	w.putFile("2026-11-20.jsonl", matchingLines()[0]+"half a line")
	replaced := 0
	ctx := &lockHookContext{Context: t.Context(), lock: &w.writer.mu, call: func() {
		replaced++
		if w.syncMu.TryLock() {
			w.syncMu.Unlock()
			t.Error("syncMu is not held while a file is replaced")
		}
	}}
	if n, err := w.Erase(ctx, "acme", "gone"); n != 1 || err != nil || replaced == 0 {
		t.Errorf("Erase = %d, %v, context checked %d times under the lock, want 1 entry and more than once", n, err, replaced)
	}
	must(t, w.Close())
}

// TestEraseWhenIdle checks that an Erase does not move the checkpoint of an idle log.
func TestEraseWhenIdle(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	s.add("acme", "c2", "two")
	must(t, s.log.sync())
	s.now = s.now.Add(time.Hour)
	s.importAt("foreign", s.now)
	s.now = s.now.Add(time.Hour)
	must(t, s.log.sync())
	s.log.erase("c1", 1)
	must(t, s.log.sync())
	s.restart()
	s.wantEntries("two")
	must(t, s.log.Close())
}

// TestFailedSyncAtClose checks that the checkpoint is not clean if entries are not durable at the end.
func TestFailedSyncAtClose(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	u := s.log.writer.beginSync()
	_ = s.log.writer.finishSync(u, syscall.EIO)
	u = s.log.writer.beginSync() // as in Close, whose sync fails, too
	_ = s.log.writer.finishSync(u, syscall.EIO)
	s.log.writer.mu.Lock()
	must(t, s.log.writer.saveClosed())
	s.log.writer.mu.Unlock()
	if c, _, err := readCheckpoint(s.log.writer.checkpointPath()); err != nil || c.Clean || c.CompleteUntil.After(s.now) {
		t.Errorf("checkpoint = %+v, %v, want one that is not clean", c, err)
	}
	must(t, s.log.Close())
}

// TestFailedSyncThatLostEntries checks that the next start adds the entries that the system dropped after a
// failed sync, however the file has changed.
func TestFailedSyncThatLostEntries(t *testing.T) {
	zero := func(text []byte) []byte {
		end := bytes.IndexByte(text, '\n')
		return append(make([]byte, end), text[end:]...)
	}
	for _, test := range []struct {
		name   string
		change func(path string, text []byte) error
		want   string
	}{
		{"zeros", func(path string, text []byte) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(zero(text), 0)
			return errors.Join(err, f.Close())
		}, "! two one"},
		{"shorter", func(path string, text []byte) error {
			return os.Truncate(path, int64(bytes.IndexByte(text, '\n')+1))
		}, "one two"},
		{"another file", func(path string, text []byte) error {
			return errors.Join(os.WriteFile(path+".new", zero(text), dayfile.FileMode), os.Rename(path+".new", path))
		}, "! two one"},
	} {
		for _, extra := range []string{"", "three"} {
			t.Run(fmt.Sprint(test.name, extra), func(t *testing.T) {
				s := newTestService(t, logDir(t))
				s.add("acme", "c1", "one")
				s.add("acme", "c2", "two")
				s.failSync()
				path := s.log.path(dayfile.DayOf(noon).FileName())
				text, err := os.ReadFile(path)
				must(t, err, test.change(path, text))
				before := s.log.writer.pending.saved.CompleteUntil
				want := strings.Fields(test.want)
				if extra != "" {
					s.now = s.now.Add(time.Minute)
					s.add("acme", "c3", extra)
				}
				must(t, s.log.sync())
				if output := s.log.output.take(); !s.log.writer.pending.needsCatchUp || !strings.Contains(output, "may lack entries") {
					t.Errorf("log = %q, want a warning", output)
				}
				if after := s.log.writer.pending.saved.CompleteUntil; !after.Equal(before) {
					t.Errorf("log complete until %v, want %v as before", after, before)
				}
				must(t, s.log.Close())
				s.open()
				must(t, s.catchUp(), s.log.Close())
				file := strings.Join(fileContents(t, s.dir)[dayfile.DayOf(noon).FileName()], " ")
				got := strings.Fields(strings.ReplaceAll(file, "\x00", ""))
				if extra != "" {
					got = remove(t, got, extra)
				}
				if strings.Join(got, " ") != strings.Join(want, " ") {
					t.Errorf("file = %q, want %q", got, want)
				}
			})
		}
	}
}

// remove returns all strings except one, which must occur once.
func remove(t *testing.T, all []string, one string) (others []string) {
	t.Helper()
	for _, text := range all {
		if text != one {
			others = append(others, text)
		}
	}
	if len(others) != len(all)-1 {
		t.Errorf("%q occurs %d times in %q, want once", one, len(all)-len(others), all)
	}
	return others
}

// TestFailedSyncOfDirectory checks that the checkpoint is not clean until the directory is durable.
func TestFailedSyncOfDirectory(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	u := s.log.writer.beginSync()
	clear(u.days) // The file is durable.
	_ = s.log.writer.finishSync(u, syscall.EIO)
	if until := s.log.writer.pending.saved.CompleteUntil; until.After(s.now) {
		t.Errorf("log complete until %v, want at most %v", until, s.now)
	}
	s.log.writer.mu.Lock()
	must(t, s.log.writer.saveClosed())
	s.log.writer.mu.Unlock()
	if c, _, err := readCheckpoint(s.log.writer.checkpointPath()); err != nil || c.Clean {
		t.Errorf("checkpoint = %+v, %v, want one that is not clean", c, err)
	}
	must(t, s.log.sync(), s.log.Close())
	if c, _, err := readCheckpoint(s.log.writer.checkpointPath()); err != nil || !c.Clean {
		t.Errorf("checkpoint after a sync = %+v, %v, want clean", c, err)
	}
}

// TestFailedSyncWhileWriting checks that an entry that was written during a failed sync and dropped by the
// system is missed.
func TestFailedSyncWhileWriting(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	path := s.log.path(dayfile.DayOf(noon).FileName())
	info, err := os.Stat(path)
	must(t, err)
	u := s.log.writer.beginSync()
	s.add("acme", "c2", "two")
	_ = s.log.writer.finishSync(u, syscall.EIO)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(make([]byte, 20), info.Size())
	must(t, err, f.Close(), s.log.sync())
	if !s.log.writer.pending.needsCatchUp {
		t.Error("needsCatchUp = false although the file has lost an entry")
	}
	must(t, s.log.Close())
}

// TestFailedSyncOfLongTail checks that a tail that is too long to be written again requires a CatchUp.
func TestFailedSyncOfLongTail(t *testing.T) {
	s := newTestService(t, logDir(t))
	text := strings.Repeat("\x01", 1<<20)
	for i := range 12 {
		s.add("acme", fmt.Sprint("c", i), text)
	}
	s.failSync()
	must(t, s.log.sync())
	if !s.log.writer.pending.needsCatchUp {
		t.Error("needsCatchUp = false although 72 MiB were not written again")
	}
	must(t, s.log.Close())
}
