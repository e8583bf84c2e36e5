package agent_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// closer is an agent that only records calls of Close.
type closer struct {
	closed *[]string
	name   string
	err    error
}

func (c closer) Respond(context.Context, *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return nil
}

func (c closer) Close() error {
	*c.closed = append(*c.closed, c.name)
	return c.err
}

func TestSet(t *testing.T) {
	var closed []string
	entries := []agent.Entry{
		{Name: "writer", Kind: "command", Description: "Writes.", Agent: closer{&closed, "writer", nil}},
		{Name: "Zoë", Kind: "remote", Agent: closer{&closed, "Zoë", errors.New("connection lost")}},
		{Name: "echo", Kind: "echo", Agent: closer{&closed, "echo", errors.New("no echo")}},
	}
	set, err := agent.NewSet("writer", entries)
	if err != nil {
		t.Fatal(err)
	}
	entries[0].Kind = "changed by the caller afterwards"
	set.Names()[0] = "changed"

	if diff := cmp.Diff([]string{"Zoë", "echo", "writer"}, set.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	want := []*parleyv1.AgentInfo{
		{Name: "Zoë", Kind: "remote"},
		{Name: "echo", Kind: "echo"},
		{Name: "writer", Kind: "command", Description: "Writes.", IsDefault: true},
	}
	if diff := cmp.Diff(want, set.Infos(), protocmp.Transform()); diff != "" {
		t.Errorf("infos (-want +got):\n%s", diff)
	}
	if got := set.Default(); got.Name != "writer" {
		t.Errorf("Default() = %q, want writer", got.Name)
	}
	if got, ok := set.Get("Zoë"); !ok || got.Kind != "remote" {
		t.Errorf(`Get("Zoë") = %v, %v, want kind remote`, got, ok)
	}
	if got, ok := set.Get("ZOË"); ok {
		t.Errorf(`Get("ZOË") = %v, want none: names are case-sensitive`, got)
	}

	err = set.Close()
	if diff := cmp.Diff([]string{"Zoë", "echo", "writer"}, closed); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
	if err == nil || err.Error() != "agent \"Zoë\": connection lost\nagent \"echo\": no echo" {
		t.Errorf("Close() = %v, want both errors", err)
	}
}

func TestNewSetFaults(t *testing.T) {
	ok := closer{new([]string), "", nil}
	tests := []struct {
		name        string
		defaultName string
		entries     []agent.Entry
		want        []string
	}{
		{"nothing", "", nil, []string{`default agent "" is not configured`}},
		{
			"unknown default", "b",
			[]agent.Entry{{Name: "a", Agent: ok}},
			[]string{`default agent "b" is not configured; configured agents: a`},
		},
		{"many", "c", []agent.Entry{
			{Agent: ok},
			{Name: "a", Agent: ok},
			{Name: "a", Agent: ok},
			{Name: strings.Repeat("x", 129), Agent: ok},
			{Name: "\xff", Agent: ok},
			{Name: "b"},
		}, []string{
			"agent 1 of 6 has no name",
			`agent "a" is configured twice`,
			"129 bytes, more than the limit of 128",
			`agent "\xff": the name is not valid UTF-8`,
			`agent "b" has no implementation`,
			`default agent "c"`,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			set, err := agent.NewSet(test.defaultName, test.entries)
			if set != nil || err == nil {
				t.Fatalf("NewSet = %v, %v, want an error", set, err)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(test.want) {
				t.Fatalf("NewSet = %d faults, want %d:\n%v", len(lines), len(test.want), err)
			}
			for i, want := range test.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("fault %d = %q, want one with %q", i, lines[i], want)
				}
			}
		})
	}
}
