package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestCallEntries checks that each call has one entry over each transport, what is in it, and that no entry contains
// a message or a token.
func TestCallEntries(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	files := newSignIn(t)
	writer := files.createToken(t, "--tenant=acme", "--role=writer", "--name=shop")
	s := startSecure(t, files, "--log-calls=all", "--log-level=debug")
	send := func(method, path, body, id string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, s.baseURL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header = bearer(writer, "X-Request-Id", id, "Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
		transport := &http.Transport{TLSClientConfig: files.clientTLS(t, false)}
		defer transport.CloseIdleConnections()
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
	}
	const secret = "a word that no entry contains"
	send("POST", "/v1/chat", `{"conversationId": "c", "content": "`+secret+`", "requestId": "r-1"}`, "http-stream")
	send("GET", "/v1/conversations/c", "", "http-unary")
	send("GET", "/v1/conversations/none", "", "http-missing")
	send("POST", "/v1/chat", `{"contents": "`+secret+`"}`, "http-refused")
	send("POST", "/v1/chat", `{"conversationId": " `+secret+`", "content": "`+secret+`"}`, "http-invalid")
	client := s.grpcClient(t, false)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+writer, "x-request-id", "grpc-unary",
		"parley-peer", "forged")
	if _, err := client.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: "c"}); err != nil {
		t.Fatal(err)
	}

	const service = "method=/parley.v1.ConversationService/"
	for id, want := range map[string][]string{
		"http-stream":  {service + "Chat", "code=OK", "transport=http", "conversation_id=c", "request_id=r-1", "trace_id=" + trace},
		"http-unary":   {service + "GetConversation", "code=OK", "transport=http", "conversation_id=c", "trace_id=" + trace},
		"http-missing": {service + "GetConversation", "code=NOT_FOUND", "reason=CONVERSATION_NOT_FOUND", "conversation_id=none"},
		"http-refused": {service + "Chat", "code=INVALID_ARGUMENT", "reason=INVALID_REQUEST", "transport=http"},
		"http-invalid": {service + "Chat", "code=INVALID_ARGUMENT", "reason=INVALID_REQUEST", "conversation_id=<nil>"},
		"grpc-unary":   {service + "GetConversation", "code=OK", "transport=grpc", "conversation_id=c"},
	} {
		entry := s.await(t, "call", append(want, "call_id="+id, "level=INFO", "tenant=acme", "caller=shop")...)
		if peer := fmt.Sprint(entry["peer"]); !strings.HasPrefix(peer, "127.0.0.1:") && !strings.HasPrefix(peer, "[::1]:") {
			t.Errorf("entry of %s has peer %q, want the address of the client", id, peer)
		}
	}
	s.terminate()
	s.wantStop(t)
	if found, _ := s.log.Find("call"); len(found) != 6 {
		t.Errorf("6 calls have %d entries: %v", len(found), found)
	}
	for _, hidden := range []string{secret, writer, writer[10:]} {
		if strings.Contains(s.log.Text(), hidden) {
			t.Errorf("the log contains %q", hidden)
		}
	}
}

// TestAuditEntries checks the audit entries of a server that logs errors only.
func TestAuditEntries(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	reader := files.createToken(t, "--tenant=acme", "--role=reader", "--name=reads")
	writer := files.createToken(t, "--tenant=acme", "--role=writer", "--name=shop")
	admin := files.createToken(t, "--tenant=*", "--role=admin", "--name=root")
	s := startSecure(t, files, "--log-calls=off")
	conversations := s.grpcClient(t, false)
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
	load := &parleyv1.LoadConversationRequest{ConversationId: "c"}
	_, err := conversations.LoadConversation(t.Context(), load)
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	_, err = conversations.LoadConversation(as(writer+"x"), load)
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	if response, _ := s.get(t, "/v1/conversations", false, nil); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("GET without a token = %s", response.Status)
	}
	_, err = conversations.LoadConversation(as(reader), load)
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	if _, err = conversations.LoadConversation(as(writer), load); err != nil {
		t.Fatal(err)
	}
	remove := &parleyv1.DeleteConversationRequest{ConversationId: "c"}
	if _, err = conversations.DeleteConversation(as(writer), remove); err != nil {
		t.Fatal(err)
	}
	_, err = conversations.DeleteConversation(as(writer), remove)
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if response, _ := s.get(t, "/v1/stats", false, bearer(admin)); response.StatusCode != http.StatusOK {
		t.Errorf("GET /v1/stats = %s", response.Status)
	}
	if response, _ := s.get(t, "/v1/export", false, bearer(reader)); response.StatusCode != http.StatusOK {
		t.Errorf("GET /v1/export = %s", response.Status)
	}
	const service = "method=/parley.v1.ConversationService/"
	for _, want := range [][]string{
		{"event=sign_in_failed", service + "LoadConversation", "credential=none", "transport=grpc"},
		{"event=sign_in_failed", service + "LoadConversation", "credential=token", "transport=grpc"},
		{"event=sign_in_failed", service + "ListConversations", "credential=none", "transport=http"},
		{"event=permission_denied", service + "LoadConversation", "tenant=acme", "caller=reads"},
		{"event=delete", service + "DeleteConversation", "code=OK", "tenant=acme", "caller=shop", "conversation_id=c"},
		{"event=delete", service + "DeleteConversation", "code=NOT_FOUND", "caller=shop", "conversation_id=c"},
		{"event=admin_call", "method=/parley.v1.AdminService/GetStats", "code=OK", "caller=root", "tenant=<nil>"},
		{"event=transfer", service + "ExportConversations", "code=OK", "tenant=acme", "caller=reads", "transport=http"},
	} {
		entry := s.await(t, "audit", append(want, "level=INFO")...)
		if peer := fmt.Sprint(entry["peer"]); !strings.Contains(peer, ":") {
			t.Errorf("entry %v has no address of the client", entry)
		}
	}
	s.terminate()
	s.wantStop(t)
	if found, _ := s.log.Find("audit"); len(found) != 8 {
		t.Errorf("%d audit entries, want 8: %v", len(found), found)
	}
	if found, _ := s.log.Find("call"); len(found) > 0 {
		t.Errorf("entries of calls = %v, want none", found)
	}
	for _, token := range []string{reader, writer, admin} {
		if strings.Contains(s.log.Text(), token[10:]) {
			t.Error("the log contains a part of a token")
		}
	}
}
