package overlay

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

const key = "conversation"

// put puts an entry whose counts are the numbers of its operations so far.
func put(s *Set, index uint64) {
	s.Put(key, Entry{Counts: layout.Counts{Messages: int64(index)}, Head: []byte{byte(index)}}, 10, Operation{Index: index})
}

// wantEntry checks which operations a reader of a transaction sees on top of the file; nil if it sees the file alone.
func wantEntry(t *testing.T, v View, transaction int, want ...uint64) {
	t.Helper()
	e, err := v.Get([]byte(key), transaction)
	if err != nil {
		t.Fatalf("Get at %d: %v", transaction, err)
	}
	var got []uint64
	if e != nil {
		for _, o := range e.Operations {
			got = append(got, o.Index)
		}
		if newest := got[len(got)-1]; e.Head[0] != byte(newest) || e.Counts.Messages != int64(newest) {
			t.Errorf("at %d: head %v and %d messages after operation %d", transaction, e.Head, e.Counts.Messages, newest)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("at %d: operations %v, want %v", transaction, got, want)
	}
}

// TestViews checks what readers of earlier and later transactions see while a conversation is folded, rolled back and
// changed again.
func TestViews(t *testing.T) {
	s := NewSet()
	early := s.View()
	wantEntry(t, early, 5)
	put(s, 1)
	put(s, 2)
	wantEntry(t, early, 5, 1, 2)
	s.Fold(key, 7)
	wantEntry(t, early, 6, 1, 2)
	wantEntry(t, early, 7)
	s.Unfold(key, 7) // It was rolled back.
	wantEntry(t, early, 7, 1, 2)
	put(s, 3)
	wantEntry(t, early, 7, 1, 2, 3)
	s.Fold(key, 8)
	put(s, 4)
	wantEntry(t, early, 8, 4)
	if e, err := early.Get([]byte(key), 7); !errors.Is(err, ErrStale) || e == nil || e.Head[0] != 4 {
		t.Errorf("Get at 7 = %v, %v, want the newest head and %v", e, err, ErrStale)
	}
}

// TestGenerations checks that entries continue in the next generation, that views outlive theirs, and that no generation begins
// before the one before has ended.
func TestGenerations(t *testing.T) {
	s := NewSet()
	put(s, 1)
	if keys, through := s.Begin(1); !slices.Equal(keys, []string{key}) || through != 1 {
		t.Fatalf("keys %v through %d", keys, through)
	}
	view := s.View()
	wantEntry(t, view, 5, 1)
	put(s, 2)
	wantEntry(t, s.View(), 5, 1, 2)
	if current, folding := s.Bytes(); current != 10 || folding != 10 {
		t.Fatalf("bytes %d and %d", current, folding)
	}
	s.Fold(key, 6)
	wantEntry(t, view, 5, 1, 2)
	wantEntry(t, view, 6)
	s.End()
	wantEntry(t, view, 5, 1, 2)
	wantEntry(t, s.View(), 6)
	put(s, 3)
	wantEntry(t, s.View(), 6, 3)
	s.Begin(3)
	put(s, 4)
	early := s.View()
	if keys, through := s.Begin(4); !slices.Equal(keys, []string{key}) || through != 3 { // Without an end.
		t.Fatalf("keys %v through %d", keys, through)
	}
	wantEntry(t, s.View(), 6, 3, 4)
	if current, folding := s.Bytes(); current != 10 || folding != 20 {
		t.Fatalf("bytes %d and %d", current, folding)
	}
	s.Fold(key, 7)
	wantEntry(t, early, 7)
	wantEntry(t, early, 6, 3, 4)
	s.End()
	wantEntry(t, s.View(), 7)
}

// TestPutAfterTransaction checks that a reader of an earlier transaction does not apply operations to the file that build
// on a transaction, whether that folded an entry or not.
func TestPutAfterTransaction(t *testing.T) {
	for name, before := range map[string]func(*Set){
		"no entry":       func(*Set) {},
		"a folded entry": func(s *Set) { put(s, 1); s.Fold(key, 4) },
		"an ended generation": func(s *Set) {
			put(s, 1)
			s.Begin(1)
			s.Fold(key, 6)
			s.End()
		},
	} {
		s := NewSet()
		before(s)
		view := s.View()
		s.Put(key, Entry{Since: 6, Head: []byte{2}, Counts: layout.Counts{Messages: 2}}, 10, Operation{Index: 2})
		put(s, 3)
		if e, err := view.Get([]byte(key), 5); !errors.Is(err, ErrStale) {
			t.Errorf("Get at 5 after %s = %v, %v, want %v", name, e, err, ErrStale)
		}
		wantEntry(t, view, 6, 2, 3)
	}
}

// TestUnfoldKeepsEarlier checks that the end of a transaction does not undo the fold of an earlier one.
func TestUnfoldKeepsEarlier(t *testing.T) {
	s := NewSet()
	put(s, 1)
	s.Begin(1)
	view := s.View()
	s.Fold(key, 6)
	put(s, 2)
	s.Fold(key, 7)
	s.Unfold(key, 7)
	wantEntry(t, view, 6, 2)
	wantEntry(t, View{set: s, folding: s.folding}, 6) // The generation alone: the file has it.
}

// TestSince checks the time of the first entry that was put in the generations that have not ended.
func TestSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, start := NewSet(), time.Now()
		for i, step := range []struct {
			name string
			do   func()
			want int // minutes after the start; -1 if there is no entry
		}{
			{"nothing", func() {}, -1},
			{"put", func() { put(s, 1) }, 1},
			{"put again", func() { put(s, 2) }, 1},
			{"begin", func() { s.Begin(2) }, 1},
			{"put in the next generation", func() { put(s, 3) }, 1},
			{"begin without an end", func() { s.Begin(3) }, 1},
			{"put again in the next generation", func() { put(s, 4) }, 1},
			{"end", func() { s.End() }, 4},
			{"begin the last one", func() { s.Begin(4) }, 4},
			{"end the last one", func() { s.End() }, -1},
		} {
			<-time.After(time.Until(start.Add(time.Duration(i) * time.Minute)))
			step.do()
			want := start.Add(time.Duration(step.want) * time.Minute)
			if step.want < 0 {
				want = time.Time{}
			}
			if got := s.Since(); !got.Equal(want) {
				t.Errorf("Since after %q = %v, want %v", step.name, got, want)
			}
		}
	})
}

// TestHeadLimit checks that the heads have a limit, and that it does not fill up with heads that were replaced or folded.
func TestHeadLimit(t *testing.T) {
	s := NewSet()
	const size = 1 << 20
	heads := func(prefix string, n int) (kept int) {
		for i := range n {
			k := fmt.Sprint(prefix, i)
			s.Put(k, Entry{Head: make([]byte, size)}, 1, Operation{Index: 1})
			if e, err := s.View().Get([]byte(k), 1); err != nil || e == nil {
				t.Fatal(e, err)
			} else if e.Head != nil {
				kept++
			}
		}
		return kept
	}
	const most = maxHeadBytes / size
	if kept := heads("a", 2*most); kept != most {
		t.Errorf("%d heads, want %d", kept, most)
	}
	if kept := heads("a", most); kept != most {
		t.Errorf("%d heads after all were replaced, want %d", kept, most)
	}
	for i := range most / 2 {
		s.Fold(fmt.Sprint("a", i), 2)
	}
	if kept := heads("b", most); kept != most/2 {
		t.Errorf("%d heads after half were folded, want %d", kept, most/2)
	}
}

// TestMemory checks that the memory of a generation grows with its entries and operations, and is that of the next until
// it ends.
func TestMemory(t *testing.T) {
	s := NewSet()
	put(s, 1)
	put(s, 2)
	s.Put("other", Entry{}, 1, Operation{Index: 3}, Operation{Index: 4})
	const first, second = 2*entryBytes + 4*operationBytes, entryBytes + operationBytes
	want := func(current, folding int64) {
		t.Helper()
		if c, f := s.Memory(); c != current || f != folding {
			t.Errorf("memory %d and %d, want %d and %d", c, f, current, folding)
		}
	}
	want(first, 0)
	s.Begin(4)
	put(s, 5)
	want(second, first)
	s.Begin(5)
	want(second, first)
	s.End()
	s.Begin(5)
	want(0, second)
	s.End()
	want(0, 0)
}
