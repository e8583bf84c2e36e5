package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/config/configtest"
	"github.com/parleyhq/parley/server/parleydtest"
)

// page is a page of documentation whose commands are run.
type page struct {
	path string
	// programs must be installed, besides bash, curl and timeout. If one is missing, the test is skipped.
	programs []string
	// config is the file of the page that the server is started with.
	config string
	// output lists texts that the commands must print.
	output []string
}

func pages() []page {
	return []page{
		{path: "README.md", output: []string{
			"Tell me about the second one", `"textDelta":{"text":"hello"}`, `"library_list"`, `"recentMessages"`,
		}},
		{path: "proto/README.md", output: []string{`"replayed": true`, `"activeAgent"`, "skipped", "demo-copy"}},
		{path: "server/README.md", programs: []string{"openssl", "redis-server", "redis-cli"}, output: []string{
			"1 64", "signed in", `"agents"`, "max_messages: 20", "restored", "compacted", "migrated", `"status": "SERVING"`,
		}},
		{path: "server/agents.md", programs: []string{"python3"}, config: "agents.yaml", output: []string{
			"You said 'hello', after 0 others.", "TURN_STATE_INPUT_REQUIRED", "It costs 50 cents.", "claude",
		}},
		{path: "server/http.md", output: []string{`"title":"Chairs"`, "event: ", `"importedCount"`}},
		{path: "server/a2a.md", config: "parleyd.yaml", output: []string{
			`"protocolBinding":"GRPC"`, "TASK_STATE_COMPLETED", "lastChunk",
		}},
		{path: "server/console.md"},
		{path: "server/interaction-log.md", programs: []string{"jq"}, output: []string{
			"quarterly goals", `"agent": "echo"`, "erased",
		}},
		{path: "client/README.md", output: []string{"hello again"}},
		{path: "client/cmd/parley/README.md", output: []string{"hello there", "books-copy", "erased"}},
		{path: "client/mcp/README.md", output: []string{`"serverInfo"`, "ask_question"}},
		{path: "server/bench/README.md"},
		{path: "store/README.md"},
		{path: "server/deploy/release/README.md"},
	}
}

// TestCommandsOfPages runs the commands of each page against a server on free ports, in a temporary copy of the
// repository. It runs the blocks of the language sh, one after the other:
//
//   - A block "sh stopped" is run while the server is stopped.
//   - A block "sh languages" is run only if make languages has been run.
//   - A command with a comment "until Ctrl-C" is interrupted after two seconds, a command with a comment
//     "until Ctrl-D" reads one line.
//   - A block "console" is not run: it needs root, a container engine or a cluster.
//   - Targets of make must exist, but are not run.
//   - A benchmark makes one call.
//   - A block of another language whose first line is a comment with a file name is written to that file.
func TestCommandsOfPages(t *testing.T) {
	t.Parallel()
	programs := buildPrograms(t)
	for _, p := range pages() {
		t.Run(p.path, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && p.path != "README.md" {
				t.Skip("only the front page is tested with -short")
			}
			requirePrograms(t, append(p.programs, "bash", "curl", "timeout")...)
			s := &site{root: copyRepository(t, programs), blocks: readBlocks(t, p.path), config: p.config}
			s.model = anthropictest.New(t,
				anthropictest.Calls(anthropictest.Call{ID: "c7", Name: "price", Arguments: `{"product":"Sugar"}`}),
				anthropictest.Text("It costs ", "50 cents.")).URL
			output := s.run(t)
			for _, want := range p.output {
				if !strings.Contains(output, want) {
					t.Errorf("%s: the commands do not print %q; they print\n%s", p.path, want, output)
				}
			}
		})
	}
}

// requirePrograms skips the test if a program is missing. In CI it fails instead.
func requirePrograms(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skipf("SKIPPED: %v", err)
		}
	}
}

// buildPrograms builds parleyd and parley and returns their directory. It also writes a program grpcurl there, unless
// one is installed; see TestActAsGrpcurl.
func buildPrograms(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	if err := parleydtest.Build(t.Context(), filepath.Join(bin, "parleyd")); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", bin,
		"github.com/parleyhq/parley/client/cmd/parley")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as all programs are built
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	if _, err := exec.LookPath("grpcurl"); err == nil {
		return bin
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(bin, "grpcurl"), 0o700, "#!/bin/sh\n"+
		"exec env "+actAsGrpcurl+"=1 '"+self+"' -test.run='^TestActAsGrpcurl$' -- \"$@\" 3>&1 >&2\n")
	return bin
}

// copyRepository returns a temporary directory with links to the files of the repository, and with the programs in bin.
func copyRepository(t *testing.T, programs string) string {
	t.Helper()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(repository)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, entry := range entries {
		if name := entry.Name(); name != "bin" && name != "data" && name != ".git" {
			if err := os.Symlink(filepath.Join(repository, name), filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink(programs, filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	return root
}

func writeFile(t *testing.T, path string, mode os.FileMode, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// block is the content of a code block. language is the whole text after the fence.
type block struct {
	language, text string
	line           int
}

// readBlocks returns the code blocks of a page.
func readBlocks(t *testing.T, path string) (blocks []block) {
	t.Helper()
	inside := false
	for i, line := range strings.Split(readPage(t, path), "\n") {
		language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && !inside:
			blocks = append(blocks, block{language: language, line: i + 1})
			inside = true
		case fence:
			inside = false
		case inside:
			blocks[len(blocks)-1].text += line + "\n"
		}
	}
	return blocks
}

// site is a directory in which the commands of a page are run, with its server.
type site struct {
	root, config string
	blocks       []block
	model        string // URL of the provider that answers for claude
	// grpc and http are the addresses of the server. They stay the same when the server is restarted.
	grpc, http string
	functions  string // shell functions that the page has defined so far
}

// run runs the blocks and returns what they print.
func (s *site) run(t *testing.T) string {
	t.Helper()
	var output strings.Builder
	s.writeFiles(t)
	stop := s.start(t)
	for _, b := range s.blocks {
		switch b.language {
		case "sh stopped":
			stop()
			output.WriteString(s.runBlock(t, b))
			stop = s.start(t)
		case "sh languages":
			if _, err := os.Stat("../../client/python/.venv/.stamp"); err == nil {
				output.WriteString(s.runBlock(t, b))
			}
		case "sh":
			output.WriteString(s.runBlock(t, b))
		}
	}
	stop()
	return output.String()
}

// fileName matches the first line of a block that is the content of a file.
var fileName = regexp.MustCompile(`^# ([a-z]+\.[a-z]+)\n`)

// writeFiles writes the files that the page shows, and a certificate that its configuration names.
func (s *site) writeFiles(t *testing.T) {
	t.Helper()
	for _, b := range s.blocks {
		if name := fileName.FindStringSubmatch(b.text); name != nil && !strings.HasPrefix(b.language, "sh") {
			const model = "    model: claude"
			text := strings.Replace(b.text, model, "    base_url: "+s.model+"\n"+model, 1)
			writeFile(t, filepath.Join(s.root, name[1]), 0o600, text)
		}
	}
	writeFile(t, filepath.Join(s.root, ".curlrc"), 0o600, "fail-with-body\nsilent\nshow-error\n")
	certificate, _ := configtest.Certificate(t)
	writeFile(t, filepath.Join(s.root, "ca.pem"), 0o600, certificate)
}

// environ is the environment of the server and the commands.
func (s *site) environ() []string {
	var environ []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PARLEY_") {
			environ = append(environ, variable)
		}
	}
	return append(environ, "ANTHROPIC_API_KEY=test", "CURL_HOME="+s.root, "PARLEY_ADDRESS="+s.grpc,
		"PATH="+filepath.Join(s.root, "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// start starts the server and returns a function that stops it.
func (s *site) start(t *testing.T) (stop func()) {
	t.Helper()
	if s.grpc == "" {
		s.grpc, s.http = "127.0.0.1:0", "127.0.0.1:0"
	}
	args := []string{"--grpc-address=" + s.grpc, "--http-address=" + s.http}
	if s.config != "" {
		args = append(args, "--config="+s.config)
	}
	command := parleydtest.Command(t.Context(), filepath.Join(s.root, "bin", "parleyd"), "data", args...)
	command.Dir, command.Env = s.root, s.environ()
	server, err := parleydtest.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	for message, address := range map[string]*string{"serving grpc": &s.grpc, "serving http": &s.http} {
		entry, err := server.Await(message)
		if err != nil {
			t.Fatal(err)
		}
		*address = fmt.Sprint(entry["address"])
	}
	return func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		<-server.Ended() // Its exit code is tested elsewhere.
	}
}

// runBlock runs the commands of a block and returns what they print. Each command must succeed.
func (s *site) runBlock(t *testing.T, b block) string {
	t.Helper()
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	bash := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", s.script(b))
	bash.Dir, bash.WaitDelay = s.root, time.Second
	bash.Env = append(s.environ(), "PARLEY_GRPC_ADDRESS=127.0.0.1:0", "PARLEY_HTTP_ADDRESS=127.0.0.1:0")
	output, err := bash.CombinedOutput()
	if err != nil {
		t.Fatalf("block in line %d: %v\n%s\nprints\n%s", b.line, err, s.script(b), output)
	}
	return string(output)
}

var (
	oneLineFunction = regexp.MustCompile(`(?m)^[a-z]+\(\) \{.*\}$`)
	untilCtrlC      = regexp.MustCompile(`(?m)^([^#\n]*[^#\s]) +# .*until Ctrl-C.*$`)
	untilCtrlD      = regexp.MustCompile(`(?m)^([^#\n]*[^#\s]) +# .*until Ctrl-D.*$`)
	makeTarget      = regexp.MustCompile(`(?m)^make ([a-z-]+)`)
	benchTime       = regexp.MustCompile(`-benchtime \d+x( -count \d+)?`)
	agentPort       = regexp.MustCompile(`127\.0\.0\.1:700\d`)
)

// script returns the commands of a block as they are run, with the functions of the blocks before it.
func (s *site) script(b block) string {
	text := strings.NewReplacer("127.0.0.1:50051", s.grpc, "localhost:8080", s.http,
		"2026-11-20", time.Now().UTC().Format(time.DateOnly)).Replace(b.text)
	text = agentPort.ReplaceAllString(text, "127.0.0.1:0")
	text = makeTarget.ReplaceAllString(text, "grep -q '^$1:' Makefile # make $1")
	text = benchTime.ReplaceAllString(text, "-benchtime 1x")
	// timeout exits with 124 if the command was still running.
	text = untilCtrlC.ReplaceAllString(text, "timeout --signal=INT 2 $1 || [ $$? -eq 124 ]")
	text = untilCtrlD.ReplaceAllString(text, "echo 'hello again' | $1")
	script := s.functions + text
	for _, function := range oneLineFunction.FindAllString(text, -1) {
		s.functions += function + "\n"
	}
	return script
}
