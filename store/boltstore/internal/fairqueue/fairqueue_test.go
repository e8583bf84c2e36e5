package fairqueue

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// push adds items "a1", "a2" and so on of the tenant named by their first letter.
func push(t *testing.T, q *Queue[string], size int, items ...string) {
	t.Helper()
	for _, item := range items {
		if dropped, ok := q.Push(item[:1], size, item); !ok || len(dropped) > 0 {
			t.Fatalf("Push(%s) = %v, %v, want it accepted", item, dropped, ok)
		}
	}
}

// pop returns the next n items, each of which costs cost.
func pop(q *Queue[string], n, cost int) []string {
	var items []string
	for range n {
		item, ok := q.Pop(true)
		if !ok {
			break
		}
		q.Charge(item[:1], cost)
		items = append(items, item)
	}
	return items
}

func want(t *testing.T, what string, got []string, items string) {
	t.Helper()
	if !slices.Equal(got, strings.Fields(items)) {
		t.Errorf("%s = %v, want %s", what, got, items)
	}
}

func TestOneTenant(t *testing.T) {
	q := New[string](Limits{Items: 10, Bytes: 100, Quantum: 1})
	push(t, q, 1, "a1", "a2", "a3")
	want(t, "items", pop(q, 9, 1000), "a1 a2 a3")
	if q.Len() != 0 || q.Bytes() != 0 || len(q.flows) != 0 {
		t.Errorf("the empty queue has %d items of %d bytes and %d tenants", q.Len(), q.Bytes(), len(q.flows))
	}
}

// TestTurns checks that the tenants have turns of the same cost.
func TestTurns(t *testing.T) {
	q := New[string](Limits{Items: 100, Bytes: 100, Quantum: 2})
	push(t, q, 1, "a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "b3", "c1")
	want(t, "items", pop(q, 99, 1), "a1 a2 b1 b2 c1 a3 a4 b3 a5 a6")
}

// TestDebt checks that a tenant with expensive items has its turn less often.
func TestDebt(t *testing.T) {
	q := New[string](Limits{Items: 100, Bytes: 100, Quantum: 2})
	push(t, q, 1, "a1", "a2", "b1", "b2", "b3", "b4", "b5", "b6")
	first := pop(q, 1, 6) // a1 costs three quanta.
	want(t, "items", append(first, pop(q, 99, 1)...), "a1 b1 b2 b3 b4 b5 b6 a2")
}

// TestQuietTenantFirst checks that a tenant that was not active has the next turn, but only one.
func TestQuietTenantFirst(t *testing.T) {
	q := New[string](Limits{Items: 100, Bytes: 100, Quantum: 1})
	push(t, q, 1, "a1", "a2", "a3", "b1", "b2", "b3")
	want(t, "items", pop(q, 2, 1), "a1 b1")
	push(t, q, 1, "c1", "c2")
	want(t, "items of a new tenant", pop(q, 1, 1), "c1")
	push(t, q, 1, "c3")
	want(t, "items", pop(q, 99, 1), "a2 b2 c2 a3 b3 c3")
}

func TestRounds(t *testing.T) {
	q := New[string](Limits{Items: 100, Bytes: 100, Quantum: 1})
	push(t, q, 1, "a1", "a2", "a3", "b1", "b2")
	var rounds []string
	for q.Len() > 0 {
		round := pop(q, 1, 1)
		for item, ok := q.Pop(false); ok; item, ok = q.Pop(false) {
			q.Charge(item[:1], 1)
			round = append(round, item)
		}
		rounds = append(rounds, strings.Join(round, "+"))
	}
	want(t, "rounds", rounds, "a1+b1 a2+b2 a3")
}

// TestFull checks that a full queue drops the newest items of the tenant that has most of it.
func TestFull(t *testing.T) {
	for name, l := range map[string]Limits{
		"items": {Items: 4, Bytes: 1000, Quantum: 1},
		"bytes": {Items: 1000, Bytes: 40, Quantum: 1},
	} {
		t.Run(name, func(t *testing.T) {
			q := New[string](l)
			push(t, q, 10, "a1", "a2", "a3", "a4")
			if dropped, ok := q.Push("a", 10, "a5"); ok || len(dropped) > 0 {
				t.Errorf("Push of the tenant that fills the queue = %v, %v, want it refused", dropped, ok)
			}
			for i, item := range []string{"b1", "b2"} {
				dropped, ok := q.Push("b", 10, item)
				if want := fmt.Sprint("a", 4-i); !ok || !slices.Equal(dropped, []string{want}) {
					t.Errorf("Push(%s) = %v, %v, want %s dropped", item, dropped, ok, want)
				}
			}
			if dropped, ok := q.Push("b", 10, "b3"); ok || len(dropped) > 0 {
				t.Errorf("Push of a tenant with half of the queue = %v, %v, want it refused", dropped, ok)
			}
			if q.Len() != 4 || q.Bytes() != 40 {
				t.Errorf("the queue has %d items of %d bytes, want 4 of 40", q.Len(), q.Bytes())
			}
			want(t, "items", pop(q, 99, 1), "a1 b1 a2 b2")
		})
	}
}

// TestRefusedPushDropsNothing pushes an item for which other tenants would have to drop more than the first of them has
// above the pushing tenant.
func TestRefusedPushDropsNothing(t *testing.T) {
	q := New[string](Limits{Items: 100, Bytes: 10, Quantum: 1})
	push(t, q, 1, "a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "b3", "b4")
	if dropped, ok := q.Push("c", 5, "c1"); ok || len(dropped) > 0 {
		t.Errorf("Push = %v, %v, want it refused and nothing dropped", dropped, ok)
	}
	if q.Len() != 10 || q.Bytes() != 10 {
		t.Errorf("the queue has %d items of %d bytes, want 10 of 10", q.Len(), q.Bytes())
	}
	dropped, ok := q.Push("c", 2, "c2")
	want(t, "dropped items", dropped, "a6 a5")
	if !ok || q.Len() != 9 || q.Bytes() != 10 {
		t.Errorf("Push = %v, the queue has %d items of %d bytes, want 9 of 10", ok, q.Len(), q.Bytes())
	}
}

func TestLargerThanQueue(t *testing.T) {
	q := New[string](Limits{Items: 4, Bytes: 10, Quantum: 1})
	push(t, q, 50, "a1")
	if _, ok := q.Push("a", 1, "a2"); ok {
		t.Error("Push after an item larger than the queue was accepted")
	}
	want(t, "items", q.Clear(), "a1")
	if q.Len() != 0 || q.Bytes() != 0 {
		t.Errorf("after Clear the queue has %d items of %d bytes", q.Len(), q.Bytes())
	}
}

// TestModel makes random calls and checks the order of each tenant's items, the counts, the limits, and that
// no tenant waits longer than a round.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limits{Items: 12, Bytes: 60, Quantum: rapid.IntRange(1, 9).Draw(t, "quantum")}
		q := New[string](l)
		queued := map[string][]string{}
		sizes := map[string]int{}
		n := 0
		check := func() {
			items, bytes := 0, 0
			for _, list := range queued {
				for _, item := range list {
					items, bytes = items+1, bytes+sizes[item]
				}
			}
			if items != q.Len() || bytes != q.Bytes() || items > l.Items || bytes > l.Bytes && items > 1 {
				t.Fatalf("the queue has %d items of %d bytes, want %d of %d", q.Len(), q.Bytes(), items, bytes)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"push": func(t *rapid.T) {
				tenant := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant")
				n++
				item := fmt.Sprint(tenant, n)
				sizes[item] = rapid.IntRange(0, 70).Draw(t, "size")
				dropped, ok := q.Push(tenant, sizes[item], item)
				if !ok && len(dropped) > 0 {
					t.Fatalf("Push(%s) refused the item and dropped %v", item, dropped)
				}
				for _, d := range dropped {
					list := queued[d[:1]]
					if d[:1] == tenant || len(list) == 0 || list[len(list)-1] != d {
						t.Fatalf("Push(%s) dropped %s, which is not the newest item of another tenant", item, d)
					}
					queued[d[:1]] = list[:len(list)-1]
				}
				if ok {
					queued[tenant] = append(queued[tenant], item)
				}
			},
			"pop": func(t *rapid.T) {
				item, ok := q.Pop(rapid.Bool().Draw(t, "next round"))
				if !ok {
					return
				}
				q.Charge(item[:1], rapid.IntRange(0, 20).Draw(t, "cost"))
				if list := queued[item[:1]]; len(list) == 0 || list[0] != item {
					t.Fatalf("Pop = %s, want the oldest of %v", item, list)
				}
				queued[item[:1]] = queued[item[:1]][1:]
			},
		})
		for q.Len() > 0 {
			if _, ok := q.Pop(true); !ok {
				t.Fatal("Pop = false, although the queue has items")
			}
		}
		if _, ok := q.Pop(true); ok || len(q.flows) != 0 {
			t.Errorf("the empty queue has %d tenants", len(q.flows))
		}
	})
}
