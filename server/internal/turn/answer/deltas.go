package answer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

const (
	// reasoningShare is the part of an answer's limit that reasoning may use, as a divisor. The rest remains
	// for what the user asked for.
	reasoningShare = 4
	// maxRuns is the number of runs of text and reasoning whose indexes are stored for an answer. Models
	// switch a few times between them.
	maxRuns = 256
)

// deltas is what arrives in pieces besides text: the reasoning of the current message and the calls
// that the agent is writing. The zero value is ready for use.
type deltas struct {
	reasoning strings.Builder // of the current message
	calls     []*unfinishedCall
	begun     int32 // number of calls of the current message, complete or not
	runEnded  bool  // the next text begins another run

	// These count for the complete answer.
	reasoningBytes int
	reasoningEnded bool // the rest of the reasoning is left out
	runs           int
	allBegun       int  // number of calls that began with a delta
	cutOff         bool // a message had nothing but calls that were cut off, and was dropped
}

// unfinishedCall is a call that the agent is writing.
type unfinishedCall struct {
	head      *eventlog.Call
	arguments strings.Builder
	index     int32 // of its newest event
}

// startMessage forgets what belongs to the current message.
func (d *deltas) startMessage() {
	d.reasoning.Reset()
	d.calls, d.begun, d.runEnded = nil, 0, false
}

// find returns the position of an unfinished call, -1 if there is none.
func (d *deltas) find(id string) int {
	return slices.IndexFunc(d.calls, func(c *unfinishedCall) bool { return c.head.ID == id })
}

// complete records that a call is complete. It returns the bytes of its deltas.
func (d *deltas) complete(id string) (size int) {
	i := d.find(id)
	if i < 0 {
		d.begun++
		return 0
	}
	size = d.calls[i].arguments.Len()
	d.calls = slices.Delete(d.calls, i, i+1)
	return size
}

// unfinishedCalls returns one event for each unfinished call, with the arguments so far.
func (d *deltas) unfinishedCalls() []*parleyv1.TurnEvent {
	var events []*parleyv1.TurnEvent
	for _, c := range d.calls {
		events = append(events, &parleyv1.TurnEvent{Index: c.index, Event: &parleyv1.TurnEvent_ToolCallDelta{
			ToolCallDelta: &parleyv1.ToolCallDelta{
				Index: c.head.Index, Id: c.head.ID, Name: c.head.Name, Arguments: c.arguments.String(),
			},
		}})
	}
	return events
}

// addReasoning adds reasoning to the current message, up to its limits. What exceeds them is left out: an
// answer must not fail for its reasoning.
func (a *Answer) addReasoning(text string) error {
	space := max(0, min(a.limit/reasoningShare-a.deltas.reasoningBytes, a.limit-a.bytes))
	if len(text) > space {
		text = rules.Truncate(text, space)
		defer func() { a.deltas.reasoningEnded = true }()
	}
	if text == "" || a.deltas.reasoningEnded || a.deltas.runs >= maxRuns ||
		!a.currentOpen && len(a.messages) >= MaxMessages {
		return nil
	}
	if err := a.openMessage(); err != nil {
		return err
	}
	offset := a.deltas.reasoning.Len()
	a.deltas.reasoning.WriteString(text)
	a.bytes += len(text)
	a.deltas.reasoningBytes += len(text)
	index := a.events.AddReasoning(text, int32(offset))
	a.addToRun(index, len(text), true, a.text.Len())
	return nil
}

// addToRun records a delta of text or reasoning, its index and its size, in the runs of the current message.
// textBytes is the size of the text before it. A message that has one run of text and nothing else needs no
// runs, so most calls change nothing.
func (a *Answer) addToRun(index int32, size int, reasoning bool, textBytes int) {
	indexes, ended := a.currentIndexes(), a.deltas.runEnded
	a.deltas.runEnded = false
	if len(indexes.GetDeltas()) == 0 && textBytes > 0 {
		if !reasoning && !ended {
			return
		}
		a.deltas.runs++
		indexes.Deltas = append(indexes.Deltas, &storev1.DeltaRun{
			First: indexes.GetFirstText(), Last: indexes.GetLastText(), Bytes: int32(textBytes),
		})
	} else if len(indexes.GetDeltas()) == 0 && !reasoning {
		return
	}
	for i, run := range slices.Backward(indexes.GetDeltas()) {
		last := i == len(indexes.GetDeltas())-1
		if run.GetReasoning() == reasoning && (last && !ended || a.deltas.runs >= maxRuns) {
			run.Last, run.Bytes = index, run.GetBytes()+int32(size)
			return
		}
	}
	a.deltas.runs++
	indexes.Deltas = append(indexes.Deltas, &storev1.DeltaRun{
		First: index, Last: index, Bytes: int32(size), Reasoning: reasoning,
	})
}

// checkCallDelta checks a delta of a call against the answer so far.
func (a *Answer) checkCallDelta(delta *parleyv1.ToolCallDelta) error {
	id, name := delta.GetId(), delta.GetName()
	i := a.deltas.find(id)
	switch {
	case !utf8.ValidString(id):
		return ruleError(rules.Fault{Field: "tool_call_delta.id", Rule: "is not valid UTF-8"})
	case !utf8.ValidString(name):
		return ruleError(rules.Fault{Field: "tool_call_delta.name", Rule: "is not valid UTF-8"})
	case a.calls.IsOpen(id):
		return ruleError(rules.Fault{
			Field: "tool_call_delta.id",
			Rule:  fmt.Sprintf("%.64q is already the id of an open call of the answer", id),
		})
	case i >= 0 && a.deltas.calls[i].head.Name != name:
		return ruleError(rules.Fault{
			Field: "tool_call_delta.name",
			Rule:  fmt.Sprintf("%.64q differs from the name of the earlier deltas of the call", name),
		})
	}
	return nil
}

// addCallDelta adds a piece of a call that the agent is writing, and its event. Its bytes count until the
// call is complete; the call itself then counts.
func (a *Answer) addCallDelta(delta *parleyv1.ToolCallDelta) error {
	arguments := strings.ToValidUTF8(delta.GetArguments(), "\uFFFD")
	fits := a.fits(len(arguments))
	if a.bytes += len(arguments); !fits {
		return a.tooManyBytes()
	}
	if err := a.openMessage(); err != nil {
		return err
	}
	i := a.deltas.find(delta.GetId())
	if i < 0 {
		a.deltas.allBegun++
		if a.deltas.allBegun > MaxValues {
			return errTooManyValues
		}
		i = len(a.deltas.calls)
		a.deltas.calls = append(a.deltas.calls, &unfinishedCall{
			head: &eventlog.Call{Index: a.deltas.begun, ID: delta.GetId(), Name: delta.GetName()},
		})
		a.deltas.begun++
	} else if arguments == "" {
		return nil
	}
	call := a.deltas.calls[i]
	call.index = a.events.AddArguments(call.head, arguments, int32(call.arguments.Len()))
	call.arguments.WriteString(arguments)
	a.deltas.runEnded = true
	return nil
}

// isCutOff reports whether the current message is open and contains nothing but calls that the agent is
// writing. If it ends like that, it is no message.
func (a *Answer) isCutOff() bool {
	return a.currentOpen && a.text.Len() == 0 && a.deltas.reasoning.Len() == 0 &&
		len(a.current.GetToolCalls()) == 0 && len(a.current.GetStructuredData()) == 0 && a.current.GetNative() == nil
}

// textRuns returns the runs of text.
func textRuns(runs []*storev1.DeltaRun) []*storev1.DeltaRun {
	return slices.DeleteFunc(slices.Clone(runs), (*storev1.DeltaRun).GetReasoning)
}
