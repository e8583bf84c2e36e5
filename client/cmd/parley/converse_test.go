package main

import (
	"context"
	"strings"
	"testing"
)

func TestConverse(t *testing.T) {
	address := serve(t, echoChat)
	tests := []struct {
		name   string
		args   []string
		screen string // The screen, with the typed text after the prompts.
	}{
		{
			"messages go to one conversation, empty lines are ignored", nil,
			`> hello
in : hello
> 
> again
in made-by-server: again
> /quit
continue with: bin/parley --address ` + address + ` chat -c made-by-server
`,
		},
		{
			"a named conversation has no continue line",
			[]string{"-c", "shop"},
			`> hello
in shop: hello
> ^D
`,
		},
		{
			"an error does not end the chat",
			[]string{"-c", "shop"},
			`> fail
in shop: fail
parley: the turn failed: out of ideas (AGENT_FAILED)
> busy
parley: a turn is running (Aborted)
> hello
in shop: hello
> /quit
`,
		},
		{
			"notes have their own lines",
			[]string{"-c", "shop"},
			`> call
in shop: call
tool call price c1: {"of":"sugar"}
the agent waits for the results of its tool calls; continue with: bin/parley --address ` + address + ` chat -c shop --tool-result c1=...
> hand over
in shop: hand over
other answers:
taken
> /quit
`,
		},
		{
			"control characters do not reach the terminal",
			[]string{"-c", "shop"},
			"> \x1b]0;owned\a\nin shop: \uFFFD]0;owned\uFFFD\n> /quit\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := openTerminal(t.Context(), t, append([]string{"--address", address, "chat"}, test.args...)...)
			for part := range strings.SplitSeq(test.screen, "> ") {
				typed, output, _ := strings.Cut(part, "\n")
				switch {
				case part == "":
					continue
				case typed == "^D":
					s.keys.Close()
				default:
					s.expect("> ")
					s.enter(typed)
				}
				s.expect(output)
			}
			s.expectEnd(0)
			if got, want := s.screen.String(), withoutTyped(test.screen); got != want {
				t.Errorf("screen:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// withoutTyped returns screen without the typed text and its line feeds, which the terminal shows and not the
// program.
func withoutTyped(screen string) string {
	var written strings.Builder
	for part := range strings.SplitSeq(screen, "> ") {
		typed, output, _ := strings.Cut(part, "\n")
		if part != "" {
			written.WriteString("> ")
			if typed == "^D" {
				written.WriteString("\n")
			}
			written.WriteString(output)
		}
	}
	return written.String()
}

func TestTimeoutEndsAnAnswer(t *testing.T) {
	s := openTerminal(t.Context(), t, "--address", serve(t, echoChat), "--timeout", "1ms", "chat", "-c", "shop")
	s.expect("> ")
	s.enter("think")
	s.expect("parley: no reply from ")
	s.expect(" within 1ms: --timeout sets how long to wait\n> ")
	s.keys.Close()
	s.expectEnd(0)
}

func TestSIGTERMEndsTheChat(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := openTerminal(ctx, t, "chat")
	s.expect("> ")
	cancel()
	s.expectEnd(0)
}

func TestUsageErrorsOnATerminal(t *testing.T) {
	tests := map[string][]string{
		"--request-id identifies one message: write TEXT":             {"chat", "--request-id", "r1"},
		"--record is written with one message: write TEXT":            {"chat", "--record", "k=v"},
		"no message: write TEXT, or pass a message on standard input": {"append", "shop"},
	}
	for text, args := range tests {
		s := openTerminal(t.Context(), t, args...)
		s.expect("parley: " + text + "; see 'parley " + args[0] + " --help'\n")
		s.expectEnd(64)
	}
}

// TestConverseAcrossARestart checks that a line that is typed while the server restarts waits for the
// server.
func TestConverseAcrossARestart(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	server := &server{program: buildServer(t), dir: t.TempDir()}
	if err := server.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.kill)
	s := openTerminal(t.Context(), t, "--address", server.address, "chat", "-c", "shop")
	s.expect("> ")
	s.enter("hello")
	s.expect("hello\n> ")
	server.kill()
	s.enter("again")
	s.expect("no reply from " + server.address + " yet; still trying, press Ctrl-C to give up\n")
	if err := server.start(); err != nil {
		t.Fatal(err)
	}
	s.expect("again\n> ")
	server.kill()
	s.enter("too late")
	s.expect("still trying, press Ctrl-C to give up\n")
	s.interrupt()
	s.expect("> ")
	s.enter("/quit")
	s.expectEnd(0)
}
