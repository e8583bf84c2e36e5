// Package anthropic is the agent that is a model behind Anthropic's Messages API, or
// behind a gateway that speaks it. Begin with [New].
//
// # What the model is given
//
// The system prompt is the request's `system`. The messages follow oldest first, as
// [agent.Answered] puts them. The API knows two roles, wants them to take turns beginning
// with the user, and refuses text without anything but white space, so:
//
//   - Neighbours of one role become one message of several blocks.
//   - A message is a block of text ([agent.Text]), then its attachments or tool calls.
//     Where there is nothing of these, an assistant's message is left out; a user's becomes
//     "[empty message]", since it may be what is to be answered.
//   - A ROLE_SYSTEM message of the history is text of the user's between <system_message>
//     and </system_message>, where it stands: to add it to `system` would have it speak of
//     what came before it too, and would spoil the cached prompt of every message. Models
//     follow such a mark, but a user could write it as well.
//   - A tool's result is a tool_result ahead of everything else in the user's message that
//     follows the call. What else the ROLE_TOOL message carries is inside the result.
//   - A history that begins with the assistant has "[start of the conversation]" put first.
//   - A user's attachment is an image ([agent.IsImage]) or a PDF document by its URL, which
//     the API fetches. All else, the assistant's too, is a text of its media
//     type, file name and URI.
//   - Arguments of a call that are no JSON object, which the API demands, become one:
//     {"invalid_arguments": "the text as the model wrote it"}; none at all are {}. Ids and
//     names of calls that came from elsewhere are made of the characters that the API takes.
//
// # What is cached
//
// When the window keeps its start (cache_stable), up to three blocks are marked for the
// provider's prompt cache, of the four that the API allows: the system prompt, or the last
// tool where there is none, which covers the tools as well, for they come first; the end of
// the last user message, which is the whole prompt and the beginning of the next turn's;
// and the end of the user message before that, where the last turn left its mark: from a
// mark the API looks for earlier ones only 20 blocks back, and an answer may have more.
//
// # What comes out
//
// Text as it comes; tool calls, each once and whole; at the end the usage and the
// stop_reason as the finish reason. Thinking and blocks of kinds not known here are left
// out. An answer that ended at max_tokens or with a refusal is a whole one, and its finish
// reason tells, unless nothing of it is there: that is a failure, see [agent.CheckEmpty].
//
// # How it fails
//
// An [agent.Error] tells a person why, in the words of [agent.Provider]; what it quotes has
// no secret of the configuration in it. A request that got no answer, or one of 408, 409,
// 429 and 5xx, is made up to twice more, unless the provider wants a wait of over 10 s; once
// an answer has begun, never. Redirects are not followed, so that no key goes anywhere but
// to the base URL.
//
// Of the environment only a proxy is read, as Go programs do (HTTPS_PROXY, NO_PROXY), and
// nothing else: what it and the home directory say to Anthropic's own tools does not count.
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

	// defaultMaxTokens bounds an answer where the configuration does not: the API wants a bound.
	defaultMaxTokens = 8192
)

// Agent asks a model by its API. It holds idle connections until it is closed.
type Agent struct {
	config   agent.Model
	provider *agent.Provider
	tools    []sdk.ToolParam
	messages sdk.MessageService
}

// New makes an agent of the model, and neither looks for the provider nor connects to it
// yet. An empty BaseURL is Anthropic's own; any may end in "/v1" or not. Every fault of the
// configuration is in the one error, without any secret.
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
	// Not the SDK's Client, which reads the environment and files of the home directory.
	a.messages = sdk.NewMessageService(a.options()...)
	return a, nil
}

// options are all that the client knows: nothing is left for it to look up.
func (a *Agent) options() []option.RequestOption {
	base := a.provider.Base
	if strings.HasSuffix(base.Path, "/v1/") {
		base = base.JoinPath("../") // the paths of the API have their own version
	}
	options := []option.RequestOption{
		option.WithoutOpenTelemetry(), // by variables of the environment it would trace what is said
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
	for name, values := range base.Query() { // a base URL's query is lost otherwise
		for _, value := range values {
			options = append(options, option.WithQueryAdd(name, value))
		}
	}
	return options
}

// Close ends the connections that are kept for further requests.
func (a *Agent) Close() error {
	a.provider.Client.CloseIdleConnections()
	return nil
}

// Respond asks the API once and passes on what it answers.
func (a *Agent) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		var response *http.Response
		stream := a.messages.NewStreaming(ctx, a.params(request), option.WithResponseInto(&response))
		defer stream.Close() //nolint:errcheck // only read; an end too early closes the connection
		err := stream.Err()
		if err != nil || response.StatusCode > 299 {
			err = a.provider.ResponseError(response, err)
		}
		answer := answer{told: time.Now()}
		for err == nil && !answer.whole {
			if !stream.Next() {
				err = a.cutOff(stream.Err())
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

// cutOff is why there is no more of an answer that had begun.
func (a *Agent) cutOff(err error) error {
	if e, ok := errors.AsType[*sdk.Error](err); ok { // an event that says so
		return a.provider.EventError([]byte(e.RawJSON()))
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return a.provider.MalformedEvent(e.Error())
	}
	return a.provider.StreamError(err)
}
