package mcp

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestSearch(t *testing.T) {
	address, c := startParley(t)
	for _, d := range doors(address, c) {
		t.Run(d.name, func(t *testing.T) {
			session := d.connect(t, nil)
			id := "log-" + strings.ReplaceAll(d.name, " ", "-")
			word := "goals of " + id + "!"
			_, err := c.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{
				{Role: parleyv1.Role_ROLE_USER, Content: "The quarterly " + word},
				{Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "writer", Content: "Which ones?"},
				{Role: parleyv1.Role_ROLE_USER, Content: "All " + strings.ToUpper(word)},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: id}); err != nil {
				t.Fatal(err)
			}

			var got []any
			arguments := object{"query": word, "page_size": 1}
			for more := true; more; {
				page := call(t, session, "search_interactions", arguments)
				for _, interaction := range listed(t, page, "interactions") {
					got = append(got, at(interaction, "content"))
					if at(interaction, "conversation_id") != id || at(interaction, "role") != "ROLE_USER" || at(interaction, "agent") != "User" {
						t.Errorf("found %v", interaction)
					}
				}
				arguments["page_token"], more = page["next_page_token"]
			}
			if diff := cmp.Diff([]any{"All " + strings.ToUpper(word), "The quarterly " + word}, got); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
			answer := call(t, session, "search_interactions", object{"query": "which", "conversation_id": id, "days": 1})
			if len(listed(t, answer, "interactions")) != 1 || at(answer, "interactions", 0, "agent") != "writer" ||
				at(answer, "interactions", 0, "metadata", "turn_number") != 2.0 || answer["skipped_count"] != 0.0 {
				t.Errorf("found %v", answer)
			}
			for _, nothing := range []object{{"query": word + "?"}, {"query": "goals", "conversation_id": "nobody"}} {
				if page := call(t, session, "search_interactions", nothing); len(listed(t, page, "interactions")) != 0 || page["next_page_token"] != nil {
					t.Errorf("%v found %v", nothing, page)
				}
			}
		})
	}
}

// A page has as much as clients can take; what does not fit comes with the next one.
func TestLargeSearch(t *testing.T) {
	_, c := startParley(t)
	large := "found " + strings.Repeat(`"`, 300<<10) // Each is two bytes in JSON, and four in JSON in JSON.
	for _, words := range []string{large, large, "found 3", "found 4"} {
		message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: words}
		if _, err := c.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: "large", Messages: []*parleyv1.Message{message}}); err != nil {
			t.Fatal(err)
		}
	}
	session := connect(t, serveHTTP(t, c), nil, "")
	var pages [][]any
	arguments := object{"query": "FOUND"}
	for more := true; more; {
		page := call(t, session, "search_interactions", arguments)
		var found []any
		for _, interaction := range listed(t, page, "interactions") {
			found = append(found, at(interaction, "content"))
		}
		pages = append(pages, found)
		arguments["page_token"], more = page["next_page_token"]
	}
	if diff := cmp.Diff([][]any{{"found 4", "found 3", large}, {large}}, pages); diff != "" {
		t.Errorf("pages (-want +got):\n%.2000s", diff)
	}
}
