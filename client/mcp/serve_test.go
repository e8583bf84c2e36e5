package mcp

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhq/parley/client"
)

// served is a server that serves one client over pipes.
type served struct {
	session *sdk.ClientSession
	input   *io.PipeWriter // The input of the server.
	stop    context.CancelFunc
	ended   chan error
}

// serve serves a client over pipes until the test ends.
func serve(t *testing.T, c *client.Client, o *sdk.ClientOptions) *served {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	toServer, input := io.Pipe()
	toClient, output := io.Pipe()
	s := &served{input: input, stop: stop, ended: make(chan error, 1)}
	go func() {
		s.ended <- New(c, Options{}).Serve(ctx, toServer, output)
		output.Close()
	}()
	t.Cleanup(func() { input.Close() }) // A read may block on it.
	s.session = connect(t, &sdk.IOTransport{Reader: toClient, Writer: noCloser{input}}, o, "")
	return s
}

// TestServeEnds checks that Serve cancels the running question when it ends.
func TestServeEnds(t *testing.T) {
	_, c := startParley(t)
	ends := map[string]func(*served){
		"input":   func(s *served) { s.input.Close() },
		"context": func(s *served) { s.stop() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			progress, options := newProgressListener()
			s := serve(t, c, options)
			asked := make(chan error, 1)
			go func() {
				_, err := s.session.CallTool(t.Context(),
					askParams(object{"question": "think", "agent": "puppet", "conversation_id": name}, 1))
				asked <- err
			}()
			progress.until(t, "half a thou")
			end(s)
			if err := <-s.ended; err != nil {
				t.Errorf("Serve() = %v, want nil", err)
			}
			awaitCancelledTurn(t, c, name)
			if err := <-asked; err == nil {
				t.Error("CallTool() succeeded, want an error")
			}
		})
	}
}

func TestServeRefusesInvalidMessages(t *testing.T) {
	_, c := startParley(t)
	for _, input := range []string{"no JSON\n", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x",
		maxRequestBytes+1<<20) + "\"}\n"} {
		var out strings.Builder
		if err := New(c, Options{}).Serve(t.Context(), strings.NewReader(input), &out); err == nil {
			t.Errorf("Serve of %.20q succeeded, want an error", input)
		}
	}
	broken := errors.New("connection lost")
	if err := New(c, Options{}).Serve(t.Context(), io.MultiReader(strings.NewReader("\n"), failing{broken}), io.Discard); err == nil {
		t.Error("Serve of a broken input succeeded, want an error")
	}
}

// TestUndeclared checks that the methods of all capabilities except tools are unknown.
func TestUndeclared(t *testing.T) {
	c, err := client.Dial("unix:" + t.TempDir() + "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, session := range map[string]*sdk.ClientSession{
		"stdio": serve(t, c, nil).session, "http": connect(t, serveHTTP(t, c), nil, ""),
		"http of 2025": connect(t, serveHTTP(t, c), nil, "2025-06-18"),
	} {
		if has := session.InitializeResult().Capabilities; has.Tools == nil || has.Prompts != nil || has.Resources != nil ||
			has.Completions != nil {
			t.Errorf("%s: capabilities = %+v, want tools only", name, has)
		}
		if _, err := session.ListTools(t.Context(), nil); err != nil {
			t.Errorf("%s: ListTools() = %v", name, err)
		}
		calls := map[string]func() error{
			"prompts/list": func() error { _, err := session.ListPrompts(t.Context(), nil); return err },
			"prompts/get": func() error {
				_, err := session.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "x"})
				return err
			},
			"resources/list": func() error { _, err := session.ListResources(t.Context(), nil); return err },
			"resources/templates/list": func() error {
				_, err := session.ListResourceTemplates(t.Context(), nil)
				return err
			},
			"resources/read": func() error {
				_, err := session.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "x:y"})
				return err
			},
			"completion/complete": func() error {
				_, err := session.Complete(t.Context(), &sdk.CompleteParams{
					Ref: &sdk.CompleteReference{Type: "ref/prompt", Name: "x"}, Argument: sdk.CompleteParamsArgument{Name: "x"},
				})
				return err
			},
		}
		if name == "http of 2025" { // The protocol of 2026 has neither method.
			calls["resources/subscribe"] = func() error {
				return session.Subscribe(t.Context(), &sdk.SubscribeParams{URI: "x:y"})
			}
			calls["logging/setLevel"] = func() error {
				return session.SetLoggingLevel(t.Context(), &sdk.SetLoggingLevelParams{Level: "info"}) //nolint:staticcheck // old clients call it
			}
		}
		for method, call := range calls {
			err := call()
			if refusal, ok := errors.AsType[*jsonrpc.Error](err); !ok || refusal.Code != jsonrpc.CodeMethodNotFound {
				t.Errorf("%s: %s = %v, want code %d", name, method, err, jsonrpc.CodeMethodNotFound)
			}
		}
	}
}

// failing is a reader that returns an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestNoServer(t *testing.T) {
	c, err := client.Dial("unix:" + t.TempDir() + "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	session := serve(t, c, nil).session
	for tool, arguments := range map[string]object{"ask_question": {"question": "x"}, "list_conversations": {}} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel() // Each call retries for more than a second.
			failure, data := callError(t, session, tool, arguments)
			if failure.Code != -32603 || data.Reason != "UNAVAILABLE" || data.Status != "Unavailable" || !data.Retryable ||
				!strings.HasPrefix(failure.Message,
					"the Parley server cannot be reached; check that it is running and that the address is correct: ") {
				t.Errorf("%s: error %d, %+v: %s; want -32603, UNAVAILABLE", tool, failure.Code, data, failure.Message)
			}
		})
	}
}

func TestTexts(t *testing.T) {
	tests := []struct {
		text              string
		limit             int
		shortened, ending string
	}{
		{"", 4, "", ""},
		{"four", 4, "four", "four"},
		{"fives", 4, "f…", "ives"},
		{"éééé", 5, "é…", "éé"},
		{"日本", 4, "…", "本"},
	}
	for _, test := range tests {
		if got := shortened(test.text, test.limit); got != test.shortened || !utf8.ValidString(got) {
			t.Errorf("shortened(%q, %d) = %q, want %q", test.text, test.limit, got, test.shortened)
		}
		if got := ending(test.text, test.limit); got != test.ending || !utf8.ValidString(got) {
			t.Errorf("ending(%q, %d) = %q, want %q", test.text, test.limit, got, test.ending)
		}
	}
}
