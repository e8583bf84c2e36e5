package rules

import "testing"

func TestClip(t *testing.T) {
	tests := []struct {
		text  string
		limit int
		want  string
	}{
		{"", 5, ""}, {"hello", 5, "hello"}, {"hello!", 5, "he…"}, {"héllo!", 5, "h…"}, {"日本語", 8, "日…"},
	}
	for _, test := range tests {
		if got := Clip(test.text, test.limit); got != test.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", test.text, test.limit, got, test.want)
		}
	}
}
