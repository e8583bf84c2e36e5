package app

import (
	"runtime"
	"runtime/metrics"
	"testing"
)

func TestGCBallast(t *testing.T) {
	heapGoal := func() int64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		return int64(sample[0].Value.Uint64())
	}
	before := heapGoal()
	for _, test := range []struct {
		name    string
		environ []string
		want    bool
	}{
		{"default", []string{"HOME=/", "GOGCX=1"}, true},
		{"GOGC", []string{"GOGC=50"}, false},
		{"GOMEMLIMIT", []string{"GOMEMLIMIT=100MiB"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			ballast := newGCBallast(test.environ)
			if got := heapGoal()-before >= gcBallastBytes; got != test.want {
				t.Errorf("heap goal raised by the ballast = %v, want %v", got, test.want)
			}
			ballast.release()
		})
	}
	if after := heapGoal(); after-before >= gcBallastBytes {
		t.Errorf("heap goal after release = %d bytes, want about %d as before", after, before)
	}
}
