package a2a

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// TestTLS: the certificate of the remote agent must be trusted, over each binding. An error about it does not go away
// by a retry.
func TestTLS(t *testing.T) {
	for _, binding := range bindings {
		s := serve(t, binding, &service{streaming: true, secure: true, scripts: []execute{completed("secret")}})
		if s.card.SupportedInterfaces[0].ProtocolBinding != binding || !strings.HasPrefix(s.url, "https://") {
			t.Fatalf("the remote agent is %v at %s, want %s with TLS", s.card.SupportedInterfaces[0], s.url, binding)
		}
		trusted := x509.NewCertPool()
		trusted.AddCert(s.http.Certificate())
		a := openWith(t, Config{URL: s.url, Key: testKey, TLS: &tls.Config{RootCAs: trusted}})
		if got := newConversation(a).ask(t.Context(), userMessage("q")); got.err != nil || got.text != "secret" {
			t.Errorf("%s: answer = %+v, want the text", binding, got)
		}
		failure := failureOf(t, newConversation(open(t, s)).ask(t.Context(), userMessage("q")))
		if failure.Retryable || failure.Message != "cannot connect to the server of the agent card" {
			t.Errorf("%s: error without trust = %+v, want one that is not retryable", binding, failure)
		}
	}
}

// FuzzStream: whatever a remote agent sends, a turn ends with an answer or with an error for users.
func FuzzStream(f *testing.F) {
	const task = `"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}`
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":"1","result":{"task":{` + task + `,"artifacts":[{"artifactId":"a","parts":[{"text":"x"}]}]}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[null,{"data":1}]}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"artifactUpdate":{"taskId":"t","contextId":"c","artifact":null}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":` +
			`"TASK_STATE_INPUT_REQUIRED","message":{"parts":[{"data":{"toolCall":{"id":"c","name":"n"}},` +
			`"metadata":{"parley.type":"tool_call"}}]}}}}}`,
		`{"jsonrpc":"2.0","id":"1","result":{"task":{"id":"t","history":[null]` + task[8:] + `}}}`,
		`{"jsonrpc":"2.0","id":"1","error":{"code":-32603}}`, `{"error":{"code":400,"message":"x"}}`, `null`, `[`, "\n\ndata:",
	} {
		f.Add(seed)
	}
	var stream atomic.Value // A server may still run when the next input begins.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".json") {
			w.Header().Set("Content-Type", mediaJSON)
			fmt.Fprintf(w, `{"name":"n","capabilities":{"streaming":true},"supportedInterfaces":[{"url":"http://%s/",`+
				`"protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}`, r.Host)
			return
		}
		w.Header().Set("Content-Type", mediaEvents)
		fmt.Fprintf(w, "data: %v\n\n", stream.Load())
	}))
	f.Cleanup(server.Close)
	a, err := New(Config{URL: server.URL})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = a.Close() })
	a.waits = waits{time.Microsecond, time.Microsecond, time.Hour}
	f.Fuzz(func(t *testing.T, event string) {
		stream.Store(event)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // A task that works never ends.
		defer cancel()
		request := &parleyv1.RespondRequest{TurnId: "turn", Messages: []*parleyv1.Message{userMessage("q")}}
		for piece, err := range a.Respond(ctx, request) {
			if _, own := errors.AsType[*agent.Error](err); err != nil && !own && ctx.Err() == nil {
				t.Errorf("Respond = %v, want an *agent.Error", err)
			}
			if err == nil && piece.GetPiece() == nil {
				t.Error("Respond sent an empty piece")
			}
		}
	})
}
