package agent_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// TestBlocksKeepsLargeDataAsText: numbers need several times the bytes of their text when they are
// encoded, and an answer that is too large because of that would not be stored at all.
func TestBlocksKeepsLargeDataAsText(t *testing.T) {
	numbers := func(bytes int) string { return "[" + strings.Repeat("1,", bytes/2) + "1]" }
	large, half, small := block("large", numbers(250<<10)), block("half", numbers(50<<10)), block("small", "[1]")
	for name, test := range map[string]struct {
		text, want string
		data       []string // Types of the data.
	}{
		"too large":                  {"Here:\n\n" + large, "Here:\n\n" + large, nil},
		"too large, and a line feed": {"Here:\n\n" + large + "\n\n", "Here:\n\n" + large + "\n\n", nil},
		"before small ones": {
			"Here:\n\n" + large + "\n\n" + small + "\n" + small, "Here:\n\n" + large, []string{"small", "small"},
		},
		"after small ones":   {small + "\n" + large, small + "\n" + large, nil},
		"too large together": {half + "\n" + half + "\n" + small, half, []string{"half", "small"}},
		"too large with the last": {
			"Here:\n" + half + "\n" + small + "\n" + half, "Here:\n" + half, []string{"small", "half"},
		},
		"text of that size": {
			"Here:\n" + block("text", `"`+strings.Repeat("x", 500<<10)+`"`), "Here:", []string{"text"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var text string
			var data []string
			size := 0
			for piece, err := range agent.Blocks(newAgent(test.text[:7], test.text[7:])).Respond(t.Context(),
				&parleyv1.RespondRequest{}) {
				if err != nil {
					t.Fatal(err)
				}
				text += piece.GetText()
				size += proto.Size(piece)
				if d := piece.GetStructuredData(); d != nil {
					data = append(data, d.GetType())
				}
			}
			if text != test.want || strings.Join(data, " ") != strings.Join(test.data, " ") {
				t.Errorf("Respond = %d bytes of text, want %d, and data %v, want %v", len(text), len(test.want), data, test.data)
			}
			if size > 1<<20 {
				t.Errorf("pieces have %d bytes, want at most 1 MiB", size)
			}
		})
	}
}
