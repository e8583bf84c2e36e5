package turn

import (
	"errors"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func delta(text string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: text}}}
}

// Promise 12, for one turn: whatever an agent sends, so much is kept of its events, and a
// reader that comes too late is told.
func TestEventsAreBounded(t *testing.T) {
	tests := []struct {
		name   string
		add    int
		text   string
		oldest int32
	}{
		{"by number", maxEvents + 10, "", 11},
		{"by bytes", 3, strings.Repeat("x", maxEventBytes-100), 3},
		{"one alone is kept", 1, strings.Repeat("x", maxEventBytes+1), 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := newEvents()
			for range test.add {
				e.add(delta(test.text))
			}
			e.end(nil)
			if test.oldest > 1 {
				var gone *EventsGoneError
				for _, err := range e.read(t.Context(), 0) {
					if !errors.As(err, &gone) || gone.Oldest != test.oldest {
						t.Fatalf("read from the start: %v, want the oldest to be %d", err, test.oldest)
					}
				}
			}
			next := test.oldest
			for event, err := range e.read(t.Context(), test.oldest-1) {
				if err != nil || event.GetIndex() != next {
					t.Fatalf("event %d, want %d (%v)", event.GetIndex(), next, err)
				}
				next++
			}
			if int(next) != test.add+1 {
				t.Errorf("read up to %d of %d", next-1, test.add)
			}
		})
	}
}

// Many readers from many points see the same events, without gap or double.
func TestEventsForManyReaders(t *testing.T) {
	const total = 1000
	e := newEvents()
	read := make(chan error)
	for range 20 { // Nobody begins behind the newest.
		e.add(delta("x"))
	}
	for from := range int32(20) {
		go func() {
			next := from + 1
			for event, err := range e.read(t.Context(), from) {
				if err != nil || event.GetIndex() != next {
					read <- errors.Join(errors.New("gap or double"), err)
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
	for range total - 20 {
		e.add(delta("x"))
	}
	e.end(nil)
	for range 20 {
		if err := <-read; err != nil {
			t.Error(err)
		}
	}
}
