package client

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

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
func viewOfAnyTurn(t *rapid.T) { followAnyTurn(t) }

func followAnyTurn(t *rapid.T) *recorder {
	s := &server{events: anyTurn(t), oldest: 1}
	began := rapid.SampledFrom([]int{0, rapid.IntRange(0, len(s.events)-1).Draw(t, "began")}).Draw(t, "elsewhere")
	v := &recorder{view: viewFrom("t", int32(began))}
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
	return v
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
