package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// notifySocket is the socket on which a supervisor such as systemd is notified.
type notifySocket struct {
	conn *net.UnixConn
	env  string
}

func newNotifySocket(t *testing.T) *notifySocket {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &notifySocket{conn, "NOTIFY_SOCKET=" + path}
}

// next returns the next state. It skips watchdog notifications, unless the test waits for one.
func (n *notifySocket) next(t *testing.T, wantWatchdog bool) string {
	t.Helper()
	if err := n.conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 4096)
	for {
		length, err := n.conn.Read(buffer)
		if err != nil {
			t.Fatalf("no state for the supervisor: %v", err)
		}
		state := string(buffer[:length])
		if (state == "WATCHDOG=1") == wantWatchdog {
			return state
		}
	}
}

// startSupervised starts a server that notifies n and returns when the server has reported that it serves.
func startSupervised(t *testing.T, n *notifySocket, environ []string, flags ...string) *server {
	t.Helper()
	command := parleyd(t, flags...)
	command.Env = append(append(command.Env, n.env), environ...)
	s := startUnconnected(t, command)
	if got := n.next(t, false); got != "READY=1\nSTATUS=serving" {
		t.Errorf("first state = %q, want READY=1", got)
	}
	s.connect(t, fmt.Sprint(s.await(t, "serving grpc")["address"]), false)
	return s
}

// TestSupervisor checks the states of a start, of reloads and of a stop, and that watchdog notifications continue while
// a stop waits for a turn.
func TestSupervisor(t *testing.T) {
	t.Parallel()
	n := newNotifySocket(t)
	flag := agents(t, testAgents)
	path := strings.TrimPrefix(flag, "--config=")
	s := startSupervised(t, n, []string{"WATCHDOG_USEC=100000"}, "--data-dir="+t.TempDir(), flag)
	n.next(t, true)

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ config, want string }{
		{string(text), "READY=1\nSTATUS=serving"},
		{"max_turns: none\n", "READY=1\nSTATUS=serving; the last reload failed, see the log"},
	} {
		if err := os.WriteFile(path, []byte(test.config), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.process.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		got := n.next(t, false)
		match := regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=(\d+)\nSTATUS=reloading$`).FindStringSubmatch(got)
		if match == nil {
			t.Errorf("state of a reload = %q, want RELOADING=1 with MONOTONIC_USEC", got)
		} else if at, err := strconv.ParseInt(match[1], 10, 64); err != nil || at <= 0 {
			t.Errorf("MONOTONIC_USEC=%s, want a time", match[1])
		}
		if got := n.next(t, false); got != test.want {
			t.Errorf("state after a reload = %q, want %q", got, test.want)
		}
	}

	k := hold(t, s, "c")
	s.terminate()
	const want = "STOPPING=1\nEXTEND_TIMEOUT_USEC=34937500\nSTATUS=stopping" // --stop-grace and stopMargin
	if got := n.next(t, false); got != want {
		t.Errorf("state of a stop = %q, want %q", got, want)
	}
	for range 3 {
		n.next(t, true)
	}
	k.release(t, "answer")
	s.wantStop(t)
}

// TestSupervisedUnderLoad stops, kills and starts a supervised server while clients write. Each write that was
// acknowledged is there after the next start, once and in order.
func TestSupervisedUnderLoad(t *testing.T) {
	t.Parallel()
	skipShort(t)
	const clients, rounds, enough = 4, 4, 20 // writes of each client in each round
	dataDir, n := t.TempDir(), newNotifySocket(t)
	acknowledged := make([]int, clients)
	sent := make([]int, clients)
	for round := range rounds {
		s := startSupervised(t, n, nil, "--data-dir="+dataDir, "--max-messages=1000", "--stop-grace=1s")
		for client := range clients {
			stored := storedWrites(t, s, client)
			if stored < acknowledged[client] || stored > sent[client] {
				t.Errorf("round %d: client %d has %d writes stored, want %d to %d", round, client, stored,
					acknowledged[client], sent[client])
			}
			acknowledged[client], sent[client] = stored, stored
		}
		var writing, loaded sync.WaitGroup
		loaded.Add(clients)
		for client := range clients {
			writing.Go(func() {
				for i := range 200 { // fewer in all rounds than the conversation keeps
					if i == enough {
						loaded.Done()
					}
					sent[client]++
					if err := write(t.Context(), s, client, sent[client]); err != nil {
						if i < enough {
							t.Errorf("write %d of client %d = %v, want no error", i, client, err)
							loaded.Done()
						}
						return
					}
					acknowledged[client]++
				}
			})
		}
		loaded.Wait()
		if round%2 == 0 {
			s.terminate()
			if got := n.next(t, false); !strings.HasPrefix(got, "STOPPING=1\n") {
				t.Errorf("state of a stop = %q, want STOPPING=1", got)
			}
			s.wantStop(t)
		} else {
			s.kill()
		}
		writing.Wait()
	}
}

func write(ctx context.Context, s *server, client, number int) error {
	_, err := s.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: fmt.Sprint("client-", client),
		Messages:       []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: strconv.Itoa(number)}},
	})
	return err
}

// storedWrites returns the number of writes of a client. They must be numbered from 1.
func storedWrites(t *testing.T, s *server, client int) int {
	t.Helper()
	reply, err := s.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: fmt.Sprint("client-", client)})
	if err != nil {
		return 0
	}
	for i, m := range reply.GetMessages() {
		if m.GetContent() != strconv.Itoa(i+1) {
			t.Errorf("message %d of client %d = %q, want its number", i+1, client, m.GetContent())
		}
	}
	return len(reply.GetMessages())
}

// TestSupervisorMissing checks that a supervisor that does not listen does not prevent a start.
func TestSupervisorMissing(t *testing.T) {
	t.Parallel()
	command := parleyd(t, "--data-dir="+t.TempDir())
	command.Env = append(command.Env, "NOTIFY_SOCKET="+filepath.Join(t.TempDir(), "missing"), "WATCHDOG_USEC=soon")
	s := startProcess(t, command)
	s.await(t, "watchdog is off", "level=WARN")
	s.await(t, "supervisor not notified", "level=WARN")
	s.terminate()
	s.wantStop(t)
}
