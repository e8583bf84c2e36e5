package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestTable compares a table with testdata/table.md. Its goals are met, missed and not measured, and one
// competitor is not installed.
func TestTable(t *testing.T) {
	r := &report{
		settings: settings{
			rounds: 3, slice: time.Second, conversations: 100_000, small: 1000, large: 1_000_000, expired: 100_000,
			date: "2026-01-02",
		},
		processors:    2,
		machineMemory: "8 GB",
		goVersion:     "go1.26.0",
		targets: []*target{
			{name: service, version: "parleyd v1"},
			{name: sizedName(1_000_000), version: "parleyd v1"},
			{name: etcdTransaction, version: "etcd 3"},
			{name: redisAlways, missing: &missingError{program: "redis-server", pkg: "redis-server"}},
		},
		measurements: []*measurement{
			{operation: appending, name: service, callers: 64, rates: []float64{120, 60, 240}},
			{operation: appendingSizes, name: sizedName(1_000_000), callers: 64, rates: []float64{60, 30, 120}},
			{operation: appendingSizes, name: sizedName(100_000), callers: 64, rates: []float64{120, 60, 240}},
			{operation: appending, name: etcdTransaction, callers: 64, rates: []float64{100, 50, 100}},
			{operation: reading, name: service, callers: 1, rates: []float64{10, 11, 12}},
			{operation: reading, name: etcdTransaction, callers: 1, rates: []float64{5, 5, 5}},
		},
		quiet: []float64{0.010, 0.010, 0.010}, sweeping: []float64{0.010, 0.014, 0.012},
		starts: []float64{5, 6, 7}, memory: 299e6, filled: 90 * time.Second,
		notes: []string{"A note of this run."},
	}
	var got strings.Builder
	if err := r.write(&got); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/table.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("write() (-want +got):\n%s", diff)
	}
}
