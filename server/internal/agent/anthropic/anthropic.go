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
//   - An answer of the API whose blocks are known (Message.native of type "anthropic.content") is sent as
//     these blocks, with thinking, signatures and order unchanged. They are not used if the message was
//     changed since ([agent.IsWritten]), or if the API would refuse them. If the API refuses the
//     request with status 400, 413 or 422 nevertheless, it is sent again without such blocks: they
//     may be from another model or account. If it accepts that, requests have no such blocks for ten
//     minutes.
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
// # Thinking
//
// With [agent.Model].ThinkingTokens, requests ask for thinking and have no temperature. A request that continues a loop
// of calls does not ask if the answer with the calls is sent without its thinking, because the API would refuse it.
//
// # Prompt cache
//
// If the window keeps its start (cache_stable), up to three blocks are marked for the provider's prompt
// cache. The API allows four.
//
//   - The system prompt, or the last tool if there is no system prompt. The mark on the system prompt
//     includes the tools, which precede it.
//   - The end of the last user message. It covers the complete prompt, which is the beginning of the next
//     turn's prompt.
//   - The end of the user message before that, where the last turn set its mark. The API searches only 20
//     blocks before a mark for earlier ones, and an answer may have more blocks.
//
// # Answers
//
// Text, thinking (as reasoning) and the parts of tool calls are passed on when they arrive, and each tool
// call again when it is complete. The usage and the stop_reason, as the finish reason, follow at the end.
// Before them follows the native form of an answer that has thinking or unknown kinds of blocks: a JSON array of
// all blocks of the answer. Parts of an unknown kind cannot be added to their block; such an answer has no native
// form.
//
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
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	defaultBaseURL = "https://api.anthropic.com"

	// apiVersion is the version of the API that requests are written for.
	apiVersion = "2023-06-01"
)

// maxTokens returns the limit of an answer. configured is 0 if the configuration has none.
func maxTokens(configured int) int { return cmp.Or(configured, agent.DefaultMaxTokens) }

// Agent calls a model. It keeps idle connections until it is closed.
type Agent struct {
	config   agent.Model
	provider *agent.Provider
	header   http.Header
	tools    []tool
}

// New returns an agent for the model. It does not connect yet. If BaseURL is empty, Anthropic's is
// used; it may end in "/v1" or not. The error lists all faults of the configuration, without
// secrets.
func New(config agent.Model) (*Agent, error) {
	provider, err := agent.NewProvider(config, defaultBaseURL)
	if err != nil {
		return nil, err
	}
	if most := maxTokens(config.MaxOutputTokens); config.ThinkingTokens >= most {
		return nil, fmt.Errorf("thinking_tokens: %d is not less than the limit of an answer, %d; raise max_output_tokens",
			config.ThinkingTokens, most)
	}
	tools, err := newTools(config.Tools)
	if err != nil {
		return nil, err
	}
	header := make(http.Header)
	header.Set("Anthropic-Version", apiVersion)
	if config.Key != "" {
		header.Set("X-Api-Key", config.Key)
	}
	return &Agent{config: config, provider: provider, header: header, tools: tools}, nil
}

// Close closes the idle connections.
func (a *Agent) Close() error {
	a.provider.Close()
	return nil
}

// Respond sends one request and passes on the answer.
func (a *Agent) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		err := a.ask(ctx, request, func(piece *parleyv1.RespondResponse) bool { return yield(piece, nil) })
		switch {
		case err == nil || errors.Is(err, errStopped):
		case ctx.Err() != nil:
			yield(nil, context.Cause(ctx))
		default:
			yield(nil, err)
		}
	}
}

// errStopped ends an answer whose consumer has stopped.
var errStopped = errors.New("the consumer has stopped")

// ask sends the request and passes each piece to emit until emit returns false.
func (a *Agent) ask(
	ctx context.Context, request *parleyv1.RespondRequest, emit func(*parleyv1.RespondResponse) bool,
) error {
	path := "v1/messages"
	if strings.HasSuffix(a.provider.Base.Path, "/v1/") {
		path = "messages"
	}
	events, err := a.provider.Stream(ctx, path, a.header, a.makeBody(request))
	if err != nil {
		return err
	}
	defer events.Close()
	answer := answer{lastPiece: time.Now()}
	for !answer.complete {
		e, err := events.Next()
		if err != nil {
			return a.provider.StreamError(err)
		}
		switch e.Type {
		case "error":
			return a.provider.EventError(e.Data)
		case "", "ping": // Each event of the API has a type, and the data of a ping may be anything.
			continue
		}
		if len(e.Data) == 0 {
			continue
		}
		var data event
		if err := e.Decode(&data); err != nil {
			return a.provider.MalformedEvent(string(e.Data))
		}
		answer.content.add(&data, e.Data)
		pieces, err := answer.add(&data)
		for _, piece := range pieces {
			if !emit(piece) {
				return errStopped
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
