package record

import (
	"maps"
	"math"
	"slices"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// removal says which messages a write removes. If it is nil, the write removes none.
type removal struct {
	store.Removal

	keeps func(sequence int32) bool
	count int // of removed messages; remove sets it
}

// removed returns the number of removed messages.
func (m *removal) removed() int {
	if m == nil {
		return 0
	}
	return m.count
}

// removalAfter returns the removal of all messages after a sequence, or nil if through is nil.
func removalAfter(through *int32) *removal {
	if through == nil {
		return nil
	}
	after := max(0, *through)
	return &removal{Removal: store.Removal{After: after}, keeps: func(sequence int32) bool { return sequence <= after }}
}

// removalOf returns what an update removes. Errors: store.SeparatedError, store.ErrCorrupt.
func (r *Record) removalOf(u *store.Update) (*removal, error) {
	if len(u.Sequences) == 0 {
		m := removalAfter(u.KeepThrough)
		if m == nil {
			return nil, nil //nolint:nilnil // No removal is a valid result.
		}
		return m, r.joinAfter(m.After)
	}
	listed, first := make(map[int32]bool, len(u.Sequences)), int32(math.MaxInt32)
	for _, sequence := range u.Sequences {
		if sequence >= r.firstSequence() {
			listed[sequence], first = true, min(first, sequence)
		}
	}
	if err := r.joinAfter(first - 1); err != nil {
		return nil, err
	}
	pairs, _, err := r.pairs(func(sequence int32) bool { return listed[sequence] })
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		if listed[p.call] != listed[p.result] {
			return nil, &store.SeparatedError{CallID: p.id, Call: p.call, Result: p.result}
		}
	}
	m := &removal{keeps: func(sequence int32) bool { return !listed[sequence] }}
	for frame := range r.Messages.All() {
		if sequence := frame.Sequence(); listed[sequence] {
			m.Sequences = append(m.Sequences, sequence)
		}
	}
	return m, nil
}

// replacementOf returns what an append with these drafts removes. Errors: store.SeparatedError, store.ErrCorrupt.
func (r *Record) replacementOf(after *int32, drafts []Draft) (*removal, error) {
	m := removalAfter(after)
	if after == nil {
		return m, nil
	}
	if err := r.joinAfter(m.After); err != nil {
		return nil, err
	}
	lost, calls, err := r.pairs(func(sequence int32) bool { return !m.keeps(sequence) })
	if err != nil {
		return nil, err
	}
	lost = slices.DeleteFunc(lost, func(p pair) bool { return m.keeps(p.call) == m.keeps(p.result) })
	if len(lost) == 0 {
		return m, nil
	}
	if _, _, err := calls.read(r.Messages[:r.sizeThrough(m.After)]); err != nil {
		return nil, err
	}
	answered := calls.readDrafts(drafts, r.Conversation().GetLastSequence()+1)
	for _, p := range lost {
		i := slices.IndexFunc(answered, func(a pair) bool { return a.call == p.call && a.id == p.id })
		if i < 0 {
			return nil, &store.SeparatedError{CallID: p.id, Call: p.call, Result: p.result, Replacing: true}
		}
		answered = slices.Delete(answered, i, i+1)
	}
	return m, nil
}

// replace removes what an append with these drafts removes. Errors: those of replacementOf and remove.
func (r *Record) replace(after *int32, drafts []Draft) (*removal, error) {
	m, err := r.replacementOf(after, drafts)
	if err != nil {
		return nil, err
	}
	return m, r.remove(m)
}

// sizeThrough returns the size of the messages up to a sequence.
func (r *Record) sizeThrough(sequence int32) int {
	size := 0
	for frame := range r.Messages.All() {
		if frame.Sequence() > sequence {
			break
		}
		size += len(frame)
	}
	return size
}

// remove removes messages, which must not be in chunks. The record must have no Sizes and no new messages. The error is
// store.ErrCorrupt.
func (r *Record) remove(m *removal) error {
	if m == nil {
		return nil
	}
	kept, oldest := make(store.Frames, 0, len(r.Messages)), 0
	var newest store.Frame
	for frame := range r.Messages.All() {
		if m.keeps(frame.Sequence()) {
			kept, newest = append(kept, frame...), frame
			continue
		}
		m.count++
		if newest == nil {
			oldest += len(frame.Body())
		}
	}
	if m.count == 0 {
		return nil
	}
	r.Messages, r.Data = kept, filterData(r.Data, m.keeps)
	r.setMessageCount(int(r.Conversation().GetMessageCount()) - m.count)
	r.Header.Preview = ""
	if r.Header.GetChunks().GetMessages() > 0 {
		oldest = 0 // Older messages are retained.
		if newest == nil {
			var err error
			if newest, err = r.newestOlder(); err != nil {
				return err
			}
		}
	}
	if newest == nil {
		return nil
	}
	r.Header.DroppedBytes += int64(oldest) // The offsets of the other messages stay the same.
	if message, err := newest.Message(); err == nil {
		r.Header.Preview = preview(message.GetContent())
	}
	return nil
}

// clearedChange returns the change that reports a removal.
func (r *Record) clearedChange(tenant string, m *removal, now time.Time) store.Change {
	change := r.change(tenant, parleyv1.ChangeKind_CHANGE_KIND_CLEARED, now)
	change.Count, change.Removal = m.count, &m.Removal
	return change
}

// pair is a tool call and its result, by the sequences of their messages.
type pair struct {
	id           string
	call, result int32
}

// openCalls counts the calls without a result, by id, in the newest message that has calls with the id. See
// ToolResult.call_id in the protos.
type openCalls map[string]openCall

type openCall struct {
	sequence int32
	count    int
}

// pairs returns the pairs of the messages that are not in chunks and of which a write removes some. If a removed result
// answers a call in a chunk, the pair is included. older are the calls in chunks that the removed results need.
func (r *Record) pairs(removes func(sequence int32) bool) (pairs []pair, older openCalls, err error) {
	pairs, unknown, err := openCalls{}.read(r.Messages)
	if err != nil || r.Header.GetChunks().GetMessages() == 0 {
		return pairs, openCalls{}, err
	}
	ids := map[string]bool{}
	for _, p := range unknown {
		if removes(p.result) {
			ids[p.id] = true
		}
	}
	if len(ids) == 0 {
		return pairs, openCalls{}, nil
	}
	if older, err = r.olderCalls(ids); err != nil {
		return nil, nil, err
	}
	pairs, _, err = maps.Clone(older).read(r.Messages)
	return pairs, older, err
}

// read adds messages and returns the pairs whose results are in them. unknown are the results for which no message has
// a call with the id.
func (o openCalls) read(frames store.Frames) (pairs, unknown []pair, err error) {
	var m store.Fields
	for frame := range frames.All() {
		if err := m.Read(frame); err != nil {
			return nil, nil, err
		}
		for _, call := range m.ToolCalls {
			o.add(string(call.Name), m.Sequence)
		}
		if m.ToolResult == nil {
			continue
		}
		result, err := m.ReadResult()
		if err != nil {
			return nil, nil, err
		}
		id := string(result.CallID)
		if _, ok := o[id]; !ok {
			unknown = append(unknown, pair{id: id, result: m.Sequence})
		}
		pairs = o.answer(pairs, id, m.Sequence)
	}
	return pairs, unknown, nil
}

// readDrafts is read for messages that are not numbered yet. first is the sequence that the first one will have.
func (o openCalls) readDrafts(drafts []Draft, first int32) (pairs []pair) {
	for i, d := range drafts {
		sequence := first + int32(i)
		for _, call := range d.message.GetToolCalls() {
			o.add(call.GetId(), sequence)
		}
		if result := d.message.GetToolResult(); result != nil {
			pairs = o.answer(pairs, result.GetCallId(), sequence)
		}
	}
	return pairs
}

func (o openCalls) add(id string, sequence int32) {
	c := o[id]
	if c.sequence != sequence {
		c = openCall{sequence: sequence}
	}
	c.count++
	o[id] = c
}

// answer appends the pair of a result, if a call with its id is open.
func (o openCalls) answer(pairs []pair, id string, result int32) []pair {
	c := o[id]
	if c.count == 0 {
		return pairs
	}
	c.count--
	o[id] = c
	return append(pairs, pair{id: id, call: c.sequence, result: result})
}
