package client

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// at sets the turn id and index of event, for streams that Numbered cannot make.
func at(index int32, event *parleyv1.TurnEvent) *parleyv1.TurnEvent {
	event.TurnId, event.Index = "t", index
	return event
}

// textAt returns a text delta with an index and an offset.
func textAt(index, offset int32, text string) *parleyv1.TurnEvent {
	event := at(index, Text(text))
	event.GetTextDelta().Offset = offset
	return event
}

// offsetTo sets the offset of a delta.
func offsetTo(offset int32, event *parleyv1.TurnEvent) *parleyv1.TurnEvent {
	_, _, at := delta(event)
	*at = offset
	return event
}

// stream is a stream that begins after an index and breaks after its events.
type stream struct {
	after  int32
	events []*parleyv1.TurnEvent
}

// streamsCase is a sequence of streams with repeated events, and the events that the caller receives.
type streamsCase struct {
	name    string
	begin   view
	streams []stream
	want    []*parleyv1.TurnEvent
}

func streamsCases() []streamsCase {
	return []streamsCase{
		{
			"the rest of a merged text",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "größ")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(4, 0, "größer als"), at(5, Finished())}},
			},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "größ"), textAt(4, 6, "er als"), at(5, Finished())},
		},
		{
			"characters of many bytes",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "né"), textAt(3, 3, "😀")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(5, 0, "né😀中ü!"), at(6, Finished())}},
			},
			[]*parleyv1.TurnEvent{
				at(1, Started("c")), textAt(2, 0, "né"), textAt(3, 3, "😀"), textAt(5, 7, "中ü!"), at(6, Finished()),
			},
		},
		{
			"text that arrives after the data that follows it",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), at(5, Data("d"))}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), at(5, Data("d")), textAt(7, 0, "abcdef"), at(8, Finished())}},
			},
			[]*parleyv1.TurnEvent{
				at(1, Started("c")), textAt(2, 0, "ab"), at(5, Data("d")), textAt(7, 2, "cdef"), at(8, Finished()),
			},
		},
		{
			"records that a later stream leaves out",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), at(3, Stored("k"))}},
				{3, []*parleyv1.TurnEvent{textAt(5, 2, "cd"), at(6, Stored("l"))}},
				{6, []*parleyv1.TurnEvent{at(8, Data("d"))}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(5, 0, "abcd"), at(8, Data("d")), at(10, Finished())}},
			},
			[]*parleyv1.TurnEvent{
				at(1, Started("c")), textAt(2, 0, "ab"), at(3, Stored("k")), textAt(5, 2, "cd"), at(6, Stored("l")),
				at(8, Data("d")), at(10, Finished()),
			},
		},
		{
			"reasoning and arguments that the caller has are cut",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{
					at(1, Started("c")), at(2, Reasoning("hm ö")), textAt(3, 0, "a"), at(4, CallDelta("1", "[1")),
				}},
				{0, []*parleyv1.TurnEvent{
					at(1, Started("c")), at(5, Reasoning("hm öl")), textAt(6, 0, "a"), at(8, CallDelta("1", "[12,")),
					at(9, CallDelta("2", "{}")), at(10, Call("1")), at(11, Finished()),
				}},
			},
			[]*parleyv1.TurnEvent{
				at(1, Started("c")), at(2, Reasoning("hm ö")), textAt(3, 0, "a"), at(4, CallDelta("1", "[1")),
				offsetTo(5, at(5, Reasoning("l"))), offsetTo(2, at(8, CallDelta("1", "2,"))), at(9, CallDelta("2", "{}")),
				at(10, Call("1")), at(11, Finished()),
			},
		},
		{
			"reasoning of the next message and a call with the id of one that was cut off are not cut",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{
					at(1, Started("c")), at(2, Reasoning("hm")), at(3, CallDelta("1", "[1]")), at(4, Data("d")),
				}},
				{0, []*parleyv1.TurnEvent{
					at(1, Started("c")), at(2, Reasoning("hm")), at(4, Data("d")), at(6, Next("b")),
					at(7, Reasoning("so")), at(8, CallDelta("1", "[2]")), at(9, Call("1")), at(10, Finished()),
				}},
			},
			[]*parleyv1.TurnEvent{
				at(1, Started("c")), at(2, Reasoning("hm")), at(3, CallDelta("1", "[1]")), at(4, Data("d")), at(6, Next("b")), at(7, Reasoning("so")), at(8, CallDelta("1", "[2]")), at(9, Call("1")),
				at(10, Finished()),
			},
		},
		{
			"text of the next message is not cut",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "long text")}},
				{0, []*parleyv1.TurnEvent{
					at(1, Started("c")), textAt(3, 0, "long text."), at(4, Result("r")), at(5, Next("b")), textAt(6, 0, "new"), at(9,
						Finished()),
				}},
			},
			[]*parleyv1.TurnEvent{
				at(1, Started("c")), textAt(2, 0, "long text"), textAt(3, 9, "."), at(4, Result("r")), at(5, Next("b")), textAt(6,
					0, "new"), at(9, Finished()),
			},
		},
		{
			"messages that the history has dropped",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "one"), at(3, Next("b")), textAt(4, 0, "two")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), at(8, Next("c")), textAt(9, 0, "three"), at(10, Finished())}},
			},
			[]*parleyv1.TurnEvent{
				at(1, Started("c")), textAt(2, 0, "one"), at(3, Next("b")), textAt(4, 0, "two"), at(8, Next("c")), textAt(9, 0,
					"three"), at(10, Finished()),
			},
		},
		{
			"a crash that lost delivered text",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 2, "cd")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), at(1_000_002, Finished())}},
			},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 2, "cd"), at(1_000_002, Finished())},
		},
		{
			"a crash that lost text but raised indexes",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "abcd")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(3, 0, "ab")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(4, 0, "abcde"), at(5, Finished())}},
			},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "abcd"), textAt(4, 4, "e"), at(5, Finished())},
		},
		{
			"a finished event with an old index",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 2, "cd")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), at(2, Finished())}},
			},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 2, "cd"), at(4, Finished())},
		},
		{
			"resumed after an index of an earlier call",
			newView("t", 7),
			[]stream{
				{7, []*parleyv1.TurnEvent{textAt(8, 10, "on")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(9, 0, "0123456789onward"), at(10, Finished())}},
			},
			[]*parleyv1.TurnEvent{textAt(8, 10, "on"), textAt(9, 12, "ward"), at(10, Finished())},
		},
		{
			"a lost position in the queue",
			view{},
			[]stream{
				{0, Numbered("s", Queued(2), Queued(1))},
				{0, []*parleyv1.TurnEvent{at(1, Queued(3)), at(2, Started("c")), textAt(3, 0, "hi"), at(4, Finished())}},
			},
			append(Numbered("s", Queued(2), Queued(1)), at(1, Queued(3)), at(2, Started("c")), textAt(3, 0, "hi"),
				at(4, Finished())),
		},
		{
			"offsets of 0 in a stream without repeated events",
			view{},
			[]stream{{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 0, "cd"), at(4, Finished())}}},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 0, "cd"), at(4, Finished())},
		},
	}
}

// run passes the streams through a view and returns the delivered events.
func (c streamsCase) run() (*recorder, []*parleyv1.TurnEvent) {
	v := &recorder{view: c.begin}
	var shown []*parleyv1.TurnEvent
	for _, stream := range c.streams {
		v.startStream(stream.after)
		for _, event := range stream.events {
			if event := v.newPart(event); event != nil {
				shown = append(shown, event)
			}
		}
	}
	return v, shown
}

func TestViewRemovesKnownEvents(t *testing.T) {
	for _, test := range streamsCases() {
		t.Run(test.name, func(t *testing.T) {
			_, got := test.run()
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("delivered events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestViewDoesNotChangeTheEventsOfAStream(t *testing.T) {
	for _, test := range streamsCases() {
		v := test.begin
		for _, stream := range test.streams {
			v.startStream(stream.after)
			for _, event := range stream.events {
				before := proto.CloneOf(event)
				v.newPart(event)
				if diff := cmp.Diff(before, event, protocmp.Transform()); diff != "" {
					t.Errorf("%s: an event was changed (-before +after):\n%s", test.name, diff)
				}
			}
		}
	}
}

// resumeCase is the delivered events of one stream, and the index after which the next one must begin.
type resumeCase struct {
	name    string
	begin   view
	shown   []*parleyv1.TurnEvent
	refused bool // The server refused the next stream with EVENTS_GONE.
	want    int32
	end     bool // The view cannot resume.
}

func resumeCases() []resumeCase {
	return []resumeCase{
		{name: "nothing delivered", want: 0},
		{name: "single events", shown: []*parleyv1.TurnEvent{at(1, Started("c")), at(2, Data("d"))}, want: 2},
		{name: "data that arrived before text", shown: []*parleyv1.TurnEvent{at(1, Started("c")), at(3, Data("d"))}, want: 0},
		{
			name:  "texts that were merged for a late reader",
			shown: []*parleyv1.TurnEvent{at(1, Started("c")), textAt(4, 0, "abc"), at(5, Data("d")), textAt(9, 3, "defg")},
			want:  9,
		},
		{
			name: "reasoning and arguments that were merged for a late reader",
			shown: []*parleyv1.TurnEvent{
				at(1, Started("c")), at(4, Reasoning("abc")), textAt(6, 0, "de"), at(9, CallDelta("1", "[]")), at(10, Call("1")),
			},
			want: 10,
		},
		{
			name:  "a call whose deltas are left out",
			shown: []*parleyv1.TurnEvent{at(1, Started("c")), textAt(3, 0, "abc"), at(9, Call("1"))},
			want:  0,
		},
		{name: "resumed, with merged texts", begin: newView("t", 5), shown: []*parleyv1.TurnEvent{textAt(8, 2, "cd")}, want: 8},
		{name: "resumed", begin: newView("t", 5), shown: []*parleyv1.TurnEvent{at(6, Data("d"))}, want: 6},
		{name: "resumed, with a gap", begin: newView("t", 5), shown: []*parleyv1.TurnEvent{at(8, Data("d"))}, want: 8},
		{
			name: "resumed, then the next message", begin: newView("t", 5), shown: []*parleyv1.TurnEvent{at(8, Next("b"))},
			want: 0,
		},
		{name: "another turn", shown: append(Numbered("s", Queued(2), Queued(1)), at(1, Queued(1))), want: 1},
		{name: "events gone", shown: []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "a")}, refused: true, want: 0},
		{
			name: "events gone, resumed", begin: newView("t", 5), shown: []*parleyv1.TurnEvent{at(6, Data("d"))}, refused: true,
			want: 6, end: true,
		},
		{
			name: "events gone, resumed, after a text", begin: newView("t", 5), shown: []*parleyv1.TurnEvent{textAt(6, 9, "a")},
			refused: true, want: 0,
		},
	}
}

// run delivers the events. It returns whether the view cannot resume, and the next resume index.
func (c resumeCase) run() (v *recorder, end bool, next int32) {
	v = &recorder{view: c.begin}
	v.startStream(c.begin.last)
	for _, event := range c.shown {
		v.newPart(event)
	}
	if c.refused {
		end = !v.restart()
	}
	next = v.resumeIndex()
	return v, end, next
}

func TestViewResumeIndex(t *testing.T) {
	for _, test := range resumeCases() {
		_, end, got := test.run()
		if got != test.want || end != test.end {
			t.Errorf("%s: resumeIndex() = %d, want %d; cannot resume: %t, want %t", test.name, got, test.want, end, test.end)
		}
	}
}
