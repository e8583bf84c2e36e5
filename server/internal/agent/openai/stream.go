package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// usageGrace is the maximum wait for the usage and [DONE] after the finish_reason. Some servers
	// send neither and keep the connection open.
	usageGrace = 5 * time.Second

	maxFinishBytes = 128
	maxModelBytes  = 128
)

// stream is an answer that is being received.
type stream struct {
	agent  *Agent
	emit   func(*parleyv1.RespondResponse) bool // Returns false if the consumer has stopped.
	events *agent.EventStream
	cancel func() // Ends the body.

	lastPiece time.Time // Time of the last piece.
	hasText   bool      // Text other than white space was received.
	text      agent.Joiner
	reasoning agent.Joiner
	calls     calls
	native    native
	usage     *parleyv1.Usage
	model     string
	finish    string // The finish_reason, empty until it is received.
}

// errUnwanted ends a stream whose consumer has stopped.
var errUnwanted = errors.New("the consumer has stopped")

// read passes on the answer until it is complete or the consumer stops.
func (s *stream) read() error {
	grace := time.AfterFunc(math.MaxInt64, s.cancel) // Started by Reset.
	defer grace.Stop()
	for {
		event, err := s.events.Next()
		if err != nil {
			if s.finish != "" {
				return s.end()
			}
			return s.agent.provider.StreamError(err)
		}
		event.Data = bytes.TrimSpace(event.Data)
		if bytes.Equal(event.Data, []byte("[DONE]")) {
			return s.end()
		}
		if len(event.Data) == 0 {
			continue
		}
		unfinished := s.finish == ""
		if err := s.add(event); err != nil {
			if errors.Is(err, errUnwanted) {
				return nil
			}
			return err
		}
		if unfinished && s.finish != "" {
			grace.Reset(s.agent.usageGrace)
		}
	}
}

// chunk is the data of an event. Texts are kept escaped: see [agent.Joiner].
type chunk struct {
	Object  string          `json:"object"`
	Model   string          `json:"model"`
	Error   json.RawMessage `json:"error"`
	Choices []struct {
		Index        agent.Index `json:"index"`
		Delta        delta       `json:"delta"`
		FinishReason string      `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens        agent.TokenCount `json:"prompt_tokens"`
		CompletionTokens    agent.TokenCount `json:"completion_tokens"`
		PromptTokensDetails struct {
			CachedTokens agent.TokenCount `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		CompletionTokensDetails struct {
			ReasoningTokens agent.TokenCount `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	} `json:"usage"`
}

// delta is the next part of an answer.
type delta struct {
	Content   json.RawMessage `json:"content"`
	Refusal   json.RawMessage `json:"refusal"`
	ToolCalls []callDelta     `json:"tool_calls"`
	nativeDelta
}

// reasoning returns the inside of the next part of the reasoning. Servers name it differently, and some send it under
// both names.
func (d *delta) reasoning() string {
	return cmp.Or(inside(string(d.ReasoningContent)), inside(string(d.Reasoning)))
}

// add processes one event.
func (s *stream) add(event agent.Event) error {
	var c chunk
	if err := event.Decode(&c); err != nil {
		return s.agent.provider.MalformedEvent(string(event.Data))
	}
	// Most gateways send the error in the documented field. Some always send "error": null.
	failure := string(c.Error)
	if event.Type == "error" || c.Object == "error" || failure != "" && failure != "null" && failure != `""` {
		return s.agent.provider.EventError(event.Data)
	}
	if c.Model != "" {
		s.model = c.Model
	}
	if u := c.Usage; u != nil {
		s.usage = &parleyv1.Usage{
			InputTokens:       agent.SumTokens(u.PromptTokens),
			OutputTokens:      agent.SumTokens(u.CompletionTokens),
			CachedInputTokens: agent.SumTokens(u.PromptTokensDetails.CachedTokens),
			ReasoningTokens:   agent.SumTokens(u.CompletionTokensDetails.ReasoningTokens),
		}
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue // The request asks for one answer.
		}
		if err := s.addDelta(&choice.Delta); err != nil {
			return err
		}
		if choice.FinishReason != "" {
			s.finish = choice.FinishReason
		}
	}
	if time.Since(s.lastPiece) >= agent.ProgressInterval {
		return s.yield(agent.WorkingProgress())
	}
	return nil
}

func (s *stream) addDelta(d *delta) error {
	s.native.add(d)
	if text := s.reasoning.Add(d.reasoning()); text != "" {
		if err := s.yield(agent.ReasoningPiece(text)); err != nil {
			return err
		}
	}
	for _, value := range []json.RawMessage{d.Refusal, d.Content} {
		if text := s.text.Add(inside(string(value))); text != "" {
			s.hasText = s.hasText || strings.TrimSpace(text) != ""
			if err := s.yield(textPiece(text)); err != nil {
				return err
			}
		}
	}
	for i := range d.ToolCalls {
		piece, err := s.calls.add(&d.ToolCalls[i])
		if err == nil && piece != nil {
			err = s.yield(piece)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// end passes on what follows the text.
func (s *stream) end() error {
	calls, err := s.calls.done(s.finish)
	if err != nil {
		return err
	}
	var pieces []*parleyv1.RespondResponse
	if rest := s.reasoning.Rest(); rest != "" {
		pieces = append(pieces, agent.ReasoningPiece(rest))
	}
	if rest := s.text.Rest(); rest != "" {
		s.hasText = true
		s.native.addText(rest)
		pieces = append(pieces, textPiece(rest))
	}
	for _, call := range calls {
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: call}})
	}
	pieces = append(pieces, s.native.pieces(calls, s.calls.extras)...)
	if s.usage != nil {
		if s.model == "" {
			s.model = s.agent.config.Model
		}
		s.usage.Model = agent.Truncate(s.model, maxModelBytes)
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: s.usage}})
	}
	if s.finish != "" {
		pieces = append(pieces, &parleyv1.RespondResponse{
			Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: agent.Truncate(s.finish, maxFinishBytes)},
		})
	}
	for _, piece := range pieces {
		if !s.emit(piece) {
			return nil
		}
	}
	if s.hasText || len(calls) > 0 {
		return nil
	}
	return agent.CheckEmpty(s.finish)
}

func (s *stream) yield(piece *parleyv1.RespondResponse) error {
	if !s.emit(piece) {
		return errUnwanted
	}
	s.native.addText(piece.GetText())
	s.lastPiece = time.Now()
	return nil
}

func textPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}
