package record

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// MaxCheckedTurns is the maximum number of turns that one call of Store.ListTurns decodes.
const MaxCheckedTurns = 1000

// TurnFinder finds turns of one conversation. It keeps the chunk that it has read last, since a list needs turns that
// are close to each other.
type TurnFinder struct {
	record  *Record
	chunk   []byte // the chunk that was read last; nil if none was read
	ordinal int64  // of that chunk
}

// NewTurnFinder returns a finder of the turns of a record. If the record has chunks of turns, its TurnChunks must be
// set.
func NewTurnFinder(r *Record) *TurnFinder { return &TurnFinder{record: r} }

// FindTurn returns a turn that the conversation keeps, or store.ErrTurnNotFound. Other errors: store.ErrCorrupt.
func (r *Record) FindTurn(id string) (*store.FoundTurn, error) {
	turn, list, err := NewTurnFinder(r).find(id)
	if err != nil {
		return nil, err
	}
	found := &store.FoundTurn{Turn: turn}
	if item := findItem(list, eventsField, id); item != nil {
		found.Events = new(storev1.TurnEvents)
		if err := proto.Unmarshal(item, found.Events); err != nil {
			return nil, fmt.Errorf("%w: events of turn %q: %w", store.ErrCorrupt, id, err)
		}
	}
	return found, nil
}

// find returns a turn and the list that contains it.
func (f *TurnFinder) find(id string) (turn *parleyv1.Turn, list []byte, err error) {
	var damage error // of a chunk: the turn may be in another one
	for list, err := range f.lists() {
		damage = cmp.Or(damage, err)
		if item := findItem(list, turnsField, id); item != nil {
			turn, err = unmarshalTurn(item)
			return turn, list, err
		}
	}
	return nil, nil, cmp.Or(damage, store.ErrTurnNotFound)
}

func unmarshalTurn(item []byte) (*parleyv1.Turn, error) {
	t := new(parleyv1.Turn)
	if err := proto.Unmarshal(item, t); err != nil {
		return nil, fmt.Errorf("%w: turn: %w", store.ErrCorrupt, err)
	}
	return t, nil
}

// lists yields the turns of the conversation: those in its value, then those of the chunk that was read last, then
// those of all others, the newest first.
func (f *TurnFinder) lists() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if !yield(f.record.Turns, nil) || f.chunk != nil && !yield(f.chunk, nil) {
			return
		}
		c := f.record.Header.GetTurnChunks()
		from, has := c.GetNext(), f.chunk != nil
		if has {
			from = f.ordinal
		}
		for i := range c.GetNext() - c.GetFirst() {
			ordinal := from - 1 - i
			if ordinal < c.GetFirst() { // The loop began at the chunk that was read last. Continue with the newer ones.
				ordinal += c.GetNext() - c.GetFirst()
			}
			if has && ordinal == from {
				continue
			}
			list, err := f.record.TurnChunks.Turns(ordinal)
			if err == nil {
				f.chunk, f.ordinal = list, ordinal
			}
			if !yield(list, err) {
				return
			}
		}
	}
}

// ListTurns returns a page of the turns of the conversation. If a chunk or a turn is damaged, the error is
// store.ErrCorrupt.
func (r *Record) ListTurns(l *store.ListTurns) (*store.TurnPage, error) {
	p := NewTurnPager(l)
	for list, err := range NewTurnFinder(r).lists() {
		if err != nil {
			return nil, err
		}
		items := slices.Collect(itemsOf(list, turnsField))
		if l.Before != "" && !p.begun {
			i := slices.IndexFunc(items, func(item []byte) bool { return string(itemID(item)) == l.Before })
			if i < 0 {
				continue
			}
			items, p.begun = items[:i], true
		}
		for _, item := range slices.Backward(items) {
			if p.IsFull() {
				return p.Page(), nil
			}
			turn, err := unmarshalTurn(item)
			if err != nil {
				return nil, err
			}
			p.add(string(itemID(item)), turn)
		}
	}
	p.End()
	return p.Page(), nil
}

// TurnPager collects a page of a store.ListTurns.
type TurnPager struct {
	list    *store.ListTurns
	page    store.TurnPage
	begun   bool   // the turn Before was found
	last    string // id of the last turn that was checked
	checked int    // number of turns that were checked
	size    int    // encoded size of the turns of the page, in bytes
}

// NewTurnPager returns a pager of a list.
func NewTurnPager(l *store.ListTurns) *TurnPager { return &TurnPager{list: l} }

// IsFull reports whether the page ends. The caller must call it before each further turn.
func (p *TurnPager) IsFull() bool {
	return len(p.page.Turns) >= max(1, p.list.Limit) || p.checked >= MaxCheckedTurns || p.size >= store.MaxListBytes/2
}

// Add adds the turn with an id to the page, if it is in one of the states of the list. Add skips a turn that the
// conversation of f does not keep. f is nil if the conversation does not exist. If the turn is damaged, Add skips it
// and returns store.ErrCorrupt.
func (p *TurnPager) Add(id TurnID, f *TurnFinder) error {
	text := id.String()
	if f == nil {
		p.add(text, nil)
		return nil
	}
	turn, _, err := f.find(text)
	if err != nil && !errors.Is(err, store.ErrTurnNotFound) {
		p.add(text, nil)
		return err
	}
	p.add(text, turn)
	return nil
}

// add counts a turn as checked, and adds it to the page if it is in one of the states of the list. turn is nil if it is
// not kept.
func (p *TurnPager) add(id string, turn *parleyv1.Turn) {
	p.last, p.checked = id, p.checked+1
	if turn != nil && (len(p.list.States) == 0 || slices.Contains(p.list.States, turn.GetState())) {
		p.page.Turns, p.size = append(p.page.Turns, turn), p.size+proto.Size(turn)
	}
}

// End makes the page the last one.
func (p *TurnPager) End() { p.last = "" }

// Page returns the page.
func (p *TurnPager) Page() *store.TurnPage {
	p.page.Next = p.last
	return &p.page
}

// TurnBefore returns store.ListTurns.Before of the list of a tenant. all is true if Before is empty. If Before is not a
// UUID of version 7 in its canonical form, the error is store.ErrPageToken.
func TurnBefore(l *store.ListTurns) (before TurnID, all bool, err error) {
	if l.Before == "" {
		return TurnID{}, true, nil
	}
	before, ok := ParseTurnID(l.Before)
	if !ok {
		return TurnID{}, false, fmt.Errorf("turns before %q: %w", l.Before, store.ErrPageToken)
	}
	return before, false, nil
}

// OnlyRunning reports whether a list selects only turns that run.
func OnlyRunning(l *store.ListTurns) bool {
	return len(l.States) > 0 && !slices.ContainsFunc(l.States, func(s parleyv1.TurnState) bool {
		return s != parleyv1.TurnState_TURN_STATE_RUNNING
	})
}
