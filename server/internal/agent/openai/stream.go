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
	// usageGrace is how long after its finish_reason an answer waits for what may follow,
	// the usage and [DONE]. Some servers send neither and leave the connection open.
	usageGrace = 5 * time.Second

	maxFinishBytes = 128
	maxModelBytes  = 128
)

// stream is an answer as it comes.
type stream struct {
	agent   *Agent
	emit    func(*parleyv1.RespondResponse) bool // false: no more pieces are wanted
	decoder ssestream.Decoder
	giveUp  func() // makes the body end

	told   time.Time // when the last piece was emitted
	spoken bool      // there has been text other than white space
	text   joiner
	calls  calls
	usage  *parleyv1.Usage
	model  string
	finish string // finish_reason; empty until it has come
}

// errUnwanted ends a stream whose consumer wants no more of it.
var errUnwanted = errors.New("no more is wanted")

// read passes the answer on until it is whole, or no more of it is wanted.
func (s *stream) read() error {
	grace := time.AfterFunc(math.MaxInt64, s.giveUp) // not before it is reset
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

// add takes one event.
func (s *stream) add(eventType string, data []byte) error {
	var chunk sdk.ChatCompletionChunk
	if err := json.Unmarshal(data, &chunk); err != nil {
		return s.agent.provider.MalformedEvent(string(data))
	}
	// Most gateways have the error where the API says, some send "error": null always.
	fault := chunk.JSON.ExtraFields["error"].Raw()
	if eventType == "error" || chunk.Object == "error" || fault != "" && fault != "null" && fault != `""` {
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
			continue // one answer was asked for
		}
		if err := s.addDelta(&choice.Delta); err != nil {
			return err
		}
		if choice.FinishReason != "" {
			s.finish = choice.FinishReason
		}
	}
	if time.Since(s.told) >= agent.ProgressInterval {
		return s.yield(agent.WorkingProgress())
	}
	return nil
}

func (s *stream) addDelta(delta *sdk.ChatCompletionChunkChoiceDelta) error {
	for _, value := range []string{delta.JSON.Refusal.Raw(), delta.JSON.Content.Raw()} {
		if text := s.text.add(inside(value)); text != "" {
			s.spoken = s.spoken || strings.TrimSpace(text) != ""
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

// end passes on what comes behind the text.
func (s *stream) end() error {
	calls, err := s.calls.done(s.finish)
	if err != nil {
		return err
	}
	var pieces []*parleyv1.RespondResponse
	if rest := s.text.rest(); rest != "" {
		s.spoken = true
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
	if s.spoken || len(calls) > 0 {
		return nil
	}
	return agent.CheckEmpty(s.finish)
}

func (s *stream) yield(piece *parleyv1.RespondResponse) error {
	if !s.emit(piece) {
		return errUnwanted
	}
	s.told = time.Now()
	return nil
}

// usage is what the provider counted, all but the model's name.
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
