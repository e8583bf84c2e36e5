package linear

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// server is a running parleyd and a client of it.
type server struct {
	parleyv1.ConversationServiceClient
	process *parleydtest.Process
	conn    *grpc.ClientConn
}

// start starts a parleyd program on a data directory and waits until it serves. At the end of the test
// the server is killed if it still runs.
func start(t *testing.T, program, dataDir string, flags ...string) *server {
	t.Helper()
	limits := []string{fmt.Sprint("--max-conversations=", maxConversations), fmt.Sprint("--max-messages=", maxMessages)}
	process, err := parleydtest.Start(parleydtest.Command(context.WithoutCancel(t.Context()), program, dataDir,
		append(limits, flags...)...))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{process: process}
	t.Cleanup(s.close)
	address, err := process.AwaitServing()
	if err != nil {
		t.Fatal(err)
	}
	s.conn,
		err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		t.Fatal(err)
	}
	s.ConversationServiceClient = parleyv1.NewConversationServiceClient(s.conn)
	return s
}

// kill kills the server with SIGKILL and returns when it has ended. Running calls fail.
func (s *server) kill() { s.process.Kill() }

// close kills the server and closes the connection. No call may be running.
func (s *server) close() {
	s.kill()
	if s.conn != nil {
		s.conn.Close()
	}
}
