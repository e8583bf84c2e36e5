package linear

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
)

// Whatever the clients of a server that is killed now and then are told, it is what they would
// be told one after the other.
func TestLinear(t *testing.T) {
	operations, lost := 0, 0
	for seed := range rounds(20, 200) {
		history, err := record(t, parleyd, uint64(seed))
		if err != nil {
			t.Fatalf("history %d: %v", seed, err)
		}
		if result := check(history); result != porcupine.Ok {
			t.Fatalf("history %d: %v\n%s", seed, result, describe(history))
		}
		operations += len(history)
		for _, o := range history {
			if o.got.lost {
				lost++
			}
		}
	}
	t.Logf("%d calls, %d of which were lost with the server", operations, lost)
}

// The controls: a history in which anything is wrong is found out.
func TestWrongHistories(t *testing.T) {
	history, err := record(t, parleyd, 1)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(history, func(a, b operation) int { return cmp.Compare(a.began, b.began) })
	if result := check(history); result != porcupine.Ok {
		t.Fatalf("as it was: %v", result)
	}
	for name, change := range map[string]struct {
		which func(call, answer) bool // The last one of them is changed.
		to    func(*answer)
	}{
		"a read of what was before": {
			func(c call, a answer) bool { return c.kind == "read" && len(a.words) > 1 },
			func(a *answer) { a.words = a.words[:len(a.words)-1] },
		},
		"a read of something else": {
			func(c call, a answer) bool { return c.kind == "read" && len(a.words) > 0 },
			func(a *answer) { a.words = append([]string{"nobody said so"}, a.words[1:]...) },
		},
		"an append of the wrong version": {
			func(c call, a answer) bool { return c.kind == "append" && a.refused && c.ifVersion != a.version },
			func(a *answer) { a.refused = false },
		},
		"a refusal of the right version": {
			func(c call, a answer) bool { return c.kind == "append" && c.ifVersion > 0 && !a.refused && !a.lost },
			func(a *answer) { *a = answer{refused: true, version: a.version - 1} },
		},
		"a sequence twice": {
			func(c call, a answer) bool { return c.kind == "append" && !a.refused && !a.lost },
			func(a *answer) { a.last-- },
		},
		"one evicted too many": {
			func(_ call, a answer) bool { return len(a.listed) == maxConversations },
			func(a *answer) { a.listed = a.listed[:maxConversations-1] },
		},
		"another one evicted": {
			func(_ call, a answer) bool { return len(a.listed) == maxConversations },
			func(a *answer) { a.listed = append([]string{row("another", 1)}, a.listed[1:]...) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := slices.Clone(history)
			at := len(wrong) - 1
			for at >= 0 && !change.which(wrong[at].asked, wrong[at].got) {
				at--
			}
			if at < 0 {
				t.Fatal("there is no such call in the history")
			}
			got := wrong[at].got
			got.words, got.listed = slices.Clone(got.words), slices.Clone(got.listed)
			change.to(&got)
			wrong[at].got = got
			if result := check(wrong); result != porcupine.Illegal {
				t.Errorf("%v, with %+v answered by %+v", result, wrong[at].asked, got)
			}
		})
	}
}

// The control of the kills: a server that keeps nothing is found out.
func TestKeepsNothing(t *testing.T) {
	history, err := record(t, parleyd, 1, "--store=memory")
	if err != nil {
		t.Fatal(err)
	}
	if result := check(history); result != porcupine.Illegal {
		t.Errorf("%v, for a server that forgets everything whenever it is killed", result)
	}
}

// The control of all: servers with one wrong line each are found out.
func TestWrongServers(t *testing.T) {
	for name, wrong := range map[string]struct{ file, line, by string }{
		"versions are not checked": {
			"store/internal/record/write.go", "if a.IfVersion != nil && *a.IfVersion != current {", "if a.IfVersion != nil && *a.IfVersion > current {",
		},
		"one conversation too many": {
			"store/boltstore/capacity.go", "excess := t.counted(tenant).conversations + 1 - limit", "excess := t.counted(tenant).conversations - limit",
		},
		"one commit in fifty is rolled back": {
			"store/boltstore/writer.go", "return t.finish()", "if err := t.finish(); err != nil || tx.ID()%50 != 0 { return err }; return errUnchanged",
		},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "parleyd")
			if err := build(program, "-overlay="+overlay(t, wrong.file, wrong.line, wrong.by)); err != nil {
				t.Fatal(err)
			}
			for seed := range 5 {
				if history, err := record(t, program, uint64(seed)); err != nil || check(history) == porcupine.Illegal {
					return
				}
			}
			t.Error("nothing is found")
		})
	}
}

// overlay replaces a line of a file of the main module for a build, which is told so by the
// file that is returned.
func overlay(t *testing.T, file, line, by string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root(), file))
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(code, []byte(line)); n != 1 {
		t.Fatalf("%s has %d lines %q, want one: name another", file, n, line)
	}
	dir := t.TempDir()
	changed, replace := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{changed: bytes.Replace(code, []byte(line), []byte(by), 1), replace: text} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(fmt.Errorf("overlay: %w", err))
		}
	}
	return replace
}
