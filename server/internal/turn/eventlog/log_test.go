package eventlog

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func addNote(e *Log, text string) {
	e.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: text}}})
}

// addText adds a text that does not continue the one before, so that readers do not merge them.
func addText(e *Log, text string) { e.AddText(text, -e.next) }

// addReasoning and addArguments do the same for other deltas.
func addReasoning(e *Log, text string) { e.AddReasoning(text, -e.next) }

func addArguments(e *Log, text string) {
	e.AddArguments(&Call{ID: "c", Name: strings.Repeat("n", 100)}, text, -e.next)
}

// addCall adds the first delta of a call with this name.
func addCall(e *Log, name string) { e.AddArguments(&Call{Name: name}, "", 0) }

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
		{"reasoning by number", addReasoning, MaxEvents + 10, "", 11},
		{"reasoning by bytes", addReasoning, 3, strings.Repeat("x", MaxBytes-100), 3},
		{"arguments by number", addArguments, MaxEvents + 10, "", 11},
		{
			"short arguments by bytes", addArguments, 10_000, strings.Repeat("x", 1000),
			10_001 - MaxBytes/(1000+overheadBytes),
		},
		{
			"names of calls by bytes", addCall, 10_000, strings.Repeat("x", 1000),
			10_001 - MaxBytes/(1000+overheadBytes+callOverheadBytes),
		},
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

// TestConcurrentReaders: readers from different indexes receive the same text, without a gap or a
// duplicate, whether it is merged or not.
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
			last := from
			for event, err := range e.Read(t.Context(), from) {
				delta := event.GetTextDelta()
				if err != nil || delta.GetOffset() != last || event.GetTurnId() != "turn" ||
					event.GetIndex() != last+int32(len(delta.GetText())) {
					read <- errors.Join(fmt.Errorf("after event %d: %v", last, event), err)
					return
				}
				last = event.GetIndex()
			}
			if last != total {
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

// TestMerge: a late reader receives texts that follow one another as one event, up to maxMergedBytes, with
// the index of the last. A reader that keeps up receives each text.
func TestMerge(t *testing.T) {
	large := strings.Repeat("x", maxMergedBytes)
	note := func(l *Log) { addNote(l, "n") }
	texts := func(offset int, pieces ...string) func(l *Log) {
		return func(l *Log) {
			at := offset
			for _, text := range pieces {
				l.AddText(text, int32(at))
				at += len(text)
			}
		}
	}
	a, b := &Call{Index: 0, ID: "a", Name: "f"}, &Call{Index: 1, ID: "b", Name: "f"}
	pieces := func(add func(l *Log, text string, offset int32), offset int, pieces ...string) func(l *Log) {
		return func(l *Log) {
			for _, text := range pieces {
				add(l, text, int32(offset))
				offset += len(text)
			}
		}
	}
	reasoning := func(offset int, texts ...string) func(l *Log) {
		return pieces(func(l *Log, text string, at int32) { l.AddReasoning(text, at) }, offset, texts...)
	}
	arguments := func(call *Call, offset int, texts ...string) func(l *Log) {
		return pieces(func(l *Log, text string, at int32) { l.AddArguments(call, text, at) }, offset, texts...)
	}
	for _, test := range []struct {
		name string
		adds []func(l *Log)
		late []string // what the late reader receives
	}{
		{"one text", []func(l *Log){texts(0, "a")}, []string{`1 "a" at 0`}},
		{"texts", []func(l *Log){texts(0, "a", "größer", "c")}, []string{`3 "agrößerc" at 0`}},
		{"empty texts", []func(l *Log){texts(0, "", "a", "", "b")}, []string{`4 "ab" at 0`}},
		{"apart", []func(l *Log){texts(0, "a", "b"), note, texts(2, "c", "d")}, []string{`2 "ab" at 0`, "3", `5 "cd" at 2`}},
		{"after a note", []func(l *Log){note, texts(5, "a", "b")}, []string{"1", `3 "ab" at 5`}}, // The note has 5 bytes.
		{"before a note", []func(l *Log){texts(0, ""), note}, []string{`1 "" at 0`, "2"}},
		{"of two messages", []func(l *Log){texts(0, "a", "b"), texts(0, "c")}, []string{`2 "ab" at 0`, `3 "c" at 0`}},
		{
			"as much as possible",
			[]func(l *Log){texts(0, large[:4000], large[:96], "y")},
			[]string{fmt.Sprintf("2 %q at 0", large), `3 "y" at 4096`},
		},
		{
			"too much",
			[]func(l *Log){texts(0, large[:4000], large[:97])},
			[]string{fmt.Sprintf("1 %q at 0", large[:4000]), fmt.Sprintf("2 %q at 4000", large[:97])},
		},
		{
			"a large text",
			[]func(l *Log){texts(0, large+large, "y", "z")},
			[]string{fmt.Sprintf("1 %q at 0", large+large), `3 "yz" at 8192`},
		},
		{
			"reasoning, then text",
			[]func(l *Log){reasoning(0, "a", "b"), texts(0, "c", "d"), reasoning(2, "e", "f")},
			[]string{`2 reasoning "ab" at 0`, `4 "cd" at 0`, `6 reasoning "ef" at 2`},
		},
		{
			"arguments of two calls",
			[]func(l *Log){arguments(a, 0, "", "{", "}"), arguments(b, 0, "[", "]"), arguments(a, 2, "x"), texts(0, "y")},
			[]string{`3 a "{}" at 0`, `5 b "[]" at 0`, `6 a "x" at 2`, `7 "y" at 0`},
		},
		{
			"as much reasoning as possible",
			[]func(l *Log){reasoning(0, large[:4000], large[:96], "y")},
			[]string{fmt.Sprintf("2 reasoning %q at 0", large), `3 reasoning "y" at 4096`},
		},
		{"more than a batch", []func(l *Log){texts(0, strings.Split(large[:readBatch+2], "")...)}, []string{
			fmt.Sprintf("%d %q at 0", readBatch, large[:readBatch]), fmt.Sprintf(`%d "xx" at %d`, readBatch+2, readBatch),
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := New("turn", "tenant", "c", nil)
			next, stop := iter.Pull2(l.Read(t.Context(), 0))
			defer stop()
			single := New("turn", "tenant", "c", nil) // Its reader keeps up.
			singleNext, stopSingle := iter.Pull2(single.Read(t.Context(), 0))
			defer stopSingle()
			for _, add := range test.adds {
				add(l)
			}
			l.End(nil)
			var got []string
			for event, err, ok := next(); ok; event, err, ok = next() {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, describe(event))
			}
			if diff := cmp.Diff(test.late, got); diff != "" {
				t.Errorf("events of a late reader (-want +got):\n%s", diff)
			}
			for i, n := range l.retained {
				single.AddEncoded(n, nil)
				event, err, _ := singleNext()
				if want := n.decode("turn", int32(i+1)); err != nil || !proto.Equal(want, event) {
					t.Errorf("event %d of a reader that keeps up = %v, %v, want %v", i+1, event, err, want)
				}
			}
		})
	}
}

// describe returns the index of an event, and its text and offset if it has text.
func describe(e *parleyv1.TurnEvent) string {
	if delta := e.GetTextDelta(); delta != nil {
		return fmt.Sprintf("%d %q at %d", e.GetIndex(), delta.GetText(), delta.GetOffset())
	}
	if delta := e.GetReasoningDelta(); delta != nil {
		return fmt.Sprintf("%d reasoning %q at %d", e.GetIndex(), delta.GetText(), delta.GetOffset())
	}
	if delta := e.GetToolCallDelta(); delta != nil {
		return fmt.Sprintf("%d %s %q at %d", e.GetIndex(), delta.GetId(), delta.GetArguments(), delta.GetOffset())
	}
	return fmt.Sprint(e.GetIndex())
}
