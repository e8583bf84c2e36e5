package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
)

// reply is one answer of an agent: text, and a product_list unless products is empty.
type reply struct{ text, products string }

// asText returns the reply in the form of an agent that sends only text.
func (r reply) asText() string {
	if r.products == "" {
		return r.text
	}
	return r.text + "\n\n```json type=product_list\n" + r.products + "\n```"
}

// agentInput is the input that an agent received for one answer. Each message is one line or more in the
// agent's own form.
type agentInput struct {
	system   string
	messages []string
}

// kind is a kind of agent with a real program, provider or service. The agent sends its replies in order
// and records its inputs.
type kind struct {
	name  string
	entry map[string]any // of "agents" in the configuration
	given func(t *testing.T) []agentInput
	// form returns the form in which the agent receives a message.
	form func(role, text, products string) []string
}

// kinds returns one agent of each kind.
func kinds(t *testing.T, replies ...reply) []kind {
	t.Helper()
	return []kind{commandKind(t, replies), openaiKind(t, replies), anthropicKind(t, replies), remoteKind(t, replies)}
}

// kindsConfig returns the flag for a configuration file with these agents, by their names.
func kindsConfig(t *testing.T, kinds []kind) string {
	t.Helper()
	all := make(map[string]any)
	for _, k := range kinds {
		all[k.name] = k.entry
	}
	yaml, err := json.Marshal(map[string]any{"agents": all}) // JSON is also YAML.
	if err != nil {
		t.Fatal(err)
	}
	return agents(t, string(yaml))
}

// commandKind returns a program that stores its standard input in a file.
func commandKind(t *testing.T, replies []reply) kind {
	t.Helper()
	dir := t.TempDir()
	for i, r := range replies {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("reply-", i)), []byte(r.asText()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const script = `n=0; while test -e given-$n; do n=$((n+1)); done; cat >given-$n; cat reply-$n`
	return kind{
		name: "command",
		entry: map[string]any{
			"kind": "command", "command": []string{"sh", "-c", script}, "dir": dir, "structured_blocks": true,
		},
		given: func(t *testing.T) (all []agentInput) {
			t.Helper()
			for i := range replies {
				input, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("given-", i)))
				if err != nil {
					t.Fatal(err)
				}
				var g agentInput
				g.messages = strings.Split(strings.TrimSuffix(string(input), "\n"), "\n\n")
				if prompt, ok := strings.CutPrefix(g.messages[0], "[SYSTEM]: "); ok {
					g.system, g.messages = prompt, g.messages[1:]
				}
				all = append(all, g)
			}
			return all
		},
		form: func(role, text, products string) []string {
			form := []string{"[" + strings.ToUpper(role) + "]: " + text}
			if products != "" {
				form = append(form, "[STRUCTURED_DATA product_list]: "+products)
			}
			return form
		},
	}
}

// openaiKind returns a provider of chat completions.
func openaiKind(t *testing.T, replies []reply) kind {
	t.Helper()
	provider := openaitest.New(t)
	for _, r := range replies {
		provider.Then(openaitest.Text(strings.SplitAfter(r.asText(), " ")...))
	}
	form := func(role, content string) string {
		return encodeJSON(t, map[string]any{"role": role, "content": content})
	}
	return kind{
		name: "openai",
		entry: map[string]any{
			"kind": "openai", "base_url": provider.URL, "model": "gpt-test", "structured_blocks": true,
		},
		given: func(t *testing.T) (all []agentInput) {
			t.Helper()
			for _, r := range provider.Requests() {
				g := agentInput{messages: r.Messages()}
				var first struct{ Role, Content string }
				if err := json.Unmarshal([]byte(g.messages[0]), &first); err != nil {
					t.Fatal(err)
				}
				if first.Role == "system" {
					g.system, g.messages = first.Content, g.messages[1:]
				}
				all = append(all, g)
			}
			return all
		},
		form: func(role, text, products string) []string {
			return []string{form(role, reply{text, products}.asText())}
		},
	}
}

// anthropicKind returns a provider of the Messages API.
func anthropicKind(t *testing.T, replies []reply) kind {
	t.Helper()
	provider := anthropictest.New(t)
	for _, r := range replies {
		provider.Then(anthropictest.Text(strings.SplitAfter(r.asText(), " ")...))
	}
	return kind{
		name: "anthropic",
		entry: map[string]any{
			"kind": "anthropic", "base_url": provider.URL, "model": "claude-test", "structured_blocks": true,
		},
		given: func(t *testing.T) (all []agentInput) {
			t.Helper()
			for _, r := range provider.Requests() {
				g := agentInput{messages: r.Messages()}
				var body struct{ System []struct{ Text string } }
				if err := json.Unmarshal(r.Body, &body); err != nil {
					t.Fatal(err)
				}
				for _, block := range body.System {
					g.system += block.Text
				}
				all = append(all, g)
			}
			return all
		},
		form: func(role, text, products string) []string {
			block := map[string]any{"type": "text", "text": reply{text, products}.asText()}
			return []string{encodeJSON(t, map[string]any{"role": role, "content": []any{block}})}
		},
	}
}

// remoteKind returns an AgentService.
func remoteKind(t *testing.T, replies []reply) kind {
	t.Helper()
	service := &recorder{replies: replies}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(s, service)
	go func() { _ = s.Serve(listener) }() // Serve returns after Stop.
	t.Cleanup(s.Stop)
	form := func(role, text, products string) string {
		return strings.TrimSpace(role + ": " + text + " " + products)
	}
	return kind{
		name:  "remote",
		entry: map[string]any{"kind": "remote", "address": listener.Addr().String()},
		given: func(t *testing.T) (all []agentInput) {
			t.Helper()
			service.mu.Lock()
			defer service.mu.Unlock()
			for _, r := range service.requests {
				g := agentInput{system: r.GetSystemPrompt()}
				for _, m := range r.GetMessages() {
					var products string
					for _, data := range m.GetStructuredData() {
						products = encodeJSON(t, data.GetValue().AsInterface())
					}
					role := strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_"))
					g.messages = append(g.messages, form(role, m.GetContent(), products))
				}
				all = append(all, g)
			}
			return all
		},
		form: func(role, text, products string) []string { return []string{form(role, text, products)} },
	}
}

// recorder is an AgentService that records its requests.
type recorder struct {
	parleyv1.UnimplementedAgentServiceServer
	replies []reply

	mu       sync.Mutex
	requests []*parleyv1.RespondRequest
}

func (r *recorder) Respond(
	request *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	r.mu.Lock()
	next := r.replies[len(r.requests)]
	r.requests = append(r.requests, request)
	r.mu.Unlock()
	for _, word := range strings.SplitAfter(next.text, " ") {
		if err := stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: word}}); err != nil {
			return err
		}
	}
	if next.products == "" {
		return nil
	}
	value := new(structpb.Value)
	if err := protojson.Unmarshal([]byte(next.products), value); err != nil {
		return err
	}
	return stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{
		StructuredData: &parleyv1.StructuredData{Type: "product_list", Value: value},
	}})
}

// encodeJSON returns a value as one line of JSON, with keys in byte order.
func encodeJSON(t *testing.T, value any) string {
	t.Helper()
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
