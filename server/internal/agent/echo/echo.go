// Package echo is an agent that answers with the user's own text, so that the server can be tried
// without a model. Start at [New].
package echo

import (
	"context"
	"iter"
	"strings"
	"unicode"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// Agent is the echo agent. It has no state.
type Agent struct{}

// New returns an echo agent.
func New() *Agent { return &Agent{} }

// maxPieces limits the pieces of an answer: a turn keeps a limited number of events, and a slow
// reader of a long answer must still find all of them.
const maxPieces = 1000

// Respond answers with the exact text of the last message. Each piece is a word with the white
// space after it, or several words in a long text. A tool result is echoed like a user's text. For
// a message without text, the answer names its other content.
func (a *Agent) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		messages := request.GetMessages()
		if len(messages) == 0 {
			yield(nil, &agent.Error{Message: "the request has no message to echo"})
			return
		}
		for word := range words(answer(messages[len(messages)-1])) {
			if ctx.Err() != nil {
				yield(nil, context.Cause(ctx))
				return
			}
			if !yield(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: word}}, nil) {
				return
			}
		}
	}
}

// Close does nothing.
func (a *Agent) Close() error { return nil }

// answer returns the answer to a message. It is never empty.
func answer(message *parleyv1.Message) string {
	if message.GetContent() != "" {
		return message.GetContent()
	}
	if content := message.GetToolResult().GetContent(); content != "" {
		return content
	}
	var parts []string
	for _, data := range message.GetStructuredData() {
		parts = append(parts, "structured data "+data.GetType())
	}
	for _, attachment := range message.GetAttachments() {
		parts = append(parts, "attachment "+attachment.GetUri())
	}
	if len(parts) == 0 {
		return "The message has no text."
	}
	return "The message has no text, but " + strings.Join(parts, ", ") + "."
}

// words splits a text before each word except the first. The concatenated pieces are the text.
func words(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		start, inSpace, sawWord, minBytes := 0, false, false, len(text)/maxPieces
		for i, r := range text {
			space := unicode.IsSpace(r)
			if inSpace && !space && sawWord && i-start >= minBytes {
				if !yield(text[start:i]) {
					return
				}
				start = i
			}
			inSpace, sawWord = space, sawWord || !space
		}
		if start < len(text) {
			yield(text[start:])
		}
	}
}
