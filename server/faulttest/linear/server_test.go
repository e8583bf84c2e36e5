package linear

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// server is a running parleyd and a client of it.
type server struct {
	parleyv1.ConversationServiceClient
	process *exec.Cmd
	conn    *grpc.ClientConn
	ended   chan struct{} // closed when the process has ended
}

// start starts a parleyd program on a data directory and waits until it serves. At the end of the test
// the server is killed if it still runs.
func start(t *testing.T, program, dataDir string, flags ...string) *server {
	t.Helper()
	s := &server{ended: make(chan struct{})}
	s.process = exec.Command(program, append([]string{
		"--data-dir=" + dataDir, "--grpc-address=127.0.0.1:0", "--http-address=", "--log-format=json",
		fmt.Sprint("--max-conversations=", maxConversations), fmt.Sprint("--max-messages=", maxMessages),
	}, flags...)...)
	s.process.Env = slices.DeleteFunc(s.process.Environ(), func(v string) bool { return strings.HasPrefix(v, "PARLEY_") })
	stderr, err := s.process.StderrPipe()
	if err == nil {
		err = s.process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	serving := make(chan string, 1)
	go func() {
		defer close(s.ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var entry struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "serving grpc" {
				serving <- entry.Address
			}
		}
		_ = s.process.Wait()
	}()
	t.Cleanup(s.close)
	select {
	case address := <-serving:
		s.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
		if err != nil {
			t.Fatal(err)
		}
		s.ConversationServiceClient = parleyv1.NewConversationServiceClient(s.conn)
	case <-s.ended:
		t.Fatalf("parleyd ended with %v", s.process.ProcessState)
	case <-time.After(testTimeout):
		t.Fatalf("parleyd did not serve within %v", testTimeout)
	}
	return s
}

// kill kills the server with SIGKILL and returns when it has ended. Running calls fail.
func (s *server) kill() {
	_ = s.process.Process.Kill() // It may have ended already.
	<-s.ended
}

// close kills the server and closes the connection. No call may be running.
func (s *server) close() {
	s.kill()
	if s.conn != nil {
		s.conn.Close()
	}
}
