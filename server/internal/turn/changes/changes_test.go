package changes

import "testing"

func isWoken(w *Waiter[string]) bool {
	select {
	case <-w.C:
		return true
	default:
		return false
	}
}

// TestWake: a wake reaches all waiters of its key and no others, once until it is received, and none after Remove.
func TestWake(t *testing.T) {
	var all Waiters[string]
	all.Wake("a") // There is no waiter yet.
	first, second, other := all.Add("a"), all.Add("a"), all.Add("b")
	for _, w := range []*Waiter[string]{first, second, other} {
		if isWoken(w) {
			t.Error("waiter is woken before Wake")
		}
	}
	all.Wake("a")
	all.Wake("a")
	if !isWoken(first) || !isWoken(second) || isWoken(other) {
		t.Error("Wake(a) did not wake the waiters of a and no others")
	}
	if isWoken(first) {
		t.Error("two wakes before the first is received = 2, want 1")
	}
	all.WakeAll()
	if !isWoken(first) || !isWoken(second) || !isWoken(other) {
		t.Error("WakeAll did not wake all waiters")
	}
	first.Remove()
	first.Remove()
	all.Wake("a")
	if isWoken(first) || !isWoken(second) {
		t.Error("Wake after Remove did not wake the rest and no others")
	}
	second.Remove()
	other.Remove()
	if n := len(all.byKey); n != 0 {
		t.Errorf("%d keys remain, want 0", n)
	}
}
