// Package anthropic is an agent that calls a model through Anthropic's Messages API or a compatible
// gateway.
//
// # Requests
//
// The system prompt becomes `system`. The messages follow, oldest first, in the order of
// [agent.Answered]. The API has two roles, which must alternate and begin with the user, and it refuses
// text that contains only white space. Therefore:
//
//   - Adjacent messages of the same role become one message with several blocks.
//   - A message becomes a block of text ([agent.Text]), followed by its attachments or tool calls. If
//     it has none of these, an assistant's message is omitted. A user's message becomes
//     "[empty message]", because it may be the one to answer.
//   - A ROLE_SYSTEM message of the history becomes text of the user between <system_message> and
//     </system_message>, at its position. In `system` it would also apply to earlier messages, and would
//     invalidate the cached prompt. Models obey these tags, but a user could write them too.
//   - A tool's result becomes a tool_result before all other blocks in the user message after the call.
//     Other content of the ROLE_TOOL message is inside the result.
//   - If the history begins with the assistant, "[start of the conversation]" is inserted first.
//   - A user's attachment becomes an image ([agent.IsImage]) or a PDF document by its URL, which the API
//     fetches. Any other attachment, and each of an assistant, becomes a text with its media type, file
//     name and URI.
//   - The API requires that the arguments of a call are a JSON object. Other arguments become
//     {"invalid_arguments": "the original text"}; empty arguments become {}. Ids and names of calls are
//     changed if they contain characters that the API does not allow.
//
// # Prompt cache
//
// If the window keeps its start (cache_stable), up to three blocks are marked for the provider's prompt
// cache. The API allows four.
//
//   - The system prompt, or the last tool if there is no system prompt. The mark on the system prompt
//     includes the tools, which precede it.
//   - The end of the last user message. It covers the whole prompt, which is the beginning of the next
//     turn's prompt.
//   - The end of the user message before that, where the last turn set its mark. The API searches only 20
//     blocks before a mark for earlier ones, and an answer may have more blocks.
//
// # Answers
//
// Text is passed on when it arrives, and each tool call when it is complete. The usage and the
// stop_reason, as the finish reason, follow at the end. Thinking and unknown kinds of blocks are omitted.
// An answer that ended at max_tokens or with a refusal is complete, with that finish reason. If it is
// empty, it is a failure, see [agent.CheckEmpty].
//
// # Failures
//
// An [agent.Error] describes the failure as [agent.Provider] does, without secrets of the configuration.
// After a connection error, or status 408, 409, 429 or 5xx, the request is repeated up to twice, unless
// the provider asks for a wait of more than 10 s. After an answer has begun, the request is never
// repeated. Redirects are not followed, so that the key is sent only to the base URL.
//
// Of the environment, only the proxy is used (HTTPS_PROXY, NO_PROXY). Variables and files for
// Anthropic's own tools are not read.
//
// Start at [New].
package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"strings"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	defaultBaseURL = "https://api.anthropic.com"

	// defaultMaxTokens limits an answer if the configuration does not, because the API requires a
	// limit.
	defaultMaxTokens = 8192
)

// Agent calls a model. It keeps idle connections until it is closed.
type Agent struct {
	config   agent.Model
	provider *agent.Provider
	tools    []sdk.ToolParam
	messages sdk.MessageService
}

// New returns an agent for the model. It does not connect yet. If BaseURL is empty, Anthropic's is
// used; it may end in "/v1" or not. The error lists all faults of the configuration, without
// secrets.
func New(config agent.Model) (*Agent, error) {
	provider, err := agent.NewProvider(config, defaultBaseURL)
	if err != nil {
		return nil, err
	}
	tools, err := newTools(config.Tools)
	if err != nil {
		return nil, err
	}
	a := &Agent{config: config, provider: provider, tools: tools}
	// The SDK's Client would read the environment and files in the home directory.
	a.messages = sdk.NewMessageService(a.options()...)
	return a, nil
}

// options returns the options of each request.
func (a *Agent) options() []option.RequestOption {
	base := a.provider.Base
	if strings.HasSuffix(base.Path, "/v1/") {
		base = base.JoinPath("../") // The paths of the API contain the version.
	}
	options := []option.RequestOption{
		option.WithoutOpenTelemetry(), // Environment variables could enable tracing of messages.
		option.WithBaseURL(base.String()),
		option.WithMaxRetries(agent.ProviderRetries),
		option.WithHTTPClient(a.provider.Client),
	}
	if a.config.Key != "" {
		options = append(options, option.WithAPIKey(a.config.Key))
	}
	for name, value := range a.config.Headers {
		options = append(options, option.WithHeader(name, value))
	}
	for name, values := range base.Query() { // The SDK removes the query of the base URL.
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
		}
	}
	return options
}

// Close closes the idle connections.
func (a *Agent) Close() error {
	a.provider.Client.CloseIdleConnections()
	return nil
}

// Respond sends one request and passes on the answer.
func (a *Agent) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		var response *http.Response
		stream := a.messages.NewStreaming(ctx, a.params(request), option.WithResponseInto(&response))
		defer stream.Close() //nolint:errcheck // Only reading can fail. Closing it early closes the connection.
		err := stream.Err()
		if err != nil || response.StatusCode > 299 {
			err = a.provider.ResponseError(response, err)
		}
		answer := answer{lastPiece: time.Now()}
		for err == nil && !answer.complete {
			if !stream.Next() {
				err = a.streamError(stream.Err())
				break
			}
			var pieces []*parleyv1.RespondResponse
			pieces, err = answer.add(stream.Current())
			for _, piece := range pieces {
				if !yield(piece, nil) {
					return
				}
			}
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(nil, context.Cause(ctx))
		default:
			yield(nil, err)
		}
	}
}

// streamError returns the error of an answer that ended early.
func (a *Agent) streamError(err error) error {
	if e, ok := errors.AsType[*sdk.Error](err); ok { // An event reports the failure.
		return a.provider.EventError([]byte(e.RawJSON()))
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return a.provider.MalformedEvent(e.Error())
	}
	return a.provider.StreamError(err)
}
