package cache

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/parleyhq/parley/store"
)

func state(head, messages string) State {
	return State{Head: []byte(head), Messages: store.Frames(messages)}
}

// wantState checks what a reader finds: head and messages with a space between them, or "none".
func wantState(t *testing.T, c *Cache, key, want string) {
	t.Helper()
	got := "none"
	if s, ok := c.Get(key); ok {
		got = string(s.Head) + " " + string(s.Messages)
	}
	if got != want {
		t.Errorf("%s is %q, want %q", key, got, want)
	}
}

func of(keys ...string) func(func(string) bool) { return slices.Values(keys) }

// TestFills checks that a fill is dropped if its conversation was written in the meantime, and that blocked
// conversations are not found.
func TestFills(t *testing.T) {
	c := New(1 << 20)
	c.Fill("a").Put(state("1", "m"))
	wantState(t, c, "a", "1 m")
	c.Fill("a").Put(state("2", "m")) // Another reader has filled it.
	wantState(t, c, "a", "1 m")

	overtaken := c.Fill("b")
	c.Block(of("a", "b"))
	wantState(t, c, "a", "none")
	c.Fill("a").Put(state("old", ""))
	c.Remove(of("a", "b"))
	overtaken.Put(state("old", ""))
	wantState(t, c, "a", "none")
	wantState(t, c, "b", "none")

	c.Fill("a").Put(state("1", "m"))
	c.Block(of("a"))
	c.Unblock(of("a")) // The write was rolled back.
	wantState(t, c, "a", "1 m")

	first, second := c.Fill("c"), c.Fill("c")
	first.Put(state("first", ""))
	second.Put(state("second", ""))
	wantState(t, c, "c", "second ")
	c.Fill("d").Drop()
	if len(c.fills) != 0 || len(c.blocked) != 0 {
		t.Errorf("%d fills and %d blocks are left", len(c.fills), len(c.blocked))
	}
	c.Close()
	c.Fill("e").Put(state("late", ""))
	wantState(t, c, "a", "none")
	wantState(t, c, "e", "none")
}

// TestAppend checks that appended messages follow the others, that the oldest are dropped, and that earlier states do not
// change.
func TestAppend(t *testing.T) {
	c := New(1 << 20)
	write := func(head, messages string, retained int) {
		c.Block(of("a"))
		c.Append("a", []byte(head), store.Frames(messages), retained)
		c.Unblock(of("a"))
	}
	write("0", "not cached", 3)
	wantState(t, c, "a", "none")
	c.Fill("a").Put(state("1", "one"))
	before, _ := c.Get("a")
	write("2", "two", 6)
	between, _ := c.Get("a")
	wantState(t, c, "a", "2 onetwo")
	write("3", "three", 8)
	wantState(t, c, "a", "3 twothree")
	write("4", "", 5)
	wantState(t, c, "a", "4 three")
	write("5", "four", 3)
	wantState(t, c, "a", "5 our")
	if string(before.Messages) != "one" || string(between.Messages) != "onetwo" {
		t.Errorf("earlier states are %q and %q", before.Messages, between.Messages)
	}
	write("6", "x", 99) // This cannot follow.
	wantState(t, c, "a", "none")
}

// TestReplace checks that Replace changes a state that the cache has, and its size, and adds none. A reader finds the
// state only after the end of the block.
func TestReplace(t *testing.T) {
	c := New(1 << 20)
	c.Block(of("a"))
	c.Replace("a", state("1", ""))
	c.Unblock(of("a"))
	wantState(t, c, "a", "none")
	smaller, larger := State{Head: make([]byte, 10)}, State{Head: make([]byte, 1000)}
	c.Fill("a").Put(smaller)
	before := c.Stats().Bytes
	c.Block(of("a"))
	if !c.Has("a") || c.Has("b") {
		t.Errorf("Has = %t for a, %t for b, want true, false", c.Has("a"), c.Has("b"))
	}
	c.Replace("a", larger)
	wantState(t, c, "a", "none")
	c.Unblock(of("a"))
	wantState(t, c, "a", string(larger.Head)+" ")
	if grown := c.Stats().Bytes - before; grown != int64(cap(larger.Head)-cap(smaller.Head)) {
		t.Errorf("the cache grew by %d bytes, want the difference of the heads", grown)
	}
}

// TestLimit checks that the states take no more than the limit, that those in use stay longest, and that a large one does
// not push out the others.
func TestLimit(t *testing.T) {
	const size, most = 1000, 20
	c := New(most * (size + overhead + 10 + len("199")))
	put := func(key string, n int) {
		for range 2 { // A full cache refuses the first fill.
			c.Fill(key).Put(State{Head: make([]byte, 10), Messages: make(store.Frames, n)})
		}
		if got := int(c.Stats().Bytes); got > c.limit || len(c.clock) != len(c.entries) {
			t.Fatalf("%d bytes of %d, %d entries of %d", got, c.limit, len(c.clock), len(c.entries))
		}
	}
	for i := range 10 * most {
		put(fmt.Sprint(i), size)
		for used := range 3 {
			c.Get(fmt.Sprint(used))
		}
	}
	for used := range 3 {
		if _, ok := c.Get(fmt.Sprint(used)); !ok {
			t.Errorf("state %d was used and is not in the cache", used)
		}
	}
	if n := len(c.entries); n != most {
		t.Errorf("%d states, want %d", n, most)
	}
	put("large", c.limit/2)
	if n := len(c.entries); n != most {
		t.Errorf("%d states after a large one, want %d", n, most)
	}
}

// TestScan checks that a full cache keeps what it has while many other conversations are read once each, and accepts a
// conversation that is read twice.
func TestScan(t *testing.T) {
	const size, most = 1000, 20
	c := New(most * (size + overhead + len("199")))
	fill := func(key string) { c.Fill(key).Put(State{Messages: make(store.Frames, size)}) }
	for i := range 10 * most {
		fill(fmt.Sprint(i))
	}
	for i := range most {
		if _, ok := c.Get(fmt.Sprint(i)); !ok {
			t.Errorf("the cache was filled with %d first, and does not have it after others were read once", i)
		}
	}
	for range 2 {
		fill("again")
	}
	if _, ok := c.Get("again"); !ok {
		t.Error("the cache does not have a conversation that was read twice")
	}
}

// TestBuffer checks that a state counts with all the memory in which its messages are, also with that of messages
// which are not retained any more.
func TestBuffer(t *testing.T) {
	const size, buffer = 1000, 2000
	c := New(1 << 20)
	c.Fill("a").Put(State{Messages: make(store.Frames, size, buffer)})
	for n := size; n < buffer; n += 100 {
		if got, want := c.Stats().Bytes, int64(buffer+overhead+len("a")); got != want {
			t.Errorf("after %d bytes: %d, want %d", n, got, want)
		}
		c.Append("a", nil, make(store.Frames, 100), size)
	}
}

// TestRace appends to conversations while others read them.
func TestRace(t *testing.T) {
	c := New(100 << 10)
	const keys, rounds = 5, 2000
	var group sync.WaitGroup
	group.Go(func() {
		for i := range rounds {
			key := fmt.Sprint(i % keys)
			c.Block(of(key))
			c.Append(key, []byte("head"), store.Frames("abcde"), 50)
			c.Unblock(of(key))
			if i%100 == 0 {
				c.Block(of(key))
				c.Remove(of(key))
			}
		}
	})
	for range 3 {
		group.Go(func() {
			for i := range rounds {
				key := fmt.Sprint(i % keys)
				if s, ok := c.Get(key); !ok {
					c.Fill(key).Put(State{Head: []byte("head"), Messages: store.Frames("abcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcde")})
				} else if m := string(s.Messages); len(m) != 50 || m[:5] != "abcde" || m[45:] != "abcde" {
					t.Errorf("messages %q", m)
					return
				}
			}
		})
	}
	group.Wait()
}
