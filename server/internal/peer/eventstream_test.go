package peer

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/parleyhq/parley/store"
)

// TestAttemptsUseOtherCredentials checks that successive attempts to open a stream use the credentials of all watchers,
// also while watchers come and leave, and that a watcher that has left is not used.
func TestAttemptsUseOtherCredentials(t *testing.T) {
	watchers := make(map[*eventWatcher]struct{})
	join := func(name string) *eventWatcher {
		w := &eventWatcher{sent: metadata.Pairs("name", name)}
		watchers[w] = struct{}{}
		return w
	}
	s := &eventStream{events: &events{}, tenant: &tenantEvents{name: "acme", watchers: watchers}, server: store.Server{}}
	// used returns the watchers of this many attempts, and how often each was used.
	used := func(attempts int) map[string]int {
		counts := make(map[string]int)
		for range attempts {
			counts[fmt.Sprint(s.credentials()["name"])]++
		}
		return counts
	}
	want := func(got map[string]int, names, each int) {
		t.Helper()
		if len(got) != names {
			t.Errorf("attempts used %v, want %d watchers", got, names)
		}
		for name, n := range got {
			if n != each {
				t.Errorf("attempts used %s %d times, want %d", name, n, each)
			}
		}
	}
	first := join("0")
	for i := range 5 {
		join(fmt.Sprint(i + 1))
	}
	want(used(18), 6, 3)
	delete(watchers, first)
	want(used(5), 5, 1)
	clear(watchers)
	if got := s.credentials()["name"]; got != nil {
		t.Errorf("without watchers an attempt used %v", got)
	}
}
