package overlay

import (
	"bytes"
	"slices"

	"github.com/google/btree"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// Memory of a turn and of the first one of a tenant in a generation, in bytes: measured, with the nodes of the trees.
const (
	turnBytes        = 64
	tenantTurnsBytes = 1200
)

// Turn is a turn that an operation begins, and the conversation to which it belongs.
type Turn struct {
	ID           record.TurnID
	Conversation layout.InnerKey
}

// TurnChange is what an operation does to a turn. The zero value does nothing.
type TurnChange struct {
	// Begun and Ended are the ids of the turns that begin and end; zero if there are none, or if they are not indexed.
	Begun, Ended record.TurnID
}

// turns are the turns of a tenant that operations of a generation begin. Each leads to a conversation, which may have
// dropped the turn: neither a fold nor the removal of the conversation changes turns.
type turns struct {
	begun   *btree.BTreeG[Turn]
	running *btree.BTreeG[Turn] // those of them that no operation has ended
}

func newTurns() *turns {
	const degree = 16
	tree := func() *btree.BTreeG[Turn] {
		return btree.NewWithFreeListG(degree, func(a, b Turn) bool { return bytes.Compare(a.ID[:], b.ID[:]) < 0 },
			btree.NewFreeListG[Turn](0))
	}
	return &turns{begun: tree(), running: tree()}
}

// PutTurn notes what an operation does to a turn of a conversation. The writer calls it before it puts the entry of the
// operation, in the same generation.
func (s *Set) PutTurn(tenant string, conversation layout.InnerKey, c TurnChange) {
	var none record.TurnID
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Begun != none {
		t := s.currentTurns[tenant]
		if t == nil {
			t = newTurns()
			s.currentTurns[tenant] = t
			s.currentUse.memory += tenantTurnsBytes
		}
		t.begun.ReplaceOrInsert(Turn{ID: c.Begun, Conversation: conversation})
		t.running.ReplaceOrInsert(Turn{ID: c.Begun, Conversation: conversation})
		s.currentUse.memory += turnBytes
	}
	if c.Ended != none {
		for _, all := range []map[string]*turns{s.currentTurns, s.foldingTurns} {
			if t := all[tenant]; t != nil {
				t.running.Delete(Turn{ID: c.Ended})
			}
		}
	}
}

// Turn returns the turn with an id, if an operation begins it. A reader calls Turn before it begins its transaction. If
// ok is false, then the file in this transaction has the turn, or the turn did not exist when Turn was called.
func (s *Set) Turn(tenant string, id record.TurnID) (turn Turn, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, all := range []map[string]*turns{s.currentTurns, s.foldingTurns} {
		if t := all[tenant]; t != nil {
			if turn, ok := t.begun.Get(Turn{ID: id}); ok {
				return turn, true
			}
		}
	}
	return Turn{}, false
}

// Turns returns at most limit turns of a tenant that operations begin, in falling order of their ids: those before an
// id, or all if before is nil. If running is true, it omits the turns that operations have ended. The file may have
// some of the turns, too. A reader calls Turns before it begins its transaction, see Turn.
func (s *Set) Turns(tenant string, before *record.TurnID, running bool, limit int) []Turn {
	var found []Turn
	for _, tree := range s.trees(tenant, running) {
		n := 0
		visit := func(t Turn) bool {
			if before == nil || t.ID != *before {
				found, n = append(found, t), n+1
			}
			return n < limit
		}
		if before == nil {
			tree.Descend(visit)
		} else {
			tree.DescendLessOrEqual(Turn{ID: *before}, visit)
		}
	}
	slices.SortFunc(found, func(a, b Turn) int { return bytes.Compare(b.ID[:], a.ID[:]) })
	return found[:min(len(found), limit)]
}

// trees returns copies of the trees of a tenant.
func (s *Set) trees(tenant string, running bool) (trees []*btree.BTreeG[Turn]) {
	s.mu.Lock() // A read lock is not enough: Clone changes the tree.
	defer s.mu.Unlock()
	for _, all := range []map[string]*turns{s.currentTurns, s.foldingTurns} {
		switch t := all[tenant]; {
		case t == nil:
		case running:
			trees = append(trees, t.running.Clone())
		default:
			trees = append(trees, t.begun.Clone())
		}
	}
	return trees
}
