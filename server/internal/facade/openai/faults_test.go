package openai

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rpc"
)

// TestErrorsNameIDsOfTheClient: errors contain the ids that the client used, not those of other APIs.
func TestErrorsNameIDsOfTheClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	created := f.post(t, "responses", `{"model": "echo", "input": "hello"}`, "Idempotency-Key: k1")
	conversation, response := created.text("conversation.id"), created.text("id")
	ref, _ := parseResponseID(response)
	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{
		ConversationId: ref.conversation,
	}); err != nil {
		t.Fatal(err)
	}
	other := newConversation(t, f)
	id := strings.TrimPrefix(other, "conversations/")
	unknown := turnRef{storedConversationID(id), ref.turn}.responseID()
	const named = "team:42"
	for _, test := range []struct{ method, path, body, want string }{
		{get, "conversations/" + conversation, "", conversation},
		{get, "conversations/" + conversation + "/items", "", conversation},
		{post, "conversations/" + conversation + "/items", `{"items": [{"role": "user", "content": "x"}]}`, conversation},
		{post, "responses", `{"model": "echo", "input": "x", "conversation": "` + conversation + `"}`, conversation},
		{get, "responses/" + response, "", conversation},
		{post, "responses/" + response + "/cancel", "", conversation},
		{get, "responses/" + unknown, "", unknown},
		{get, "conversations/" + named, "", named},
	} {
		got := f.do(t, test.method, test.path, test.body)
		if got.code != 404 || !strings.Contains(got.body, test.want) || strings.Contains(got.body, ref.conversation) ||
			strings.Contains(got.body, ref.turn) {
			t.Errorf("%s %s = %d %s, want 404 with %s", test.method, test.path, got.code, got.body, test.want)
		}
	}
	const create = `{"items": [{"role": "user", "content": "%"}]}`
	f.post(t, other+"/items", strings.ReplaceAll(create, "%", "a"), "Idempotency-Key: k2")
	again := f.do(t, post, other+"/items", strings.ReplaceAll(create, "%", "b"), "Idempotency-Key: k2")
	if !strings.Contains(again.body, idempotencyKey) || strings.Contains(again.body, "request_id:") {
		t.Errorf("a key that was used = %s, want %s in the text", again.body, idempotencyKey)
	}
}

// noToken accepts no credential.
type noToken struct{}

// Verify returns an error.
func (noToken) Verify(context.Context, auth.Credentials) (auth.Identity, error) {
	return auth.Identity{}, errors.New("not the token")
}

// TestUnauthenticatedNamesTheHeader: a caller without a key learns which header of HTTP needs it.
func TestUnauthenticatedNamesTheHeader(t *testing.T) {
	t.Parallel()
	f := newFixtureWith(t, func(o *rpc.Options) { o.Auth = auth.New(time.Now, noToken{}) })
	got := f.do(t, get, "models", "", "Authorization: Bearer x")
	got.wantError(t, 401, "invalid_api_key", "")
	if !strings.Contains(got.body, "header Authorization") || strings.Contains(got.body, "metadata") {
		t.Errorf("models without a key = %s, want the header in the text", got.body)
	}
}
