// Package openai is an agent that calls a model through the chat completions API of OpenAI, vLLM,
// Ollama, llama.cpp or a compatible gateway.
//
// # Requests
//
// Each turn sends one request and receives a stream. The system prompt is first, then the messages in
// their order and with their roles. Each tool call is followed by its result. Structured data is JSON
// in the text of a message, as [agent.Text] writes it. An image of a user's message is an image_url
// part if [agent.IsImage] reports true. Any other attachment is a line of text with its media type and
// URI.
//
// An answer whose own form is known (Message.native of type "openai.chat.message") is sent in this form,
// with reasoning, signatures and encrypted parts unchanged. It is not used if the message was changed
// since ([agent.IsWritten]). If the server refuses the request with status 400, 413 or 422, it is sent
// again without such forms: they may be from another server, and some servers refuse reasoning. If it
// accepts that, requests have no such forms for ten minutes.
//
// Requests contain the key, the headers and the query of base_url from the configuration. Of the
// environment, only the proxy is used (HTTPS_PROXY, NO_PROXY); OPENAI_API_KEY and similar variables are
// not read. Redirects are not followed, so that the key is sent only to base_url.
//
// # Answers
//
// Text, refusals, reasoning (reasoning_content or reasoning) and the parts of tool calls are passed on when
// they arrive. While nothing of these arrives, a Progress piece is sent at intervals. Complete tool calls
// follow at the end, then the native form if the provider sent reasoning or signatures, the usage if the
// provider sent it, and the finish_reason. The answer is complete if the model sent its finish_reason or the
// provider sent [DONE]; a stream that ends without these was cut off. A call that the token limit cut off is
// omitted, see [agent.IsComplete]. An answer that is empty for such a reason is a failure, see
// [agent.CheckEmpty].
//
// # Failures
//
// An error contains the provider's description, without the key, the values of headers and the secrets
// in base_url. After a connection error, or status 408, 409, 429 or 5xx, the request is repeated up to
// twice, but only before the first piece.
//
// Start at [New].
package openai

import (
	"context"
	"iter"
	"net/http"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const defaultBaseURL = "https://api.openai.com/v1"

// Agent calls a model. It keeps idle connections until it is closed.
type Agent struct {
	config     agent.Model
	provider   *agent.Provider
	header     http.Header
	tools      []functionTool
	usageGrace time.Duration
}

// New returns an agent for the model. It does not connect yet. If BaseURL is empty, OpenAI's is
// used; otherwise it is the part before "/chat/completions", usually ending in "/v1". The error
// lists all faults of the configuration, without secrets.
func New(config agent.Model) (*Agent, error) {
	provider, err := agent.NewProvider(config, defaultBaseURL)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		config:     config,
		provider:   provider,
		header:     make(http.Header),
		tools:      tools(config.Tools),
		usageGrace: usageGrace,
	}
	if config.Key != "" {
		a.header.Set("Authorization", "Bearer "+config.Key)
	}
	return a, nil
}

// Respond sends one request. The package comment describes the request and the pieces.
func (a *Agent) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
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
	a.provider.Close()
	return nil
}

// ask sends the request and passes each piece to emit until emit returns false.
func (a *Agent) ask(
	ctx context.Context, request *parleyv1.RespondRequest, emit func(*parleyv1.RespondResponse) bool,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := a.provider.Stream(ctx, "chat/completions", a.header, a.makeBody(request))
	if err != nil {
		return err
	}
	defer events.Close()
	s := &stream{agent: a, emit: emit, events: events, cancel: cancel, lastPiece: time.Now()}
	return s.read()
}
