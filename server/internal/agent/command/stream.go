package command

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// maxLine is the maximum length of a line without its line feed.
	maxLine = 1 << 20
	// maxWord is the maximum length of the model's name, the finish reason and a tool's name.
	maxWord = 128
	// maxReport is the maximum length of the program's text in an error.
	maxReport = 4 << 10
)

// decodeStream reads the lines that `claude -p --output-format stream-json --verbose` prints, with
// or without --include-partial-messages, and converts them:
//
//   - Text comes from the partial events of a message if there were any, otherwise from the complete message. Text
//     after a tool call begins a new paragraph. The text of a result is used only if there was no other text.
//   - Usage and finish reason come from the result.
//   - Progress pieces contain the name of each tool that runs. The command runs its tools itself and feeds
//     their results back itself, so they are not tool calls and results of the conversation: the turn would
//     wait for the result of each call, and dozens of results would displace the user's messages from the
//     history.
//   - An error comes from a result that reports one, or from a last message that does. The program may still end by
//     itself. If no result follows the last message, the error is io.ErrUnexpectedEOF: a complete run ends with a
//     result, and nothing else distinguishes a complete answer from an incomplete one.
//
// Text of subagents is not part of the answer. Lines of unknown types are ignored, and so are lines
// longer than 1 MiB, which contain what tools have read. A longer result therefore counts as
// missing. A line that is not a JSON object is an error.
func decodeStream(r io.Reader, redact func(string) string) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		s := stream{redact: redact}
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxLine+1) // Space for the line feed too.
		lines.Split(shortLines())
		for lines.Scan() {
			pieces, err := s.line(lines.Bytes())
			for _, piece := range pieces {
				if !yield(piece, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
		err := lines.Err()
		switch {
		case err != nil:
			yield(nil, err)
		case s.failure != nil:
			yield(nil, s.failure)
		case !s.ended:
			yield(nil, io.ErrUnexpectedEOF)
		}
	}
}

// shortLines splits the input into lines of at most maxLine bytes and skips longer lines.
func shortLines() bufio.SplitFunc {
	skipping := false
	return func(data []byte, atEOF bool) (advance int, line []byte, err error) {
		advance, line, err = bufio.ScanLines(data, atEOF)
		switch {
		case advance == 0 && len(data) > maxLine:
			skipping = true
			return len(data), nil, nil
		case advance > 0 && (skipping || len(line) > maxLine):
			skipping = false
			return advance, nil, nil
		}
		return advance, line, err
	}
}

// streamLine contains the fields of all types of lines that are used.
type streamLine struct {
	Type    string        `json:"type"`
	Parent  string        `json:"parent_tool_use_id"` // Set for lines of a subagent.
	Message streamMessage `json:"message"`            // assistant
	Error   string        `json:"error"`              // assistant: kind of the failure that the text describes
	Event   struct {      // stream_event
		Type    string        `json:"type"`
		Message streamMessage `json:"message"` // message_start
		Delta   struct {
			Type       string `json:"type"`
			Text       string `json:"text"`        // content_block_delta
			StopReason string `json:"stop_reason"` // message_delta
		} `json:"delta"`
	} `json:"event"`
	ToolName string `json:"tool_name"` // tool_progress

	Subtype    string   `json:"subtype"` // from here on: result
	IsError    bool     `json:"is_error"`
	Result     string   `json:"result"`
	Errors     []string `json:"errors"`
	Status     int      `json:"api_error_status"`
	StopReason string   `json:"stop_reason"`
	Usage      *struct {
		Input      agent.TokenCount `json:"input_tokens"`
		CacheWrite agent.TokenCount `json:"cache_creation_input_tokens"`
		CacheRead  agent.TokenCount `json:"cache_read_input_tokens"`
		Output     agent.TokenCount `json:"output_tokens"`
	} `json:"usage"`
}

type streamMessage struct {
	ID         string `json:"id"`
	Model      string `json:"model"`
	StopReason string `json:"stop_reason"`
	Content    []struct {
		Type string `json:"type"`
		Text string `json:"text"` // text
		Name string `json:"name"` // tool_use, server_tool_use, mcp_tool_use
	} `json:"content"`
}

// stream is the state of a run. Except for progress, only lines of the main agent are used.
type stream struct {
	redact func(string) string // Removes secrets from texts in errors.

	hasText   bool // Text was yielded.
	paragraph bool // The next text begins a paragraph: a tool was called, or a result received, since the last text.

	partialID string // Id of the message that the partial events belong to.
	partial   bool   // These events contained text.

	model, stopReason string
	ended             bool         // A result was received, and no message after it.
	failure           *agent.Error // The error if the run ends now.
}

func (s *stream) line(b []byte) ([]*parleyv1.RespondResponse, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return nil, nil
	}
	var line streamLine
	err := json.Unmarshal(b, &line)
	// A field with an unexpected type is ignored: lines of other types and of later versions may use the
	// same name for something else.
	if field := new(json.UnmarshalTypeError); b[0] != '{' || err != nil && !errors.As(err, &field) {
		return nil, &agent.Error{
			Message: fmt.Sprintf("the program printed a line that is not a JSON object: %q",
				agent.Truncate(s.redact(toValidUTF8(b)), 80)),
		}
	}
	switch line.Type {
	case "assistant":
		return s.message(&line), nil
	case "stream_event":
		return s.event(&line), nil
	case "tool_progress": // Sent every half minute while a tool runs.
		return []*parleyv1.RespondResponse{progressPiece(line.ToolName)}, nil
	case "result":
		return s.result(&line), nil
	}
	return nil, nil
}

// event processes a partial event.
func (s *stream) event(line *streamLine) []*parleyv1.RespondResponse {
	event := &line.Event
	switch {
	case line.Parent != "":
	case event.Type == "message_start":
		s.partialID, s.partial, s.ended = event.Message.ID, false, false
		s.note(event.Message.Model, "")
	case event.Type == "message_delta":
		s.note("", event.Delta.StopReason)
	case event.Type == "content_block_delta" && event.Delta.Type == "text_delta" && event.Delta.Text != "":
		s.partial, s.ended = true, false
		return []*parleyv1.RespondResponse{s.newText(event.Delta.Text)}
	}
	return nil
}

// message processes a complete message. The program prints one such line for each block of a
// message, even if it sent partial events for the block.
func (s *stream) message(line *streamLine) []*parleyv1.RespondResponse {
	message := &line.Message
	isMain := line.Parent == ""
	known := s.partial && (message.ID == s.partialID || message.ID == "" || s.partialID == "")
	if isMain {
		s.note(message.Model, message.StopReason)
		s.ended, s.failure = false, nil // The run continues.
		if line.Error != "" {
			s.failure = s.newError(line.Error, line.Error, 0)
		}
	}
	var pieces []*parleyv1.RespondResponse
	for _, block := range message.Content {
		switch {
		case strings.HasSuffix(block.Type, "tool_use"):
			s.paragraph = s.paragraph || isMain
			pieces = append(pieces, progressPiece(block.Name))
		case block.Type != "text" || block.Text == "" || !isMain:
		case line.Error != "":
			s.failure.Message = agent.Truncate(s.redact(block.Text), maxReport)
		case !known:
			pieces = append(pieces, s.newText(block.Text))
		}
	}
	return pieces
}

// result processes the end of a run. Other lines may follow: the program continues when something
// that runs in the background ends.
func (s *stream) result(line *streamLine) []*parleyv1.RespondResponse {
	var pieces []*parleyv1.RespondResponse
	switch {
	case line.IsError || strings.HasPrefix(line.Subtype, "error"):
		retryable := s.failure != nil && s.failure.Retryable // The previous message knows the kind of failure.
		s.failure = s.newError(cmp.Or(line.Result, strings.Join(line.Errors, "; "), line.Subtype), "", line.Status)
		s.failure.Retryable = s.failure.Retryable || retryable
	case !s.hasText && s.failure == nil && line.Result != "":
		pieces = append(pieces, s.newText(line.Result))
	}
	if usage := line.Usage; usage != nil {
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{
			Model:             s.model,
			InputTokens:       agent.SumTokens(usage.Input, usage.CacheWrite, usage.CacheRead),
			OutputTokens:      agent.SumTokens(usage.Output),
			CachedInputTokens: agent.SumTokens(usage.CacheRead),
		}}})
	}
	s.note("", line.StopReason)
	if s.stopReason != "" {
		pieces = append(pieces, &parleyv1.RespondResponse{
			Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: s.stopReason},
		})
	}
	s.paragraph, s.ended = true, true
	return pieces
}

// newText returns a piece with the text, as a new paragraph if a tool ran before.
func (s *stream) newText(text string) *parleyv1.RespondResponse {
	if s.hasText && s.paragraph {
		text = "\n\n" + text
	}
	s.hasText, s.paragraph = true, false
	return textPiece(text)
}

// note records the latest model and stop reason. Messages that the program itself created have a
// model in angle brackets, which is ignored.
func (s *stream) note(model, stopReason string) {
	if model != "" && model[0] != '<' {
		s.model = agent.Truncate(model, maxWord)
	}
	if stopReason != "" {
		s.stopReason = agent.Truncate(stopReason, maxWord)
	}
}

// newError returns the error for a failure that the program reported. kind and status are those of
// the model's API, if known.
func (s *stream) newError(text, kind string, status int) *agent.Error {
	retryable := kind == "rate_limit" || kind == "overloaded" || kind == "server_error" || status == 429 || status >= 500
	return &agent.Error{
		Message:   cmp.Or(agent.Truncate(s.redact(text), maxReport), "the program reported a failure without a message"),
		Retryable: retryable,
	}
}

func progressPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Progress{
		Progress: &parleyv1.TurnProgress{Text: agent.Truncate(text, maxWord)},
	}}
}
