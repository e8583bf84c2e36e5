package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// TestBlocksReadsWhatTextWrites: Blocks recognizes structured data in the form in which Text writes
// it.
func TestBlocksReadsWhatTextWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMessage(assistant, rapid.SampledFrom([]string{"", "Hi.", "\nHi. "}).Draw(t, "content"))
		for range rapid.IntRange(0, 5).Draw(t, "values") {
			value, err := structpb.NewValue(drawJSON(t, 4))
			if err != nil {
				t.Fatal(err)
			}
			kind := rapid.StringMatching("[^`\\s]{1,30}").Filter(func(s string) bool { return len(s) <= 128 }).Draw(t, "type")
			m.StructuredData = append(m.StructuredData, &parleyv1.StructuredData{Type: kind, Value: value})
		}
		got := &parleyv1.Message{Role: assistant}
		for piece, err := range agent.Blocks(newAgent(drawChunks(t, agent.Text(m))...)).Respond(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			got.Content += piece.GetText()
			if d := piece.GetStructuredData(); d != nil {
				got.StructuredData = append(got.StructuredData, d)
			}
		}
		if diff := cmp.Diff(m, got, protocmp.Transform()); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func drawJSON(t *rapid.T, levels int) any {
	kinds := 5
	if levels > 0 {
		kinds = 7
	}
	switch rapid.IntRange(1, kinds).Draw(t, "kind") {
	case 1:
		return nil
	case 2:
		return rapid.Bool().Draw(t, "bool")
	case 3:
		return rapid.Float64().Draw(t, "number")
	case 4:
		return rapid.String().Draw(t, "string")
	case 5:
		return "```\n```json type=a\n{}\n```\n"
	case 6:
		var list []any
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list = append(list, drawJSON(t, levels-1))
		}
		return list
	default:
		object := make(map[string]any)
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			object[rapid.String().Draw(t, "key")] = drawJSON(t, levels-1)
		}
		return object
	}
}

// drawChunks splits a text between characters.
func drawChunks(t *rapid.T, text string) []any {
	var chunks []any
	for text != "" {
		n := min(rapid.IntRange(1, 12).Draw(t, "chunk"), len(text))
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n++
		}
		chunks, text = append(chunks, text[:n]), text[n:]
	}
	return chunks
}

// drawText returns a text that contains blocks and similar texts.
func drawText(t *rapid.T) string {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{
		block("a", "1"), block("b", `{"x": "`+tail+`"}`), block("c", "{"), block("d", "\n[]\n") + "\n",
		"```json type=", "```json type=e\n", "```json type=f \r\n", tail, "\n" + tail, "\n" + tail + "\n",
		"\n", "\n", "\n\n", " ", "\r\n", "\r", "\t", "`", "1", "[2]", "ü", "Hi.", "json", strings.Repeat("t", 127), "tt",
	}), 0, 16).Draw(t, "parts")
	return strings.Join(parts, "")
}

// blocksOracle finds the blocks at the end of a text, starting with its last line.
func blocksOracle(text string, valid func(value string) bool) (left string, data []string) {
	const blanks = " \t\r"
	all := strings.Split(text, "\n")
	end := len(all) // The first line that belongs to a found block.
	for {
		at := end
		for at > 0 && strings.Trim(all[at-1], blanks) == "" {
			at--
		}
		if at == 0 || strings.TrimRight(all[at-1], blanks) != tail {
			break
		}
		last := at - 1
		for at = last - 1; at >= 0 && !strings.HasPrefix(all[at], tail); {
			at--
		}
		if at < 0 {
			break
		}
		kind, ok := strings.CutPrefix(strings.TrimRight(all[at], blanks), "```json type=")
		value := strings.Join(all[at+1:last], "\n")
		if !ok || kind == "" || len(kind) > 128 || strings.ContainsAny(kind, "`"+blanks) || !valid(value) {
			break
		}
		data = append(data, kind+" "+strings.Trim(value, blanks+"\n"))
		end = at
	}
	if data == nil {
		return text, nil
	}
	slices.Reverse(data)
	left = strings.Join(all[:end], "\n")
	trimmed := strings.TrimRight(left, blanks+"\n")
	if trimmed == "" {
		return "", data
	}
	blank, _, _ := strings.Cut(strings.ReplaceAll(left[len(trimmed):], "\r", "\n"), "\n")
	return trimmed + blank, data
}

func isJSON(value string) bool { return new(structpb.Value).UnmarshalJSON([]byte(value)) == nil }

func TestBlocksAreIndependentOfPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawText(t)
		want, wantData := blocksOracle(text, isJSON)
		got, gotData := collect(t, agent.Blocks(newAgent(drawChunks(t, text)...)))
		for i, d := range wantData {
			kind, value, _ := strings.Cut(d, " ")
			v := new(structpb.Value)
			if err := v.UnmarshalJSON([]byte(value)); err != nil {
				t.Fatal(err)
			}
			wantData[i] = kind + " " + agent.JSON(v)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("text of %q (-want +got):\n%s", text, diff)
		}
		if diff := cmp.Diff(wantData, gotData); diff != "" {
			t.Fatalf("data of %q (-want +got):\n%s", text, diff)
		}
	})
}

// TestBlocksHoldNothingLongerThanNeeded: text that is held back could still become a block.
func TestBlocksHoldNothingLongerThanNeeded(t *testing.T) {
	// The last block may still be incomplete, so any value of it is valid.
	lastValid := func() func(string) bool {
		last := true
		return func(value string) bool { isLast := last; last = false; return isLast || isJSON(value) }
	}
	const end = "\n```json type=a\n{}\n```"
	rapid.Check(t, func(t *rapid.T) {
		text := drawText(t)
		given, got := "", ""
		check := func() {
			if given == got {
				return
			}
			for i := range end {
				if left, _ := blocksOracle(given+end[i:], lastValid()); left == got {
					return
				}
			}
			t.Fatalf("text %q: passed on %q, but the rest cannot become a block", given, got)
		}
		a := agent.Blocks(agentFunc(func(_ context.Context, yield func(*parleyv1.RespondResponse, error) bool) {
			for _, chunk := range runes(text) {
				piece, _ := chunk.(string)
				given += piece
				if !yield(textPiece(piece), nil) {
					return
				}
				check()
			}
		}))
		for piece, err := range a.Respond(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			got += piece.GetText()
		}
	})
}
