package client_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// snippets maps sections of README.md to the example whose body is the snippet of the section.
func snippets() map[string]string {
	return map[string]string{
		"Append":   "ExampleClient_append",
		"Keep":     "ExampleClient_keep",
		"Replace":  "ExampleClient_replace",
		"Appender": "ExampleClient_NewAppender",
		"Load":     "ExampleClient_load",
		"Records":  "ExampleClient_Records",
		"Chat":     "ExampleClient_Chat",
		"Route":    "ExampleClient_route",
		"Watch":    "ExampleClient_WatchConversations",
		"Errors":   "ExampleReason",
	}
}

// readme returns the first code block in language of each section.
func readme(t *testing.T, language string) map[string]string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	code := map[string]string{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, rest, _ := strings.Cut(section, "\n")
		_, rest, found := strings.Cut(rest, "```"+language+"\n")
		if snippet, _, closed := strings.Cut(rest, "```\n"); found && closed {
			code[title] = snippet
		}
	}
	return code
}

// words returns the words of code, without its layout.
func words(code string) []string { return strings.Fields(code) }

func TestReadmeContainsTheExamples(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "example_test.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{}
	for _, declared := range file.Decls {
		function, ok := declared.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(function.Name.Name, "Example") {
			continue
		}
		body := string(source[files.Position(function.Body.Lbrace).Offset+1 : files.Position(function.Body.Rbrace).Offset])
		_, body, connects := strings.Cut(body, "defer c.Close()\n")
		body, _, hasOutput := strings.Cut(body, "// Output:")
		if !connects || !hasOutput {
			t.Errorf("%s does not begin with a connection or has no output", function.Name.Name)
		}
		bodies[function.Name.Name] = body
	}
	code := readme(t, "go")
	for section, example := range snippets() {
		if diff := cmp.Diff(words(bodies[example]), words(code[section])); diff != "" || len(words(code[section])) == 0 {
			t.Errorf("the snippet of section %s is not the body of %s (-example +readme):\n%s", section, example, diff)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Values(snippets())), slices.Sorted(maps.Keys(bodies))); diff != "" {
		t.Errorf("examples (-want +got):\n%s", diff)
	}
}

// TestReadmeCompilesAsTyped compiles the program of section Connect with each snippet inserted.
func TestReadmeCompilesAsTyped(t *testing.T) {
	t.Parallel()
	code := readme(t, "go")
	const place = "\t// Insert one of the snippets below.\n"
	if strings.Count(code["Connect"], place) != 1 {
		t.Fatalf("section Connect does not contain %q once:\n%s", place, code["Connect"])
	}
	sources := map[string]string{}
	for section := range snippets() {
		// Package main would also be linked, which takes time.
		program := strings.Replace(code["Connect"], "package main", "package typed", 1)
		sources["typed"+strings.ToLower(section)] = strings.Replace(program, place, code[section], 1)
	}
	if output, err := goBuild(t, sources); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	for name, source := range sources {
		sources[name] = strings.Replace(source, "fmt.Println(", "fmt.Printline(", 1)
	}
	if output, err := goBuild(t, sources); err == nil ||
		strings.Count(output, "undefined: fmt.Printline") != len(sources) {
		t.Errorf("goBuild of an undefined function = %v, want errors\n%s", err, output)
	}
}

// goBuild compiles packages in subdirectories of this one. sources maps a subdirectory to the source
// of its only file. An overlay provides the files, so none is written to the source tree.
func goBuild(t *testing.T, sources map[string]string, flags ...string) (output string, err error) {
	t.Helper()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	args := append([]string{"build", "-buildvcs=false", "-overlay", filepath.Join(t.TempDir(), "overlay.json")}, flags...)
	for folder, source := range sources {
		file := filepath.Join(t.TempDir(), "main.go")
		write(t, file, source)
		overlay.Replace[filepath.Join(here, folder, "main.go")] = file
		args = append(args, "./"+folder)
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	write(t, args[3], string(text))
	build := exec.CommandContext(t.Context(), "go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as all programs are built
	combined, err := build.CombinedOutput()
	return string(combined), err
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestReadmeAgentAnswers builds and starts the agent of the README. It then asks the agent through a
// server with the README's configuration, except for the port.
func TestReadmeAgentAnswers(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:7001"
	section := "An agent of your own"
	source, config := readme(t, "go")[section], readme(t, "yaml")[section]
	if strings.Count(source, address) != 1 || strings.Count(config, address) != 1 {
		t.Fatalf("the agent and its configuration must contain %s once", address)
	}
	program := filepath.Join(t.TempDir(), "agent.exe") // Windows requires the extension, other systems accept it.
	sources := map[string]string{"typedagent": strings.Replace(source, address, "127.0.0.1:0", 1)}
	if output, err := goBuild(t, sources, "-ldflags=-s -w", "-o", program); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	file := filepath.Join(t.TempDir(), "counter.yaml")
	write(t, file, strings.Replace(config, address, startAgent(t, program), 1))
	c := dialServer(t, "--config", file)
	for i, want := range []string{`This is message 1. It says "hello".`, `This is message 3. It says "hello".`} {
		var text strings.Builder
		var last *parleyv1.TurnEvent
		for event, err := range c.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "hello"}) {
			if err != nil {
				t.Fatal(client.Reason(err), err)
			}
			text.WriteString(event.GetTextDelta().GetText())
			last = event
		}
		messages := last.GetFinished().GetMessages()
		if text.String() != want || len(messages) != 1 || messages[0].GetContent() != want ||
			messages[0].GetAgent() != "counter" {
			t.Errorf("turn %d: text = %q, want %q; last event %v", i, text.String(), want, last)
		}
	}
}

// TestReadmeSignsIn builds the program of section Sign in and runs it against a server with TLS and tokens.
func TestReadmeSignsIn(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t, map[string][]string{"both": {"--tenant=acme", "--tenant=shop", "--role=reader"}})
	source := readme(t, "go")["Sign in and TLS"]
	const address = "parley.example:50051"
	if strings.Count(source, address) != 1 {
		t.Fatalf("the program must contain %s once:\n%s", address, source)
	}
	program := filepath.Join(t.TempDir(), "signin.exe")
	sources := map[string]string{"typedsignin": strings.Replace(source, address, s.address, 1)}
	if output, err := goBuild(t, sources, "-ldflags=-s -w", "-o", program); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	write(t, filepath.Join(s.Dir, "my-token"), s.tokens["both"])
	command := exec.CommandContext(t.Context(), program)
	command.Dir = s.Dir
	const want = "signed in; 0 conversations\n"
	if output, err := command.CombinedOutput(); err != nil || string(output) != want {
		t.Errorf("the program printed %q, error %v; want %q", output, err, want)
	}
}

// startAgent runs program until the test ends. It returns the address that the program prints at the
// end of its first line.
func startAgent(t *testing.T, program string) (address string) {
	t.Helper()
	command := exec.Command(program)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	t.Cleanup(func() {
		_ = command.Process.Kill()
		reading.Wait()
		_ = command.Wait()
	})
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("first line of the agent = %q, %v", line, err)
	}
	reading.Go(func() { _, _ = io.Copy(io.Discard, out) })
	fields := strings.Fields(line)
	return fields[len(fields)-1]
}

// TestExamplesAreShown checks that all examples are in the documentation, which leaves out examples
// whose names match no identifier.
func TestExamplesAreShown(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(files, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if file.Name.Name == "client" && !strings.HasSuffix(name, "_test.go") || name == "example_test.go" {
			parsed = append(parsed, file)
		}
	}
	p, err := doc.NewFromFiles(files, parsed, "github.com/parleyhq/parley/client")
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	show := func(at string, examples []*doc.Example) {
		for _, example := range examples {
			shown = append(shown, fmt.Sprintf("%s %q", at, example.Suffix))
		}
	}
	for _, function := range p.Funcs {
		show(function.Name, function.Examples)
	}
	for _, kind := range p.Types {
		show(kind.Name, kind.Examples)
		for _, method := range kind.Methods {
			show(kind.Name+"."+method.Name, method.Examples)
		}
	}
	slices.Sort(shown)
	want := []string{
		`Client "append"`, `Client "keep"`, `Client "load"`, `Client "replace"`, `Client "route"`, `Client.Chat ""`,
		`Client.NewAppender ""`, `Client.Records ""`,
		`Client.WatchConversations ""`, `Reason ""`,
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("examples in the documentation (-want +got):\n%s", diff)
	}
}
