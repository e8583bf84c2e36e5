package interactionlog

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
	"github.com/parleyhq/parley/server/internal/interactionlog/search"
)

// TestReplace checks that replace notices, under the lock, what has happened since the old file was read.
func TestReplace(t *testing.T) {
	const name = "2026-11-20.jsonl"
	tests := map[string]struct {
		happen func(w *testLog) error
		want   error
	}{
		"nothing":  {func(*testLog) error { return nil }, nil},
		"appended": {func(w *testLog) error { w.commit("more"); return nil }, nil},
		"shorter":  {func(w *testLog) error { return os.Truncate(w.path(name), 10) }, scan.ErrChanged},
		"removed":  {func(w *testLog) error { return os.Remove(w.path(name)) }, scan.ErrChanged},
		"a new one": {func(w *testLog) error {
			return errors.Join(os.Remove(w.path(name)), os.WriteFile(w.path(name), nil, 0o600))
		}, scan.ErrChanged},
		"a link": {func(w *testLog) error {
			return errors.Join(os.Rename(w.path(name), w.path("x")), os.Symlink("x", w.path(name)))
		}, scan.ErrChanged},
		"closed": {func(w *testLog) error { return w.Close() }, errClosed},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			w := newTestLog(t)
			w.putFile(name, matchingLines()[0]+otherLines()[0])
			f, err := dayfile.OpenRead(w.dir, name)
			must(t, err)
			defer f.Close()
			e := &erasure{Log: w.Log, conversation: search.Conversation{Tenant: "acme", ID: "gone"}, buffer: make([]byte, 10)}
			to, err := os.Create(w.path("to"))
			must(t, err)
			defer to.Close()
			r := &rewrite{erasure: e, from: f, to: to, path: w.path(name)}
			must(t, r.copyComplete(t.Context(), f.Size), test.happen(w))
			ctx := &hookContext{Context: t.Context(), trigger: to.Name(), hook: func() {
				if w.writer.mu.TryLock() {
					t.Error("mu is not held")
				}
			}}
			if err := r.replace(ctx); !errors.Is(err, test.want) {
				t.Fatalf("replace: %v, want %v", err, test.want)
			}
			if test.want == nil && !strings.HasPrefix(w.readFile(name), otherLines()[0]) {
				t.Errorf("file = %q", w.readFile(name))
			}
		})
	}
}

// hookContext is a context that calls hook once, when it is checked and the file trigger exists.
type hookContext struct {
	context.Context

	trigger string
	hook    func()
}

// Err calls the hook and implements context.Context.
func (r *hookContext) Err() error {
	if _, err := os.Lstat(r.trigger); err == nil && r.hook != nil {
		happen := r.hook
		r.hook = nil
		happen()
	}
	return r.Context.Err()
}

// TestEraseDuringEdits checks that edits of a file during an Erase are in the new file, without the entries
// to remove.
func TestEraseDuringEdits(t *testing.T) {
	const name = "2026-11-20.jsonl"
	gone, kept := matchingLines()[0], otherLines()[0]
	content := gone + kept + gone + kept
	tests := map[string]struct {
		edit   func(w *testLog) error
		want   string
		erased int64
	}{
		"appended": {func(w *testLog) error {
			message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER}
			w.Committed(append(messagesAt(w, noon, "more"), entrytest.Appended(w.tb, "acme", "gone", message)))
			return nil
		}, "about gone|about gone|more", 3},
		"nothing": {func(*testLog) error { return nil }, "about gone|about gone", 2},
		"a line without its end": {func(w *testLog) error {
			return os.WriteFile(w.path(name), []byte(content+"half"), 0o600)
		}, "about gone|about gone|!half", 2},
		"in place, of the same length": {func(w *testLog) error {
			f, err := os.OpenFile(w.path(name), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte(strings.ReplaceAll(gone+kept, "about", "ABOUT")), 0)
			return errors.Join(err, f.Close())
		}, "ABOUT gone|about gone", 2},
		"in place, longer": {func(w *testLog) error {
			return os.WriteFile(w.path(name), []byte(strings.Repeat(kept, 3)+strings.Repeat(gone, 9)), 0o600)
		}, strings.Repeat("about gone|", 2) + "about gone", 9},
		"in place, shorter": {func(w *testLog) error {
			return os.WriteFile(w.path(name), []byte(kept+gone), 0o600)
		}, "about gone", 1},
		"by an editor that makes a new file": {func(w *testLog) error {
			content := []byte(gone + kept + kept + kept + gone)
			return errors.Join(os.WriteFile(w.path("new"), content, 0o600), os.Rename(w.path("new"), w.path(name)))
		}, strings.Repeat("about gone|", 2) + "about gone", 2},
		"emptied": {func(w *testLog) error { return os.Truncate(w.path(name), 0) }, "", 0},
		"removed": {func(w *testLog) error { return os.Remove(w.path(name)) }, "none", 0},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			for first := range 100 { // of the steps of Erase: edit before each of them
				step := first
				w := newTestLog(t)
				w.putFile(name, content)
				ctx := &hookContext{Context: t.Context(), trigger: w.path(dayfile.TemporaryName(name))}
				edited := false
				var edit func()
				edit = func() {
					step--
					if step >= 0 {
						ctx.hook = edit
					} else if w.writer.mu.TryLock() { // If the lock is held, the new file is about to replace the old one.
						w.writer.mu.Unlock()
						edited = true
						must(t, test.edit(w))
					}
				}
				ctx.hook = edit
				n, err := w.Erase(ctx, "acme", "gone")
				must(t, err)
				if !edited && first == 0 {
					t.Fatal("mu is held during all steps")
				} else if !edited {
					return // Erase has no more steps.
				}
				got := "none"
				if lines, ok := fileContents(t, w.dir)[name]; ok {
					got = strings.Join(lines, "|")
				}
				if n != test.erased || got != test.want {
					t.Errorf("erased %d entries, file = %q, want %d, %q", n, got, test.erased, test.want)
				}
			}
		})
	}
}
