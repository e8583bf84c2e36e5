package main

import (
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	tests := map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "7d": 7 * 24 * time.Hour, "0": 0, "-1d": -24 * time.Hour, "0d": 0,
	}
	for text, want := range tests {
		var got duration
		if err := got.Set(text); err != nil || time.Duration(got) != want {
			t.Errorf("Set(%q) = %v, error %v; want %v", text, time.Duration(got), err, want)
		}
	}
	for _, text := range []string{"", "d", "7", "1.5d", "1d12h", "7days", "2000000000d"} {
		got := duration(time.Hour)
		if err := got.Set(text); err == nil || got != duration(time.Hour) {
			t.Errorf("Set(%q) = %v, want an error", text, time.Duration(got))
		}
	}
}
