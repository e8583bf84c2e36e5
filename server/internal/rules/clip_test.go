package rules

import "testing"

func TestClip(t *testing.T) {
	tests := []struct {
		text               string
		limit              int
		clipped, truncated string
	}{
		{"", 5, "", ""},
		{"hello", 5, "hello", "hello"},
		{"hello!", 5, "he…", "hello"},
		{"héllo!", 5, "h…", "héll"},
		{"日本語", 8, "日…", "日本"},
		{"日本語", 3, "…", "日"},
	}
	for _, test := range tests {
		if got := Clip(test.text, test.limit); got != test.clipped {
			t.Errorf("Clip(%q, %d) = %q, want %q", test.text, test.limit, got, test.clipped)
		}
		if got := Truncate(test.text, test.limit); got != test.truncated {
			t.Errorf("Truncate(%q, %d) = %q, want %q", test.text, test.limit, got, test.truncated)
		}
	}
	for _, limit := range []int{-1, 0, 1} {
		if got := Truncate("日", limit); got != "" {
			t.Errorf("Truncate(%q, %d) = %q, want an empty text", "日", limit, got)
		}
	}
}
