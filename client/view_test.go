package client

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

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

func TestViewCutsWhatIsKnown(t *testing.T) {
	type stream struct {
		after  int32
		events []*parleyv1.TurnEvent
	}
	tests := []struct {
		name    string
		begin   view
		streams []stream
		want    []*parleyv1.TurnEvent
	}{
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
			view{turn: "t", last: 7, bytes: unknown},
			[]stream{
				{7, []*parleyv1.TurnEvent{textAt(8, 10, "on")}},
				{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(9, 0, "0123456789onward"), at(10, Finished())}},
			},
			[]*parleyv1.TurnEvent{textAt(8, 10, "on"), textAt(9, 12, "ward"), at(10, Finished())},
		},
		{
			"offsets that are not kept, where nothing is repeated",
			view{},
			[]stream{{0, []*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 0, "cd"), at(4, Finished())}}},
			[]*parleyv1.TurnEvent{at(1, Started("c")), textAt(2, 0, "ab"), textAt(3, 0, "cd"), at(4, Finished())},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v := test.begin
			var got []*parleyv1.TurnEvent
			for _, stream := range test.streams {
				v.begin(stream.after)
				for _, event := range stream.events {
					before := proto.CloneOf(event)
					if event := v.take(event); event != nil {
						got = append(got, event)
					}
					if diff := cmp.Diff(before, event, protocmp.Transform()); diff != "" {
						t.Errorf("the event of the stream was changed (-before +after):\n%s", diff)
					}
				}
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("shown (-want +got):\n%s", diff)
			}
		})
	}
}

func TestViewFindsTheWayOn(t *testing.T) {
	tests := []struct {
		name  string
		begin view
		shown []*parleyv1.TurnEvent
		want  int32
	}{
		{"nothing shown", view{}, nil, 0},
		{"one by one", view{}, []*parleyv1.TurnEvent{at(1, Started("c")), at(2, Data("d"))}, 2},
		{"data that overtook text", view{}, []*parleyv1.TurnEvent{at(1, Started("c")), at(3, Data("d"))}, 0},
		{"from elsewhere", view{turn: "t", last: 5, bytes: unknown}, []*parleyv1.TurnEvent{at(6, Data("d"))}, 6},
		{"from elsewhere, with a gap", view{turn: "t", last: 5, bytes: unknown}, []*parleyv1.TurnEvent{at(8, Data("d"))}, 8},
		{"another turn", view{turn: "s", last: 5}, []*parleyv1.TurnEvent{at(1, Queued(1))}, 1},
	}
	for _, test := range tests {
		v := test.begin
		v.begin(v.last)
		for _, event := range test.shown {
			v.take(event)
		}
		if got := v.next(); got != test.want {
			t.Errorf("%s: the next stream begins behind %d, want %d", test.name, got, test.want)
		}
	}
}

func TestViewOfAnyTurn(t *testing.T)    { rapid.Check(t, viewOfAnyTurn) }
func FuzzViewOfAnyTurn(f *testing.F)    { f.Fuzz(rapid.MakeFuzz(viewOfAnyTurn)) }
func TestViewOfAnyStreams(t *testing.T) { rapid.Check(t, viewOfAnyStreams) }
func FuzzViewOfAnyStreams(f *testing.F) { f.Fuzz(rapid.MakeFuzz(viewOfAnyStreams)) }

// server is what a server has of a turn while clients come and go.
type server struct {
	events []*parleyv1.TurnEvent
	now    int // So many have happened.
	oldest int // The first of them that is kept.
	lost   int // Unless 0: it crashed when so many had been saved.
}

// stream is what is sent behind an index; false: EVENTS_GONE.
func (s *server) stream(after int) ([]*parleyv1.TurnEvent, bool) {
	switch {
	case s.lost > 0 && after > s.lost:
		return nil, false
	case s.lost > 0:
		end := at(int32(len(s.events)+1000), Finished())
		return append(Merged(s.events[:s.lost]), end), after == 0
	case after+1 >= s.oldest:
		return s.events[after:], true
	case after == 0:
		return append(Merged(s.events[:s.now]), s.events[s.now:]...), true
	default:
		return nil, false
	}
}

// viewOfAnyTurn follows any turn through streams that break anywhere, of a server that keeps
// less and less of it and may crash. What is shown must be the turn.
func viewOfAnyTurn(t *rapid.T) {
	s := &server{events: anyTurn(t), oldest: 1}
	began := rapid.SampledFrom([]int{0, rapid.IntRange(0, len(s.events)-1).Draw(t, "began")}).Draw(t, "elsewhere")
	v := view{turn: "t", last: int32(began)}
	if began > 0 {
		v.bytes = unknown
	}
	var shown []*parleyv1.TurnEvent
	for len(shown) == 0 || shown[len(shown)-1].GetFinished() == nil {
		s.now = rapid.IntRange(max(s.now, int(v.last)), len(s.events)).Draw(t, "now")
		if s.lost == 0 {
			s.oldest = rapid.SampledFrom([]int{s.oldest, rapid.IntRange(s.oldest, s.now+1).Draw(t, "oldest")}).Draw(t, "kept")
		}
		if s.lost == 0 && s.now > 1 && rapid.IntRange(0, 19).Draw(t, "crash") == 0 {
			s.lost = rapid.IntRange(1, s.now-1).Draw(t, "lost")
		}
		after := v.begin(v.next())
		events, kept := s.stream(int(after))
		if !kept {
			if after == 0 {
				t.Fatalf("the model does not keep the turn")
			}
			if v.gone() {
				continue
			}
			break // The end for whoever began elsewhere.
		}
		news := rapid.IntRange(1, 4).Draw(t, "news") // Behind so much of it the stream breaks.
		for _, event := range events {
			if event = v.take(event); event == nil {
				continue
			}
			shown, news = append(shown, event), news-1
			if news == 0 {
				break
			}
		}
	}
	checkShown(t, s, began, shown)
}

// checkShown compares what was shown with the turn behind the event where it began.
func checkShown(t *rapid.T, s *server, began int, shown []*parleyv1.TurnEvent) {
	last := int32(began)
	for _, event := range shown {
		if event.GetIndex() <= last {
			t.Fatalf("index %d comes after %d", event.GetIndex(), last)
		}
		last = event.GetIndex()
	}
	finished := len(shown) > 0 && shown[len(shown)-1].GetFinished() != nil
	got, want := Story(shown), Story(s.events[began:])
	if s.lost == 0 && finished {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("shown (-want +got):\n%s", diff)
		}
		return
	}
	// Of a turn that was not shown to its end: nothing twice, nothing out of order, and of each
	// message's text the beginning.
	for i, line := range got {
		same := slices.IndexFunc(want, func(whole string) bool {
			return whole == line || strings.HasPrefix(line, "text") && strings.HasPrefix(whole, line)
		})
		if same < 0 && (!finished || i < len(got)-1) {
			t.Fatalf("%q is not, or not again, in %q", line, want)
		}
		if same >= 0 {
			want = slices.Delete(want, same, same+1)
		}
	}
}

func anyTurn(t *rapid.T) []*parleyv1.TurnEvent {
	step := rapid.OneOf(
		rapid.Map(rapid.StringN(1, 5, -1), Text), rapid.Map(rapid.StringN(1, 5, -1), Text),
		rapid.Just(Data("d")), rapid.Just(Call("c")), rapid.Just(Note("n")), rapid.Just(Next("b")), rapid.Just(Result("c")),
	)
	var steps []*parleyv1.TurnEvent
	if rapid.Bool().Draw(t, "queued") {
		steps = append(steps, Queued(1))
	}
	steps = append(steps, Started("c"))
	for _, s := range rapid.SliceOfN(step, 0, 20).Draw(t, "steps") {
		if steps[len(steps)-1].GetToolResult() != nil && s.GetToolResult() == nil {
			steps = append(steps, Next("a")) // As the server does.
		}
		steps = append(steps, s)
	}
	return Numbered("t", append(steps, Finished())...)
}

// viewOfAnyStreams hands in streams that make no sense: indexes rise all the same.
func viewOfAnyStreams(t *rapid.T) {
	v := view{last: rapid.Int32Range(-1, 5).Draw(t, "last"), bytes: rapid.IntRange(unknown, 5).Draw(t, "bytes")}
	last := v.last
	for range rapid.IntRange(0, 4).Draw(t, "streams") {
		v.begin(rapid.Int32Range(-1, 10).Draw(t, "after"))
		for range rapid.IntRange(0, 10).Draw(t, "events") {
			event := proto.CloneOf(rapid.SampledFrom([]*parleyv1.TurnEvent{
				nil, {}, Text("ä"), Text(""), Text("abc"), Data("d"), Result("r"), Next("b"), Started("c"), Finished(),
			}).Draw(t, "event"))
			if event != nil {
				event.TurnId, event.Index = "t", rapid.Int32Range(-1, 10).Draw(t, "index")
			}
			if delta := event.GetTextDelta(); delta != nil {
				delta.Offset = rapid.Int32Range(-3, 10).Draw(t, "offset")
			}
			if event = v.take(event); event == nil {
				continue
			}
			if event.GetIndex() <= last {
				t.Fatalf("index %d comes after %d", event.GetIndex(), last)
			}
			last = event.GetIndex()
		}
	}
}
