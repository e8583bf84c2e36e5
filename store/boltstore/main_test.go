package boltstore

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestMain runs the tests. In a child process of TestKill it runs child instead.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// clock is a clock that stands still until advance is called.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open opens a store that is closed when the test ends.
func open(tb testing.TB, path string, o store.Options) *Store {
	tb.Helper()
	s, err := Open(path, Options{Options: o})
	if err != nil {
		tb.Fatal(err)
	}
	s.db.NoSync = true // The tests do not crash the machine, so syncs have no effect.
	tb.Cleanup(func() { s.Close() })
	return s
}

// openJournaled opens a store whose journal has that budget, 0 for no journal, with a cache. It is closed when the test
// ends.
func openJournaled(tb testing.TB, path string, o store.Options, budget int64) *Store {
	tb.Helper()
	return openDivided(tb, path, o, budget, 0)
}

// openDivided is openJournaled with chunks of size bytes, 0 for the default.
func openDivided(tb testing.TB, path string, o store.Options, budget int64, size int) *Store {
	tb.Helper()
	s, err := Open(path, Options{
		Options: o, JournalBudget: budget, segmentBytes: 16 << 10, CacheBytes: 20 << 10, chunkSize: size,
	})
	if err != nil {
		tb.Fatal(err)
	}
	s.db.NoSync = true // As in open.
	tb.Cleanup(func() { s.Close() })
	return s
}

// kill leaves the files as the end of the process would.
func kill(tb testing.TB, s *Store) {
	tb.Helper()
	s.closing.Do(func() {
		if s.folder != nil {
			s.folder.close()
		}
		s.writer.close()
		if err := s.closeFiles(); err != nil {
			tb.Fatal(err)
		}
	})
}

func newPath(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "parley.db")
}

func text(content string) []*parleyv1.Message {
	return []*parleyv1.Message{{Id: "id of " + content, Role: parleyv1.Role_ROLE_USER, Content: content}}
}

// appendTo adds one message to a conversation of tenant "acme".
func appendTo(t *testing.T, s *Store, id, content string) *store.Result {
	t.Helper()
	result, err := s.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: id, Messages: text(content)})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// listIDs returns the ids of a tenant's conversations, newest first.
func listIDs(t *testing.T, s *Store, tenant string) []string {
	t.Helper()
	page, err := s.List(t.Context(), &store.List{Tenant: tenant, PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, e := range page.Entries {
		ids = append(ids, e.GetConversation().GetId())
	}
	return ids
}

// sweep sweeps until there is no more to do.
func sweep(t *testing.T, s *Store) {
	t.Helper()
	for range 1000 {
		more, err := s.Sweep(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return
		}
	}
	t.Fatal("Sweep has more to do after 1000 calls")
}
