package agent_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// agentFunc is an agent whose Respond is the function.
type agentFunc func(ctx context.Context, yield func(*parleyv1.RespondResponse, error) bool)

func (f agentFunc) Respond(
	ctx context.Context, _ *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) { f(ctx, yield) }
}

func (f agentFunc) Close() error { return errors.New("closed") }

// newAgent returns an agent that yields the pieces: strings as text, and errors as errors.
func newAgent(pieces ...any) agentFunc {
	return func(_ context.Context, yield func(*parleyv1.RespondResponse, error) bool) {
		for _, piece := range pieces {
			more := false
			switch p := piece.(type) {
			case string:
				more = yield(textPiece(p), nil)
			case error:
				more = yield(nil, p)
			case *parleyv1.RespondResponse:
				more = yield(p, nil)
			}
			if !more {
				return
			}
		}
	}
}

func textPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}

func callPiece(id string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{Id: id}}}
}

func resultPiece(id string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{
		Piece: &parleyv1.RespondResponse_ToolResult{ToolResult: &parleyv1.ToolResult{CallId: id}},
	}
}

func handoff(name string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: name}}
}

// pieces returns what the agent yields, one line for each piece.
func pieces(ctx context.Context, a agent.Agent) []string {
	var all []string
	for piece, err := range a.Respond(ctx, nil) {
		all = append(all, pieceLine(piece, err))
	}
	return all
}

func pieceLine(piece *parleyv1.RespondResponse, err error) string {
	switch p := piece.GetPiece().(type) {
	case nil:
		return fmt.Sprint("error ", err)
	case *parleyv1.RespondResponse_Text:
		return p.Text
	case *parleyv1.RespondResponse_StructuredData:
		return "data " + p.StructuredData.GetType() + " " + agent.JSON(p.StructuredData.GetValue())
	case *parleyv1.RespondResponse_ToolCall:
		return "call " + p.ToolCall.GetId()
	case *parleyv1.RespondResponse_ToolResult:
		return "result " + p.ToolResult.GetCallId()
	case *parleyv1.RespondResponse_Progress:
		return "progress " + p.Progress.GetText()
	case *parleyv1.RespondResponse_NextAgent:
		return "next " + p.NextAgent
	default:
		return fmt.Sprint(p)
	}
}

const tail = "```" // A fence.

func block(kind, value string) string { return "```json type=" + kind + "\n" + value + "\n```" }

func TestBlocksOfText(t *testing.T) {
	one, longest := block("n", "1"), strings.Repeat("ü", 64)
	tests := []struct {
		name, text, left string
		data             []string
	}{
		{"nothing", "", "", nil},
		{"text", "Hi\n\nthere \n", "Hi\n\nthere \n", nil},
		{"white space", " \n\r\n\t", " \n\r\n\t", nil},
		{"block alone", one, "", []string{"n 1"}},
		{"block and white space", " \n" + one + " \t\r\n\n ", "", []string{"n 1"}},
		{"text and block", "Here: \n" + one, "Here: ", []string{"n 1"}},
		{"blank lines before", "Here:\r\n \t\n\r\n" + one + "\n", "Here:", []string{"n 1"}},
		{"several", "Here:\n" + one + "\n\n \n" + block("list", "[\n  1,\n\n  {\"a\": null}\n]") + "\n" + one, "Here:", []string{"n 1", `list [1,{"a":null}]`, "n 1"}},
		{"carriage returns", "Here:\r\n```json type=n\r\n1\r\n```\r\n", "Here:", []string{"n 1"}},
		{"blanks after fences", "```json type=n  \n1\n``` \n", "", []string{"n 1"}},
		{"blank lines in a block", "```json type=n\n\n\n1\n\n```", "", []string{"n 1"}},
		{"fences in strings", "```json type=s\n\"```\"\n```", "", []string{"s \"```\""}},
		{"urn", block("urn:acme:invoice:2", "{}"), "", []string{"urn:acme:invoice:2 {}"}},
		{"longest type", block(longest, "{}"), "", []string{longest + " {}"}},
		{"16 levels", block("n", strings.Repeat("[", 16)+strings.Repeat("]", 16)), "", []string{"n " + strings.Repeat("[", 16) + strings.Repeat("]", 16)}},
		{"null", block("n", "null"), "", []string{"n null"}},

		{"text after", one + "\nThat is it.", one + "\nThat is it.", nil},
		{"text on its last line", "```json type=n\n1\n```.", "```json type=n\n1\n```.", nil},
		{"text between", one + "\nand\n" + block("m", "2"), one + "\nand", []string{"m 2"}},
		{"another fence after", one + "\n```\n", one + "\n```\n", nil},
		{"never closed", "```json type=n\n1\n", "```json type=n\n1\n", nil},
		{"incomplete closing fence", "```json type=n\n1\n``", "```json type=n\n1\n``", nil},
		{"longer closing fence", "```json type=n\n1\n````", "```json type=n\n1\n````", nil},
		{"only opened", "Hi\n```json type=n", "Hi\n```json type=n", nil},
		{"not opened", "1\n```", "1\n```", nil},
		{"not closed, then a valid block", "Hi\n```json type=m\n{\n\n" + one, "Hi\n```json type=m\n{", []string{"n 1"}},
		{"empty, then a valid block", "```json type=m\n" + one, "```json type=m", []string{"n 1"}},
		{"not JSON, then a valid block", block("m", "{") + "\n" + one, block("m", "{"), []string{"n 1"}},
		{"valid, then not JSON", one + "\n" + block("m", "{"), one + "\n" + block("m", "{"), nil},
		{"not on its own line", "Here: " + one, "Here: " + one, nil},
		{"indented", "\n " + one, "\n " + one, nil},
		{"indented end", "```json type=n\n1\n ```", "```json type=n\n1\n ```", nil},
		{"another language", "```js type=n\n1\n```", "```js type=n\n1\n```", nil},
		{"no type", "```json\n1\n```", "```json\n1\n```", nil},
		{"empty type", block("", "1"), block("", "1"), nil},
		{"blank type", block(" ", "1"), block(" ", "1"), nil},
		{"type of two words", block("a b", "1"), block("a b", "1"), nil},
		{"type too long", block(longest+"x", "1"), block(longest+"x", "1"), nil},
		{"fence in the type", block("a`b", "1"), block("a`b", "1"), nil},
		{"no value", "```json type=n\n```", "```json type=n\n```", nil},
		{"not JSON", block("n", "{a: 1}"), block("n", "{a: 1}"), nil},
		{"more than one value", block("n", "1\n2"), block("n", "1\n2"), nil},
		{"NaN", block("n", "[NaN]"), block("n", "[NaN]"), nil},
		{"infinite", block("n", "1e999"), block("n", "1e999"), nil},
		{"a key twice", block("n", `{"a":1,"a":2}`), block("n", `{"a":1,"a":2}`), nil},
		{"17 levels", block("n", strings.Repeat(`{"a":`, 17)+"1"+strings.Repeat("}", 17)), block("n", strings.Repeat(`{"a":`, 17)+"1"+strings.Repeat("}", 17)), nil},
		{"more levels than a stack has", block("n", strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000)), block("n", strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000)), nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, whole := range []bool{true, false} {
				a := newAgent(test.text)
				if !whole {
					a = newAgent(runes(test.text)...)
				}
				left, data := collect(t, agent.Blocks(a))
				if diff := cmp.Diff(test.left, left); diff != "" {
					t.Errorf("in one piece: %v: text (-want +got):\n%s", whole, diff)
				}
				if diff := cmp.Diff(test.data, data); diff != "" {
					t.Errorf("in one piece: %v: data (-want +got):\n%s", whole, diff)
				}
			}
		})
	}
}

// testingT is the testing package's T or rapid's.
type testingT interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

// collect returns the text and the data of an answer.
func collect(t testingT, a agent.Agent) (text string, data []string) {
	t.Helper()
	for piece, err := range a.Respond(t.Context(), nil) {
		if err != nil || piece.GetText() == "" && piece.GetStructuredData() == nil {
			t.Fatalf("Respond yields %v, %v, want text or data", piece, err)
		}
		if data != nil && piece.GetText() != "" {
			t.Fatalf("text %q follows data", piece.GetText())
		}
		text += piece.GetText()
		if d := piece.GetStructuredData(); d != nil {
			data = append(data, d.GetType()+" "+agent.JSON(d.GetValue()))
		}
	}
	return text, data
}

func runes(text string) []any {
	var all []any
	for _, r := range text {
		all = append(all, string(r))
	}
	return all
}

func TestBlocksStream(t *testing.T) {
	stuck := errors.New("stuck")
	tests := []struct {
		name string
		a    agentFunc
		want []string
	}{
		{"plain text", newAgent("Hel", "lo ", "you.", " Fine."), []string{"Hel", "lo ", "you.", " Fine."}},
		{"line breaks wait for what follows", newAgent("Hi.", "\n", "\n", "I am here.\n", "Bye."), []string{"Hi.", "\n\nI am here.", "\nBye."}},
		{"other code", newAgent("Code:", "\n```", "go\n", "x := 1", "\n```", "\nfine"), []string{"Code:", "\n```go", "\nx := 1", "\n```\nfine"}},
		{"block", newAgent("Hi.", "\n\n", "```json ty", "pe=n\n", "1", "\n``", "`"), []string{"Hi.", "data n 1"}},
		{"pieces that end a message end its blocks", newAgent("a\n"+block("n", "1"), resultPiece("r"), block("n", "2"), handoff("b"), block("n", "3")+"\n"), []string{"a", "data n 1", "result r", "data n 2", "next b", "data n 3"}},
		{"each message starts empty", newAgent("a", handoff("b"), block("n", "1"), "x", resultPiece("r"), "```json type=n\n1", handoff("c"), "\n```"), []string{"a", "next b", block("n", "1") + "x", "result r", "```json type=n\n1", "next c", "\n```"}},
		{"other pieces are passed on", newAgent("Hi.\n", callPiece("a"), block("n", "1"), callPiece("b"), "\n"), []string{"Hi.", "call a", "call b", "data n 1"}},
		{"other pieces do not split text", newAgent("Hi.\n", callPiece("a"), "There."), []string{"Hi.", "call a", "\nThere."}},
		{"failure keeps blocks as text", newAgent("Hi.\n", block("n", "1"), stuck), []string{"Hi.", "\n" + block("n", "1"), "error stuck"}},
		{"failure in a block", newAgent("Hi.\n```json type", stuck), []string{"Hi.", "\n```json type", "error stuck"}},
		{"immediate failure", newAgent(stuck), []string{"error stuck"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, pieces(t.Context(), agent.Blocks(test.a))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBlocksStopsWithItsConsumer(t *testing.T) {
	all := []any{"a\n", block("n", "1"), "\nb\n", callPiece("c"), handoff("d"), block("n", "1") + "\n" + block("n", "2"), resultPiece("r"), block("m", "3"), errors.New("stuck")}
	want := pieces(t.Context(), agent.Blocks(newAgent(all...)))
	for n := range want {
		var got []string
		for piece, err := range agent.Blocks(newAgent(all...)).Respond(t.Context(), nil) {
			if got = append(got, pieceLine(piece, err)); len(got) == n+1 {
				break // The iteration panics if another piece is yielded.
			}
		}
		if diff := cmp.Diff(want[:n+1], got); diff != "" {
			t.Errorf("first %d pieces (-want +got):\n%s", n+1, diff)
		}
	}
}

func TestBlocksConvertsTheLastOfMany(t *testing.T) {
	var all, data []string
	for i := range 70 {
		all, data = append(all, block("n", fmt.Sprint(i))), append(data, fmt.Sprint("n ", i))
	}
	for _, n := range []int{63, 64, 65, 70} {
		excess := max(0, n-64)
		for _, end := range []string{"", "\n", "\n\n"} {
			left, got := collect(t, agent.Blocks(newAgent("Hi.\n"+strings.Join(all[:n], "\n\n")+end)))
			want := "Hi."
			if excess > 0 {
				want = "Hi.\n" + strings.Join(all[:excess], "\n\n")
			}
			if diff := cmp.Diff(want, left); diff != "" {
				t.Errorf("text of %d (-want +got):\n%s", n, diff)
			}
			if diff := cmp.Diff(data[excess:n], got); diff != "" {
				t.Errorf("data of %d (-want +got):\n%s", n, diff)
			}
		}
	}
	withText := strings.Join(all, "\n") + "\nBye."
	if left, got := collect(t, agent.Blocks(newAgent(withText))); left != withText || got != nil {
		t.Errorf("blocks before text: %d of %d bytes, data %v", len(left), len(withText), got)
	}
}

func TestBlocksHeldTextIsLimited(t *testing.T) {
	const maxHeld = 1 << 20
	big := func(n int) string { return block("s", `"`+strings.Repeat("ü", n/2)+`"`) }
	many := strings.Repeat(big(100_000)+"\n", 20)
	tests := []struct {
		name, text string
		data       int
	}{
		{"large block", "Hi.\n" + big(maxHeld/2-100), 1},
		{"large block of much data", "Hi.\n" + big(maxHeld-100), 0},
		{"overlong block", "Hi.\n" + big(maxHeld), 0},
		{"endless block", "Hi.\n```json type=s\n" + strings.Repeat("ü\n", maxHeld), 0},
		{"endless value", "Hi.\n```json type=s\n\"" + strings.Repeat("ü", maxHeld), 0},
		{"endless type", "Hi.\n```json type=" + strings.Repeat("s", 2*maxHeld), 0},
		{"endless white space", "Hi." + strings.Repeat("\n", 2*maxHeld), 0},
		{"endless blanks", "Hi.\n```json type=s" + strings.Repeat(" ", 2*maxHeld), 0},
		{"endless blanks at the end", "Hi.\n```json type=s\n1\n```" + strings.Repeat(" ", 2*maxHeld), 0},
		{"white space after a block", "Hi.\n" + block("s", "1") + strings.Repeat("\n", 2*maxHeld), 0},
		{"many", "Hi.\n" + many, 5},
		{"many, and text", "Hi.\n" + many + "Bye.", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got strings.Builder
			given, data := 0, 0
			a := agent.Blocks(agentFunc(func(_ context.Context, yield func(*parleyv1.RespondResponse, error) bool) {
				for rest := test.text; rest != ""; {
					n := min(len(rest), 1000)
					for !utf8.ValidString(rest[:n]) {
						n--
					}
					given += n
					if !yield(textPiece(rest[:n]), nil) {
						return
					}
					if held := given - got.Len(); held > maxHeld+1000 {
						t.Fatalf("%d bytes are held back, want at most 1 MiB", held)
					}
					rest = rest[n:]
				}
			}))
			for piece, err := range a.Respond(t.Context(), nil) {
				if err != nil || !utf8.ValidString(piece.GetText()) {
					t.Fatalf("Respond yields %.20q, %v", piece.GetText(), err)
				}
				got.WriteString(piece.GetText())
				if piece.GetStructuredData() != nil {
					data++
				}
			}
			if data != test.data || !strings.HasPrefix(test.text, got.String()) || data == 0 && got.Len() != len(test.text) {
				t.Errorf("Respond = %d of %d bytes and %d data, want %d", got.Len(), len(test.text), data, test.data)
			}
		})
	}
}

func TestBlocksReportsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := agentFunc(func(_ context.Context, yield func(*parleyv1.RespondResponse, error) bool) {
			text := []string{"Hi.", "\n```json type=list\n["}
			for i := range 9 {
				text = append(text, fmt.Sprintf("%d,", i))
			}
			for _, text := range append(text, "9]", "\n```") {
				<-time.After(3 * time.Second)
				if !yield(textPiece(text), nil) {
					return
				}
			}
		})
		want := []string{"Hi.", "progress Writing list.", "progress Writing list.", "data list [0,1,2,3,4,5,6,7,8,9]"}
		if diff := cmp.Diff(want, pieces(t.Context(), agent.Blocks(long))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestBlocksClosesItsAgent(t *testing.T) {
	if err := agent.Blocks(newAgent()).Close(); err == nil || err.Error() != "closed" {
		t.Errorf("Close() = %v, want the agent's error", err)
	}
}
