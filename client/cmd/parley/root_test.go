package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestDurations checks that flags have the syntax of the server's settings. The tests of the settings read
// the same file.
func TestDurations(t *testing.T) {
	table, err := os.ReadFile("../../../server/internal/config/testdata/durations.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		text, want, found := strings.Cut(strings.TrimSuffix(line, "\n"), " = ")
		if !found {
			continue // a comment
		}
		got := duration(-1)
		switch err := got.Set(text); {
		case want == "-" && (err == nil || got != -1):
			t.Errorf("Set(%q) = %v, error %v; want an error and no change", text, time.Duration(got), err)
		case want != "-" && (err != nil || time.Duration(got).String() != want):
			t.Errorf("Set(%q) = %v, error %v; want %s", text, time.Duration(got), err, want)
		}
	}
}
