package answer

import (
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

// BenchmarkTextPiece measures what a piece of text costs a turn, without its readers and the store.
// Text is not checked against rules, so rules must not add to it.
func BenchmarkTextPiece(b *testing.B) {
	const pieces = 10_000 // one answer; the event log retains the newest of its events
	piece := &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: "a piece, "}}
	b.ReportAllocs()
	for n := 0; n < b.N; n += pieces {
		a := New("t", 1<<20, eventlog.New("t", "tenant", "c", nil))
		a.SetAgent("main")
		for range pieces {
			if err := a.Add(piece); err != nil {
				b.Fatal(err)
			}
		}
	}
}
