package agent_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/agent"
)

// TestReplace checks that a replaced agent is closed when no turn holds it any more, and not before.
func TestReplace(t *testing.T) {
	var closed, reported []string
	report := func(name string, err error) { reported = append(reported, fmt.Sprint(name, " ", err)) }
	entry := func(name string, err error) agent.Entry {
		return agent.Entry{Name: name, Agent: closer{&closed, name, err}}
	}
	wantClosed := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, closed); diff != "" {
			t.Errorf("%s: closed agents (-want +got):\n%s", when, diff)
		}
	}
	set := newSet(t, entry("kept", nil), entry("used", errors.New("broken")), entry("unused", nil))
	kept, used := *set.Default(), get(t, set, "used")
	for range 2 {
		if !set.Hold(used) {
			t.Fatal("Hold of a configured agent = false, want true")
		}
	}

	kept.Name = "renamed"
	set.Replace(newSet(t, kept, entry("new", nil)), report)
	wantClosed("after Replace", "unused")
	if diff := cmp.Diff([]string{"new", "renamed"}, set.Names()); diff != "" {
		t.Errorf("Names() (-want +got):\n%s", diff)
	}
	if set.Hold(used) {
		t.Error("Hold of a replaced agent = true, want false")
	}
	set.Release(used)
	wantClosed("after the first Release", "unused")
	set.Release(used)
	wantClosed("after the last Release", "unused", "used")
	if diff := cmp.Diff([]string{"unused <nil>", "used broken"}, reported); diff != "" {
		t.Errorf("reported closes (-want +got):\n%s", diff)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	wantClosed("after Close", "unused", "used", "new", "kept")
}

// TestCloseAfterReplace checks that Close closes a replaced agent that a turn still holds.
func TestCloseAfterReplace(t *testing.T) {
	var closed []string
	set := newSet(t, agent.Entry{Name: "a", Agent: closer{&closed, "a", nil}})
	set.Hold(set.Default())
	set.Replace(newSet(t, agent.Entry{Name: "b", Agent: closer{&closed, "b", nil}}), nil)
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"b", "a"}, closed); diff != "" {
		t.Errorf("closed agents (-want +got):\n%s", diff)
	}
}

// newSet returns a set whose default agent is the first one.
func newSet(t *testing.T, entries ...agent.Entry) *agent.Set {
	t.Helper()
	set, err := agent.NewSet(entries[0].Name, entries)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func get(t *testing.T, set *agent.Set, name string) *agent.Entry {
	t.Helper()
	entry, ok := set.Get(name)
	if !ok {
		t.Fatalf("Get(%q) = none, want an agent", name)
	}
	return entry
}
