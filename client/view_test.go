package client

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// at puts an event at an index, for streams that Numbered cannot make.
func at(index int32, event *parleyv1.TurnEvent) *parleyv1.TurnEvent {
	event.TurnId, event.Index = "t", index
	return event
}

func textAt(index, offset int32, text string) *parleyv1.TurnEvent {
	event := at(index, Text(text))
	event.GetTextDelta().Offset = offset
	return event
}

// stream is what came of one, behind an index.
type stream struct {
	after  int32
	events []*parleyv1.TurnEvent
}

// cut is a story of streams that repeat themselves, and what of them is shown.
type cut struct {
	name    string
	begin   view
	streams []stream
	want    []*parleyv1.TurnEvent
}

func cuts() []cut {
	return []cut{
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
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "né"), textAt(3, 3, "😀"), textAt(5, 7, "中ü!"), at(6, Finished())},
		},
		{
			"text that comes after its data",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), at(5, Data("d"))}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), at(5, Data("d")), textAt(7, 0, "abcdef"), at(8, Finished())}},
			},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), at(5, Data("d")), textAt(7, 2, "cdef"), at(8, Finished())},
		},
		{
			"nothing of the next message",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "long text")}},
				{0, []*parleyv1.TurnEvent{
					at(1, Started("c")), textAt(3, 0, "long text."), at(4, Result("r")), at(5, Next("b")), textAt(6, 0, "new"), at(9, Finished()),
				}},
			},
			[]*parleyv1.TurnEvent{
				at(1, Started("c")), textAt(2, 0, "long text"), textAt(3, 9, "."), at(4, Result("r")), at(5, Next("b")), textAt(6, 0, "new"), at(9, Finished()),
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
				at(1, Started("c")), textAt(2, 0, "one"), at(3, Next("b")), textAt(4, 0, "two"), at(8, Next("c")), textAt(9, 0, "three"), at(10, Finished()),
			},
		},
		{
			"a crash that took text which was shown",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 2, "cd")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), at(1_000_002, Finished())}},
			},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 2, "cd"), at(1_000_002, Finished())},
		},
		{
			"a crash that made later indexes of less text",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "abcd")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(3, 0, "ab")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(4, 0, "abcde"), at(5, Finished())}},
			},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "abcd"), textAt(4, 4, "e"), at(5, Finished())},
		},
		{
			"an end that lost count",
			view{},
			[]stream{
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 2, "cd")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), at(2, Finished())}},
			},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 2, "cd"), at(4, Finished())},
		},
		{
			"text shown elsewhere",
			viewFrom("t", 7),
			[]stream{
				{7, []*parleyv1.TurnEvent{textAt(8, 10, "on")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(9, 0, "0123456789onward"), at(10, Finished())}},
			},
			[]*parleyv1.TurnEvent{textAt(8, 10, "on"), textAt(9, 12, "ward"), at(10, Finished())},
		},
		{
			"a place in the queue that was lost",
			view{},
			[]stream{
				{0, Numbered("s", Queued(2), Queued(1))},
				{0, []*parleyv1.TurnEvent{at(1, Queued(3)), at(2, Started("c")), textAt(3, 0, "hi"), at(4, Finished())}},
			},
			append(Numbered("s", Queued(2), Queued(1)), at(1, Queued(3)), at(2, Started("c")), textAt(3, 0, "hi"), at(4, Finished())),
		},
		{
			"offsets that are not kept, where nothing is repeated",
			view{},
			[]stream{{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 0, "cd"), at(4, Finished())}}},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 0, "cd"), at(4, Finished())},
		},
	}
}

// run shows the streams.
func (c cut) run() (*recorder, []*parleyv1.TurnEvent) {
	v := &recorder{view: c.begin}
	var shown []*parleyv1.TurnEvent
	for _, stream := range c.streams {
		v.begin(stream.after)
		for _, event := range stream.events {
			if event := v.take(event); event != nil {
				shown = append(shown, event)
			}
		}
	}
	return v, shown
}

func TestViewCutsWhatIsKnown(t *testing.T) {
	for _, test := range cuts() {
		t.Run(test.name, func(t *testing.T) {
			_, got := test.run()
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("shown (-want +got):\n%s", diff)
			}
		})
	}
}

func TestViewLeavesTheEventsOfAStreamAsTheyAre(t *testing.T) {
	for _, test := range cuts() {
		v := test.begin
		for _, stream := range test.streams {
			v.begin(stream.after)
			for _, event := range stream.events {
				before := proto.CloneOf(event)
				v.take(event)
				if diff := cmp.Diff(before, event, protocmp.Transform()); diff != "" {
					t.Errorf("%s: an event was changed (-before +after):\n%s", test.name, diff)
				}
			}
		}
	}
}

// way is what was shown in one stream, and where the next one has to begin.
type way struct {
	name    string
	begin   view
	shown   []*parleyv1.TurnEvent
	refused bool // EVENTS_GONE was said of the next one.
	want    int32
	end     bool // There is no way on.
}

func ways() []way {
	return []way{
		{name: "nothing shown", want: 0},
		{name: "one by one", shown: []*parleyv1.TurnEvent{at(1, Started("c")), at(2, Data("d"))}, want: 2},
		{name: "data that overtook text", shown: []*parleyv1.TurnEvent{at(1, Started("c")), at(3, Data("d"))}, want: 0},
		{name: "from elsewhere", begin: viewFrom("t", 5), shown: []*parleyv1.TurnEvent{at(6, Data("d"))}, want: 6},
		{name: "from elsewhere, with a gap", begin: viewFrom("t", 5), shown: []*parleyv1.TurnEvent{at(8, Data("d"))}, want: 8},
		{name: "from elsewhere, up to the next message", begin: viewFrom("t", 5), shown: []*parleyv1.TurnEvent{at(8, Next("b"))}, want: 0},
		{name: "another turn", shown: append(Numbered("s", Queued(2), Queued(1)), at(1, Queued(1))), want: 1},
		{name: "events gone", shown: []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "a")}, refused: true, want: 0},
		{name: "events gone, from elsewhere", begin: viewFrom("t", 5), shown: []*parleyv1.TurnEvent{at(6, Data("d"))}, refused: true, want: 6, end: true},
		{name: "events gone, from elsewhere, behind a text", begin: viewFrom("t", 5), shown: []*parleyv1.TurnEvent{textAt(6, 9, "a")}, refused: true, want: 0},
	}
}

// run shows the events and looks for the way on.
func (w way) run() (v *recorder, end bool, next int32) {
	v = &recorder{view: w.begin}
	v.begin(w.begin.last)
	for _, event := range w.shown {
		v.take(event)
	}
	if w.refused {
		end = !v.gone()
	}
	next = v.next()
	return v, end, next
}

func TestViewFindsTheWayOn(t *testing.T) {
	for _, test := range ways() {
		_, end, got := test.run()
		if got != test.want || end != test.end {
			t.Errorf("%s: the next stream begins behind %d, want %d; there is no way on: %t, want %t", test.name, got, test.want, end, test.end)
		}
	}
}
