package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// reasonOf returns the reason of a status of the server, "" for other errors.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// followed is what a client has received of a turn.
type followed struct {
	turnID   string
	started  bool
	finished *parleyv1.TurnFinished
	err      error // nil at the end of the stream
}

// follow receives a stream until its end.
func follow(stream *eventStream) (f followed) {
	for {
		event, err := stream.next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				f.err = err
			}
			return f
		}
		f.turnID = event.GetTurnId()
		f.started = f.started || event.GetStarted() != nil
		if end := event.GetFinished(); end != nil {
			f.finished = end
		}
	}
}

// scattered are clients that call any of several servers.
type scattered struct {
	t       *testing.T
	servers []*server

	mu      sync.Mutex
	started map[string]map[string]string // turn ids by conversation and content
}

// TestServersScattered: clients send each request to two of three servers at once, with each on_busy, and resume and
// cancel turns at any. Each request starts one turn at most, whose message is stored once, and no call fails without a
// reason. Watches at each server give every change once and in order, and waiting summaries end with each change.
func TestServersScattered(t *testing.T) {
	t.Parallel()
	const clients, conversations, requests = 64, 8, 6
	m := &scattered{
		t: t, started: map[string]map[string]string{},
		servers: startServersWith(t, redistest.Start(t), 3, agents(t, testAgents), "--max-messages=10000"),
	}
	ids := make([]string, conversations)
	for i := range ids {
		ids[i] = fmt.Sprint("c", i)
	}
	readers := startReaders(t, m.servers, ids)
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for n := range requests {
				id := ids[random.IntN(conversations)]
				m.request(random, id, fmt.Sprint("request ", i, "/", n))
				if random.IntN(4) == 0 {
					m.cancel(random, id)
				}
				if random.IntN(4) == 0 {
					m.resume(random, id)
				}
			}
		})
	}
	running.Wait()
	for _, id := range ids {
		m.wantOnce(id)
	}
	readers.writeLast()
	readers.end()
}

func (m *scattered) any(random *rand.Rand) *server { return m.servers[random.IntN(len(m.servers))] }

// request sends a request to two servers at once.
func (m *scattered) request(random *rand.Rand, id, content string) {
	mode := parleyv1.OnBusy(random.IntN(4))
	ctx, cancel := context.WithTimeout(m.t.Context(), timeout)
	defer cancel()
	results := make([]followed, 2)
	var both sync.WaitGroup
	for i := range results {
		s := m.any(random)
		both.Go(func() {
			results[i] = follow(streamOf(s.Chat(ctx, &parleyv1.ChatRequest{
				ConversationId: id, Content: content, RequestId: content, OnBusy: mode,
			})))
		})
	}
	both.Wait()
	for _, f := range results {
		switch reason := reasonOf(f.err); {
		case f.err == nil && f.finished == nil:
			m.t.Errorf("%s: the stream ended without a finished event", content)
		case reason == "CONVERSATION_BUSY" && mode <= parleyv1.OnBusy_ON_BUSY_REJECT:
		case f.err != nil && reason != "QUEUE_FULL" && reason != "TOO_MANY_TURNS":
			m.t.Errorf("%s with %v: %v (%s)", content, mode, f.err, reason)
		}
		if f.started {
			m.record(id, content, f.turnID)
		}
	}
}

// record records that a request has started a turn.
func (m *scattered) record(id, content, turnID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started[id] == nil {
		m.started[id] = map[string]string{}
	}
	if other := m.started[id][content]; other != "" && other != turnID {
		m.t.Errorf("%s started two turns: %s and %s", content, other, turnID)
	}
	m.started[id][content] = turnID
}

// cancel cancels the running turn.
func (m *scattered) cancel(random *rand.Rand, id string) {
	header, err := m.any(random).GetConversation(m.t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
	if turn := header.GetConversation().GetActiveTurnId(); err == nil && turn != "" {
		_, err = m.any(random).CancelTurn(m.t.Context(), &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: turn})
	}
	if reason := reasonOf(err); err != nil && reason != "TURN_NOT_FOUND" && reason != "CONVERSATION_NOT_FOUND" {
		m.t.Errorf("cancel in %s: %v (%s)", id, err, reason)
	}
}

// resume follows the current turn.
func (m *scattered) resume(random *rand.Rand, id string) {
	ctx, cancel := context.WithTimeout(m.t.Context(), timeout)
	defer cancel()
	f := follow(streamOf(m.any(random).ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{ConversationId: id})))
	reason := reasonOf(f.err)
	if f.err == nil && f.finished == nil ||
		f.err != nil && reason != "TURN_NOT_FOUND" && reason != "CONVERSATION_NOT_FOUND" {
		m.t.Errorf("resume in %s: %v (%s)", id, f.err, reason)
	}
}

// wantOnce checks that a conversation has one message of each request that has started a turn, with its sequence.
func (m *scattered) wantOnce(id string) {
	if len(m.started[id]) == 0 {
		return
	}
	count := map[string]int{}
	for i, message := range history(m.t, m.servers[0], id).GetMessages() {
		if message.GetSequence() != int32(i+1) {
			m.t.Errorf("%s: message %d has sequence %d", id, i+1, message.GetSequence())
		}
		if message.GetRole() == parleyv1.Role_ROLE_USER {
			count[message.GetContent()]++
		}
	}
	for content := range m.started[id] {
		if count[content] != 1 {
			m.t.Errorf("%s: %s is stored %d times, want once", id, content, count[content])
		}
		delete(count, content)
	}
	if len(count) > 0 {
		m.t.Errorf("%s has messages of requests that started no turn: %v", id, count)
	}
}

// awaitSaved waits until so many running turns have a saved part of their answer.
func awaitSaved(t *testing.T, engine *redistest.Server, turns int) {
	t.Helper()
	ctx := timeLimited(t)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		saved, err := engine.Do("EVAL", "return #redis.call('KEYS', '*}p:*')", "0")
		if err != nil {
			t.Fatal(err)
		}
		if saved == fmt.Sprint(turns) {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("%s turns are saved, want %d", saved, turns)
		}
	}
}

// TestServersKilledWithManyTurns: 50 turns of a server that is killed end within 20 s, with what their agents had sent
// a second before, and ids that its clients held are released.
func TestServersKilledWithManyTurns(t *testing.T) {
	t.Parallel()
	const turns, within = 50, 20 * time.Second
	engine := redistest.Start(t)
	servers := startServers(t, engine, 2)
	readers := make([]*eventStream, turns)
	for i := range readers {
		id := fmt.Sprint("c", i)
		hold(t, servers[0], id)
		readers[i] = resume(t, servers[1], id, "", 0)
	}
	client := watchEphemeral(t, servers[0].conn.Target(), "ephemeral", time.Millisecond)
	ask(t, servers[0], "ephemeral", "hello")
	awaitSaved(t, engine, turns)
	killed := time.Now()
	if err := servers[0].process.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	client.disconnect()
	for i, reader := range readers {
		text, finished := untilFinished(t, reader)
		if state := finished.GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
			t.Errorf("turn %d = %v, want INTERRUPTED", i, finished.GetTurn())
		}
		if text != "half an " || contents(finished.GetMessages()) != "ASSISTANT half an \n" {
			t.Errorf("turn %d has the text %q and the messages %v, want the saved text", i, text, finished.GetMessages())
		}
	}
	if took := time.Since(killed); took > within {
		t.Errorf("the turns ended after %v, want at most %v", took, within)
	}
	awaitNone(t, servers[1], "ephemeral")
}
