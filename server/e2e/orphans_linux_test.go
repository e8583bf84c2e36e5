package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestOrphansAreReaped: as process 1 of a container, the server reaps the orphaned processes of agents'
// programs. It never takes the exit status that a turn waits for.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	namespaces := []string{"--pid", "--fork", "--mount-proc", "--kill-child"}
	if os.Getuid() != 0 {
		namespaces = append(namespaces, "--user", "--map-root-user")
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", append(namespaces, "true")...).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: unshare cannot make a PID namespace: %v: %s", err, out)
	}
	process := parleyd(t, "--store=memory", "--log-level=debug", agents(t, `
agents:
  leaves: {kind: command, command: [sh, -c, "sleep 1000 & echo $!"]}
  fails: {kind: command, command: [sh, -c, "sleep 1000 & echo $!; exit 3"]}
`))
	inside := exec.CommandContext(t.Context(), "unshare", append(namespaces, process.Args...)...)
	inside.Env = process.Env
	s := startProcess(t, inside)

	const turns = 20
	var (
		chats sync.WaitGroup
		mu    sync.Mutex
		left  []string // process ids
	)
	for i := range turns {
		for name, want := range map[string]string{"leaves": "", "fails": "agent fails failed: sh ended with exit code 3"} {
			chats.Go(func() {
				stream, err := s.Chat(t.Context(), &parleyv1.ChatRequest{
					ConversationId: fmt.Sprint(name, "-", i), Agent: name, Content: "Hi",
				})
				if err != nil {
					t.Error(err)
					return
				}
				text := ""
				for {
					response, err := stream.Recv()
					if err != nil {
						t.Error(err)
						return
					}
					text += response.GetEvent().GetTextDelta().GetText()
					if end := response.GetEvent().GetFinished(); end != nil {
						if got := end.GetTurn().GetError().GetMessage(); got != want {
							t.Errorf("turn of %s ended with the error %q, want %q", name, got, want)
						}
						break
					}
				}
				mu.Lock()
				defer mu.Unlock()
				left = append(left, strings.TrimSpace(text))
			})
		}
	}
	chats.Wait()
	for _, pid := range left {
		s.await(t, "orphaned process reaped", "pid="+pid)
	}
	if len(left) != 2*turns {
		t.Errorf("%d orphans, want %d", len(left), 2*turns)
	}
}
