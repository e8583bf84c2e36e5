package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// example is the same agent in one language: a complete AgentService for readers to copy.
type example struct {
	name string
	// need is the file that starts it, built by make languages. If empty, the test builds the agent.
	need    string
	command func(t *testing.T) []string
}

func examples() []example {
	const python, node = "../../client/python/.venv/bin/python", "../../client/typescript/dist/examples/shop-agent.js"
	return []example{
		{"go", "", func(t *testing.T) []string {
			t.Helper()
			binary := filepath.Join(t.TempDir(), "agent")
			build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary,
				"../../client/examples/agent")
			build.Env = append(os.Environ(), "CGO_ENABLED=0") // as all programs are built
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			return []string{binary, "-address=127.0.0.1:0"}
		}},
		{"python", python, func(*testing.T) []string {
			return []string{python, "../../client/python/examples/shop_agent.py", "--address=127.0.0.1:0"}
		}},
		{"typescript", node, func(*testing.T) []string { return []string{"node", node, "--address=127.0.0.1:0"} }},
	}
}

// start starts the agent and returns its process and its address.
func (e example) start(t *testing.T) (process *os.Process, address string) {
	t.Helper()
	command := e.command(t)
	_, err := exec.LookPath(command[0])
	if err == nil && e.need != "" {
		_, err = os.Stat(e.need)
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("SKIPPED: run make languages first: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // It was killed.
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "agent serves AgentService address=")
	if !ok {
		t.Fatalf("the agent printed %q, %v", line, err)
	}
	return cmd.Process, address
}

// TestExampleAgents lets each example answer, stream, send data and fail on purpose. It cancels
// one turn and kills the agent during another.
func TestExampleAgents(t *testing.T) {
	t.Parallel()
	for _, e := range examples() {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			process, address := e.start(t)
			s := startServer(t, t.TempDir(),
				agents(t, fmt.Sprintf(`{default_agent: shop, agents: {shop: {kind: remote, address: %q}}}`, address)))
			for _, turn := range threeTurns {
				call := chat(t, s, &parleyv1.ChatRequest{ConversationId: "shop", Content: turn.ask + "."})
				finished := call.finish(t)
				if finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED || call.text != turn.answer.text {
					t.Fatalf("turn %q = %v with %q, want %q", turn.ask, finished.GetTurn(), call.text, turn.answer.text)
				}
				answer := finished.GetMessages()[0]
				data := answer.GetStructuredData()
				if len(data) != 1 || data[0].GetType() != "product_list" ||
					encodeJSON(t, data[0].GetValue().AsInterface()) != turn.answer.products {
					t.Errorf("turn %q has data %v, want a product_list %s", turn.ask, data, turn.answer.products)
				}
				if answer.GetSummary() == "" || answer.GetAgent() != "shop" {
					t.Errorf("turn %q has the answer %v, want a summary and the agent shop", turn.ask, answer)
				}
			}
			wantFailed(t, chat(t, s, &parleyv1.ChatRequest{ConversationId: "shop", Content: "fail"}), s, "This will ",
				"the shop is closed")

			slow := chat(t, s, &parleyv1.ChatRequest{ConversationId: "shop", Content: "slow"})
			slow.receiveUntil(t, func() bool { return slow.text != "" })
			reply, err := s.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{
				ConversationId: "shop", TurnId: slow.started.GetConversation().GetActiveTurnId(),
			})
			if err != nil || reply.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
				t.Errorf("CancelTurn = %v, %v; want CANCELLED", reply, err)
			}
			slow.finish(t)

			killed := chat(t, s, &parleyv1.ChatRequest{ConversationId: "shop", Content: "slow"})
			killed.receiveUntil(t, func() bool { return killed.text != "" })
			_ = process.Signal(syscall.SIGKILL)
			wantFailed(t, killed, s, "tick ", "")
		})
	}
}

// wantFailed receives the remaining events of a turn. The turn must fail with an error that contains
// message, and the stored answer must begin with text.
func wantFailed(t *testing.T, k *chatCall, s *server, text, message string) {
	t.Helper()
	turn := k.finish(t).GetTurn()
	failure := turn.GetError()
	if turn.GetState() != parleyv1.TurnState_TURN_STATE_FAILED || failure.GetReason() != "AGENT_FAILED" ||
		codes.Code(failure.GetCode()) != codes.Unavailable || !failure.GetRetryable() ||
		!strings.Contains(failure.GetMessage(), message) {
		t.Errorf("the turn ended as %v, want it FAILED with %q", turn, message)
	}
	stored := history(t, s, turn.GetConversationId()).GetMessages()
	last := stored[len(stored)-1]
	if last.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE || last.GetContent() != k.text ||
		!strings.HasPrefix(k.text, text) {
		t.Errorf("the stored answer = %v, want it INCOMPLETE with %q", last, k.text)
	}
}
