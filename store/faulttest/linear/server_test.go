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

// server is a parleyd that serves.
type server struct {
	parleyv1.ConversationServiceClient
	process *exec.Cmd
	conn    *grpc.ClientConn
	ended   chan struct{} // closed when the process has gone
}

// start starts a program, which is a parleyd, on a data directory, and returns when it serves.
// It is killed at the end of the test at the latest.
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
	t.Cleanup(s.leave)
	select {
	case address := <-serving:
		s.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
		if err != nil {
			t.Fatal(err)
		}
		s.ConversationServiceClient = parleyv1.NewConversationServiceClient(s.conn)
	case <-s.ended:
		t.Fatalf("parleyd ended with %v", s.process.ProcessState)
	case <-time.After(patience):
		t.Fatalf("parleyd does not serve within %v", patience)
	}
	return s
}

// kill ends the server as kill -9 does, and returns when it has gone. Calls that are under way
// fail.
func (s *server) kill() {
	_ = s.process.Process.Kill() // Perhaps it was.
	<-s.ended
}

// leave kills the server and lets go of it: no call may be under way.
func (s *server) leave() {
	s.kill()
	if s.conn != nil {
		s.conn.Close()
	}
}
