package mcp

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestSearch(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			session := tr.connect(t, nil)
			id := "log-" + strings.ReplaceAll(tr.name, " ", "-")
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
				for _, interaction := range listAt(t, page, "interactions") {
					got = append(got, valueAt(interaction, "content"))
					if valueAt(interaction, "conversation_id") != id || valueAt(interaction, "role") != "ROLE_USER" ||
						valueAt(interaction, "agent") != "User" {
						t.Errorf("interaction = %v, want a user message of %s", interaction, id)
					}
				}
				arguments["page_token"], more = page["next_page_token"]
			}
			if diff := cmp.Diff([]any{"All " + strings.ToUpper(word), "The quarterly " + word}, got); diff != "" {
				t.Errorf("contents (-want +got):\n%s", diff)
			}
			answer := call(t, session, "search_interactions", object{"query": "which", "conversation_id": id, "days": 1})
			if len(listAt(t, answer, "interactions")) != 1 || valueAt(answer, "interactions", 0, "agent") != "writer" ||
				valueAt(answer, "interactions", 0, "metadata", "turn_number") != 2.0 || answer["skipped_count"] != 0.0 {
				t.Errorf("search_interactions = %v, want the second message", answer)
			}
			for _, nothing := range []object{{"query": word + "?"}, {"query": "goals", "conversation_id": "nobody"}} {
				if page := call(t, session, "search_interactions", nothing); len(listAt(t, page, "interactions")) != 0 ||
					page["next_page_token"] != nil {
					t.Errorf("search_interactions(%v) = %v, want nothing", nothing, page)
				}
			}
		})
	}
}

// partialLog is one of several servers. Its searches lack the entries of another server.
type partialLog struct {
	parleyv1.UnimplementedInteractionLogServiceServer
}

// SearchInteractions names the other server.
func (partialLog) SearchInteractions(
	context.Context, *parleyv1.SearchInteractionsRequest,
) (*parleyv1.SearchInteractionsResponse, error) {
	return &parleyv1.SearchInteractionsResponse{Unreachable: []string{"10.0.0.3:50051"}}, nil
}

// TestSearchNamesServersThatDoNotAnswer checks that a result says which servers did not answer.
func TestSearchNamesServersThatDoNotAnswer(t *testing.T) {
	c := dialFake(t, func(s *grpc.Server) { parleyv1.RegisterInteractionLogServiceServer(s, partialLog{}) })
	page := call(t, connect(t, serveHTTP(t, c), nil, ""), "search_interactions", object{"query": "x"})
	if diff := cmp.Diff([]any{"10.0.0.3:50051"}, page["unreachable"]); diff != "" {
		t.Errorf("unreachable (-want +got):\n%s", diff)
	}
}

// TestLargeSearch checks that the size of a page is limited and that the rest is in the next page.
func TestLargeSearch(t *testing.T) {
	_, c := startParley(t)
	large := "found " + strings.Repeat(`"`, 300<<10) // Each quote has two bytes in JSON, and four in JSON in JSON.
	for _, content := range []string{large, large, "found 3", "found 4"} {
		message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content}
		if _, err := c.AppendMessages(t.Context(),
			&parleyv1.AppendMessagesRequest{ConversationId: "large", Messages: []*parleyv1.Message{message}}); err != nil {
			t.Fatal(err)
		}
	}
	session := connect(t, serveHTTP(t, c), nil, "")
	var pages [][]any
	arguments := object{"query": "FOUND"}
	for more := true; more; {
		page := call(t, session, "search_interactions", arguments)
		var found []any
		for _, interaction := range listAt(t, page, "interactions") {
			found = append(found, valueAt(interaction, "content"))
		}
		pages = append(pages, found)
		arguments["page_token"], more = page["next_page_token"]
	}
	if diff := cmp.Diff([][]any{{"found 4", "found 3", large}, {large}}, pages); diff != "" {
		t.Errorf("pages (-want +got):\n%.2000s", diff)
	}
}
