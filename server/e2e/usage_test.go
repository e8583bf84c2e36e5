package e2e

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// awaitIdle waits until no turn runs and no reader waits, and checks that Chat succeeds for every id.
func (w *storm) awaitIdle(s *server) {
	w.t.Helper()
	eventually(w.t, "running turns and watchers", []string{"0", "0"}, func() []string {
		stats, err := s.GetStats(w.t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil {
			w.t.Fatal(err)
		}
		return []string{fmt.Sprint(stats.GetActiveTurnCount()), fmt.Sprint(stats.GetWatcherCount())}
	})
	for i := range stormIDs {
		id := fmt.Sprint("storm-", i)
		loaded, err := s.LoadConversation(w.t.Context(), &parleyv1.LoadConversationRequest{ConversationId: id})
		if err != nil || loaded.GetConversation().GetActiveTurnId() != "" {
			w.t.Errorf("LoadConversation(%s) = %v, %v, want no running turn", id, loaded.GetConversation(), err)
		}
		turn, err := w.hello(s, id)
		if client.Reason(err) == "CONVERSATION_NOT_FOUND" {
			// A watch that has ended deletes its ephemeral conversation up to 300 ms later, which can be during this turn.
			// It does so once.
			turn, err = w.hello(s, id)
		}
		if err != nil || turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
			w.t.Errorf("Chat(%s) = %v, %v, want a completed turn", id, turn, err)
		}
	}
}

// hello chats with the echo agent and returns the finished turn.
func (w *storm) hello(s *server, id string) (*parleyv1.Turn, error) {
	stream, err := s.Chat(w.t.Context(), &parleyv1.ChatRequest{ConversationId: id, Content: "hello", Agent: "echo"})
	if err != nil {
		return nil, err
	}
	var turn *parleyv1.Turn
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return turn, nil
		}
		if err != nil {
			return nil, err
		}
		if finished := response.GetEvent().GetFinished(); finished != nil {
			turn = finished.GetTurn()
		}
	}
}

// usage is the number of goroutines and the heap bytes of a server.
type usage struct{ goroutines, heap int }

// usage makes the server log its usage for the n-th time, counted from 1, and returns it; see reportUsage.
func (s *server) usage(t *testing.T, n int) usage {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	line := s.await(t, "usage", fmt.Sprint("n=", n))
	number := func(key string) int {
		n, err := strconv.Atoi(fmt.Sprint(line[key]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return usage{goroutines: number("goroutines"), heap: number("heap")}
}

// reportUsage logs the usage of the process, after a garbage collection, at each SIGUSR1.
func reportUsage() {
	requests := make(chan os.Signal, 1)
	signal.Notify(requests, syscall.SIGUSR1)
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	for n := 1; ; n++ {
		<-requests
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		log.Info("usage", "n", n, "goroutines", runtime.NumGoroutine(), "heap", m.HeapAlloc)
	}
}
