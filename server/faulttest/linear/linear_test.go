package linear

import (
	"cmp"
	"path/filepath"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/parleyhq/parley/server/parleydtest"
)

// TestLinear checks that the histories of a server which is killed from time to time are linearizable.
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
	t.Logf("%d calls, %d of them lost when the server was killed", operations, lost)
}

// TestWrongHistories is a control: the checker rejects histories with one wrong answer.
func TestWrongHistories(t *testing.T) {
	history, err := record(t, parleyd, 1)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(history, func(a, b operation) int { return cmp.Compare(a.began, b.began) })
	if result := check(history); result != porcupine.Ok {
		t.Fatalf("check of the recorded history = %v, want %v", result, porcupine.Ok)
	}
	for name, change := range map[string]struct {
		which func(call, answer) bool // The last matching call gets a wrong answer.
		to    func(*answer)
	}{
		"stale read": {
			func(c call, a answer) bool { return c.kind == "read" && len(a.contents) > 1 },
			func(a *answer) { a.contents = a.contents[:len(a.contents)-1] },
		},
		"read of content that was never written": {
			func(c call, a answer) bool { return c.kind == "read" && len(a.contents) > 0 },
			func(a *answer) { a.contents = append([]string{"never written"}, a.contents[1:]...) },
		},
		"append with a wrong version succeeds": {
			func(c call, a answer) bool { return c.kind == "append" && a.refused && c.ifVersion != a.version },
			func(a *answer) { a.refused = false },
		},
		"append with the right version is rejected": {
			func(c call, a answer) bool { return c.kind == "append" && c.ifVersion > 0 && !a.refused && !a.lost },
			func(a *answer) { *a = answer{refused: true, version: a.version - 1} },
		},
		"sequence used twice": {
			func(c call, a answer) bool { return c.kind == "append" && !a.refused && !a.lost },
			func(a *answer) { a.last-- },
		},
		"one conversation too many evicted": {
			func(_ call, a answer) bool { return len(a.listed) == maxConversations },
			func(a *answer) { a.listed = a.listed[:maxConversations-1] },
		},
		"wrong conversation evicted": {
			func(_ call, a answer) bool { return len(a.listed) == maxConversations },
			func(a *answer) { a.listed = append([]string{row("another", 1)}, a.listed[1:]...) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := slices.Clone(history)
			at := len(wrong) - 1
			for at >= 0 && !change.which(wrong[at].call, wrong[at].got) {
				at--
			}
			if at < 0 {
				t.Fatal("history has no such call")
			}
			got := wrong[at].got
			got.contents, got.listed = slices.Clone(got.contents), slices.Clone(got.listed)
			change.to(&got)
			wrong[at].got = got
			if result := check(wrong); result != porcupine.Illegal {
				t.Errorf("check with %+v answered by %+v = %v, want %v", wrong[at].call, got, result, porcupine.Illegal)
			}
		})
	}
}

// TestMemoryStore is a control: the checker rejects the history of a server that loses its store
// whenever it is killed.
func TestMemoryStore(t *testing.T) {
	history, err := record(t, parleyd, 1, "--store=memory")
	if err != nil {
		t.Fatal(err)
	}
	if result := check(history); result != porcupine.Illegal {
		t.Errorf("check of a server with a store in memory = %v, want %v", result, porcupine.Illegal)
	}
}

// TestWrongServers is a control: the checker rejects servers with one wrong line each.
func TestWrongServers(t *testing.T) {
	for name, wrong := range map[string]parleydtest.Change{
		"versions are not checked": {
			File:   "store/internal/record/write.go",
			Before: "if a.IfVersion != nil && *a.IfVersion != current {",
			After:  "if a.IfVersion != nil && *a.IfVersion > current {",
		},
		"one conversation too many": {
			File:   "store/boltstore/removal.go",
			Before: "excess := t.countsOf(tenant).Conversations + 1 - limit",
			After:  "excess := t.countsOf(tenant).Conversations - limit",
		},
		"one commit in fifty is rolled back": {
			File:   "store/boltstore/writer.go",
			Before: "return t.finish()",
			After:  "if err := t.finish(); err != nil || tx.ID()%50 != 0 { return err }; return boltfile.ErrUnchanged",
		},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "parleyd")
			if err := parleydtest.BuildChanged(t.Context(), program, wrong); err != nil {
				t.Fatal(err)
			}
			for seed := range 5 {
				if history, err := record(t, program, uint64(seed)); err != nil || check(history) == porcupine.Illegal {
					return
				}
			}
			t.Error("check of 5 histories = no violation, want one")
		})
	}
}
