// Package echo is the agent that answers with the user's own words, so that
// everything can be tried without a model. Begin with [New].
package echo

import (
	"context"
	"iter"
	"strings"
	"unicode"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// Agent is the echo agent. It holds nothing.
type Agent struct{}

// New makes an echo agent.
func New() *Agent { return &Agent{} }

// maxPieces bounds the pieces of an answer: a turn keeps so many events only, and a reader
// of a long echo is not to fall behind them.
const maxPieces = 1000

// Respond answers with the text of the last message, exactly, a word and the white
// space after it to each piece, or several in a text of many. A tool's result is echoed like a user's words. For a
// message without text the answer names what came instead.
func (a *Agent) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		messages := request.GetMessages()
		if len(messages) == 0 {
			yield(nil, &agent.Error{Message: "there is no message to echo"})
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

// answer is what the agent says to the message; never empty.
func answer(message *parleyv1.Message) string {
	if message.GetContent() != "" {
		return message.GetContent()
	}
	if content := message.GetToolResult().GetContent(); content != "" {
		return content
	}
	var got []string
	for _, data := range message.GetStructuredData() {
		got = append(got, "structured data "+data.GetType())
	}
	for _, attachment := range message.GetAttachments() {
		got = append(got, "attachment "+attachment.GetUri())
	}
	if len(got) == 0 {
		return "The message has no text."
	}
	return "The message has no text, but " + strings.Join(got, ", ") + "."
}

// words cuts the text before words other than the first: the pieces together are the
// text.
func words(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		start, inSpace, sawWord, least := 0, false, false, len(text)/maxPieces
		for i, r := range text {
			space := unicode.IsSpace(r)
			if inSpace && !space && sawWord && i-start >= least {
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
