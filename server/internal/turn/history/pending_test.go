package history

import (
	"errors"
	"testing"
)

func TestPending(t *testing.T) {
	tests := []struct {
		name    string
		history string
		want    int32 // sequence of the message; 0 if there is none
	}{
		{"no messages", "", 0},
		{"a question", "u", 1},
		{"two questions", "u u", 2},
		{"system messages only", "s s", 0},
		{"a question before a system message", "u s", 1},
		{"answered", "u a", 0},
		{"answered by another turn", "u a! u a/x", 0},
		{"an incomplete answer", "u a!", 1},
		{"an incomplete answer after a complete one", "u a u a/x!", 3},
		{"an incomplete answer of two agents", "u a a!", 1},
		{"answered before an incomplete answer", "u a/x a!", 0},
		{"a result of a client", "u a1 r1", 3},
		{"results of a client", "u a12 r1 r2", 4},
		{"an incomplete answer to a result", "u a1 r1 a/x!", 3},
		{"a result of a complete turn", "u a1 o1", 0},
		{"a result of an incomplete turn", "u a1! o1", 3},
		{"a result of an incomplete turn, with an answer after it", "u a1 o1 a!", 3},
		{"a result of another turn", "u a/x! o1/y", 0},
		{"a result without other messages", "o1", 0},
		{"a result of a turn whose messages are missing", "u o1", 0},
	}
	for _, test := range tests {
		got, err := Pending(parse(test.history))
		if got.GetSequence() != test.want || (test.want == 0) != errors.Is(err, ErrNothingToAnswer) {
			t.Errorf("%s: Pending(%q) = %v, %v, want message %d", test.name, test.history, got, err, test.want)
		}
	}
}
