package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"

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
	agent   *Agent
	emit    func(*parleyv1.RespondResponse) bool // Returns false if the consumer has stopped.
	decoder ssestream.Decoder
	cancel  func() // Ends the body.

	lastPiece time.Time // Time of the last piece.
	hasText   bool      // Text other than white space was received.
	text      joiner
	calls     calls
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
	for s.decoder.Next() {
		event := s.decoder.Event()
		data := bytes.TrimSpace(event.Data)
		if bytes.Equal(data, []byte("[DONE]")) {
			return s.end()
		}
		if len(data) == 0 {
			continue
		}
		unfinished := s.finish == ""
		if err := s.add(event.Type, data); err != nil {
			if errors.Is(err, errUnwanted) {
				return nil
			}
			return err
		}
		if unfinished && s.finish != "" {
			grace.Reset(s.agent.usageGrace)
		}
	}
	if s.finish != "" {
		return s.end()
	}
	return s.agent.provider.StreamError(s.decoder.Err())
}

// add processes one event.
func (s *stream) add(eventType string, data []byte) error {
	var chunk sdk.ChatCompletionChunk
	if err := json.Unmarshal(data, &chunk); err != nil {
		return s.agent.provider.MalformedEvent(string(data))
	}
	// Most gateways send the error in the documented field. Some always send "error": null.
	failure := chunk.JSON.ExtraFields["error"].Raw()
	if eventType == "error" || chunk.Object == "error" || failure != "" && failure != "null" && failure != `""` {
		return s.agent.provider.EventError(data)
	}
	if chunk.Model != "" {
		s.model = chunk.Model
	}
	if chunk.JSON.Usage.Valid() {
		s.usage = usage(chunk.Usage)
	}
	for _, choice := range chunk.Choices {
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

func (s *stream) addDelta(delta *sdk.ChatCompletionChunkChoiceDelta) error {
	for _, value := range []string{delta.JSON.Refusal.Raw(), delta.JSON.Content.Raw()} {
		if text := s.text.add(inside(value)); text != "" {
			s.hasText = s.hasText || strings.TrimSpace(text) != ""
			if err := s.yield(textPiece(text)); err != nil {
				return err
			}
		}
	}
	for i := range delta.ToolCalls {
		if err := s.calls.add(&delta.ToolCalls[i]); err != nil {
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
	if rest := s.text.rest(); rest != "" {
		s.hasText = true
		pieces = append(pieces, textPiece(rest))
	}
	for _, call := range calls {
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: call}})
	}
	if s.usage != nil {
		if s.model == "" {
			s.model = s.agent.config.Model
		}
		s.usage.Model = agent.Truncate(s.model, maxModelBytes)
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: s.usage}})
	}
	if s.finish != "" {
		pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: agent.Truncate(s.finish, maxFinishBytes)}})
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
	s.lastPiece = time.Now()
	return nil
}

// usage converts the counts of the provider, without the name of the model.
func usage(counted sdk.CompletionUsage) *parleyv1.Usage {
	count := func(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }
	return &parleyv1.Usage{
		InputTokens:       count(counted.PromptTokens),
		OutputTokens:      count(counted.CompletionTokens),
		CachedInputTokens: count(counted.PromptTokensDetails.CachedTokens),
		ReasoningTokens:   count(counted.CompletionTokensDetails.ReasoningTokens),
	}
}

func textPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}
