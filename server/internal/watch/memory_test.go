package watch_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// heapBytes returns the size of live objects.
func heapBytes() int {
	runtime.GC()
	runtime.GC() // The second run frees objects of finalizers and pools.
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// maxMemoryRatio is the maximum ratio of counted to live bytes, and of live to counted bytes.
const maxMemoryRatio = 1.5

// heavyEvent returns an event with a value of many small parts, which takes twenty times its
// encoded size in memory.
func heavyEvent(index int32) *parleyv1.TurnEvent {
	list := &structpb.ListValue{}
	for range 5000 {
		list.Values = append(list.Values, structpb.NewNullValue())
	}
	return &parleyv1.TurnEvent{TurnId: "turn", Index: index, Event: &parleyv1.TurnEvent_StructuredData{
		StructuredData: &parleyv1.StructuredData{Type: "t", Value: structpb.NewListValue(list)},
	}}
}

// updatedChange returns the change of a header with this number of labels.
func updatedChange(version int32, labels int) store.Change {
	c := &parleyv1.Conversation{
		Id: "c", Uid: strings.Clone("00000000-0000-4000-8000-000000000000"), Version: version, LastSequence: version,
		CreateTime: timestamppb.Now(), UpdateTime: timestamppb.Now(), ExpireTime: timestamppb.Now(),
		LastAppendTime: timestamppb.Now(),
		Retention:      &parleyv1.Retention{MaxMessages: 20}, Labels: make(map[string]string),
	}
	for i := range labels {
		c.Labels[fmt.Sprint("key", i)] = fmt.Sprint(i)
	}
	return store.Change{
		Tenant: "t", ConversationID: "c", Version: version, Time: time.Now(), Kind: parleyv1.ChangeKind_CHANGE_KIND_UPDATED,
		Conversation: c,
	}
}

// TestMemoryOfRetainedEntries: the counted memory of retained entries is their real memory, for
// every kind of change, whether a watcher has received it or not.
func TestMemoryOfRetainedEntries(t *testing.T) {
	for _, test := range []struct {
		name  string
		count int
		add   func(h *watch.Hub, i int)
	}{
		{"values in turns", 200, func(h *watch.Hub, i int) { h.TurnEvent("t", "c", heavyEvent(int32(i))) }},
		{"texts in turns", 5000, func(h *watch.Hub, i int) { h.TurnEvent("t", "c", textEvent(int32(i))) }},
		{"headers", 5000, func(h *watch.Hub, i int) { h.Committed([]store.Change{updatedChange(int32(i), 0)}) }},
		{"headers with labels", 2000, func(h *watch.Hub, i int) { h.Committed([]store.Change{updatedChange(int32(i), 64)}) }},
		{"short messages", 5000, func(h *watch.Hub,
			i int,
		) {
			h.Committed([]store.Change{appendedChange("t", "c", int32(i), "hello")})
		}},
		{"long messages", 500, func(h *watch.Hub, i int) {
			h.Committed([]store.Change{appendedChange("t", "c", int32(i), strings.Repeat("x", 10_000))})
		}},
	} {
		for _, watched := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, watched %t", test.name, watched), func(t *testing.T) {
				h := watch.New(watch.Options{})
				slow := startWatch(t, h, watch.Watch{Tenant: "t", TurnEvents: true}) // Events are retained for it.
				defer slow.Stop()
				before := heapBytes()
				if watched {
					w := startWatch(t, h, watch.Watch{Tenant: "t", TurnEvents: true})
					for i := range test.count {
						test.add(h, i)
						for _, err := range w.All(t.Context(), closedChannel()) {
							if err != nil {
								t.Fatal(err)
							}
						}
					}
					w.Stop()
				} else {
					for i := range test.count {
						test.add(h, i)
					}
				}
				grown := heapBytes() - before
				_, changes, _, events := h.Retained()
				counted := changes + events
				if ratio := float64(grown) / float64(counted); ratio > maxMemoryRatio || ratio < 1/maxMemoryRatio {
					t.Errorf("counted %d bytes, live %d: ratio %.2f, want at most %.2f, or its inverse", counted, grown, ratio,
						maxMemoryRatio)
				}
				runtime.KeepAlive(h)
			})
		}
	}
}

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
