package client_test

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// recordingAgent counts its turns in a record. If the user says "fail", it fails after it has sent the record.
type recordingAgent struct {
	parleyv1.UnimplementedAgentServiceServer
}

func (recordingAgent) Respond(
	request *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	messages := request.GetMessages()
	write, err := client.JSONWrite("turns", (len(messages)+1)/2)
	if err != nil {
		return err
	}
	if err := stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Record{Record: write}}); err != nil {
		return err
	}
	if messages[len(messages)-1].GetContent() == "fail" {
		return fmt.Errorf("out of ideas")
	}
	return stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: "counted"}})
}

// TestAgentWritesRecords checks that the records of an agent are written with its answer, and not if the turn fails.
func TestAgentWritesRecords(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	agent := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(agent, recordingAgent{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = agent.Serve(listener) })
	t.Cleanup(func() { agent.Stop(); serving.Wait() })
	file := filepath.Join(t.TempDir(), "agents.yaml")
	write(t, file, fmt.Sprintf("default_agent: a\nagents:\n  a: {kind: remote, address: %q}\n", listener.Addr()))
	c := dialServer(t, "--config", file)

	tests := []struct {
		content, state string
		want           int
	}{{"one", "COMPLETED", 1}, {"two", "COMPLETED", 2}, {"fail", "FAILED", 2}}
	for _, test := range tests {
		var announced []string
		state := ""
		for event, err := range c.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: test.content}) {
			if err != nil {
				t.Fatal(err)
			}
			if record := event.GetRecord(); record != nil {
				announced = append(announced, record.GetKey())
			}
			if finished := event.GetFinished(); finished != nil {
				state = finished.GetTurn().GetState().String()
			}
		}
		if state != "TURN_STATE_"+test.state || len(announced) != 1 || announced[0] != "turns" {
			t.Errorf("%s: state = %s, records = %q, want %s and the record turns", test.content, state, announced, test.state)
		}
		if n, _, err := client.GetJSON[int](t.Context(), c.Records("c"), "turns"); n != test.want || err != nil {
			t.Errorf("%s: turns = %d, %v, want %d", test.content, n, err, test.want)
		}
	}
}
