package faulttest

import (
	"strings"
	"testing"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// holdingAgent is the name of an agent that answers with a long text when the test releases it.
const holdingAgent = "holder"

type holder struct {
	parleyv1.UnimplementedAgentServiceServer
	release chan struct{} // closed by the test
	answer  string
}

func (h *holder) Respond(
	_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	select {
	case <-h.release:
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	return stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: h.answer}})
}

// withHolder serves a holding agent; see withAgent.
func withHolder(t *testing.T) (h *holder, flag string) {
	t.Helper()
	const repetitions = 20_000
	h = &holder{release: make(chan struct{}), answer: strings.Repeat("answer ", repetitions)}
	return h, withAgent(t, holdingAgent, h)
}
