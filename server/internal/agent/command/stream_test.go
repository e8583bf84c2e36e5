package command

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

func usagePiece(u *parleyv1.Usage) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: u}}
}

func finishPiece(reason string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: reason}}
}

// Lines of the claude command, without unused fields.
const (
	initLine     = `{"type":"system","subtype":"init","session_id":"s","model":"claude-x","tools":["Bash"]}`
	messageStart = `{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":null}},"parent_tool_use_id":null}`
	blockStart   = `{"type":"stream_event","event":{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}},"parent_tool_use_id":null}`
	deltaHello   = `{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}},"parent_tool_use_id":null}`
	deltaLo      = `{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"lo"}},"parent_tool_use_id":null}`
	deltaThought = `{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}},"parent_tool_use_id":null}`
	deltaStop    = `{"type":"stream_event","event":{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":2}},"parent_tool_use_id":null}`
	wholeHello   = `{"type":"assistant","message":{"id":"m1","model":"claude-x","role":"assistant","content":[{"type":"text","text":"Hello"}],"stop_reason":null},"parent_tool_use_id":null}`
	toolUse      = `{"type":"assistant","message":{"id":"m1","model":"claude-x","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}}]},"parent_tool_use_id":null}`
	toolResult   = `{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"a.txt"}]},"parent_tool_use_id":null}`
	wholeDone    = `{"type":"assistant","message":{"id":"m2","model":"claude-y","content":[{"type":"text","text":"One file."}]},"parent_tool_use_id":null}`
	resultDone   = `{"type":"result","subtype":"success","is_error":false,"duration_ms":12,"num_turns":1,"result":"Hello","stop_reason":"end_turn","total_cost_usd":0.1,"usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"output_tokens":7,"service_tier":"standard"},"permission_denials":[]}`
	apiError     = `{"type":"assistant","message":{"id":"m9","model":"<synthetic>","content":[{"type":"text","text":"Usage limit reached"}]},"error":"rate_limit","parent_tool_use_id":null}`
)

func TestDecodeStream(t *testing.T) {
	usage := usagePiece(&parleyv1.Usage{Model: "claude-x", InputTokens: 123, OutputTokens: 7, CachedInputTokens: 100})
	end := finishPiece("end_turn")
	tests := []struct {
		name    string
		lines   []string
		want    []*parleyv1.RespondResponse
		failure *agent.Error
	}{
		{name: "nothing"},
		{
			name:  "complete messages",
			lines: []string{initLine, wholeHello, resultDone},
			want:  []*parleyv1.RespondResponse{textPiece("Hello"), usage, end},
		},
		{
			name:  "partial events and the same complete message",
			lines: []string{initLine, messageStart, blockStart, deltaHello, deltaLo, wholeHello, deltaStop, resultDone},
			want:  []*parleyv1.RespondResponse{textPiece("Hel"), textPiece("lo"), usage, end},
		},
		{
			name:  "partial events without ids",
			lines: []string{deltaHello, deltaLo, wholeHello},
			want:  []*parleyv1.RespondResponse{textPiece("Hel"), textPiece("lo")},
		},
		{
			name:  "partial events and the same complete message without its id",
			lines: []string{messageStart, deltaHello, deltaLo, strings.Replace(wholeHello, `"id":"m1",`, "", 1)},
			want:  []*parleyv1.RespondResponse{textPiece("Hel"), textPiece("lo")},
		},
		{
			name: "partial events of a second message, and the complete message",
			lines: []string{
				messageStart, deltaHello, deltaLo, wholeHello, strings.Replace(messageStart, "m1", "m2", 1), wholeDone,
			},
			want: []*parleyv1.RespondResponse{textPiece("Hel"), textPiece("lo"), textPiece("One file.")},
		},
		{
			name:  "message without partial events after one with them",
			lines: []string{messageStart, deltaHello, deltaLo, wholeHello, toolUse, toolResult, wholeDone},
			want: []*parleyv1.RespondResponse{
				textPiece("Hel"), textPiece("lo"), progressPiece("Bash"), textPiece("\n\nOne file."),
			},
		},
		{
			name:  "partial events without text",
			lines: []string{messageStart, deltaThought, wholeHello},
			want:  []*parleyv1.RespondResponse{textPiece("Hello")},
		},
		{
			name: "text around a tool",
			lines: []string{
				wholeHello, toolUse, `{"type":"tool_progress","tool_use_id":"t1","tool_name":"Bash","elapsed_time_seconds":30}`,
				toolResult, wholeDone, wholeDone,
			},
			want: []*parleyv1.RespondResponse{
				textPiece("Hello"), progressPiece("Bash"), progressPiece("Bash"),
				textPiece("\n\nOne file."), textPiece("One file."),
			},
		},
		{
			name:  "tool before any text",
			lines: []string{toolUse, toolResult, wholeDone},
			want:  []*parleyv1.RespondResponse{progressPiece("Bash"), textPiece("One file.")},
		},
		{
			name: "subagent",
			lines: []string{
				wholeHello,
				`{"type":"assistant","message":{"id":"m7","model":"claude-sub","content":[{"type":"text","text":"inner"},{"type":"tool_use","name":"Grep"}]},"parent_tool_use_id":"t1"}`,
				`{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"inner"}},"parent_tool_use_id":"t1"}`,
				wholeHello, resultDone,
			},
			want: []*parleyv1.RespondResponse{textPiece("Hello"), progressPiece("Grep"), textPiece("Hello"), usage, end},
		},
		{
			name: "text of the program itself",
			lines: []string{
				wholeHello,
				`{"type":"assistant","message":{"id":"m8","model":"<synthetic>","content":[{"type":"text","text":"!"}]}}`,
				resultDone,
			},
			want: []*parleyv1.RespondResponse{textPiece("Hello"), textPiece("!"), usage, end},
		},
		{
			name:  "text in the result alone",
			lines: []string{`{"type":"result","subtype":"success","result":"Cleared."}`},
			want:  []*parleyv1.RespondResponse{textPiece("Cleared.")},
		},
		{
			name: "two results",
			lines: []string{
				wholeHello, `{"type":"result","result":"Hello","usage":{"input_tokens":1}}`, wholeDone,
				`{"type":"result","result":"One file.","usage":{"input_tokens":2}}`,
			},
			want: []*parleyv1.RespondResponse{
				textPiece("Hello"), usagePiece(&parleyv1.Usage{Model: "claude-x", InputTokens: 1}),
				textPiece("\n\nOne file."), usagePiece(&parleyv1.Usage{Model: "claude-y", InputTokens: 2}),
			},
		},
		{
			name:  "stop reason of the message if the result has none",
			lines: []string{messageStart, deltaHello, deltaStop, `{"type":"result","stop_reason":null}`},
			want:  []*parleyv1.RespondResponse{textPiece("Hel"), finishPiece("max_tokens")},
		},
		{
			name: "odd numbers",
			lines: []string{
				`{"type":"result","usage":{"input_tokens":9000000000,"cache_read_input_tokens":-5,"output_tokens":1.5}}`,
			},
			want: []*parleyv1.RespondResponse{usagePiece(&parleyv1.Usage{InputTokens: 2147483647, OutputTokens: 1})},
		},
		{
			name: "unknown lines, unknown shapes, blank lines",
			lines: []string{
				"", "  \r", `{}`, `{"type":"rate_limit_event","message":"soon","usage":[1]}`, `{"type":7}`,
				`{"type":"assistant","message":"text"}`, `{"type":"system","error":{"a":1}}`, wholeHello + "\r",
			},
			want: []*parleyv1.RespondResponse{textPiece("Hello")},
		},
		{
			name:  "invalid characters",
			lines: []string{`{"type":"assistant","message":{"content":[{"type":"text","text":"a` + "\xff" + `\ud800b"}]}}`},
			want:  []*parleyv1.RespondResponse{textPiece("a\uFFFD\uFFFDb")},
		},
		{
			name: "result with an error",
			lines: []string{
				wholeHello,
				`{"type":"result","subtype":"success","is_error":true,"api_error_status":401,"result":"Invalid bearer token","usage":{"input_tokens":1}}`,
			},
			want: []*parleyv1.RespondResponse{textPiece("Hello"), usagePiece(&parleyv1.Usage{Model: "claude-x", InputTokens: 1})}, failure: &agent.Error{Message: "Invalid bearer token"},
		},
		{
			name: "result with errors and no text",
			lines: []string{
				`{"type":"result","subtype":"error_during_execution","is_error":true,"errors":["first","second"]}`,
			},
			failure: &agent.Error{Message: "first; second"},
		},
		{
			name:    "result with an error only in its subtype",
			lines:   []string{`{"type":"result","subtype":"error_max_turns","is_error":false}`},
			failure: &agent.Error{Message: "error_max_turns"},
		},
		{
			name:    "result with an error without a text",
			lines:   []string{`{"type":"result","is_error":true}`},
			failure: &agent.Error{Message: "the program reported a failure without a message"},
		},
		{
			name:    "overloaded",
			lines:   []string{`{"type":"result","is_error":true,"api_error_status":529,"result":"Overloaded"}`},
			failure: &agent.Error{Message: "Overloaded", Retryable: true},
		},
		{
			name:    "message with an error",
			lines:   []string{apiError},
			failure: &agent.Error{Message: "Usage limit reached", Retryable: true},
		},
		{
			name:    "message with an error and a result of success",
			lines:   []string{apiError, `{"type":"result","subtype":"success","is_error":false,"result":"Usage limit reached"}`},
			failure: &agent.Error{Message: "Usage limit reached", Retryable: true},
		},
		{
			name:    "message with an error and its result",
			lines:   []string{apiError, `{"type":"result","is_error":true,"result":"Usage limit reached."}`},
			failure: &agent.Error{Message: "Usage limit reached.", Retryable: true},
		},
		{
			name:  "error that the program recovered from",
			lines: []string{apiError, wholeHello},
			want:  []*parleyv1.RespondResponse{textPiece("Hello")},
		},
		{
			name:  "not JSON",
			lines: []string{wholeHello, "Error: unknown option --verbos" + strings.Repeat("e", 100), wholeDone},
			want:  []*parleyv1.RespondResponse{textPiece("Hello")},
			failure: &agent.Error{
				Message: `the program printed a line that is not a JSON object: "Error: unknown option --verbos` + strings.Repeat("e", 50) + `"`,
			},
		},
		{
			name:    "not an object",
			lines:   []string{"null"},
			failure: &agent.Error{Message: `the program printed a line that is not a JSON object: "null"`},
		},
		{
			name:    "incomplete object",
			lines:   []string{`{"type":"assistant"`},
			failure: &agent.Error{Message: `the program printed a line that is not a JSON object: "{\"type\":\"assistant\""`},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			lines := strings.Join(test.lines, "\n")
			got, err := decoded(lines)
			if errors.Is(err, io.ErrUnexpectedEOF) != (test.failure == nil && !strings.Contains(lines, `{"type":"result"`)) {
				t.Errorf("decodeStream error = %v, want %v if and only if there is no result", err, io.ErrUnexpectedEOF)
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("pieces (-want +got):\n%s", diff)
			}
			var failure *agent.Error
			if !errors.As(err, &failure) && err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("decodeStream error = %v, want an *agent.Error", err)
			}
			if diff := cmp.Diff(test.failure, failure); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDecodeStreamRequiresResult: without a result after all messages, the answer may be
// incomplete.
func TestDecodeStreamRequiresResult(t *testing.T) {
	const inner = `{"type":"assistant","message":{"id":"m7","content":[{"type":"text","text":"inner"}]},"parent_tool_use_id":"t1"}`
	tests := []struct {
		name     string
		lines    []string
		complete bool
	}{
		{"nothing", nil, false},
		{"a message", []string{initLine, wholeHello}, false},
		{"partial events", []string{messageStart, deltaHello}, false},
		{"a result", []string{resultDone}, true},
		{"a result and other lines", []string{wholeHello, resultDone, `{"type":"system"}`, inner, ""}, true},
		{"a message after a result", []string{wholeHello, resultDone, wholeDone}, false},
		{"the start of a message after a result", []string{wholeHello, resultDone, messageStart}, false},
		{"text after a result", []string{wholeHello, resultDone, deltaHello}, false},
		{"a second result after a message", []string{wholeHello, resultDone, wholeDone, resultDone}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := decoded(strings.Join(test.lines, "\n"))
			if test.complete && err != nil || !test.complete && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("decodeStream error = %v, want success: %v", err, test.complete)
			}
		})
	}
}

func decoded(lines string) (pieces []*parleyv1.RespondResponse, err error) {
	for piece, err := range decodeStream(strings.NewReader(lines), func(text string) string { return text }) {
		if err != nil {
			return pieces, err
		}
		pieces = append(pieces, piece)
	}
	return pieces, nil
}

func TestDecodeStreamLimitsLines(t *testing.T) {
	frame := `{"type":"assistant","message":{"content":[{"type":"text","text":""}]}}`
	for _, end := range []string{"", "\n", "\n" + wholeHello} {
		line := strings.Replace(frame, `text":""`, `text":"`+strings.Repeat("x", maxLine-len(frame))+`"`, 1)
		if len(line) != maxLine {
			t.Fatalf("line has %d bytes, want maxLine", len(line))
		}
		pieces, err := decoded(line + end)
		if !errors.Is(err, io.ErrUnexpectedEOF) || len(pieces) == 0 || len(pieces[0].GetText()) != maxLine-len(frame) {
			t.Errorf("decodeStream of a line of 1 MiB = %d pieces, %v", len(pieces), err)
		}
		for _, extra := range []int{1, 2, maxLine - 1, maxLine, maxLine + 1, 3*maxLine + 7} {
			pieces, err = decoded(line + strings.Repeat(" ", extra) + end + "\n" + wholeDone + "\n" + resultDone)
			want := []string{"One file."}
			if strings.Contains(end, "Hello") {
				want = []string{"Hello", "One file."}
			}
			var texts []string
			for _, piece := range pieces {
				if text := piece.GetText(); text != "" {
					texts = append(texts, text)
				}
			}
			if diff := cmp.Diff(want, texts); diff != "" || err != nil {
				t.Errorf("decodeStream of a line of 1 MiB and %d bytes: %v (-want +got):\n%s", extra, err, diff)
			}
		}
		if pieces, err := decoded(wholeHello + "\n" + resultDone[:len(resultDone)-1] + strings.Repeat(" ", maxLine) + "}" + end); len(pieces) < 1 || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("decodeStream of a too long result = %d pieces, %v", len(pieces), err)
		}
	}
}

// TestDecodeStreamLimitsMemory: an endless line does not use more memory than a line may have.
func TestDecodeStreamLimitsMemory(t *testing.T) {
	const length = 256 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for piece, err := range decodeStream(io.LimitReader(endless{}, length), nil) {
		if piece != nil || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("decodeStream yields %v, %v, want io.ErrUnexpectedEOF", piece, err)
		}
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16*maxLine {
		t.Errorf("allocated %d bytes for a line of %d, want at most 16 MiB", used, length)
	}
}

// endless is a line that does not end.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func FuzzDecodeStream(f *testing.F) {
	f.Add(strings.Join([]string{initLine, messageStart, blockStart, deltaHello, deltaStop, toolUse, apiError, resultDone},
		"\n"))
	f.Add(`{"type":"assistant","error":"x","parent_tool_use_id":"t","message":{"content":[{"type":"text","text":"a"}]}}`)
	f.Add("[1]\n")
	f.Fuzz(func(t *testing.T, lines string) {
		pieces, err := decoded(lines)
		for _, piece := range pieces {
			usage := piece.GetUsage()
			for _, s := range []string{piece.GetText(), piece.GetProgress().GetText(), piece.GetFinishReason(), usage.GetModel()} {
				if !utf8.ValidString(s) {
					t.Errorf("%q is not UTF-8", s)
				}
			}
			if len(piece.GetFinishReason()) > 128 || len(usage.GetModel()) > 128 || usage.GetInputTokens() < 0 ||
				usage.GetOutputTokens() < 0 {
				t.Errorf("piece %v exceeds limits of the API", piece)
			}
		}
		if err != nil && !utf8.ValidString(err.Error()) {
			t.Errorf("%q is not UTF-8", err)
		}
	})
}
