// Package openai is the agent that is a model behind the chat completions API: OpenAI's
// own, or that of vLLM, Ollama, llama.cpp or a gateway that speaks the same. Begin with
// [New].
//
// # What the provider is sent
//
// One streamed request a turn. The system prompt comes first, then the messages in their
// order and roles, every tool call followed by its result. Structured data is JSON in the
// message's text, as [agent.Text] writes it. An image of a user's message, as [agent.IsImage]
// knows one, is an image_url part; any other attachment is a line of text with its address and
// media type.
//
// Requests carry the key, the headers and the query of base_url as configured, and nothing
// of the server's environment: OPENAI_API_KEY and its kin are not read. Only a proxy is
// looked up there, as Go programs do (HTTPS_PROXY, NO_PROXY), and nothing else. The SDK adds
// its version, and which Go, operating system and processor it runs on. Redirects are not
// followed, so no key goes anywhere but to base_url.
//
// # What becomes of the answer
//
// Text is passed on as it comes, and so is a refusal; reasoning is not, though a note
// tells of it now and then. Tool calls come whole at the end, then the usage if the
// provider told it, then the finish_reason. The answer is whole when the model gave its
// finish_reason, or the provider said [DONE]: a stream that just ends was cut off. A call that
// the token limit cut off is left out, see [agent.IsComplete]; an answer of which nothing is there
// for such a reason is a failure, see [agent.CheckEmpty].
//
// A failure says what the provider said of it, without the key, the headers, and what
// base_url may hold in secrets. Connection errors, 408, 409, 429 and 5xx are tried again
// twice, before the first piece only.
package openai

import (
	"context"
	"iter"
	"net/http"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const defaultBaseURL = "https://api.openai.com/v1"

// Agent asks a model by its API. It holds idle connections until it is closed.
type Agent struct {
	config     agent.Model
	provider   *agent.Provider
	tools      []sdk.ChatCompletionToolUnionParam
	chat       sdk.ChatCompletionService
	usageGrace time.Duration
}

// New makes an agent of the model, and neither looks for the provider nor connects to it
// yet. An empty BaseURL is OpenAI's own; otherwise it ends where "/chat/completions"
// follows, most often in "/v1". Every fault of the configuration is in the one error,
// without any secret.
func New(config agent.Model) (*Agent, error) {
	provider, err := agent.NewProvider(config, defaultBaseURL)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		config:     config,
		provider:   provider,
		tools:      tools(config.Tools),
		usageGrace: usageGrace,
	}
	// Not the SDK's Client, which reads the environment.
	a.chat = sdk.NewChatCompletionService(a.options()...)
	return a, nil
}

// Respond asks the model once. See the package comment for what it sends and yields.
func (a *Agent) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		wanted := true
		err := a.ask(ctx, request, func(piece *parleyv1.RespondResponse) bool {
			wanted = yield(piece, nil)
			return wanted
		})
		switch {
		case !wanted || err == nil:
		case ctx.Err() != nil:
			yield(nil, context.Cause(ctx))
		default:
			yield(nil, err)
		}
	}
}

// Close closes the idle connections.
func (a *Agent) Close() error {
	a.provider.Client.CloseIdleConnections()
	return nil
}

// ask makes the request and hands every piece to emit until that returns false.
func (a *Agent) ask(ctx context.Context, request *parleyv1.RespondRequest, emit func(*parleyv1.RespondResponse) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var response *http.Response
	_, err := a.chat.New(ctx, a.params(request), option.WithJSONSet("stream", true), option.WithResponseBodyInto(&response))
	if err != nil || response.StatusCode > 299 {
		return a.provider.ResponseError(response, err)
	}
	defer response.Body.Close() // before its end this closes the connection, too
	s := &stream{
		agent: a, emit: emit, decoder: ssestream.NewDecoder(response),
		giveUp: cancel, told: time.Now(),
	}
	return s.read()
}

// options are those of every request.
func (a *Agent) options() []option.RequestOption {
	options := []option.RequestOption{
		option.WithHTTPClient(a.provider.Client),
		option.WithBaseURL(a.provider.Base.String()),
		option.WithMaxRetries(agent.ProviderRetries),
	}
	if a.config.Key != "" {
		options = append(options, option.WithAPIKey(a.config.Key))
	}
	for name, value := range a.config.Headers {
		options = append(options, option.WithHeader(name, value))
	}
	// The SDK resolves its path against base_url, which drops the query.
	for name, values := range a.provider.Base.Query() {
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
		}
	}
	return options
}
