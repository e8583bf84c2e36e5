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

// server models how much of a turn a server keeps.
type server struct {
	events []*parleyv1.TurnEvent
	now    int // The number of events so far.
	oldest int // The index of the oldest event that is kept as a single event.
	lost   int // If not 0, the server crashed when this number of events was saved.
}

// stream returns the events after an index, or false for EVENTS_GONE.
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

// viewOfAnyTurn reads a random turn over streams that break at random events. The server keeps fewer
// and fewer of the events, and may crash. The delivered events must be those of the turn.
func viewOfAnyTurn(t *rapid.T) { followAnyTurn(t) }

func followAnyTurn(t *rapid.T) *recorder {
	s := &server{events: anyTurn(t), oldest: 1}
	began := rapid.SampledFrom([]int{0, rapid.IntRange(0, len(s.events)-1).Draw(t, "began")}).Draw(t, "resumed")
	v := &recorder{view: newView("t", int32(began))}
	var shown []*parleyv1.TurnEvent
	for len(shown) == 0 || shown[len(shown)-1].GetFinished() == nil {
		s.now = rapid.IntRange(max(s.now, int(v.last)), len(s.events)).Draw(t, "now")
		if s.lost == 0 {
			s.oldest = rapid.SampledFrom([]int{s.oldest, rapid.IntRange(s.oldest, s.now+1).Draw(t, "oldest")}).Draw(t, "kept")
		}
		if s.lost == 0 && s.now > 1 && rapid.IntRange(0, 19).Draw(t, "crash") == 0 {
			s.lost = rapid.IntRange(1, s.now-1).Draw(t, "lost")
		}
		after := v.startStream(v.resumeIndex())
		events, kept := s.stream(int(after))
		if !kept {
			if after == 0 {
				t.Fatalf("the model of the server returned EVENTS_GONE for index 0")
			}
			if v.restart() {
				continue
			}
			break // A caller that resumed an earlier call gets EVENTS_GONE.
		}
		left := rapid.IntRange(1, 4).Draw(t, "left") // The stream breaks after this number of new events.
		for _, event := range mergeSome(t, events) {
			if event = v.newPart(event); event == nil {
				continue
			}
			shown, left = append(shown, event), left-1
			if left == 0 {
				break
			}
		}
	}
	checkShown(t, s, began, shown)
	return v
}

// mergeSome merges some deltas that follow one another, as for a reader that is sometimes late.
func mergeSome(t *rapid.T, events []*parleyv1.TurnEvent) (merged []*parleyv1.TurnEvent) {
	for _, event := range events {
		n := len(merged)
		of, text, offset := delta(event)
		if n > 0 && of != "" && rapid.IntRange(0, 2).Draw(t, "late") > 0 {
			last := proto.CloneOf(merged[n-1])
			if before, known, begin := delta(last); before == of && *offset == *begin+int32(len(*known)) {
				*known += *text
				last.Index = event.GetIndex()
				merged[n-1] = last
				continue
			}
		}
		merged = append(merged, event)
	}
	return merged
}

// checkShown compares the delivered events with those of the turn after index began.
func checkShown(t *rapid.T, s *server, began int, shown []*parleyv1.TurnEvent) {
	last := int32(began)
	for _, event := range shown {
		if event.GetIndex() <= last {
			t.Fatalf("index %d comes after %d", event.GetIndex(), last)
		}
		last = event.GetIndex()
	}
	checkArguments(t, shown)
	finished := len(shown) > 0 && shown[len(shown)-1].GetFinished() != nil
	got, want := Summary(shown), Summary(s.events[began:])
	if s.lost == 0 && finished {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("delivered events (-want +got):\n%s", diff)
		}
		return
	}
	// If the turn was not delivered to its end, no event may be repeated, and each text must be the
	// beginning of a message's text.
	for i, line := range got {
		same := slices.IndexFunc(want, func(whole string) bool {
			isText := strings.HasPrefix(line, "text") || strings.HasPrefix(line, "reasoning")
			return whole == line || isText && strings.HasPrefix(whole, line)
		})
		if same < 0 && (!finished || i < len(got)-1) {
			t.Fatalf("line %q is not in the rest of the turn %q", line, want)
		}
		if same >= 0 {
			want = slices.Delete(want, same, same+1)
		}
	}
}

// checkArguments checks that no part of the arguments of a call is delivered twice.
func checkArguments(t *rapid.T, shown []*parleyv1.TurnEvent) {
	ends := make(map[string]int32)
	for _, event := range shown {
		switch d := event.GetToolCallDelta(); {
		case beginsMessage(event):
			clear(ends)
		case d != nil && d.GetOffset() < ends[d.GetId()]:
			t.Fatalf("event %d has arguments at %d, %d bytes are already delivered", event.GetIndex(), d.GetOffset(),
				ends[d.GetId()])
		case d != nil:
			ends[d.GetId()] = d.GetOffset() + int32(len(d.GetArguments()))
		}
	}
}

// anyTurn draws the events of a turn.
func anyTurn(t *rapid.T) []*parleyv1.TurnEvent {
	step := rapid.OneOf(
		rapid.Map(rapid.StringN(1, 5, -1), Text), rapid.Map(rapid.StringN(1, 5, -1), Text),
		rapid.Map(rapid.StringN(1, 5, -1), Reasoning),
		rapid.Map(rapid.StringN(0, 5, -1), func(s string) *parleyv1.TurnEvent { return CallDelta("c", s) }),
		rapid.Just(Data("d")), rapid.Just(Call("c")), rapid.Just(Note("n")), rapid.Just(Next("b")), rapid.Just(Result("c")),
	)
	var steps []*parleyv1.TurnEvent
	if rapid.Bool().Draw(t, "queued") {
		steps = append(steps, Queued(1))
	}
	steps = append(steps, Started("c"))
	for _, s := range rapid.SliceOfN(step, 0, 20).Draw(t, "steps") {
		if steps[len(steps)-1].GetToolResult() != nil && s.GetToolResult() == nil {
			steps = append(steps, Next("a")) // The server inserts this event.
		}
		steps = append(steps, s)
	}
	return Numbered("t", append(steps, Finished())...)
}

// viewOfAnyStreams passes random events to a view. The indexes of the new ones must increase.
func viewOfAnyStreams(t *rapid.T) {
	v := view{last: rapid.Int32Range(-1, 5).Draw(t, "last"), bytes: rapid.IntRange(unknown, 5).Draw(t, "bytes")}
	last := v.last
	for range rapid.IntRange(0, 4).Draw(t, "streams") {
		v.startStream(rapid.Int32Range(-1, 10).Draw(t, "after"))
		for range rapid.IntRange(0, 10).Draw(t, "events") {
			event := proto.CloneOf(rapid.SampledFrom([]*parleyv1.TurnEvent{
				nil, {}, Text("ä"), Text(""), Text("abc"), Reasoning("ä"), CallDelta("c", "[1]"), Call("c"), Data("d"), Result("r"), Next("b"), Started("c"), Finished(),
			}).Draw(t, "event"))
			if event != nil {
				event.TurnId, event.Index = "t", rapid.Int32Range(-1, 10).Draw(t, "index")
			}
			if _, _, offset := delta(event); offset != nil {
				*offset = rapid.Int32Range(-3, 10).Draw(t, "offset")
			}
			if event = v.newPart(event); event == nil {
				continue
			}
			if event.GetIndex() <= last {
				t.Fatalf("index %d comes after %d", event.GetIndex(), last)
			}
			last = event.GetIndex()
		}
	}
}
