package replay

import (
	"slices"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

// Received is what a reader has received of a turn. The zero value is nothing.
type Received struct {
	index           int32 // of the newest event
	text, reasoning received
}

// received says how much of the text or the reasoning of a message a reader has.
type received struct {
	index int32 // of the newest delta
	end   int32 // byte offset after it, in its message
}

// ReceivedThrough returns what a reader has received that resumes after an index. It is unknown how much of a text the
// reader has, until Add.
func ReceivedThrough(index int32) Received { return Received{index: index} }

// Add adds the next event that the reader receives.
func (r *Received) Add(e *parleyv1.TurnEvent) {
	r.index = max(r.index, e.GetIndex())
	switch {
	case e.GetTextDelta() != nil:
		d := e.GetTextDelta()
		r.text = received{e.GetIndex(), d.GetOffset() + int32(len(d.GetText()))}
	case e.GetReasoningDelta() != nil:
		d := e.GetReasoningDelta()
		r.reasoning = received{e.GetIndex(), d.GetOffset() + int32(len(d.GetText()))}
	}
}

// Index returns the index of the newest event, 0 if there is none.
func (r *Received) Index() int32 { return r.index }

// Rest returns the events that a reader has not received, the finished event included. Unlike After, it also returns
// the rest of a text of which the reader has a part. If the reader has events that are not stored, because a crash has
// lost them, or that were sent after the finished event was stored, the rest is the finished event. Its index is then
// higher than all that the reader has. Rest returns an eventlog.GoneError if it is unknown how much of a text the
// reader has.
func (r *Turn) Rest(reader Received) ([]*parleyv1.TurnEvent, error) {
	turnID := r.finished.GetTurn().GetId()
	rest := []*parleyv1.TurnEvent{{
		TurnId: turnID, Index: r.indexes.GetStarted(),
		Event: &parleyv1.TurnEvent_Started{Started: r.started},
	}}
	rest = append(rest, Merge(turnID, r.answer, r.messageIndexes)...)
	rest = slices.DeleteFunc(rest, func(e *parleyv1.TurnEvent) bool { return e.GetIndex() <= reader.index })
	for _, event := range rest {
		if run := r.runAt(event); run != nil && run.GetFirst() <= reader.index && !reader.cut(event, run) {
			return nil, &eventlog.GoneError{After: reader.index, Oldest: 1, Last: r.indexes.GetFinished()}
		}
	}
	return append(rest, &parleyv1.TurnEvent{
		TurnId: turnID, Index: max(r.indexes.GetFinished(), reader.index+1),
		Event: &parleyv1.TurnEvent_Finished{Finished: r.finished},
	}), nil
}

// runAt returns the run of which a replayed event has the text or the reasoning, nil for all other events.
func (r *Turn) runAt(event *parleyv1.TurnEvent) *storev1.DeltaRun {
	if event.GetTextDelta() == nil && event.GetReasoningDelta() == nil {
		return nil
	}
	for i, indexes := range r.messageIndexes {
		for _, run := range runs(r.answer[i], indexes) {
			if run.GetLast() == event.GetIndex() {
				return run
			}
		}
	}
	return nil
}

// cut removes what the reader has from the event of a run. It returns false if the reader has received no delta of the
// run, so that it is unknown where to cut.
func (r *Received) cut(event *parleyv1.TurnEvent, run *storev1.DeltaRun) bool {
	of := r.text
	if run.GetReasoning() {
		of = r.reasoning
	}
	if of.index < run.GetFirst() {
		return false
	}
	if d := event.GetTextDelta(); d != nil {
		d.Text, d.Offset = after(d.GetText(), d.GetOffset(), of.end)
	} else {
		d := event.GetReasoningDelta()
		d.Text, d.Offset = after(d.GetText(), d.GetOffset(), of.end)
	}
	return true
}

// after returns what follows a byte offset of a message in a text that begins at offset.
func after(text string, offset, end int32) (rest string, at int32) {
	known := min(max(0, end-offset), int32(len(text)))
	return text[known:], offset + known
}
