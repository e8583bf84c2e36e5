package openai

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

var _ agent.Agent = (*Agent)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "sk-marked-0123456789abcdef"

// newAgent returns an agent that is closed at the end of the test.
func newAgent(t *testing.T, config agent.Model) *Agent {
	t.Helper()
	if config.Model == "" {
		config.Model = "test-model"
	}
	a, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// agentOf returns an agent for the provider.
func agentOf(t *testing.T, s *providertest.Server) *Agent {
	t.Helper()
	return newAgent(t, agent.Model{BaseURL: s.URL, Key: testKey})
}

func newRequest(content string) *parleyv1.RespondRequest {
	return &parleyv1.RespondRequest{Messages: []*parleyv1.Message{{Role: user, Content: content}}}
}

// answer returns the pieces and the error of an answer.
func answer(
	ctx context.Context, a *Agent, request *parleyv1.RespondRequest,
) (pieces []*parleyv1.RespondResponse, err error) {
	for piece, err := range a.Respond(ctx, request) {
		if err != nil {
			return pieces, err
		}
		if piece.GetToolCallDelta() == nil { // TestCallDeltas is about these.
			pieces = append(pieces, piece)
		}
	}
	return pieces, nil
}

func finishPiece(reason string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: reason}}
}

func usagePiece(u *parleyv1.Usage) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: u}}
}

func callPiece(id, name, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{
		ToolCall: &parleyv1.ToolCall{Id: id, Name: name, Arguments: arguments},
	}}
}

func texts(pieces []*parleyv1.RespondResponse) string {
	var b strings.Builder
	for _, piece := range pieces {
		b.WriteString(piece.GetText())
	}
	return b.String()
}

func TestPiecesAreSentAtOnce(t *testing.T) {
	resume := make(chan struct{})
	s := openaitest.New(t, providertest.Sequence(
		openaitest.Events(openaitest.Words("Sugar")...),
		func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-resume:
			case <-r.Context().Done():
			}
		},
		openaitest.Text(" costs", " 50 cents."),
	))
	a := agentOf(t, s)
	var pieces []*parleyv1.RespondResponse
	for piece, err := range a.Respond(t.Context(), newRequest("What does sugar cost?")) {
		if err != nil {
			t.Fatal(err)
		}
		if pieces = append(pieces, piece); len(pieces) == 1 {
			close(resume) // The provider sends nothing more before this.
		}
	}
	want := []*parleyv1.RespondResponse{
		textPiece("Sugar"), textPiece(" costs"), textPiece(" 50 cents."),
		usagePiece(&parleyv1.Usage{Model: "test-model-2026", InputTokens: 9, OutputTokens: 2}), finishPiece("stop"),
	}
	if diff := cmp.Diff(want, pieces, protocmp.Transform()); diff != "" {
		t.Errorf("pieces (-want +got):\n%s", diff)
	}
}

// TestEnvironmentIsIgnored: nothing of the server's environment is sent, and requests go only to
// base_url.
func TestEnvironmentIsIgnored(t *testing.T) {
	other := openaitest.New(t) // It fails the test if it receives a request.
	t.Setenv("OPENAI_BASE_URL", other.URL)
	for _, name := range []string{"OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_WEBHOOK_SECRET"} {
		t.Setenv(name, "from-the-environment")
	}
	t.Setenv("OPENAI_CUSTOM_HEADERS", "X-Custom: from-the-environment")
	for _, key := range []string{"", testKey} {
		s := openaitest.New(t, openaitest.Text("Hi."))
		a := newAgent(t, agent.Model{
			BaseURL: s.URL + "/?version=7&version=8", Key: key, Headers: map[string]string{"x-team": "shop", "X-Empty": ""},
		})
		if _, err := answer(t.Context(), a, newRequest("Hi")); err != nil {
			t.Fatal(err)
		}
		request := s.Requests()[0]
		if request.Method != http.MethodPost || request.URI != "/v1/chat/completions?version=7&version=8" {
			t.Errorf("request = %s %s, want a POST with the query", request.Method, request.URI)
		}
		if got := request.Header.Get("X-Team"); got != "shop" {
			t.Errorf("X-Team = %q, want shop", got)
		}
		var want []string
		if key != "" {
			want = []string{"Bearer " + key}
		}
		if diff := cmp.Diff(want, request.Header.Values("Authorization")); diff != "" {
			t.Errorf("Authorization (-want +got):\n%s", diff)
		}
		if sent := fmt.Sprint(request.Header, string(request.Body)); strings.Contains(sent, "from-the-environment") {
			t.Errorf("request contains the environment: %s", sent)
		}
	}
}

func TestUserOfBaseURLIsSent(t *testing.T) {
	s := openaitest.New(t, openaitest.Text("Hi."))
	a := newAgent(t, agent.Model{BaseURL: strings.Replace(s.URL, "://", "://ann:secret@", 1)})
	if _, err := answer(t.Context(), a, newRequest("Hi")); err != nil {
		t.Fatal(err)
	}
	request := &http.Request{Header: s.Requests()[0].Header}
	if name, password, ok := request.BasicAuth(); !ok || name != "ann" || password != "secret" {
		t.Errorf("BasicAuth = %q, %q, %v, want ann, secret", name, password, ok)
	}
}

// TestNewFaults: New returns the faults that agent.NewProvider finds.
func TestNewFaults(t *testing.T) {
	_, err := New(agent.Model{BaseURL: "http://h:hidden", Key: "hidden\n", Tools: []agent.Tool{{Name: "a b"}}})
	want := []string{
		`base_url: is not a URL; use the form "https://api.openai.com/v1"`,
		"model: is required",
		"key: contains a line feed or another control character",
		`tools: "a b" is not a valid tool name; use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'`,
	}
	if diff := cmp.Diff(want, strings.Split(fmt.Sprint(err), "\n")); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestBaseURLOfTheProvider(t *testing.T) {
	if got := newAgent(t, agent.Model{}).provider.Base.String(); got != "https://api.openai.com/v1/" {
		t.Errorf("Base = %s, want https://api.openai.com/v1/", got)
	}
}

// TestContextEnds: if ctx ends while the provider is silent, Respond returns the cause of ctx.
func TestContextEnds(t *testing.T) {
	cause := errors.New("the turn is over")
	for name, before := range map[string]providertest.Reply{
		"before the headers":   providertest.Sequence(),
		"before a piece":       providertest.Parts(": wait\n\n"),
		"in an event":          providertest.Parts(`data: {"cho`),
		"in an error response": providertest.Sequence(providertest.Fail(http.StatusBadRequest, "no"), providertest.Parts("t")),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			disconnected := make(chan struct{})
			s := openaitest.New(t, providertest.Sequence(before, func(w http.ResponseWriter, r *http.Request) {
				cancel(cause)
				providertest.Stall(w, r)
				close(disconnected)
			}))
			pieces, err := answer(ctx, agentOf(t, s), newRequest("Hi"))
			if len(pieces) != 0 || !errors.Is(err, cause) {
				t.Errorf("Respond = %v, %v, want the cause of ctx", pieces, err)
			}
			<-disconnected // The provider's connection is closed.
		})
	}
}

func TestConsumerStopsEarly(t *testing.T) {
	disconnected := make(chan struct{})
	s := openaitest.New(t, providertest.Sequence(
		providertest.Endless("data: "+openaitest.Delta(map[string]any{"content": "and on "})+"\n\n"),
		func(http.ResponseWriter, *http.Request) { close(disconnected) },
	))
	a := agentOf(t, s)
	got := 0
	for piece, err := range a.Respond(t.Context(), newRequest("Never stop")) {
		if err != nil || piece.GetText() != "and on " {
			t.Fatal(piece, err)
		}
		got++
		if got == 1000 {
			break
		}
	}
	<-disconnected
}

// TestConsumerStopsAnywhere: if the consumer stops after any piece, nothing more is yielded.
func TestConsumerStopsAnywhere(t *testing.T) {
	call := openaitest.ToolDelta(map[string]any{
		"index": 0, "id": "c", "function": map[string]any{"name": "f", "arguments": "{}"},
	})
	reply := openaitest.Events(slices.Concat(openaitest.Words("a", "b"), []string{
		call, openaitest.Finish("stop"), openaitest.Usage(1, 1), openaitest.Done,
	})...)
	s := openaitest.New(t)
	s.Always(reply)
	a := agentOf(t, s)
	pieces, err := answer(t.Context(), a, newRequest("Hi"))
	if len(pieces) != 5 || err != nil {
		t.Fatal(pieces, err)
	}
	for wanted := 1; wanted < 5; wanted++ {
		got := 0
		for _, err := range a.Respond(t.Context(), newRequest("Hi")) {
			if err != nil {
				t.Fatal(err)
			}
			got++
			if got == wanted {
				break // The iteration panics if another piece is yielded.
			}
		}
	}
}

// TestStreamWithoutEnd: an answer is complete after its finish_reason, even if the server neither
// sends [DONE] nor closes the stream.
func TestStreamWithoutEnd(t *testing.T) {
	s := openaitest.New(t, providertest.Sequence(openaitest.Events(append(openaitest.Words("All."),
		openaitest.Finish("stop"))...), providertest.Stall))
	a := agentOf(t, s)
	a.usageGrace = time.Millisecond
	pieces, err := answer(t.Context(), a, newRequest("Hi"))
	if diff := cmp.Diff([]*parleyv1.RespondResponse{textPiece("All."), finishPiece("stop")}, pieces, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestCloseEndsIdleConnections(t *testing.T) {
	idle, closed := make(chan struct{}, 1), make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(providertest.Fail(http.StatusBadRequest, ""))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateIdle:
			idle <- struct{}{}
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	a := newAgent(t, agent.Model{BaseURL: server.URL})
	if pieces, err := answer(t.Context(), a, newRequest("Hi")); err == nil {
		t.Fatal(pieces)
	}
	<-idle // The connection is kept for the next request.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	<-closed
}

func TestConcurrentAnswers(t *testing.T) {
	s := openaitest.New(t)
	s.Always(func(w http.ResponseWriter, r *http.Request) { openaitest.Text(r.Header.Get("X-Turn"))(w, r) })
	t.Run("agents", func(t *testing.T) {
		for i := range 16 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprint("turn ", i)
				a := newAgent(t, agent.Model{BaseURL: s.URL, Headers: map[string]string{"X-Turn": name}})
				if pieces, err := answer(t.Context(), a, newRequest("Hi")); texts(pieces) != name || err != nil {
					t.Errorf("Respond = %v, %v, want %q", pieces, err, name)
				}
			})
		}
	})
}
