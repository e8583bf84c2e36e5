// Package openai is the agent that is a model behind the chat completions API: OpenAI's
// own, or that of vLLM, Ollama, llama.cpp or a gateway that speaks the same. Begin with
// [New].
//
// # What the provider is sent
//
// One streamed request a turn. The system prompt comes first, then the messages in their
// order and roles, every tool call followed by its result. Structured data is JSON in the
// message's text, as [agent.Text] writes it. An image of a user's message is an image_url
// part; any other attachment is a line of text with its address and media type.
//
// Requests carry the key, the headers and the query of base_url as configured, and nothing
// of the server's environment: OPENAI_API_KEY and its kin are not read. Only a proxy is
// looked up there, as Go programs do (HTTPS_PROXY, NO_PROXY). The SDK adds its version, and
// which Go, operating system and processor it runs on. Redirects are not followed, so no
// key goes anywhere but to base_url.
//
// # What becomes of the answer
//
// Text is passed on as it comes, and so is a refusal; reasoning is not, though a note
// tells of it now and then. Tool calls come whole at the end, then the usage if the
// provider told it, then the finish_reason. The answer is whole when the model gave its
// finish_reason, or the provider said [DONE]: a stream that just ends was cut off.
//
// A failure says what the provider said of it, without the key, the headers, and what
// base_url may hold in secrets. Connection errors, 408, 409, 429 and 5xx are tried again
// twice, before the first piece only.
package openai

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/http"
	"net/url"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// maxRetries is how often the SDK asks again, and maxRetryDelay how long it waits at
	// most; a provider that wants a longer wait has its refusal shown instead. Together
	// they stay within the silence that a turn allows an agent.
	maxRetries    = 2
	maxRetryDelay = 10 * time.Second
	dialTimeout   = 10 * time.Second
)

// Agent asks a model by its API. It holds idle connections until it is closed.
type Agent struct {
	config     agent.Model
	base       *url.URL
	tools      []sdk.ChatCompletionToolUnionParam
	chat       sdk.ChatCompletionService
	transport  *http.Transport
	secrets    secrets
	usageGrace time.Duration
}

// New makes an agent of the model, and neither looks for the provider nor connects to it
// yet. An empty BaseURL is OpenAI's own; otherwise it ends where "/chat/completions"
// follows, most often in "/v1". Every fault of the configuration is in the one error,
// without any secret.
func New(config agent.Model) (*Agent, error) {
	base, err := parseBaseURL(config.BaseURL)
	if err := errors.Join(err, check(config)); err != nil {
		return nil, err
	}
	a := &Agent{
		config:     config,
		base:       base,
		tools:      tools(config.Tools),
		transport:  newTransport(),
		secrets:    newSecrets(config, base),
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
	a.transport.CloseIdleConnections()
	return nil
}

// ask makes the request and hands every piece to emit until that returns false.
func (a *Agent) ask(ctx context.Context, request *parleyv1.RespondRequest, emit func(*parleyv1.RespondResponse) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var response *http.Response
	_, err := a.chat.New(ctx, a.params(request), option.WithJSONSet("stream", true), option.WithResponseBodyInto(&response))
	switch {
	case response == nil:
		return a.unreachable(err)
	case response.StatusCode < 200 || response.StatusCode > 299:
		return a.refused(response)
	case err != nil:
		return a.unreachable(err)
	}
	body := &eventBody{ReadCloser: response.Body}
	defer body.Close() // before its end this closes the connection, too
	response.Body = body
	s := &stream{
		agent: a, emit: emit, body: body, decoder: ssestream.NewDecoder(response),
		giveUp: cancel, told: time.Now(),
	}
	return s.read()
}

// options are those of every request.
func (a *Agent) options() []option.RequestOption {
	client := &http.Client{
		Transport: a.transport,
		// The redirect itself is the answer then, and is told as a failure.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	options := []option.RequestOption{
		option.WithHTTPClient(client),
		option.WithBaseURL(a.base.String()),
		option.WithMaxRetries(maxRetries),
		option.WithMaxRetryDelay(maxRetryDelay),
		option.WithMiddleware(boundErrors),
	}
	if a.config.Key != "" {
		options = append(options, option.WithAPIKey(a.config.Key))
	}
	for name, value := range a.config.Headers {
		options = append(options, option.WithHeader(name, value))
	}
	// The SDK resolves its path against base_url, which drops the query.
	for name, values := range a.base.Query() {
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
		}
	}
	return options
}

// newTransport makes one that is nobody else's, so that closing it closes all it has.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               proxy,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
		// Compressed streams come in bursts, and nobody gains from them.
		DisableCompression: true,
	}
}

// proxy is the one that the environment names. Its error does not show the address, which
// may hold a password.
func proxy(request *http.Request) (*url.URL, error) {
	address, err := http.ProxyFromEnvironment(request)
	if err != nil {
		return nil, errors.New("the proxy's address in the environment is not a URL")
	}
	return address, nil
}
