package redisstore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// placed collects the changes that a store reports.
type placed struct {
	mu      sync.Mutex
	changes []store.Change
	more    chan struct{} // receives a value after changes
}

func newPlaced() *placed { return &placed{more: make(chan struct{}, 1)} }

// observe implements store.Options.Observe.
func (p *placed) observe(changes []store.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changes = append(p.changes, changes...)
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// await waits until the reported changes meet a condition.
func (p *placed) await(t *testing.T, what string, met func([]store.Change) bool) {
	t.Helper()
	for {
		if met(p.all()) {
			return
		}
		select {
		case <-p.more:
		case <-time.After(time.Minute):
			t.Fatalf("%s has not come after a minute: %v", what, p.texts())
		}
	}
}

// all returns the changes that were reported so far.
func (p *placed) all() []store.Change {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.changes)
}

// texts returns kind, conversation, epoch and number of each change.
func (p *placed) texts() (texts []string) {
	for _, c := range p.all() {
		text := strings.TrimPrefix(c.Kind.String(), "CHANGE_KIND_")
		if c.ConversationID != "" {
			text += fmt.Sprint(" ", c.ConversationID, " ", c.Place.Epoch, c.Place.Number)
		}
		texts = append(texts, text)
	}
	return texts
}

// TestRepeatedNumbers: after the engine has assigned a number again, no change of one history has a place of the other,
// and a GAP is between them. Changes that are reported while the epoch is not known have no place.
func TestRepeatedNumbers(t *testing.T) {
	tell := func(l *teller, epoch string, number int64, id string) {
		l.tell(0, numbered{number, epoch}, []store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_CREATED, ConversationID: id}})
	}
	hear := func(l *teller, epoch string, number int64, server, id string) {
		l.hear(0, publishedIn(t, numbered{number, epoch}, server, id), "own")
	}
	// All begin with number 5 of another server, reported in epoch e.
	tests := []struct {
		name string
		do   func(*teller)
		seen numbered // the argument of the next reading
		want []string // before the reading, and after it a GAP and the next change
	}{
		{"heard again", func(l *teller) { hear(l, "e", 5, "other", "x") }, numbered{1<<63 - 1, "e"}, []string{"GAP", "CREATED x 0"}},
		{"own, again", func(l *teller) { tell(l, "e", 5, "x") }, numbered{1<<63 - 1, "e"}, []string{"GAP", "CREATED x 0"}},
		{"heard in another epoch", func(l *teller) {
			hear(l, "f", 6, "other", "x")
		}, numbered{5, "e"}, []string{"GAP", "CREATED x 0"}},
		{"own, in another epoch", func(l *teller) {
			tell(l, "f", 6, "x")
			hear(l, "f", 6, "own", "x")
		}, numbered{5, "e"}, []string{"GAP", "CREATED x 0"}},
		{"before one that waits", func(l *teller) {
			hear(l, "e", 7, "other", "waits")
			hear(l, "f", 6, "other", "x")
			hear(l, "f", 7, "other", "y")
		}, numbered{5, "e"}, []string{"GAP", "CREATED waits 0", "CREATED x 0", "CREATED y 0"}},
		{"below the first reading", func(l *teller) {
			hear(l, "e", 3, "other", "x") // The change may only be late. The reading decides.
		}, numbered{5, "e"}, []string{"CREATED x e4"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newPlaced()
			l := newTeller(p.observe, 1)
			defer l.close()
			l.setLast(0, numbered{4, "e"})
			hear(l, "e", 5, "other", "first")
			test.do(l)
			if d := cmp.Diff(append([]string{"CREATED first e5"}, test.want...), p.texts()); d != "" {
				t.Errorf("changes reported before the reading (-want +got):\n%s", d)
			}
			select {
			case <-l.buckets[0].readAgain:
			default:
				t.Error("no reading of the last number was asked for")
			}
			if seen := l.seen(0); seen != test.seen {
				t.Errorf("the reading looks for %v, want %v", seen, test.seen)
			}
			told := len(p.texts())
			l.setLast(0, numbered{9, "f"})
			hear(l, "f", 10, "other", "next")
			if d := cmp.Diff([]string{"GAP", "CREATED next f10"}, p.texts()[told:]); d != "" {
				t.Errorf("changes reported after the reading (-want +got):\n%s", d)
			}
			if since, want := l.since(0), (store.Place{Epoch: "f", Number: 9, Index: store.LastIndex}); since != want {
				t.Errorf("since = %v, want %v", since, want)
			}
		})
	}
}

// TestNoGapWithoutRepetition: replies and messages that come in any order, and a reading that is older than the
// reported changes, cause no GAP.
func TestNoGapWithoutRepetition(t *testing.T) {
	p := newPlaced()
	l := newTeller(p.observe, 1)
	defer l.close()
	created := func(id string) []store.Change {
		return []store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_CREATED, ConversationID: id}}
	}
	l.hear(0, publishedIn(t, numbered{4, "e"}, "other", "before"), "own")
	l.setLast(0, numbered{3, "e"}) // The change was published after the reading.
	l.tell(0, numbered{5, "e"}, created("a"))
	l.hear(0, publishedIn(t, numbered{5, "e"}, "own", "a"), "own")
	l.hear(0, publishedIn(t, numbered{6, "e"}, "own", "b"), "own")
	l.tell(0, numbered{6, "e"}, created("b"))
	l.hear(0, publishedIn(t, numbered{7, "e"}, "other", "c"), "own")
	l.setLast(0, numbered{6, "e"})
	want := []string{"CREATED a e5", "CREATED b e6", "CREATED c e7"}
	if d := cmp.Diff(want, p.texts()); d != "" {
		t.Errorf("reported changes (-want +got):\n%s", d)
	}
	if since, want := l.since(0), (store.Place{Epoch: "e", Number: 4, Index: store.LastIndex}); since != want {
		t.Errorf("since = %v, want %v", since, want)
	}
}

// TestReadingBeforeChannel: if the last number that is read is higher than that of the last change, the channel has 100 ms
// to deliver the changes in between. A GAP takes the place of those that do not come.
func TestReadingBeforeChannel(t *testing.T) {
	for _, test := range []struct {
		name  string
		heard []int64 // after the reading
		want  []string
	}{
		{"all come", []int64{5, 6}, []string{"CREATED 5 e5", "CREATED 6 e6"}},
		{"the last one is missing", []int64{5}, []string{"CREATED 5 e5", "GAP"}},
		{"the first one is missing", []int64{6}, []string{"GAP", "CREATED 6 e6"}},
		{"none comes", nil, []string{"GAP"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlaced()
				l := newTeller(p.observe, 1)
				defer l.close()
				l.setLast(0, numbered{4, "e"})
				l.setLast(0, numbered{6, "e"})
				hear := func(number int64) {
					l.hear(0, publishedIn(t, numbered{number, "e"}, "other", strconv.FormatInt(number, 10)), "own")
				}
				for _, number := range test.heard {
					<-time.After(gapTime / 3) // of the fake clock
					hear(number)
				}
				<-time.After(2 * gapTime)
				if d := cmp.Diff(test.want, p.texts()); d != "" {
					t.Errorf("reported changes (-want +got):\n%s", d)
				}
				hear(7)
				if d := cmp.Diff(append(test.want, "CREATED 7 e7"), p.texts()); d != "" {
					t.Errorf("changes reported with the next one (-want +got):\n%s", d)
				}
			})
		})
	}
}

// TestNewEpoch: when the engine may have an older copy of the data, two stores agree on a new epoch. Each reports a GAP
// before the first change with a place in that epoch, and both report the same place for this change.
func TestNewEpoch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		do   func(t *testing.T, engine *redistest.Server, p *proxy, first, second *Store)
	}{
		{"failover to an older copy", func(t *testing.T, engine *redistest.Server, p *proxy, _, _ *Store) {
			t.Helper()
			older(t, engine)
			p.cut()
		}},
		{"older copy on the same connections", func(t *testing.T, engine *redistest.Server, _ *proxy, _, second *Store) {
			t.Helper()
			older(t, engine)
			appendTo(t, second, "again", "its number was given before")
		}},
		{"another process of the engine", func(_ *testing.T, engine *redistest.Server, _ *proxy, _, _ *Store) {
			engine.Kill()
			engine.Restart()
		}},
		{"epoch lost", func(t *testing.T, engine *redistest.Server, _ *proxy, first, _ *Store) {
			t.Helper()
			if _, err := engine.Do("HDEL", first.buckets[0].prefix+"st", "e"); err != nil {
				t.Fatal(err)
			}
			appendTo(t, first, "unordered", "it has no epoch")
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			engine := redistest.Start(t)
			p := newProxy(t, engine.Addr())
			views := []*placed{newPlaced(), newPlaced()}
			first := openAt(t, store.Options{Observe: views[0].observe}, p.addr)
			second := openAt(t, store.Options{Observe: views[1].observe}, engine.Addr())
			for i := range 5 {
				appendTo(t, first, fmt.Sprint("c", i), "hello")
			}
			_, old := second.Since("acme")
			test.do(t, engine, p, first, second)
			for i, s := range []*Store{first, second} {
				views[i].await(t, "a new epoch", func([]store.Change) bool {
					_, now := s.Since("acme")
					return now.Epoch != "" && now.Epoch != old.Epoch
				})
				if i == 0 { // A server whose connections have not ended receives the new epoch with the next change.
					appendTo(t, first, "next", "hello")
				}
			}
			_, a := first.Since("acme")
			_, b := second.Since("acme")
			if a.Epoch != b.Epoch {
				t.Fatalf("the epochs are %q and %q, want one", a.Epoch, b.Epoch)
			}
			appendTo(t, first, "last", "hello")
			var last []store.Place
			for _, view := range views {
				isLast := func(c store.Change) bool { return c.ConversationID == "last" && c.Place.Index == store.LastIndex }
				view.await(t, "the last change", func(all []store.Change) bool { return slices.ContainsFunc(all, isLast) })
				all := view.all()
				checkPlaces(t, all, old.Epoch)
				last = append(last, all[slices.IndexFunc(all, isLast)].Place)
			}
			if last[0] != last[1] || last[0].Epoch != a.Epoch {
				t.Errorf("places of one change = %v and %v, want one in epoch %q", last[0], last[1], a.Epoch)
			}
		})
	}
}

// older sets the number of the last change to a lower one, as in an older copy of the data.
func older(t *testing.T, engine *redistest.Server) {
	t.Helper()
	if _, err := engine.Do("HINCRBY", newBuckets("parley", 1)[0].prefix+"st", "c", "-3"); err != nil {
		t.Fatal(err)
	}
}

// checkPlaces checks that places rise, except from one epoch to another, and that a GAP is between these. The last epoch
// must not be the old one.
func checkPlaces(t *testing.T, changes []store.Change, old string) {
	t.Helper()
	var last store.Place
	missed := false
	for i := range changes {
		c := &changes[i]
		if c.Kind == parleyv1.ChangeKind_CHANGE_KIND_GAP {
			missed = true
			continue
		}
		if c.Place.Epoch != last.Epoch && i > 0 && !missed {
			t.Errorf("%s of %q has the place %v after %v without a GAP", c.Kind, c.ConversationID, c.Place, last)
		}
		if c.Place.Epoch == last.Epoch && c.Place.Epoch != "" && c.Place.Compare(last) <= 0 {
			t.Errorf("%s of %q has the place %v after %v", c.Kind, c.ConversationID, c.Place, last)
		}
		last, missed = c.Place, false
	}
	if last.Epoch == old {
		t.Errorf("the last place is %v, in the old epoch", last)
	}
}
