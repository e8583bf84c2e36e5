package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The server is killed loggedKills times, or loggedKillsLong times with PARLEY_LONG=1 in the
// environment, while loggedWriters clients write, of which loggedChatters chat. They write to
// loggedConversations conversations, and to new ones every loggedRounds rounds, so that the store keeps all
// messages.
const (
	loggedKills         = 25
	loggedKillsLong     = 100
	loggedWriters       = 64
	loggedChatters      = 8
	loggedConversations = 32
	loggedRounds        = 10  // number of rounds
	maxLoggedAcks       = 200 // per round
)

// TestInteractionsKilled: acknowledged messages are in the log when the server has ended. When the
// next server serves, the log contains the messages of the store exactly once and in order.
func TestInteractionsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	kills := loggedKills
	if os.Getenv("PARLEY_LONG") != "" {
		kills = loggedKillsLong
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	k, crashes, acked, added := newKilledLog(t), 0, 0, 0
	for round := range kills {
		s := startServer(t, k.dataDir, keepAllFlag)
		found, _ := s.log.Find("interaction log: missing entries added after an unclean stop")
		added += len(found)
		k.wantStored(t, s, crashes)
		if round%loggedRounds == 0 {
			k.generation++
		}
		k.writeUntilKilled(t, s, loggedWriters, 1+random.Int64N(maxLoggedAcks), func() {})
		crashes++
		acked += k.wantAcknowledged(t)
		if round%3 == 1 {
			k.tear(t)
		}
		if round%5 == 2 {
			killAtStart(t, k.dataDir, keepAllFlag)
			crashes++
		}
		if t.Failed() {
			t.Fatalf("failed in round %d", round)
		}
	}
	s := startServer(t, k.dataDir, keepAllFlag)
	k.wantStored(t, s, crashes)
	all := k.wantAll(t, s)
	t.Logf("%d crashes, %d messages acknowledged of %d; %d torn entries, %d of them by the test; %d starts added entries",
		crashes, acked, all, k.files.broken, k.torn, added)
	s.terminate()
	s.wantStop(t)
}

// keepAllFlag is the flag that lets a conversation keep the maximal number of messages.
const keepAllFlag = "--max-messages=1000"

// killedLog is a log whose server is killed repeatedly.
type killedLog struct {
	dataDir    string
	generation int          // changes the ids of the conversations, see conversation
	number     atomic.Int64 // of the last message; makes each text unique

	mu           sync.Mutex
	acknowledged []sentMessage // since the last wantAcknowledged

	torn int // number of entries torn by tear

	// The entries read from the log.

	files          interactionFiles
	byConversation map[string][]interactionEntry // by conversation
	counts         map[sentMessage]int           // number of entries for a message
}

// sentMessage identifies a message by its conversation, role and content.
type sentMessage struct{ conversation, role, content string }

func newKilledLog(t *testing.T) *killedLog {
	t.Helper()
	k := &killedLog{dataDir: t.TempDir()}
	k.reset()
	return k
}

// reset forgets what was read, so that the files are read from their beginning.
func (k *killedLog) reset() {
	k.files = interactionFiles{dir: filepath.Join(k.dataDir, "interactions"), ends: make(map[string]int64)}
	k.byConversation, k.counts = make(map[string][]interactionEntry), make(map[sentMessage]int)
}

// conversation returns the id of one of the loggedConversations current conversations.
func (k *killedLog) conversation(number int) string {
	return fmt.Sprintf("c%d-%d", number%loggedConversations, k.generation)
}

// writeUntilKilled runs writers and others until the server is killed, which happens after enough
// acknowledgements and after ready returns.
func (k *killedLog) writeUntilKilled(t *testing.T, s *server, writers int, enough int64, ready func(),
	others ...func() error,
) {
	t.Helper()
	var group sync.WaitGroup
	var count atomic.Int64
	reached, over := make(chan struct{}), make(chan struct{})
	work := func(write func() error) {
		group.Go(func() {
			for {
				if err := write(); err != nil {
					if status.Code(err) != codes.Unavailable {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	for _, write := range others {
		work(write)
	}
	for writer := range writers {
		acknowledge := func(all ...sentMessage) {
			k.mu.Lock()
			k.acknowledged = append(k.acknowledged, all...)
			k.mu.Unlock()
			if count.Add(1) == enough {
				close(reached)
			}
		}
		id := k.conversation(writer)
		if writer < loggedChatters {
			work(func() error { return k.chat(t, s, id, acknowledge) })
		} else {
			work(func() error { return k.append(t, s, id, acknowledge) })
		}
	}
	go func() { group.Wait(); close(over) }()
	select {
	case <-reached:
		ready()
	case <-s.process.Ended():
		t.Error("the server ended before the kill")
	case <-over:
		t.Error("all writers ended before the kill")
	}
	s.kill()
	<-over
	s.conn.Close()
}

// text returns a unique text. Most are short.
func (k *killedLog) text() string {
	n := k.number.Add(1)
	length := n * 31 % 97
	if n%16 == 0 {
		length *= 20
	}
	return fmt.Sprint(n, strings.Repeat(" wörd", int(length)))
}

// append appends one to three messages.
func (k *killedLog) append(t *testing.T, s *server, id string, acknowledge func(...sentMessage)) error {
	t.Helper()
	var messages []*parleyv1.Message
	var all []sentMessage
	for range 1 + rand.IntN(3) {
		content, role := k.text(), parleyv1.Role_ROLE_USER
		if len(messages)%2 == 1 {
			role = parleyv1.Role_ROLE_ASSISTANT
		}
		messages = append(messages, &parleyv1.Message{Role: role, Content: content})
		all = append(all, sentMessage{id, roleName(role), content})
	}
	_, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: id, Messages: messages})
	if err == nil {
		acknowledge(all...)
	}
	return err
}

// chat completes a turn of the agent echo, whose answer is the question.
func (k *killedLog) chat(t *testing.T, s *server, id string, acknowledge func(...sentMessage)) error {
	t.Helper()
	content := k.text()
	stream, err := s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: id, Content: content})
	for err == nil {
		var response *parleyv1.ChatResponse
		if response, err = stream.Recv(); err != nil {
			break
		}
		switch event := response.GetEvent(); {
		case event.GetStarted() != nil:
			acknowledge(sentMessage{id, "user", content})
		case event.GetFinished() != nil:
			if turn := event.GetFinished().GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
				t.Errorf("turn in %s = %v, want COMPLETED", id, turn)
			}
			acknowledge(sentMessage{id, "assistant", content})
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// read reads the entries written since the last call. Their order and numbers must be those of the
// conversations, without a gap.
func (k *killedLog) read(t *testing.T) {
	t.Helper()
	for _, line := range k.files.next(t) {
		id := line.ConversationID
		k.byConversation[id] = append(k.byConversation[id], line)
		k.counts[sentMessage{id, line.Role, line.Content}]++
		if n := len(k.byConversation[id]); int(line.Metadata.TurnNumber) != n || line.Tenant != "default" {
			t.Fatalf("entry %d of %s in the log = %.200v, want that turn number and tenant default", n, id, line)
		}
	}
}

// wantAcknowledged checks that the files contain each message that the killed server acknowledged
// exactly once, and returns the number of these messages.
func (k *killedLog) wantAcknowledged(t *testing.T) int {
	t.Helper()
	k.read(t)
	for _, a := range k.acknowledged {
		if n := k.counts[a]; n != 1 {
			t.Errorf("acknowledged message is %d times in the log, want once: %.80v", n, a)
		}
	}
	n := len(k.acknowledged)
	k.acknowledged = nil
	return n
}

// tear appends half an entry to the log, as a crash during a write does. A kill rarely does that: the
// system completes most writes.
func (k *killedLog) tear(t *testing.T) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(k.files.dir, "*.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("log files = %q, %v; want some", paths, err)
	}
	file, err := os.OpenFile(slices.Max(paths), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = file.WriteString(`{"timestamp":"2026-11-20T09:30:00.123456Z","session_id":"c1-1","tenant":"def`)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	k.torn++
}

// wantStored compares the log with the messages that the store retains of the current conversations. It
// also checks that each of the crashes so far has torn at most one entry.
func (k *killedLog) wantStored(t *testing.T, s *server, crashes int) {
	t.Helper()
	k.read(t)
	if k.files.broken > crashes {
		t.Errorf("%d crashes tore %d entries, want at most one each", crashes, k.files.broken)
	}
	for c := range loggedConversations {
		if id := k.conversation(c); len(k.byConversation[id]) > 0 {
			k.wantSame(t, id, history(t, s, id).GetMessages())
		}
	}
}

// wantAll reads all files again, compares them with the complete store, and returns the number of
// messages.
func (k *killedLog) wantAll(t *testing.T, s *server) (messages int) {
	t.Helper()
	broken := k.files.broken
	k.reset()
	k.read(t)
	if k.files.broken != broken {
		t.Errorf("%d torn entries, want %d as before", k.files.broken, broken)
	}
	stored := export(t, s)
	for _, c := range stored {
		k.wantSame(t, c.GetConversation().GetId(), c.GetMessages())
		messages += len(c.GetMessages())
	}
	if len(stored) != len(k.byConversation) {
		t.Errorf("%d conversations in the store and %d in the log, want as many", len(stored), len(k.byConversation))
	}
	return messages
}

// wantSame checks that the log has exactly these messages of a conversation.
func (k *killedLog) wantSame(t *testing.T, id string, messages []*parleyv1.Message) {
	t.Helper()
	var want []interactionEntry
	for _, m := range messages {
		line := interactionEntry{
			Timestamp:      m.GetCreateTime().AsTime().Truncate(time.Microsecond),
			ConversationID: id, Tenant: "default", Role: roleName(m.GetRole()), Content: m.GetContent(),
		}
		line.Metadata.TurnNumber = m.GetSequence()
		want = append(want, line)
	}
	if d := cmp.Diff(want, k.byConversation[id]); d != "" {
		t.Errorf("conversation %s in the store (-) and in the log (+):\n%s", id, d)
	}
}

// killAtStart kills a server when it has opened its store.
func killAtStart(t *testing.T, dataDir string, flags ...string) {
	t.Helper()
	s := startUnconnected(t, parleyd(t, append([]string{"--data-dir=" + dataDir}, flags...)...))
	s.await(t, "store opened")
	s.kill()
}
