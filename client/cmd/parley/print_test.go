package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestRelative(t *testing.T) {
	now := time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		distance time.Duration
		want     string
	}{
		{0, "now"},
		{999 * time.Millisecond, "now"},
		{-999 * time.Millisecond, "now"},
		{-time.Second, "1s ago"},
		{-59 * time.Second, "59s ago"},
		{-time.Minute, "1m ago"},
		{-59*time.Minute - 59*time.Second, "59m ago"},
		{time.Hour, "in 1h"},
		{47 * time.Hour, "in 47h"},
		{48 * time.Hour, "in 2d"},
		{-366 * 24 * time.Hour, "366d ago"},
	}
	for _, test := range tests {
		if got := relative(now, now.Add(test.distance)); got != test.want {
			t.Errorf("relative(now, now+%v) = %q, want %q", test.distance, got, test.want)
		}
	}
}

func TestTableAlignsCells(t *testing.T) {
	var got strings.Builder
	table(&got, []string{"ID", "TITLE"}, []string{"a", "two\nlines\tand \x1b[31mred\xff"}, []string{"long-id", "世界"})
	want := "ID       TITLE\na        two lines and \uFFFD[31mred\uFFFD\nlong-id  世界\n"
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// TestFittedTables checks that a table is made as wide as the terminal, at the cost of its texts only.
func TestFittedTables(t *testing.T) {
	id := strings.Repeat("x", 36)
	rows := func(cells ...string) [][]string {
		return [][]string{{"ID", "EXPIRES", "AGENT", "TITLE", "PREVIEW"}, append([]string{id, "in 57m"}, cells...)}
	}
	tests := []struct {
		name  string
		width int
		rows  [][]string
		want  [][]string
	}{
		{"no terminal", 0, rows("", "", strings.Repeat("p", 50)), rows("", "", strings.Repeat("p", 50))},
		{"it fits", 104, rows("", "", strings.Repeat("p", 41)), rows("", "", strings.Repeat("p", 41))},
		{
			"empty columns are left out first",
			80, rows("", "", strings.Repeat("p", 31)),
			[][]string{{"ID", "EXPIRES", "PREVIEW"}, {id, "in 57m", strings.Repeat("p", 31)}},
		},
		{
			"the widest is shortened",
			80, rows("", strings.Repeat("t", 30), "a preview\nof two"),
			[][]string{{"ID", "EXPIRES", "TITLE", "PREVIEW"}, {id, "in 57m", "tttttttttttttt…", "a preview of two"}},
		},
		{
			"the last is left out",
			64, rows("writer", strings.Repeat("t", 30), strings.Repeat("p", 50)),
			[][]string{{"ID", "EXPIRES", "AGENT", "TITLE"}, {id, "in 57m", "writer", "ttttttt…"}},
		},
		{"ids stay complete", 20, rows("writer", "title", "preview"), [][]string{{"ID", "EXPIRES"}, {id, "in 57m"}}},
	}
	for _, test := range tests {
		got := fitted(test.width, test.rows, "AGENT", "TITLE", "PREVIEW")
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: fitted(%d, %v) (-want +got):\n%s", test.name, test.width, test.rows, diff)
		}
	}
}

// TestIDsInOutput checks that an id is printed so that it can be used again.
func TestIDsInOutput(t *testing.T) {
	for _, test := range []struct{ id, oneLine, argument string }{
		{"shop", "shop", "shop"},
		{"user@example.com", "user@example.com", "user@example.com"},
		{"app/1", "app/1", "app/1"},
		{"ü", "ü", "'ü'"},
		{"a  b", "a  b", "'a  b'"},
		{"a\u00a0\u3000b", "a\u00a0\u3000b", "'a\u00a0\u3000b'"},
		{"it's", "it's", `'it'\''s'`},
		{"-x", "-x", "-- -x"},
		{"--a b", "--a b", "-- '--a b'"},
		{"a\u202eb", "a\uFFFDb", "'a\u202eb'"},
		{" a \n\n b\t\u2028c\r\n", "a b c", "' a \n\n b\t\u2028c\r\n'"},
	} {
		if got := oneLine(test.id); got != test.oneLine {
			t.Errorf("oneLine(%q) = %q, want %q", test.id, got, test.oneLine)
		}
		if got := argument(test.id); got != test.argument {
			t.Errorf("argument(%q) = %q, want %q", test.id, got, test.argument)
		}
	}
}

func TestDescribeTools(t *testing.T) {
	call := &parleyv1.ToolCall{Id: "c1", Name: "price", Arguments: "{}"}
	if got, want := describeCall(call), "tool call price c1: {}"; got != want {
		t.Errorf("describeCall(%v) = %q, want %q", call, got, want)
	}
	for _, test := range []struct {
		result *parleyv1.ToolResult
		want   string
	}{
		{&parleyv1.ToolResult{CallId: "c1", Name: "price", Content: "50"}, "tool result price c1: 50"},
		{&parleyv1.ToolResult{CallId: "c1", Content: "50"}, "tool result c1: 50"},
		{&parleyv1.ToolResult{CallId: "c1", Content: "no", IsError: true}, "tool failure c1: no"},
	} {
		if got := describeResult(test.result); got != test.want {
			t.Errorf("describeResult(%v) = %q, want %q", test.result, got, test.want)
		}
	}
}

func TestShortCutsCharacters(t *testing.T) {
	for text, want := range map[string]string{"": "", "äöü": "äöü", "äöüß": "äö…"} {
		if got := short(text, 3); got != want {
			t.Errorf("short(%q, 3) = %q, want %q", text, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	tests := map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1 << 20: "1.0 MiB", 5 << 30: "5120.0 MiB",
	}
	for bytes, want := range tests {
		if got := size(bytes); got != want {
			t.Errorf("size(%d) = %q, want %q", bytes, got, want)
		}
	}
}

// fullDisk is a writer that always fails.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestWriteErrorsAreReturned(t *testing.T) {
	event := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: "hello"}}}
	for _, output := range []string{"table", "json"} {
		a := &app{console: console{out: fullDisk{}, err: fullDisk{}}, output: output}
		if a.printLine(event) == nil || a.showEvent(event, &view{}) == nil ||
			a.print(event, func(w io.Writer) { fmt.Fprint(w, "hello") }) == nil {
			t.Errorf("--output %s: print functions returned nil, want an error", output)
		}
	}
}
