package adk_test

import (
	"strings"
	"testing"

	"github.com/parleyhq/parley/client/adk"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestConversationID has the cases of client/python/tests/test_adapter_ids.py. The server accepts each id.
func TestConversationID(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 200)
	c := dial(t, startServer(t).address)
	for _, test := range []struct {
		ids  []string
		want string
	}{
		{[]string{"user@example.com"}, "user@example.com"},
		{[]string{"app/1"}, "app/1"},
		{[]string{"app/1", "anna", "s 1"}, "app%2F1/anna/s 1"},
		{[]string{"100%"}, "100%25"},
		{[]string{" a "}, "%20a%20"},
		{[]string{"a\nb\u2028c\x00"}, "a%0Ab%E2%80%A8c%00"},
		{[]string{"."}, "%2E"},
		{[]string{".."}, "%2E%2E"},
		{[]string{"..", ".."}, "../.."},
		{[]string{"", "a", ""}, "/a/"},
		{[]string{"\U0001f469\u200d\U0001f52c"}, "\U0001f469\u200d\U0001f52c"},
		{
			[]string{"a~" + strings.Repeat("0", 64)},
			"a~" + strings.Repeat("0", 64) + "~64040922f8ccc409960b29d33028a2a1d332ac7a602dc5c1e7c16b7aa31eaae2",
		},
		{
			[]string{long},
			strings.Repeat("é", 95) + "~df20b2aa6262e99e133aa7f3614be707d35c4155d17e2aa7cbb49da555a454c3",
		},
	} {
		got, err := adk.ConversationID(test.ids...)
		if got != test.want || err != nil {
			t.Errorf("ConversationID(%q) = %q, %v, want %q", test.ids, got, err, test.want)
			continue
		}
		_, err = c.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
			Conversation: &parleyv1.Conversation{Id: got},
		})
		if err != nil {
			t.Errorf("CreateConversation of ConversationID(%q) = %v, want no error", test.ids, err)
		}
	}
}

// TestDifferentIDsStayDifferent checks ids that look alike when they are joined.
func TestDifferentIDsStayDifferent(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 200)
	of := map[string][]string{}
	for _, ids := range [][]string{
		{"a", "b", "c"},
		{"a/b", "c"},
		{"a", "b/c"},
		{"a%2Fb", "c"},
		{"a", "b", "c", ""},
		{"", "a", "b", "c"},
		{"a ", "b", "c"},
		{"a%20", "b", "c"},
		{long + "a", "b"},
		{long + "b", "b"},
	} {
		got, err := adk.ConversationID(ids...)
		if other, ok := of[got]; ok || err != nil {
			t.Errorf("ConversationID(%q) = %q, %v, want another id than for %q", ids, got, err, other)
		}
		of[got] = ids
	}
}

// TestNoID checks that there is no conversation without any id, and none for bytes that are not text.
func TestNoID(t *testing.T) {
	t.Parallel()
	for _, ids := range [][]string{nil, {""}, {"", ""}, {"a", "\xff"}} {
		if got, err := adk.ConversationID(ids...); err == nil || got != "" {
			t.Errorf("ConversationID(%q) = %q, %v, want an error", ids, got, err)
		}
	}
}

// TestRecordKey checks that the keys of paths with the same start have the same start, and that a long one is refused.
func TestRecordKey(t *testing.T) {
	t.Parallel()
	if got, err := adk.RecordKey("state", "a/b", "c%"); got != "state/a%2Fb/c%25" || err != nil {
		t.Errorf("RecordKey = %q, %v, want state/a%%2Fb/c%%25", got, err)
	}
	for _, part := range []string{strings.Repeat("k", 513), "\xff"} {
		if got, err := adk.RecordKey(part); err == nil || got != "" {
			t.Errorf("RecordKey(%q) = %q, %v, want an error", part, got, err)
		}
	}
}
