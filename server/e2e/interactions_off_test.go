package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestInteractionLogOffForAWhile kills a server with a log, runs one without a log, then one with a
// log again. Messages of the time without a log get no entries; those that the kill lost do.
func TestInteractionLogOffForAWhile(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"killed", "stopped"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			dataDir := t.TempDir()
			l := startLogged(t, dataDir)
			start := time.Now()
			add(t, l.server, "c", userMessage("one"))
			awaitComplete(t, l, start)
			add(t, l.server, "c", userMessage("two"))
			l.kill()
			days := l.days(t)
			path := l.path(days[len(days)-1])
			first, _, _ := strings.Cut(readText(t, path), "\n")
			if err := os.WriteFile(path, []byte(first+"\n"), 0o600); err != nil { // as after a power cut
				t.Fatal(err)
			}
			off := startServer(t, dataDir, "--interaction-log=false")
			add(t, off, "c", userMessage("off"))
			add(t, off, "d", userMessage("off too"))
			if end == "killed" {
				off.kill()
			} else {
				off.terminate()
				off.wantStop(t)
			}
			l = startLogged(t, dataDir)
			add(t, l.server, "c", userMessage("three"))
			wantEntries(t, "log", l.entries(t), "c 1 User: one", "c 2 User: two", "c 4 User: three")
		})
	}
}
