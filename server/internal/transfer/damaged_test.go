package transfer

import (
	"net/url"
	"slices"
	"strings"
	"testing"
)

// TestJoinedIDs checks that each id can be read from JoinedIDs, also one with a comma.
func TestJoinedIDs(t *testing.T) {
	t.Parallel()
	want := []string{"c1", "a:b", "app/1", "a,b", "%2C", "ü", "a b"}
	joined := (&DamagedError{IDs: want}).JoinedIDs()
	if !strings.HasPrefix(joined, "c1,a:b,app%2F1,") {
		t.Errorf("JoinedIDs() = %q, want ids as in paths of HTTP", joined)
	}
	var got []string
	for escaped := range strings.SplitSeq(joined, ",") {
		id, err := url.PathUnescape(escaped)
		if err != nil {
			t.Error(err)
		}
		got = append(got, id)
	}
	if !slices.Equal(got, want) {
		t.Errorf("JoinedIDs() has %q, want %q", got, want)
	}
	long := &DamagedError{IDs: slices.Repeat([]string{strings.Repeat("ü", 128)}, 100)}
	if n := len(long.JoinedIDs()); n > maxJoinedBytes || n < maxJoinedBytes-3*256-1 {
		t.Errorf("JoinedIDs() has %d bytes, want at most %d and about that", n, maxJoinedBytes)
	}
	if got := new(DamagedError).JoinedIDs(); got != "" {
		t.Errorf("JoinedIDs() of no ids = %q, want none", got)
	}
}
