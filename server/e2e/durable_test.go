package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestDurable(t *testing.T) {
	t.Parallel()
	t.Run("acknowledged messages survive kill -9", acknowledgedSurvive)
	t.Run("the message of a started turn survives kill -9", startedSurvives)
}

// writers append batches to a few conversations. A batch is named by its writer and number.
type writers struct {
	mu    sync.Mutex
	acked map[string]int32 // batch to the sequence of its first message
	next  map[int]int      // writer to the number of its next batch
}

const (
	writerCount          = 8
	writtenConversations = 3 // number of conversations
	batchSize            = 3
)

func acknowledgedSurvive(t *testing.T) {
	t.Parallel()
	dataDir, all := t.TempDir(), "--max-messages=1000" // more than the test writes
	w := &writers{acked: make(map[string]int32), next: make(map[int]int)}
	for _, enough := range []int64{1, 60, 150} { // acknowledgements before the server is killed
		w.writeUntilKilled(t, startServer(t, dataDir, all), enough)
		s := startServer(t, dataDir, all)
		w.check(t, s)
		s.kill()
	}
}

// writeUntilKilled appends batches from all writers at once, and kills the server after the given
// number of acknowledgements.
func (w *writers) writeUntilKilled(t *testing.T, s *server, enough int64) {
	t.Helper()
	var group sync.WaitGroup
	var count atomic.Int64
	reached := make(chan struct{})
	for writer := range writerCount {
		group.Go(func() {
			for {
				batch, messages := w.nextBatch(writer)
				reply, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
					ConversationId: fmt.Sprint("c", writer%writtenConversations), Messages: messages,
				})
				if err != nil {
					return
				}
				w.mu.Lock()
				w.acked[batch] = reply.GetAppended()[0].GetSequence()
				w.mu.Unlock()
				if count.Add(1) == enough {
					close(reached)
				}
			}
		})
	}
	select {
	case <-reached:
	case <-s.process.Ended():
		t.Fatal("the server ended on its own")
	}
	s.kill()
	group.Wait()
}

func (w *writers) nextBatch(writer int) (name string, messages []*parleyv1.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name = fmt.Sprintf("%d-%d", writer, w.next[writer])
	w.next[writer]++
	for i := range batchSize {
		messages = append(messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprintf("%s/%d", name, i)})
	}
	return name, messages
}

// check checks that every acknowledged batch is at its sequence, without gaps and in one piece.
func (w *writers) check(t *testing.T, s *server) {
	t.Helper()
	found := make(map[string]int32)
	for c := range writtenConversations {
		limit := int32(1000)
		reply, err := s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{
			ConversationId: fmt.Sprint("c", c), MessageLimit: &limit,
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range reply.GetMessages() {
			batch, index, _ := strings.Cut(m.GetContent(), "/")
			if m.GetSequence() != int32(i+1) || index != fmt.Sprint(i%batchSize) {
				t.Fatalf("message %d of c%d = %v, want sequence %d and index %d of its batch", i+1, c, m, i+1, i%batchSize)
			}
			if index == "0" {
				found[batch] = m.GetSequence()
			} else if found[batch] != m.GetSequence()-int32(i%batchSize) {
				t.Fatalf("message %d of c%d is %q, want its batch to begin at %d", i+1, c, m.GetContent(), found[batch])
			}
		}
		if last := reply.GetConversation().GetLastSequence(); len(reply.GetMessages())%batchSize != 0 ||
			last != int32(len(reply.GetMessages())) {
			t.Fatalf("c%d has %d messages and last sequence %d, want complete batches", c, len(reply.GetMessages()), last)
		}
	}
	for batch, sequence := range w.acked {
		if found[batch] != sequence {
			t.Errorf("batch %s was acknowledged with sequence %d, found at %d (0 if missing)", batch, sequence, found[batch])
		}
	}
	t.Logf("%d batches acknowledged, %d found", len(w.acked), len(found))
}

func startedSurvives(t *testing.T) {
	t.Parallel()
	dataDir, config := t.TempDir(), agents(t, testAgents)
	s := startServer(t, dataDir, config)
	k := hold(t, s, "c")
	// The server saves the partial answer every second. When the text is in the file, its commit
	// ends before the commit of a later append.
	waitForText(t, filepath.Join(dataDir, "parley.db"), "half an ")
	add(t, s, "other", &parleyv1.Message{Content: "hello"})
	// The server may not have saved any of the answer of this turn yet.
	k2 := hold(t, s, "c2")
	s.kill()

	s = startServer(t, dataDir, config)
	s.await(t, "turn interrupted by a stop of the server", "conversation_id=c", "saved_messages=1")
	s.await(t, "turn interrupted by a stop of the server", "conversation_id=c2",
		"turn_id="+k2.started.GetConversation().GetActiveTurnId())
	stored := history(t, s, "c")
	if got := contents(stored.GetMessages()); got != "USER "+k.request.GetContent()+"\nASSISTANT half an \n" {
		t.Errorf("history of an interrupted turn, want the question and the saved half of the answer:\n%s", got)
	}
	if m := stored.GetMessages()[1]; m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE ||
		stored.GetConversation().GetActiveTurnId() != "" {
		t.Errorf("answer %v in %v, want INCOMPLETE and no active turn", m, stored.GetConversation())
	}
	if got := contents(history(t, s, "c2").GetMessages()); !strings.HasPrefix(got, "USER "+k2.request.GetContent()+"\n") {
		t.Errorf("history of a turn that had just started, want it to begin with the question:\n%s", got)
	}
	// A client that repeats the request id receives the interrupted turn; the agent does not run twice.
	again := chat(t, s, k.request)
	turn := again.finish(t).GetTurn()
	if !again.started.GetReplayed() || turn.GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED ||
		turn.GetError().GetReason() != "SHUTTING_DOWN" || turn.GetError().GetCode() != int32(codes.Unavailable) {
		t.Errorf("the same request again = %v, %v; want the interrupted turn", again.started, turn)
	}
	if found, _ := s.log.Find("conversation history"); len(found) > 0 {
		t.Errorf("an agent was called: %v", found)
	}
	for _, id := range []string{"c", "c2"} {
		if answer := ask(t, s, id, "continue"); answer != "continue" {
			t.Errorf("the next answer in %s = %q, want %q", id, answer, "continue")
		}
	}
}

// waitForText polls a file until it contains the text. No event reports that.
func waitForText(t *testing.T, path, text string) {
	t.Helper()
	poll, late := time.NewTicker(20*time.Millisecond), time.After(timeout)
	defer poll.Stop()
	for {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(text)) {
			return
		}
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("%q is not in %s after %v", text, path, timeout)
		}
	}
}
