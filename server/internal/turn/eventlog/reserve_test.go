package eventlog

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func finished() Encoded {
	return Encode(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{}}})
}

// indexes returns the indexes of all events of a log that has ended.
func indexes(t *testing.T, l *Log) []int32 {
	t.Helper()
	var all []int32
	for event, err := range l.Read(t.Context(), 0) {
		if err != nil {
			t.Fatalf("Read(0): %v", err)
		}
		all = append(all, event.GetIndex())
	}
	return all
}

// TestReserveFinished: the finished event has the reserved index, unless a keep-alive was added in
// the meantime. Then no event has the reserved index.
func TestReserveFinished(t *testing.T) {
	tests := []struct {
		name       string
		keepAlives int
		released   bool
		want       []int32
	}{
		{"nothing in between", 0, false, []int32{1, 2}},
		{"a keep-alive", 1, false, []int32{1, 3, 4}},
		{"two keep-alives", 2, false, []int32{1, 3, 4, 5}},
		{"released before a keep-alive", 1, true, []int32{1, 2, 3}},
	}
	for _, test := range tests {
		l := New("turn", "tenant", "c", nil)
		l.AddText("a", 0)
		if got := l.ReserveFinished(); got != 2 {
			t.Errorf("%s: ReserveFinished() = %d, want 2", test.name, got)
		}
		if test.released {
			l.ReleaseReserved()
		}
		for range test.keepAlives {
			l.AddKeepAlive()
		}
		l.AddEncoded(finished(), nil)
		l.End(nil)
		if diff := cmp.Diff(test.want, indexes(t, l)); diff != "" {
			t.Errorf("%s: indexes (-want +got):\n%s", test.name, diff)
		}
		last := test.want[len(test.want)-1]
		if got := l.LastBeforeFinished(); l.LastIndex() != last || got != last-1 || l.Finished().GetIndex() != last {
			t.Errorf("%s: LastIndex() = %d, LastBeforeFinished() = %d, Finished() = %v, want %d, %d and index %d",
				test.name, l.LastIndex(), got, l.Finished(), last, last-1, last)
		}
	}
}

// sink records events, if it has subscribers.
type sink struct {
	subscribed bool
	events     []*parleyv1.TurnEvent
}

func (s *sink) HasSubscribers() bool { return s.subscribed }

func (s *sink) TurnEvent(_, _ string, event *parleyv1.TurnEvent) { s.events = append(s.events, event) }

// TestSink: a sink with subscribers receives each event with its turn id and its index. A reserved
// index that stays unused is no event.
func TestSink(t *testing.T) {
	s := new(sink)
	l := New("turn", "tenant", "c", s)
	l.AddText("a", 0)
	s.subscribed = true
	l.AddText("b", 1)
	l.ReserveFinished()
	l.AddKeepAlive()
	l.AddEncoded(finished(), nil)
	var got []int32
	for _, event := range s.events {
		if event.GetTurnId() != "turn" {
			t.Errorf("turn id of %v = %q, want turn", event, event.GetTurnId())
		}
		got = append(got, event.GetIndex())
	}
	if diff := cmp.Diff([]int32{2, 4, 5}, got); diff != "" {
		t.Errorf("indexes of the sink's events (-want +got):\n%s", diff)
	}
}

// TestStarted: the started event is available even if it was dropped from the list.
func TestStarted(t *testing.T) {
	l := New("turn", "tenant", "c", nil)
	if got := l.Started(); got != nil {
		t.Errorf("Started() = %v without a started event, want nil", got)
	}
	l.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{Agent: "main"}}})
	for range MaxEvents + 1 {
		l.AddText("", 0)
	}
	if got := l.Started(); got.GetIndex() != 1 || got.GetStarted().GetAgent() != "main" {
		t.Errorf("Started() = %v, want the event with index 1", got)
	}
}
