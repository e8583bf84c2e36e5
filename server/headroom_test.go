package main

import (
	"runtime"
	"runtime/metrics"
	"testing"
)

func TestHeadroom(t *testing.T) {
	goal := func() int64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		return int64(sample[0].Value.Uint64())
	}
	before := goal()
	for _, test := range []struct {
		name    string
		environ []string
		want    bool
	}{
		{"of itself", []string{"HOME=/", "GOGCX=1"}, true},
		{"GOGC", []string{"GOGC=50"}, false},
		{"GOMEMLIMIT", []string{"GOMEMLIMIT=100MiB"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			room := newHeadroom(test.environ)
			if got := goal()-before >= headroomBytes; got != test.want {
				t.Errorf("room: %v, want %v", got, test.want)
			}
			room.release()
		})
	}
	if after := goal(); after-before >= headroomBytes {
		t.Errorf("the heap may grow to %d bytes in the end, %d at first", after, before)
	}
}
