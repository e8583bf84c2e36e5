package remote

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestEveryPiece: pieces of all kinds are passed on unchanged, in any order.
func TestEveryPiece(t *testing.T) {
	sent := []*parleyv1.RespondResponse{
		{
			Piece: &parleyv1.RespondResponse_ToolResult{
				ToolResult: &parleyv1.ToolResult{CallId: "of no call", Content: "21 °C"},
			},
		},
		{Piece: &parleyv1.RespondResponse_Summary{Summary: "did nothing"}},
		text("Grüße, 円"),
		{
			Piece: &parleyv1.RespondResponse_StructuredData{
				StructuredData: &parleyv1.StructuredData{Type: "n", Value: structpb.NewNumberValue(1)},
			},
		},
		{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{Id: "1", Name: "weather", Arguments: "{"}}},
		{Piece: &parleyv1.RespondResponse_Reasoning{Reasoning: "hm"}},
		{Piece: &parleyv1.RespondResponse_ToolCallDelta{
			ToolCallDelta: &parleyv1.ToolCallDelta{Id: "1", Name: "weather", Arguments: "{", Offset: 7},
		}},
		{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "reviewer"}},
		{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{Model: "m", OutputTokens: 7}}},
		{Piece: &parleyv1.RespondResponse_Progress{Progress: &parleyv1.TurnProgress{Text: "thinking"}}},
		{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: "stop"}},
		text(""),
	}
	request := &parleyv1.RespondRequest{
		Conversation: &parleyv1.Conversation{Id: "c"}, SystemPrompt: "be brief", Agent: "planner", TurnId: "t",
		CacheStable: true,
		Messages:    []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
	}
	before := proto.CloneOf(request)

	var got *parleyv1.RespondRequest
	var md metadata.MD
	var left time.Duration
	s := start(t, "127.0.0.1:0", nil, func(request *parleyv1.RespondRequest, stream pieces) error {
		got = request
		md, _ = metadata.FromIncomingContext(stream.Context())
		if deadline, ok := stream.Context().Deadline(); ok {
			left = time.Until(deadline)
		}
		for _, piece := range sent {
			if err := stream.Send(piece); err != nil {
				return err
			}
		}
		return nil
	})
	a := open(t, Config{
		Address: s.address, Headers: map[string]string{"Authorization": "Bearer 12345678", "raw-bin": "\x00\xff"},
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	answer, err := collect(ctx, a, request)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sent, answer, protocmp.Transform()); diff != "" {
		t.Errorf("pieces (-sent +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, got, protocmp.Transform()); diff != "" {
		t.Errorf("request (-sent +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, request, protocmp.Transform()); diff != "" {
		t.Errorf("Respond changed the request (-before +after):\n%s", diff)
	}
	want := metadata.MD{"authorization": {"Bearer 12345678"}, "raw-bin": {"\x00\xff"}}
	for name := range want {
		if diff := cmp.Diff(want[name], md[name]); diff != "" {
			t.Errorf("header %s (-want +got):\n%s", name, diff)
		}
	}
	if agent := strings.Join(md["user-agent"], ""); !strings.HasPrefix(agent, "parley ") {
		t.Errorf("user-agent = %q, want parley", agent)
	}
	if left < 59*time.Minute || left > time.Hour {
		t.Errorf("deadline of the agent in %v, want that of ctx in an hour", left)
	}
}

// TestUnknownPieces: pieces of unknown kinds from a newer agent are ignored.
func TestUnknownPieces(t *testing.T) {
	newer := &parleyv1.RespondResponse{}
	newer.ProtoReflect().SetUnknown([]byte{0xa2, 0x06, 2, 'h', 'i'}) // Field 100.
	s := start(t, "127.0.0.1:0", nil, func(_ *parleyv1.RespondRequest, stream pieces) error {
		return errors.Join(stream.Send(newer), stream.Send(text("a")), stream.Send(&parleyv1.RespondResponse{}),
			stream.Send(text("b")))
	})
	answer, err := collect(t.Context(), open(t, Config{Address: s.address}), nil)
	if diff := cmp.Diff([]*parleyv1.RespondResponse{text("a"), text("b")}, answer, protocmp.Transform()); diff != "" ||
		err != nil {
		t.Errorf("%v, pieces (-want +got):\n%s", err, diff)
	}
}

// TestNoPiece: an answer may be empty.
func TestNoPiece(t *testing.T) {
	s := start(t, "127.0.0.1:0", nil, answerTexts())
	if answer, err := collect(t.Context(), open(t, Config{Address: s.address}), nil); len(answer) != 0 || err != nil {
		t.Errorf("Respond = %v, %v, want no pieces", answer, err)
	}
}

func TestUnixSocket(t *testing.T) {
	t.Chdir(t.TempDir())
	start(t, "unix:agent.socket", nil, answerTexts("here"))
	path, err := filepath.Abs("agent.socket")
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"unix:agent.socket", "unix:" + path, "unix://" + path} {
		if answer, err := collect(t.Context(), open(t, Config{Address: address}), nil); len(answer) != 1 || err != nil {
			t.Errorf("Respond of %s = %v, %v, want one piece", address, answer, err)
		}
	}
}

// TestStall: when ctx ends, the call to an agent that sends nothing more ends too.
func TestStall(t *testing.T) {
	for _, first := range [][]string{nil, {"one"}} {
		t.Run(strings.Join(first, ""), func(t *testing.T) {
			reached, ended := make(chan struct{}), make(chan struct{})
			s := start(t, "127.0.0.1:0", nil, func(request *parleyv1.RespondRequest, stream pieces) error {
				defer close(ended)
				if err := answerTexts(first...)(request, stream); err != nil {
					return err
				}
				close(reached)
				<-stream.Context().Done()
				return nil
			})
			a := open(t, Config{Address: s.address})
			enough := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			go func() {
				<-reached
				cancel(enough)
			}()
			if _, err := collect(ctx, a, nil); !errors.Is(err, enough) {
				t.Errorf("Respond after %q = %v, want the cause of ctx", first, err)
			}
			wait(t, "the end of the call", ended)
		})
	}
}

// TestFlood: when the consumer stops or ctx ends, the call to an agent that sends without end ends
// too.
func TestFlood(t *testing.T) {
	ended := make(chan struct{}, 1)
	s := start(t, "127.0.0.1:0", nil, func(_ *parleyv1.RespondRequest, stream pieces) error {
		defer func() { ended <- struct{}{} }()
		for {
			if err := stream.Send(text(strings.Repeat("x", 1000))); err != nil {
				return err
			}
		}
	})
	a := open(t, Config{Address: s.address})
	n := 0
	for _, err := range a.Respond(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if n == 100 {
			break
		}
	}
	wait(t, "the end of the call", ended)

	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	n = 0
	var last error
	for piece, err := range a.Respond(ctx, nil) {
		last = err
		if piece != nil {
			n++
		}
		cancel(enough) // Many more pieces have been received.
	}
	if n != 1 || !errors.Is(last, enough) {
		t.Errorf("Respond = %d pieces, %v, want one piece and the cause of ctx", n, last)
	}
	wait(t, "the end of the call", ended)
}

// TestEndedContext: Respond with an ended context returns its cause.
func TestEndedContext(t *testing.T) {
	a := open(t, Config{Address: "127.0.0.1:1"})
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if answer, err := collect(ctx, a, nil); len(answer) != 0 || !errors.Is(err, enough) {
		t.Errorf("Respond = %v, %v, want the cause of ctx", answer, err)
	}
}

// TestSeveralAddresses: turns are distributed over the addresses of a name, and only to agents that
// are connected.
func TestSeveralAddresses(t *testing.T) {
	one, two := start(t, "127.0.0.1:0", nil, answerTexts("one")), start(t, "127.0.0.1:0", nil, answerTexts("two"))
	names := manual.NewBuilderWithScheme("test")
	names.InitialState(resolver.State{Endpoints: []resolver.Endpoint{
		{Addresses: []resolver.Address{{Addr: one.address}}},
		{Addresses: []resolver.Address{{Addr: two.address}}},
	}})
	a := open(t, Config{Address: "dns:///agents:7001"}, grpc.WithResolvers(dns{names}))
	// answers returns the answers of 20 turns, or the first error.
	answers := func() (all []string, err error) {
		for range 20 {
			answer, err := collect(t.Context(), a, nil)
			if err != nil {
				return all, err
			}
			all = append(all, answer[0].GetText())
		}
		return all, nil
	}
	deadline := time.Now().Add(testTimeout)
	for isBoth := false; !isBoth; { // One agent may be connected before the other.
		all, err := answers()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("answers = %q, %v, want both agents", all, err)
		}
		isBoth = slices.Contains(all, "one") && slices.Contains(all, "two")
	}
	one.stop()
	for isLeft := false; !isLeft; { // Turns may fail until the loss is detected.
		all, err := answers()
		if err != nil {
			_ = mustFail(t, err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("answers after the stop of an agent = %q, %v, want only the other agent", all, err)
		}
		isLeft = err == nil && !slices.Contains(all, "one")
	}
}

// dns is a resolver for a scheme that Config accepts.
type dns struct{ *manual.Resolver }

func (dns) Scheme() string { return "dns" }
