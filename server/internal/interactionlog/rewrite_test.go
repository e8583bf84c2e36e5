package interactionlog

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestReplace: what has happened since the old file was read is seen while the lock is held.
func TestReplace(t *testing.T) {
	const name = "2026-11-20.jsonl"
	tests := map[string]struct {
		happen func(w *writingLog) error
		want   error
	}{
		"nothing":  {func(*writingLog) error { return nil }, nil},
		"appended": {func(w *writingLog) error { w.say("more"); return nil }, nil},
		"shorter":  {func(w *writingLog) error { return os.Truncate(w.path(name), 10) }, errMoved},
		"removed":  {func(w *writingLog) error { return os.Remove(w.path(name)) }, errMoved},
		"a new one": {func(w *writingLog) error {
			return errors.Join(os.Remove(w.path(name)), os.WriteFile(w.path(name), nil, 0o600))
		}, errMoved},
		"a link": {func(w *writingLog) error {
			return errors.Join(os.Rename(w.path(name), w.path("x")), os.Symlink("x", w.path(name)))
		}, errMoved},
		"closed": {func(w *writingLog) error { return w.Close() }, errClosed},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			w := newWriting(t)
			w.put(name, ours()[0]+theirs()[0])
			f, err := w.reader.openToRead(name)
			do(t, err)
			defer f.Close()
			e := &erasure{Log: w.Log, query: &query{filter: filter{tenant: "acme", session: "gone"}}, buffer: make([]byte, 10)}
			to, err := os.Create(w.path("to"))
			do(t, err)
			defer to.Close()
			r := &rewrite{erasure: e, from: f, to: to, path: w.path(name)}
			do(t, r.advance(t.Context(), f.size), test.happen(w))
			ctx := &rewriting{Context: t.Context(), unfinished: to.Name(), happen: func() {
				if w.Log.mu.TryLock() {
					t.Error("the lock is not held")
				}
			}}
			if err := r.replace(ctx); !errors.Is(err, test.want) {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if test.want == nil && !strings.HasPrefix(w.read(name), theirs()[0]) {
				t.Errorf("the file says %q", w.read(name))
			}
		})
	}
}

// rewriting is a context in which something happens once a new file is being written.
type rewriting struct {
	context.Context

	unfinished string
	happen     func()
}

// Err has it happen.
func (r *rewriting) Err() error {
	if _, err := os.Lstat(r.unfinished); err == nil && r.happen != nil {
		happen := r.happen
		r.happen = nil
		happen()
	}
	return r.Context.Err()
}

// TestEditedWhileErasing: what is done to a file while it is written anew is in the file
// afterwards, and what is to go is gone.
func TestEditedWhileErasing(t *testing.T) {
	const name = "2026-11-20.jsonl"
	gone, kept := ours()[0], theirs()[0]
	content := gone + kept + gone + kept
	tests := map[string]struct {
		edit   func(w *writingLog) error
		want   string
		erased int64
	}{
		"appended": {func(w *writingLog) error {
			w.Committed(append(messagesAt(w, noon, "more"), appended(w.tb, "acme", "gone", &parleyv1.Message{Role: parleyv1.Role_ROLE_USER})))
			return nil
		}, "about gone|about gone|more", 3},
		"nothing": {func(*writingLog) error { return nil }, "about gone|about gone", 2},
		"a line without its end": {func(w *writingLog) error {
			return os.WriteFile(w.path(name), []byte(content+"half"), 0o600)
		}, "about gone|about gone|!half", 2},
		"in place, of the same length": {func(w *writingLog) error {
			f, err := os.OpenFile(w.path(name), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte(strings.ReplaceAll(gone+kept, "about", "ABOUT")), 0)
			return errors.Join(err, f.Close())
		}, "ABOUT gone|about gone", 2},
		"in place, longer": {func(w *writingLog) error {
			return os.WriteFile(w.path(name), []byte(strings.Repeat(kept, 3)+strings.Repeat(gone, 9)), 0o600)
		}, strings.Repeat("about gone|", 2) + "about gone", 9},
		"in place, shorter": {func(w *writingLog) error { return os.WriteFile(w.path(name), []byte(kept+gone), 0o600) }, "about gone", 1},
		"by an editor that makes a new file": {func(w *writingLog) error {
			return errors.Join(os.WriteFile(w.path("new"), []byte(gone+kept+kept+kept+gone), 0o600), os.Rename(w.path("new"), w.path(name)))
		}, strings.Repeat("about gone|", 2) + "about gone", 2},
		"emptied": {func(w *writingLog) error { return os.Truncate(w.path(name), 0) }, "", 0},
		"removed": {func(w *writingLog) error { return os.Remove(w.path(name)) }, "none", 0},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			for first := range 100 { // of all that Erase does then, ahead of each
				step := first
				w := newWriting(t)
				w.put(name, content)
				ctx := &rewriting{Context: t.Context(), unfinished: w.path("." + name + unfinishedSuffix)}
				edited := false
				var edit func()
				edit = func() {
					step--
					if step >= 0 {
						ctx.happen = edit
					} else if w.Log.mu.TryLock() { // Else the new file is about to take its place.
						w.Log.mu.Unlock()
						edited = true
						do(t, test.edit(w))
					}
				}
				ctx.happen = edit
				n, err := w.Erase(ctx, "acme", "gone")
				do(t, err)
				if !edited && first == 0 {
					t.Fatal("the lock is held all the time")
				} else if !edited {
					return // There are no more steps.
				}
				got := "none"
				if lines, ok := saidBy(t, w.dir)[name]; ok {
					got = strings.Join(lines, "|")
				}
				if n != test.erased || got != test.want {
					t.Errorf("%d lines erased, the file says %q; want %d, %q", n, got, test.erased, test.want)
				}
			}
		})
	}
}
