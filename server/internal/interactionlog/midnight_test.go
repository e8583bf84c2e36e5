package interactionlog

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestConversationAcrossMidnight writes a conversation to two files and reads it from both.
func TestConversationAcrossMidnight(t *testing.T) {
	w := newTestLog(t)
	w.advance(12*time.Hour - time.Minute)
	w.commit("late", "later")
	w.advance(time.Minute)
	w.commit("early")
	w.advance(6 * time.Hour)
	w.commit("in the morning")

	want := map[string][]string{"2026-11-20.jsonl": {"late", "later"}, "2026-11-21.jsonl": {"early", "in the morning"}}
	if diff := cmp.Diff(want, fileContents(t, w.dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		name string
		list List
		want string
	}{
		{"within 48 h", List{Within: 48 * time.Hour}, "in the morning early later late"},
		{"of it within 48 h", List{Within: 48 * time.Hour, ConversationID: "c1"}, "in the morning early later late"},
		{"since midnight", List{Within: 6*time.Hour + time.Second}, "in the morning early"},
		{"the day before", List{Date: "2026-11-20"}, "late later"},
		{"the conversation", List{ConversationID: "c1"}, "late later early in the morning"},
	} {
		tt.list.Tenant = "acme"
		page, err := w.List(t.Context(), &tt.list)
		if err != nil || allContents(page) != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, allContents(page), err, tt.want)
		}
	}
}

// allContents returns the contents of a page, separated by spaces.
func allContents(page *Page) string {
	var contents []string
	for _, i := range page.Interactions {
		contents = append(contents, i.Content)
	}
	return strings.Join(contents, " ")
}
