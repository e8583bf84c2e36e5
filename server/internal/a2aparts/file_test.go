package a2aparts

import (
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestFile: a file comes back from its structured data as it was, and data that has not its form stays data.
func TestFile(t *testing.T) {
	answer := func(value any) *a2a.Part {
		t.Helper()
		converted, err := structpb.NewValue(value)
		if err != nil {
			t.Fatal(err)
		}
		return OfAnswer(&parleyv1.StructuredData{Type: TypeFile, Value: converted})
	}
	for name, file := range map[string]*a2a.Part{
		"url":   {Content: a2a.URL("https://files.example/a.png"), Filename: "a.png", MediaType: "image/png"},
		"raw":   {Content: a2a.Raw("abc"), Filename: "a.txt", MediaType: "text/plain"},
		"empty": {Content: a2a.Raw{}},
		"bare":  {Content: a2a.URL("https://files.example/a")},
	} {
		if diff := cmp.Diff(file, answer(File(file))); diff != "" {
			t.Errorf("%s: OfAnswer(File) (-want +got):\n%s", name, diff)
		}
	}
	if got := File(a2a.NewTextPart("x")); got != nil {
		t.Errorf("File(text) = %v, want nil", got)
	}
	for name, value := range map[string]any{
		"text":         "https://files.example/a",
		"no content":   map[string]any{"filename": "a"},
		"two contents": map[string]any{"url": "https://files.example/a", "raw": "YWJj"},
		"not base64":   map[string]any{"raw": "a b"},
		"number":       map[string]any{"url": 1},
		"more":         map[string]any{"url": "https://files.example/a", "size": "1"},
	} {
		if got := answer(value); got.Data() == nil || got.Metadata[TypeKey] != TypeFile {
			t.Errorf("%s: OfAnswer = %v, want a data part", name, got)
		}
	}
}
