package turn

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
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

// checkMemory compares the counted bytes with the growth of the heap.
func checkMemory(t *testing.T, counted, grown int) {
	t.Helper()
	if ratio := float64(grown) / float64(counted); ratio > maxMemoryRatio || ratio < 1/maxMemoryRatio {
		t.Errorf("counted %d bytes, live %d: ratio %.2f, want at most %.2f, or its inverse", counted, grown, ratio,
			maxMemoryRatio)
	}
}

// nullValues returns a value of n of the smallest parts, which takes twenty times its encoded size
// in memory.
func nullValues(n int) *parleyv1.StructuredData {
	list := &structpb.ListValue{}
	for range n {
		list.Values = append(list.Values, structpb.NewNullValue())
	}
	return &parleyv1.StructuredData{Type: "t", Value: structpb.NewListValue(list)}
}

// TestMemoryOfRetainedTurns checks guarantee 12: the counted memory of retained turns is their real
// memory, whatever they consist of.
func TestMemoryOfRetainedTurns(t *testing.T) {
	data := func(n int) *parleyv1.RespondResponse {
		return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{StructuredData: nullValues(n)}}
	}
	for _, test := range []struct {
		name  string
		turns int
		count int // number of pieces
		piece func(i int) *parleyv1.RespondResponse
		data  *parleyv1.StructuredData
	}{
		{"one word", 1000, 1, func(int) *parleyv1.RespondResponse { return text(strings.Clone("a")) }, nil},
		{"short texts", 5, 10_000, func(int) *parleyv1.RespondResponse { return text(strings.Clone("four")) }, nil},
		{"long texts", 5, 10, func(int) *parleyv1.RespondResponse { return text(strings.Repeat("x", 50_000)) }, nil},
		{
			"more text than the event log retains", 3, 16,
			func(int) *parleyv1.RespondResponse { return text(strings.Repeat("x", 300_000)) }, nil,
		},
		{"notes", 5, 1000, func(i int) *parleyv1.RespondResponse { return note(fmt.Sprint("step ", i)) }, nil},
		{"a question of many values", 4, 1, func(int) *parleyv1.RespondResponse { return text("a") }, nullValues(10_000)},
		{"an answer of many values", 4, 1, func(int) *parleyv1.RespondResponse { return data(10_000) }, nil},
		{"small values", 10, 60, func(int) *parleyv1.RespondResponse { return data(1) }, nil},
		{"calls", 5, 500, func(i int) *parleyv1.RespondResponse { return call(fmt.Sprint(i)) }, nil},
		{"messages", 10, 200, func(i int) *parleyv1.RespondResponse {
			if i%2 == 0 {
				return text(strings.Clone("a"))
			}
			return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "main"}}
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			respond := func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
				for i := range test.count {
					if !yield(test.piece(i), nil) {
						return
					}
				}
			}
			f := newFixture(t, map[string]agent.Agent{"main": agentFunc(respond)},
				func(o *Options) { o.MaxAnswerBytes = 8 << 20 })
			for i := range test.turns {
				request := &parleyv1.ChatRequest{ConversationId: fmt.Sprint("c", i), Content: "q"}
				if test.data != nil {
					request.StructuredData = []*parleyv1.StructuredData{test.data}
				}
				_, err := readAll(f.Chat(t.Context(), tenant, request, nil))
				if errors.As(err, new(*EventsGoneError)) { // The agent was faster than its reader.
					_, err = readAll(f.Resume(t.Context(), tenant, request.GetConversationId(), "", 0))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			counted, full := f.retainedBytes, heapBytes()
			if n := f.retained.Len(); n != test.turns {
				t.Fatalf("retained turns = %d, want %d", n, test.turns)
			}
			f.releaseAll()
			checkMemory(t, counted, full-heapBytes())
		})
	}
}
