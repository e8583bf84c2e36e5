package summaries

import (
	"fmt"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/routing"
	"github.com/parleyhq/parley/store"
)

// TestGet checks which summaries are found.
func TestGet(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	three := routing.Options{MessageLimit: 3}
	s := &Summary{Of: store.Known{Version: 4, UID: "u"}, Options: three, Reply: []byte("reply")}
	leased := &Summary{Options: three, Until: now}
	c := New(1 << 20)
	c.Put("acme", "a", s)
	c.Put("acme", "leased", leased)
	for _, test := range []struct {
		name, tenant, id string
		options          routing.Options
		now              time.Time
		want             *Summary
	}{
		{"as put", "acme", "a", three, now, s},
		{"of another tenant", "other", "a", three, now, nil},
		{"of another conversation", "acme", "b", three, now, nil},
		{"with other options", "acme", "a", routing.Options{MessageLimit: 3, MaxBytes: 1}, now, nil},
		{"before the end of the lease", "acme", "leased", three, now.Add(-1), leased},
		{"at the end of the lease", "acme", "leased", three, now, nil},
	} {
		if got := c.Get(test.tenant, test.id, test.options, test.now); got != test.want {
			t.Errorf("%s: Get = %v, want %v", test.name, got, test.want)
		}
	}
	newer := &Summary{Options: three}
	c.Put("acme", "a", newer)
	if got := c.Get("acme", "a", three, now); got != newer {
		t.Errorf("Get after a second Put = %v, want %v", got, newer)
	}
}

// TestLimit checks that the summaries that were used last stay, within the limit, and that one that is too large is
// not kept.
func TestLimit(t *testing.T) {
	put := func(c *Cache, i, size int) {
		c.Put("acme", fmt.Sprintf("%04d", i), &Summary{Reply: make([]byte, size)})
	}
	has := func(c *Cache, i int) bool {
		return c.Get("acme", fmt.Sprintf("%04d", i), routing.Options{}, time.Time{}) != nil
	}
	const size, most = 1000, 20
	each := entry{key{"acme", "0000"}, &Summary{Reply: make([]byte, size)}}.size()
	c := New(most * each)
	for i := range most {
		put(c, i, size)
	}
	for i := range 5 {
		put(c, i, size) // again
	}
	has(c, 5)
	for i := range 10 {
		put(c, most+i, size)
	}
	for i := range most + 10 {
		if want := i <= 5 || i > 15; has(c, i) != want {
			t.Errorf("has %d = %v, want %v", i, !want, want)
		}
	}
	put(c, 0, c.limit/8)
	if has(c, 0) {
		t.Error("kept a summary that is too large")
	}
	if c.bytes != 19*each || len(c.byID) != 19 || c.newest.Len() != 19 {
		t.Errorf("%d bytes of %d summaries, want %d of 19", c.bytes, len(c.byID), 19*each)
	}
	if c := New(0); true {
		put(c, 1, 0)
		if has(c, 1) {
			t.Error("a cache with limit 0 has a summary, want none")
		}
	}
}
