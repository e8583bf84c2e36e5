package eventlog

import (
	"runtime"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// heapBytes returns the size of live objects.
func heapBytes() int {
	runtime.GC()
	runtime.GC() // The second run frees objects of finalizers and pools.
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// TestMemory checks guarantee 12 for a running turn: the counted memory of events is their real
// memory, even if a value has many small parts.
func TestMemory(t *testing.T) {
	const maxRatio = 1.5
	list := &structpb.ListValue{}
	for range 10_000 {
		list.Values = append(list.Values, structpb.NewNullValue())
	}
	data := &parleyv1.StructuredData{Type: "t", Value: structpb.NewListValue(list)}
	l := New("turn", "tenant", "c", nil)
	empty := heapBytes()
	for range 5 {
		l.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_StructuredData{StructuredData: data}})
	}
	grown, counted := heapBytes()-empty, l.Memory()
	if ratio := float64(grown) / float64(counted); ratio > maxRatio || ratio < 1/maxRatio {
		t.Errorf("counted %d bytes, live %d: ratio %.2f, want at most %.2f, or its inverse", counted, grown, ratio, maxRatio)
	}
	runtime.KeepAlive(l)
	runtime.KeepAlive(data)
}
