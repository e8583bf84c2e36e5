package storetest

import (
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
)

// remove tests Update.Sequences and Update.Request.
func (s Subject) remove(t *testing.T) {
	for _, test := range []struct {
		name      string
		sequences []int32
		kept      []int32
		preview   string
		types     []string
		removed   string // in the summary of the change; empty if there is none
	}{
		{"one", []int32{3}, []int32{2, 4, 5}, "m5", []string{"t2", "t4", "t5"}, "1 trimmed 0, removed [3]"},
		{"the newest", []int32{5}, []int32{2, 3, 4}, "m4", []string{"t2", "t4"}, "1 trimmed 0, removed [5]"},
		{"the oldest", []int32{2}, []int32{3, 4, 5}, "m5", []string{"t4", "t5"}, "1 trimmed 0, removed [2]"},
		{"two in any order", []int32{4, 2, 4}, []int32{3, 5}, "m5", []string{"t5"}, "2 trimmed 0, removed [2 4]"},
		{"all", []int32{2, 3, 4, 5}, nil, "", nil, "4 trimmed 0, removed [2 3 4 5]"},
		{"not kept", []int32{1, 9, 3}, []int32{2, 4, 5}, "m5", []string{"t2", "t4", "t5"}, "1 trimmed 0, removed [3]"},
		{"none that is kept", []int32{1, 9}, []int32{2, 3, 4, 5}, "m5", []string{"t2", "t4", "t5"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := s.open(t, func(o *store.Options) { o.MaxMessages = 4 })
			f.append("a", user("m1"), assistant("m2", "t2"), user("q3"))
			f.append("a", assistant("m4", "t4"), assistant("m5", "t5"))
			before := f.header("a")
			f.observer.drain()
			f.clock.Advance(time.Second)
			c := f.do(&store.Update{ConversationID: "a", Sequences: test.sequences}).Conversation
			same(t, "header", f.header("a"), c)
			f.wantSequences(test.kept...)
			if got := f.entry("a").GetPreview(); got != test.preview {
				t.Errorf("preview = %q, want %q", got, test.preview)
			}
			f.wantTypes(test.types...)
			var want []string
			if test.removed != "" {
				want = []string{"CLEARED a version 3 count " + test.removed}
			} else {
				same(t, "unchanged header", c, before)
			}
			same(t, "changes", summaries(f.observer.drain()), want)
			same(t, "last_append_time", c.GetLastAppendTime(), before.GetLastAppendTime())
			if a := f.append("a", user("next")).Appended[0]; a.GetSequence() != 6 || a.GetExchange() != 3 {
				t.Errorf("next message = %v, want sequence 6 and exchange 3", a)
			}
		})
	}
	t.Run("tool calls", s.removeCalls)
	t.Run("offsets", s.removeOffsets)
	t.Run("retry", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("q1"), user("q2"))
		remove := &store.Update{ConversationID: "a", KeepThrough: new(int32(1)), Request: request("r", "after 1")}
		f.do(remove)
		f.append("a", user("q3"))
		f.observer.drain()
		if s.Durable {
			f.reopen(nil)
		}
		if result := f.do(remove); !result.Replayed || result.Conversation.GetVersion() != 3 {
			t.Errorf("retry = %+v, want it replayed at version 3", result)
		}
		f.wantSequences(1, 3)
		f.expectError(&store.Update{ConversationID: "a", Sequences: []int32{1}, Request: request("r", "1")},
			store.ErrRequestReused)

		// A request is stored even if it removes nothing.
		nothing := &store.Update{ConversationID: "a", Sequences: []int32{4}, Request: request("r2", "4")}
		f.do(nothing)
		same(t, "changes", summaries(f.observer.drain()), []string{"UPDATED a version 4 count 2 trimmed 0"})
		f.append("a", user("q4"))
		f.do(nothing)
		f.wantSequences(1, 3, 4)
	})
	t.Run("a running turn", func(t *testing.T) {
		f := s.open(t, nil)
		f.beginTurn("a", "turn")
		f.expectError(&store.Update{ConversationID: "a", Sequences: []int32{1}, IfVersion: new(int32(9))},
			&store.BusyError{TurnID: "turn"})
	})
}

// removeCalls removes tool calls and results.
func (s Subject) removeCalls(t *testing.T) {
	for _, test := range []struct {
		sequences []int32
		want      error
	}{
		{[]int32{2}, &store.SeparatedError{CallID: "c", Call: 2, Result: 3}},
		{[]int32{3}, &store.SeparatedError{CallID: "c", Call: 2, Result: 3}},
		{[]int32{2, 3}, &store.SeparatedError{CallID: "d", Call: 2, Result: 4}},
		{[]int32{3, 4}, &store.SeparatedError{CallID: "c", Call: 2, Result: 3}},
		{[]int32{2, 3, 4}, nil},
		{[]int32{1, 5}, nil}, // a question, and a call without a result
		{[]int32{6}, nil},    // a result without a call
	} {
		f := s.open(t, nil)
		f.append("a", user("q1"), calling("c", "d"), result("c"), result("d"), calling("e"), result("c"))
		w := &store.Update{ConversationID: "a", Sequences: test.sequences}
		if test.want != nil {
			f.expectError(w, test.want)
		} else if f.do(w).Conversation.GetMessageCount() != int32(6-len(test.sequences)) {
			t.Errorf("Sequences %v: %d messages are left", test.sequences, f.header("a").GetMessageCount())
		}
	}
}

// removeOffsets checks that the removal of the oldest messages changes no offset of the others.
func (s Subject) removeOffsets(t *testing.T) {
	f := s.open(t, nil)
	f.append("a", user("one"), user("twenty"), user("three hundred"), user("four"))
	before := f.read("a").Offsets()
	f.do(&store.Update{ConversationID: "a", Sequences: []int32{1, 2}})
	same(t, "offsets without the oldest", f.read("a").Offsets(), before[2:])
	f.do(&store.Update{ConversationID: "a", Sequences: []int32{3, 4}})
	same(t, "offsets without any", f.read("a").Offsets(), before[2:3])
	f.append("a", user("five"))
	if got := f.read("a").Offsets()[0]; got != before[2] {
		t.Errorf("offset of the next message = %d, want %d", got, before[2])
	}
}
