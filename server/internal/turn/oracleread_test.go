package turn

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/parleyhq/parley/store"
)

// oracleRead is a reader of a turn, in memory or from the store.
type oracleRead struct {
	*reader

	turn      *oracleTurn // to which the reader is attached, or nil
	replayed  bool
	want      []string
	wantErr   error
	wantEnded bool
}

// asReceived returns events as this reader receives them.
func (r *oracleRead) asReceived(log []string) []string {
	log = slices.Clone(log)
	for i, event := range log {
		if r.replayed && strings.Contains(event, " started ") {
			log[i] += " replayed"
		}
	}
	return log
}

// mergeTexts returns events as a late reader receives them: adjacent texts are one event.
func mergeTexts(log []string) (merged []string) {
	const form = "%d text %q at %d"
	var index, offset, nextIndex, nextOffset int
	var text, next string
	for _, event := range log {
		n := len(merged)
		if _, err := fmt.Sscanf(event, form, &nextIndex, &next, &nextOffset); err == nil && n > 0 {
			if _, err := fmt.Sscanf(merged[n-1], form, &index, &text, &offset); err == nil {
				merged[n-1] = fmt.Sprintf(form, nextIndex, text+next, offset)
				continue
			}
		}
		merged = append(merged, event)
	}
	return merged
}

// attach attaches a reader to a turn in memory.
func (o *oracle) attach(t *oracleTurn, after int, r *oracleRead) {
	if after > len(t.log) {
		r.refuse(&EventsGoneError{})
		return
	}
	r.want = mergeTexts(r.asReceived(t.log[after:]))
	if t.state != "" {
		r.wantEnded = true
		return
	}
	r.turn, t.readers = t, append(t.readers, r)
}

func (r *oracleRead) refuse(err error) { r.wantErr, r.wantEnded = err, true }

// replay sets what a reader of a stored turn receives.
func (o *oracle) replay(t *oracleTurn, after int, r *oracleRead) {
	r.wantEnded = true
	switch last := len(t.log); {
	case after == last && after > 0:
	case after > last || after > 0 && after >= t.firstText && after < t.lastText:
		r.wantErr = &EventsGoneError{}
	default:
		for i, event := range t.log {
			switch index := i + 1; {
			case index <= after || strings.Contains(event, " queued "):
			case index == t.lastText:
				r.want = append(r.want, fmt.Sprintf("%d text %q at 0", index, t.text))
			case index < t.firstText || index > t.lastText || !strings.Contains(event, " text "):
				r.want = append(r.want, r.asReceived([]string{event})...)
			}
		}
	}
}

// resume returns the turn that ResumeTurn reads, in memory or from the store.
func (o *oracle) resume(id string, t *oracleTurn) (live, stored *oracleTurn, err error) {
	c := o.conversations[id]
	switch {
	case c == nil:
		return nil, nil, store.ErrNotFound
	case t == nil && len(c.turns) > 0:
		t = c.turns[len(c.turns)-1]
	}
	switch {
	case slices.Contains(o.queues[id].turns(), t):
		return t, nil, nil
	case slices.Contains(c.turns, t):
		return nil, t, nil
	}
	return nil, nil, &NotFoundError{}
}

// list returns the known turns of a conversation, oldest first.
func (o *oracle) list(id string) []*oracleTurn {
	c := o.conversations[id]
	if c == nil {
		return nil
	}
	turns := c.turns
	if l := o.queues[id]; l != nil {
		turns = slices.Concat(turns, l.waiting)
	}
	return turns
}

// state returns the state of a turn that GetTurn finds, "" if it finds none.
func (o *oracle) state(t *oracleTurn) string {
	id := t.request.GetConversationId()
	switch c := o.conversations[id]; {
	case c == nil:
	case t.conversation == nil && t.queue == o.queues[id] && slices.Contains(t.queue.waiting, t):
		return "QUEUED"
	case t.conversation == nil && t.queue == o.queues[id] && slices.Contains(t.queue.ended, t):
		return t.state
	case t.conversation == c && slices.Contains(c.turns, t):
		return cmp.Or(t.state, "RUNNING")
	}
	return ""
}
