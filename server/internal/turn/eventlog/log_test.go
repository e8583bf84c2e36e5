package eventlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func addNote(e *Log, text string) {
	e.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: text}}})
}

func addText(e *Log, text string) { e.AddText(text, 0) }

// TestLimits checks guarantee 12 for one turn: the retained events are limited, and a
// reader that needs dropped events receives an error.
func TestLimits(t *testing.T) {
	tests := []struct {
		name   string
		add    func(e *Log, text string)
		count  int
		text   string
		oldest int32
	}{
		{"texts by number", addText, MaxEvents + 10, "", 11},
		{"texts by bytes", addText, 3, strings.Repeat("x", MaxBytes-100), 3},
		{
			"short texts by bytes", addText, 10_000, strings.Repeat("x", 1000),
			10_001 - MaxBytes/(1000+overheadBytes),
		},
		{"one large text is retained", addText, 1, strings.Repeat("x", MaxBytes+1), 1},
		{"notes by number", addNote, MaxEvents + 10, "", 11},
		{"notes by bytes", addNote, 3, strings.Repeat("x", MaxBytes-100), 3},
		{"one large note is retained", addNote, 1, strings.Repeat("x", MaxBytes+1), 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := New("turn", "tenant", "c", nil)
			for range test.count {
				test.add(e, test.text)
			}
			e.End(nil)
			if test.oldest > 1 {
				var goneErr *GoneError
				for _, err := range e.Read(t.Context(), 0) {
					if !errors.As(err, &goneErr) || goneErr.Oldest != test.oldest {
						t.Fatalf("Read(0): error = %v, want GoneError with Oldest %d", err, test.oldest)
					}
				}
			}
			next := test.oldest
			for event, err := range e.Read(t.Context(), test.oldest-1) {
				if err != nil || event.GetIndex() != next {
					t.Fatalf("Read yields event %d, want %d (%v)", event.GetIndex(), next, err)
				}
				next++
			}
			if int(next) != test.count+1 {
				t.Errorf("Read ended at event %d of %d", next-1, test.count)
			}
		})
	}
}

// TestConcurrentReaders: readers from different indexes receive the same events, without a
// gap or a duplicate.
func TestConcurrentReaders(t *testing.T) {
	const total, readers = 1000, 20
	e := New("turn", "tenant", "c", nil)
	add := func(from, to int32) {
		for i := from; i < to; i++ {
			e.AddText("x", i)
		}
	}
	add(0, readers) // No reader starts after the newest event.
	read := make(chan error)
	for from := range int32(readers) {
		go func() {
			next := from + 1
			for event, err := range e.Read(t.Context(), from) {
				if err != nil || event.GetIndex() != next || event.GetTextDelta().GetOffset() != next-1 ||
					event.GetTurnId() != "turn" {
					read <- errors.Join(fmt.Errorf("event %d is %v", next, event), err)
					return
				}
				next++
			}
			if next != total+1 {
				read <- errors.New("ended early")
				return
			}
			read <- nil
		}()
	}
	add(readers, total)
	e.End(nil)
	for range readers {
		if err := <-read; err != nil {
			t.Error(err)
		}
	}
}
