package echo_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/echo"
)

var _ agent.Agent = (*echo.Agent)(nil)

// respond returns the pieces of the answer to the last message.
func respond(ctx context.Context, messages ...*parleyv1.Message) (pieces []string, err error) {
	for piece, err := range echo.New().Respond(ctx, &parleyv1.RespondRequest{Messages: messages}) {
		if err != nil {
			return pieces, err
		}
		pieces = append(pieces, piece.GetText())
	}
	return pieces, nil
}

func TestAnswerIsTheText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.StringN(1, -1, -1).Draw(t, "content")
		if rapid.Bool().Draw(t, "words") {
			content = strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"Zucker", "für", "50", "円", " ", "\n", "\u2003", "\t"}), 1, 30).Draw(t, "parts"), "")
		}
		pieces, err := respond(t.Context(), &parleyv1.Message{Content: "old"}, &parleyv1.Message{Content: content})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(pieces, ""); got != content {
			t.Fatalf("Respond(%q) = %q, want the same text", content, got)
		}
		for i, piece := range pieces {
			if !utf8.ValidString(piece) || piece == "" {
				t.Fatalf("piece %d of %q = %q, want valid text", i, content, piece)
			}
			if words := strings.FieldsFunc(piece, unicode.IsSpace); len(words) != 1 && len(pieces) > 1 {
				t.Fatalf("piece %d of %q = %q, want one word", i, content, piece)
			}
		}
	})
}

func TestMessageWithoutText(t *testing.T) {
	tests := []struct {
		name    string
		message *parleyv1.Message
		want    string
	}{
		{"nothing", &parleyv1.Message{}, "The message has no text."},
		{"data and attachment", &parleyv1.Message{
			StructuredData: []*parleyv1.StructuredData{{Type: "form"}, {Type: "analysis"}},
			Attachments:    []*parleyv1.Attachment{{Uri: "file:///a.png"}},
		}, "The message has no text, but structured data form, structured data analysis, attachment file:///a.png."},
		{"tool result", &parleyv1.Message{ToolResult: &parleyv1.ToolResult{Content: "21 °C"}}, "21 °C"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pieces, err := respond(t.Context(), test.message)
			if got := strings.Join(pieces, ""); got != test.want || err != nil {
				t.Errorf("Respond = %q, %v, want %q", got, err, test.want)
			}
		})
	}
	var failure *agent.Error
	if _, err := respond(t.Context()); !errors.As(err, &failure) {
		t.Errorf("Respond without a message = %v, want an *agent.Error", err)
	}
}

func TestStops(t *testing.T) {
	request := &parleyv1.RespondRequest{Messages: []*parleyv1.Message{{Content: "one two three"}}}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var pieces []string
	var last error
	for piece, err := range echo.New().Respond(ctx, request) {
		pieces, last = append(pieces, piece.GetText()), err
		cancel(enough)
	}
	if len(pieces) != 2 || pieces[0] != "one " || !errors.Is(last, enough) {
		t.Errorf("Respond with an ended context = %q, %v, want 1 piece and the cause", pieces, last)
	}
	for piece, err := range echo.New().Respond(t.Context(), request) {
		if piece.GetText() != "one " || err != nil {
			t.Errorf("Respond = %v, %v, want %q", piece, err, "one ")
		}
		break // The iteration panics if the agent yields again.
	}
}

func TestLongAnswersHaveFewPieces(t *testing.T) {
	content := strings.Repeat("a b ", 64<<10)
	pieces, err := respond(t.Context(), &parleyv1.Message{Content: content})
	if err != nil || strings.Join(pieces, "") != content {
		t.Fatalf("Respond = %d pieces, %v, want pieces of the text", len(pieces), err)
	}
	if len(pieces) > 1001 {
		t.Errorf("%d pieces, want about 1000 at most", len(pieces))
	}
}
