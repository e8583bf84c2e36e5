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
	"math"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// maxLine is the most bytes of a line, its end not counted.
	maxLine = 1 << 20
	// maxWord bounds the model's name, the reason for the end and a tool's name.
	maxWord = 128
	// maxReport bounds what an error quotes of what the program said.
	maxReport = 4 << 10
)

// decodeStream reads the lines that `claude -p --output-format stream-json --verbose`
// prints, with or without --include-partial-messages, and makes of them:
//
//   - text: of the partial events of a message when there were any, else of the whole
//     message. A tool call between two texts makes a paragraph of the second. A result's
//     text counts only when there was no other.
//   - usage and finish reason: of the result.
//   - progress: the name of each tool that runs, for whoever watches. The command runs
//     its tools itself and feeds their results back itself, so they are no tool calls
//     and results of this conversation: calls without an answer would have the turn wait
//     for one, and dozens of results would push the user's messages out of the history.
//   - an error: of a result that reports one, or of a last message that does. The
//     program may still end by itself. io.ErrUnexpectedEOF where no result is behind all
//     messages: by the format, a run that was not cut off ends with one, and nothing else
//     tells a whole answer from half of one.
//
// What subagents say is not part of the answer. Lines of other types are passed over, and so
// are those longer than 1 MiB, whatever they are: they hold what tools have read, and a result
// that long is missed as one that is not there. A line that is no JSON object is an error.
func decodeStream(r io.Reader, redact func(string) string) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		s := stream{redact: redact}
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxLine+1) // the line feed has to fit as well
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

// shortLines splits into the lines of at most maxLine bytes, and drops longer ones as they come.
func shortLines() bufio.SplitFunc {
	dropping := false
	return func(data []byte, atEOF bool) (advance int, line []byte, err error) {
		advance, line, err = bufio.ScanLines(data, atEOF)
		switch {
		case advance == 0 && len(data) > maxLine:
			dropping = true
			return len(data), nil, nil
		case advance > 0 && (dropping || len(line) > maxLine):
			dropping = false
			return advance, nil, nil
		}
		return advance, line, err
	}
}

// streamLine is what is read of a line; each type of line has some of the fields.
type streamLine struct {
	Type    string        `json:"type"`
	Parent  string        `json:"parent_tool_use_id"` // set on what a subagent does
	Message streamMessage `json:"message"`            // assistant
	Error   string        `json:"error"`              // assistant: kind of the failure that the text tells
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
		Input      int64 `json:"input_tokens"`
		CacheWrite int64 `json:"cache_creation_input_tokens"`
		CacheRead  int64 `json:"cache_read_input_tokens"`
		Output     int64 `json:"output_tokens"`
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

// stream is what a run has told so far. Only the main agent's lines count, save for
// progress.
type stream struct {
	redact func(string) string // what errors quote

	spoken  bool // there has been text
	pausing bool // a tool was called, or a result given, since the last text

	partialID string // of the message that the partial events belong to
	partial   bool   // they have had text

	model, stopReason string
	ended             bool         // there has been a result, and no message since
	failure           *agent.Error // what the run would end with if it ended now
}

func (s *stream) line(b []byte) ([]*parleyv1.RespondResponse, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return nil, nil
	}
	var line streamLine
	err := json.Unmarshal(b, &line)
	// A field that is not of the type known here is left empty: lines of other types,
	// and those of versions to come, may use the same names for other things.
	if field := new(json.UnmarshalTypeError); b[0] != '{' || err != nil && !errors.As(err, &field) {
		return nil, &agent.Error{Message: fmt.Sprintf("the program printed a line that is not a JSON object: %q", clipped(s.redact(mended(b)), 80))}
	}
	switch line.Type {
	case "assistant":
		return s.whole(&line), nil
	case "stream_event":
		return s.event(&line), nil
	case "tool_progress": // every half minute that a tool takes
		return []*parleyv1.RespondResponse{progressPiece(line.ToolName)}, nil
	case "result":
		return s.result(&line), nil
	}
	return nil, nil
}

// event takes a partial event.
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
		return []*parleyv1.RespondResponse{s.say(event.Delta.Text)}
	}
	return nil
}

// whole takes a message. The program prints one such line for each block of a message,
// and does so too for blocks of which there were partial events.
func (s *stream) whole(line *streamLine) []*parleyv1.RespondResponse {
	message := &line.Message
	mine := line.Parent == ""
	known := s.partial && (message.ID == s.partialID || message.ID == "" || s.partialID == "")
	if mine {
		s.note(message.Model, message.StopReason)
		s.ended, s.failure = false, nil // the run goes on
		if line.Error != "" {
			s.failure = s.failed(line.Error, line.Error, 0)
		}
	}
	var pieces []*parleyv1.RespondResponse
	for _, block := range message.Content {
		switch {
		case strings.HasSuffix(block.Type, "tool_use"):
			s.pausing = s.pausing || mine
			pieces = append(pieces, progressPiece(block.Name))
		case block.Type != "text" || block.Text == "" || !mine:
		case line.Error != "":
			s.failure.Message = clipped(s.redact(block.Text), maxReport)
		case !known:
			pieces = append(pieces, s.say(block.Text))
		}
	}
	return pieces
}

// result takes the end of a run. Others may follow: the program goes on when something
// that it has left in the background ends.
func (s *stream) result(line *streamLine) []*parleyv1.RespondResponse {
	var pieces []*parleyv1.RespondResponse
	switch {
	case line.IsError || strings.HasPrefix(line.Subtype, "error"):
		passing := s.failure != nil && s.failure.Retryable // the message before tells more
		s.failure = s.failed(cmp.Or(line.Result, strings.Join(line.Errors, "; "), line.Subtype), "", line.Status)
		s.failure.Retryable = s.failure.Retryable || passing
	case !s.spoken && s.failure == nil && line.Result != "":
		pieces = append(pieces, s.say(line.Result))
	}
	if usage := line.Usage; usage != nil {
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{
			Model:             s.model,
			InputTokens:       tokens(usage.Input, usage.CacheWrite, usage.CacheRead),
			OutputTokens:      tokens(usage.Output),
			CachedInputTokens: tokens(usage.CacheRead),
		}}})
	}
	s.note("", line.StopReason)
	if s.stopReason != "" {
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: s.stopReason}})
	}
	s.pausing, s.ended = true, true
	return pieces
}

// say makes a piece of the text, a paragraph apart from what was said before a tool ran.
func (s *stream) say(text string) *parleyv1.RespondResponse {
	if s.spoken && s.pausing {
		text = "\n\n" + text
	}
	s.spoken, s.pausing = true, false
	return textPiece(text)
}

// note keeps the newest of what is given. Messages that the program made up itself name
// a model in angle brackets.
func (s *stream) note(model, stopReason string) {
	if model != "" && model[0] != '<' {
		s.model = clipped(model, maxWord)
	}
	if stopReason != "" {
		s.stopReason = clipped(stopReason, maxWord)
	}
}

// failed is the error for what the program reported; kind and status are those of the
// model's API, where they are known.
func (s *stream) failed(text, kind string, status int) *agent.Error {
	passing := kind == "rate_limit" || kind == "overloaded" || kind == "server_error" || status == 429 || status >= 500
	return &agent.Error{Message: cmp.Or(clipped(s.redact(text), maxReport), "the program reports a failure and does not say which"), Retryable: passing}
}

// tokens is the sum as the API can hold it.
func tokens(counts ...int64) int32 {
	var sum int64
	for _, count := range counts {
		sum = min(sum+min(max(count, 0), math.MaxInt32), math.MaxInt32)
	}
	return int32(sum)
}

func progressPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Progress{
		Progress: &parleyv1.TurnProgress{Text: clipped(text, maxWord)},
	}}
}
