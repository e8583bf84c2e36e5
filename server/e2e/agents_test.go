package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// badAgent is a program that misbehaves, and the expected result of its turn.
type badAgent struct {
	name      string
	script    string // run by sh in a directory that contains badFiles
	format    string
	reason    string // of the failure; if empty, the turn is COMPLETED
	errorText string // a part of the error's message
	answer    string // the stored answer
	anyPrefix bool   // any non-empty beginning of answer may be stored
}

const (
	agentIdleLimit = 3 * time.Second
	agentTurnLimit = 5 * time.Second
	// agentsEndWithin is the turn limit plus the 5 s that an agent has to stop, doubled for a
	// slow machine.
	agentsEndWithin = 2 * (agentTurnLimit + 5*time.Second)
)

func badAgents() []badAgent {
	const failed, late, large = "AGENT_FAILED", "AGENT_TIMEOUT", "AGENT_OUTPUT_TOO_LARGE"
	const silent = "sent nothing for 3s"
	return []badAgent{
		{
			name: "exits 1", script: "printf half; echo 'no sugar left' >&2; exit 1", reason: failed,
			errorText: "sh ended with exit code 1: no sugar left", answer: "half",
		},
		{
			name: "is killed", script: "printf half; kill -KILL $$", reason: failed,
			errorText: "sh was ended by a signal (killed)", answer: "half",
		},
		{name: "hangs", script: "printf half; exec sleep 3600", reason: late, errorText: silent, answer: "half"},
		{name: "hangs without output", script: "exec sleep 3600", reason: late, errorText: silent},
		{name: "prints garbage", script: "cat garbage", answer: badFiles()["ascii"] + strings.Repeat("\uFFFD", 128)},
		{
			name: "prints garbage where JSON should be", format: "stream-json", script: "cat words garbage", reason: failed,
			errorText: "a line that is not a JSON object", answer: "half",
		},
		{
			name:   "prints one byte a second",
			script: "for c in s l o w l y s l o w l y; do printf $c; sleep 1; done; sleep 3600", reason: late,
			errorText: "did not finish within 5s", answer: "slowlyslowly", anyPrefix: true,
		},
		{name: "prints a line of 1 MiB", script: "cat mib", answer: badFiles()["mib"]},
		{
			name: "prints a line of 1 MiB+1", script: "cat mib; printf x", reason: large, errorText: "larger than 1048576 bytes",
			answer: badFiles()["mib"],
		},
		{
			name: "prints a line of JSON of 1 MiB", format: "stream-json",
			script: "cat words json; echo; cat words; echo '{\"type\":\"result\"}'", answer: "halfhalf",
		},
		{
			name: "prints a line of JSON of 1 MiB+1", format: "stream-json",
			script: "cat words json; echo ' '; cat words; echo '{\"type\":\"result\"}'", answer: "halfhalf",
		},
		{name: "ends in mid-character", script: `printf 'caf\303'`, answer: "caf\uFFFD"},
		{
			name: "closes its output in mid-character", script: `printf 'caf\303'; exec sleep 3600 >&-`, reason: late,
			errorText: silent, answer: "caf\uFFFD",
		},
		{
			name: "ignores SIGTERM", script: "trap 'echo end >>signals' TERM; printf half; while :; do sleep 1; done",
			reason: late, errorText: silent, answer: "half",
		},
		{name: "leaves a grandchild that holds the pipe", script: "sleep 3600 & printf whole", answer: "whole"},
		{
			name:   "fails and leaves a grandchild that ignores SIGTERM",
			script: "(trap '' TERM; exec sleep 3600) & printf half; exit 1", reason: failed, errorText: "exit code 1",
			answer: "half",
		},
	}
}

// badFiles returns the names and contents of the files that the programs print.
func badFiles() map[string]string {
	bytes := make([]byte, 256)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	const line = `{"type":"ignored","padding":"%s"}`
	return map[string]string{
		"ascii":   string(bytes[:128]),
		"garbage": string(bytes), // no two bytes of the second half form a character
		"mib":     strings.Repeat("x", 1<<20),
		"words":   `{"type":"assistant","message":{"content":[{"type":"text","text":"half"}]}}` + "\n",
		"json":    fmt.Sprintf(line, strings.Repeat("x", 1<<20-len(fmt.Sprintf(line, "")))),
	}
}

// TestBadAgents: whatever a program does, its turn ends in time with a reason, the conversation
// continues, and the server holds the same processes and files as before. Each program answers in
// two conversations at the same time: a leak occurs in both.
func TestBadAgents(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range badFiles() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bad := badAgents()
	s := startServer(t, t.TempDir(), agents(t, badAgentsConfig(t, dir, bad)),
		fmt.Sprint("--idle-timeout=", agentIdleLimit), fmt.Sprint("--turn-timeout=", agentTurnLimit))
	left := remains{server: s.process.Process.Pid, dir: dir}

	// A good agent runs first, because the server keeps some files of its first turn open.
	h := hold(t, s, "good")
	if len(left.processes()) == 0 && runtime.GOOS == "linux" {
		t.Error("processes() = none while an agent runs, want its process")
	}
	h.release(t, "apple")
	atRest := left.files()

	bad = append(bad, bad...)
	calls := make([]*chatCall, len(bad))
	for i, a := range bad { // The turns run in parallel; the test reads their events later.
		calls[i] = chat(t, s, &parleyv1.ChatRequest{
			ConversationId: fmt.Sprint(a.id(), "-", i), Content: "hello", Agent: a.id(),
		})
	}
	for i, a := range bad {
		t.Run(a.name, func(t *testing.T) { a.check(t, s, calls[i]) })
	}
	eventually(t, "processes after the turns", nil, left.processes)
	eventually(t, "open files", atRest, left.files)
	if signals, err := os.ReadFile(filepath.Join(dir, "signals")); strings.Count(string(signals), "\n") != 2 {
		t.Errorf("the agent that ignores SIGTERM received %q, %v; want one SIGTERM in each of 2 turns", signals, err)
	}

	seen := make(map[string]int)
	for _, stack := range goroutineStacks(t, s) {
		// Libraries keep pools of identical goroutines.
		ours := strings.Contains(stack, "github.com/parleyhq/parley/") || strings.Contains(stack, "os/exec.")
		seen[stack]++
		if ours && seen[stack] == 2 {
			t.Errorf("more than one goroutine left with this stack:\n%s", stack)
		}
	}
}

// check reads the agent's turn to its end and compares its result, answer and history.
func (a *badAgent) check(t *testing.T, s *server, k *chatCall) {
	t.Helper()
	id := k.started.GetConversation().GetId()
	finished := k.finish(t)
	turn := finished.GetTurn()
	state, status := parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	if a.reason != "" {
		state, status = parleyv1.TurnState_TURN_STATE_FAILED, parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
	}
	if turn.GetState() != state || turn.GetError().GetReason() != a.reason ||
		!strings.Contains(turn.GetError().GetMessage(), a.errorText) {
		t.Errorf("the turn ended as %v, want %v, %s, %q", turn, state, a.reason, a.errorText)
	}
	if took := turn.GetFinishTime().AsTime().Sub(turn.GetCreateTime().AsTime()); took > agentsEndWithin {
		t.Errorf("the turn took %v, want at most %v", took, agentsEndWithin)
	}
	answer := a.answer
	if a.anyPrefix && k.text != "" {
		answer = answer[:min(len(k.text), len(answer)-1)]
	}
	if k.text != answer {
		t.Errorf("%d bytes were streamed, want %d: %.300q", len(k.text), len(answer), k.text)
	}

	want := "USER hello\n"
	if answer != "" {
		want += "ASSISTANT " + answer + "\n"
	}
	stored := history(t, s, id).GetMessages()
	if got := contents(stored); got != want {
		t.Fatalf("the history has %d bytes, want %d: %.300q", len(got), len(want), got)
	}
	if answer != "" && (stored[1].GetStatus() != status || turn.GetLastAnswerSequence() != 2) {
		t.Errorf("the answer has status %v in %v, want %v", stored[1].GetStatus(), turn, status)
	}
	next := chat(t, s, &parleyv1.ChatRequest{ConversationId: id, Content: "again"})
	if turn := next.finish(t).GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED ||
		next.text != "again" {
		t.Errorf("the next turn = %v with %q, want it COMPLETED with %q", turn, next.text, "again")
	}
	if got := contents(history(t, s, id).GetMessages()); got != want+"USER again\nASSISTANT again\n" {
		t.Errorf("the history has %d bytes after the next turn, want 2 more messages: %.300q", len(got), got)
	}
}

// id returns the name in the form that ids of agents and conversations must have.
func (a *badAgent) id() string {
	return strings.NewReplacer(" ", "-", "+", "-").Replace(a.name)
}

// badAgentsConfig returns a configuration file with the bad agents and hold. All run in dir.
func badAgentsConfig(t *testing.T, dir string, bad []badAgent) string {
	t.Helper()
	script, err := filepath.Abs("testdata/agents/hold.sh")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{"hold": map[string]any{"kind": "command", "dir": dir, "command": []string{"sh", script}}}
	for _, a := range bad {
		entry := map[string]any{"kind": "command", "dir": dir, "command": []string{"sh", "-c", a.script}}
		if a.format != "" {
			entry["format"] = a.format
		}
		all[a.id()] = entry
	}
	yaml, err := json.Marshal(map[string]any{"agents": all}) // JSON is also YAML.
	if err != nil {
		t.Fatal(err)
	}
	return string(yaml)
}

// remains finds the processes that agents have left running, and the open files of the server. Without
// /proc it finds nothing.
type remains struct {
	server int    // its process id
	dir    string // the working directory of all agents, and of the processes that they start
}

// processes returns the processes that run in the agents' directory, and all children of the
// server, zombies included.
func (r remains) processes() []string {
	var found []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // The process has ended.
		}
		// The fields are: id, name in brackets with any characters in it, state, parent.
		var state string
		var parent int
		_, _ = fmt.Sscan(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), &state, &parent)
		cwd, _ := os.Readlink(filepath.Join(filepath.Dir(path), "cwd"))
		if parent == r.server || cwd == r.dir {
			found = append(found, string(stat))
		}
	}
	return found
}

// files returns the files that the server has open, pipes and sockets included.
func (r remains) files() []string {
	var found []string
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.server))
	for _, link := range links {
		// The journal opens and closes segments as it grows and shrinks.
		if file, err := os.Readlink(link); err == nil && !strings.Contains(file, ".journal-") {
			found = append(found, file)
		}
	}
	slices.Sort(found)
	return found
}

// eventually polls get until it returns want, for what nothing reports: the kernel tells only its parent of the end of
// a process.
func eventually(t *testing.T, what string, want []string, get func() []string) {
	t.Helper()
	for late := time.After(timeout); ; {
		d := cmp.Diff(want, get())
		if d == "" {
			return
		}
		select {
		case <-late:
			t.Fatalf("%s (-want +got):\n%s", what, d)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// goroutineStacks ends the server with SIGQUIT, on which the Go runtime prints all goroutines. It returns
// a stack for each goroutine: its functions and the function that started it.
func goroutineStacks(t *testing.T, s *server) []string {
	t.Helper()
	_ = s.process.Process.Signal(syscall.SIGQUIT)
	<-s.process.Ended()
	texts, _ := s.log.Find(parleydtest.NotAnEntry)
	if len(texts) == 0 || !strings.HasPrefix(fmt.Sprint(texts[0]["text"]), "SIGQUIT") {
		t.Fatal("the server printed other text before the goroutines, or no goroutines after SIGQUIT")
	}
	s.writesText = true
	_, dump, _ := strings.Cut(s.log.Text(), "SIGQUIT")

	var found []string
	for block := range strings.SplitSeq(dump, "\n\n") {
		head, stack, _ := strings.Cut(block, "\n")
		if !strings.HasPrefix(head, "goroutine ") {
			continue
		}
		var functions strings.Builder
		for line := range strings.SplitSeq(stack, "\n") {
			function, _, began := strings.Cut(line, " in goroutine ") // the line of the function that started it
			if i := strings.LastIndexByte(line, '('); !began && i >= 0 {
				function = line[:i] // without the values of arguments
			}
			if !strings.HasPrefix(line, "\t") {
				functions.WriteString(function + "\n")
			}
		}
		found = append(found, functions.String())
	}
	return found
}

// TestAgentEnvironment: a server without variables such as PATH and HOME in its environment does not pass
// the rest of it to the programs of its agents.
func TestAgentEnvironment(t *testing.T) {
	t.Parallel()
	process := parleyd(t, "--store=memory", agents(t, `
agents:
  env: {kind: command, command: [/bin/sh, -c, "/usr/bin/env; echo complete"]}
`))
	process.Env = []string{asServer + "=1", "GORACE=atexit_sleep_ms=0", "SECRET_TOKEN=sk-live"}
	s := startProcess(t, process)
	k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Agent: "env", Content: "Hi"})
	if turn := k.finish(t).GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED ||
		!strings.Contains(k.text, "complete") {
		t.Fatalf("turn = %v with %q, want it COMPLETED with \"complete\"", turn, k.text)
	}
	if strings.Contains(k.text, "SECRET_TOKEN") || strings.Contains(k.text, asServer) {
		t.Errorf("the program received variables of the server:\n%s", k.text)
	}
}

// TestErrorsHideAddressesOfAgents: the error that a user receives when an agent is unreachable contains
// neither its address nor the path of its socket. The log contains both.
func TestErrorsHideAddressesOfAgents(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "hidden.sock")
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	s := startServer(t, t.TempDir(), "--store=memory", agents(t, fmt.Sprintf(`
agents:
  remote: {kind: remote, address: 'unix:%s'}
  openai: {kind: openai, model: m, base_url: 'http://%s/v1'}
  anthropic: {kind: anthropic, model: m, base_url: 'http://%[2]s'}
  a2a: {kind: a2a, url: 'http://%[2]s'}
`, socket, address)))
	for name, where := range map[string]string{"remote": socket, "openai": address, "anthropic": address, "a2a": address} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // Each agent retries for seconds.
			turn := chat(t, s, &parleyv1.ChatRequest{ConversationId: name, Agent: name, Content: "Hi"}).finish(t).GetTurn()
			if message := turn.GetError().GetMessage(); turn.GetError().GetReason() != "AGENT_FAILED" ||
				strings.Contains(message, where) || strings.Contains(message, "dial") {
				t.Errorf("the turn ended with %v, want AGENT_FAILED and a message without %s", turn, where)
			}
			line := s.await(t, "agent failed", "level=WARN", "agent="+name)
			if !strings.Contains(fmt.Sprint(line["detail"]), where) {
				t.Errorf("log entry = %v, want its detail to contain %s", line, where)
			}
		})
	}
}
