package turn

import "testing"

// BenchmarkTextPiece is what a piece of text costs a turn, apart from what its readers and the
// store do. Nothing but text is held to rules, so it must not notice them.
func BenchmarkTextPiece(b *testing.B) {
	const pieces = 10_000 // An answer; its events are the newest of them.
	piece := text("a piece, ")
	b.ReportAllocs()
	for n := 0; n < b.N; n += pieces {
		a := newAnswer("t", 1<<20, newEventLog("t", key{}, nil))
		a.setAgent("main")
		for range pieces {
			if err := a.addPiece(piece); err != nil {
				b.Fatal(err)
			}
		}
	}
}
