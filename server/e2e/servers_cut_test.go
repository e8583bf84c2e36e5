package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// cutWriters write through all servers until stopped is set.
type cutWriters struct {
	t       *testing.T
	servers []*server
	ids     []string
	stopped atomic.Bool
	writes  atomic.Int32
	running sync.WaitGroup
}

// TestServersSubscriptionsCut: while servers write, the engine ends the connections on which they receive one another's
// changes. Each watch at a server that has missed changes receives a GAP, and has the state of a list at the end.
// Waiting summaries also end.
func TestServersSubscriptionsCut(t *testing.T) {
	t.Parallel()
	const writers, cuts, writesBetween = 8, 8, 30
	engine := redistest.Start(t)
	servers := startServersWith(t, engine, 3, agents(t, testAgents), "--max-messages=10000")
	w := &cutWriters{t: t, servers: servers, ids: []string{"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"}}
	readers := startReaders(t, servers, w.ids)
	ctx := timeLimited(t)
	t.Cleanup(w.stop)
	for i := range writers {
		w.running.Go(func() { w.write(ctx, rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	for n := 0; n < cuts || !haveGaps(readers.replicas); n++ {
		w.await(ctx, w.writes.Load()+writesBetween)
		cutSubscriptions(t, engine)
	}
	w.stop()
	// No change follows the last messages, so servers that miss them notice this only at the next subscription.
	sendCommand(t, engine, "ACL", "SETUSER", "default", "-ssubscribe")
	cutSubscriptions(t, engine)
	readers.writeLast()
	sendCommand(t, engine, "ACL", "SETUSER", "default", "+ssubscribe")
	readers.end()
}

// haveGaps reports whether each watch has received a GAP.
func haveGaps(replicas []*replica) bool {
	for _, r := range replicas {
		if r.gaps.Load() == 0 {
			return false
		}
	}
	return true
}

// cutSubscriptions ends the connections on which the servers receive changes.
func cutSubscriptions(t *testing.T, engine *redistest.Server) {
	t.Helper()
	sendCommand(t, engine, "CLIENT", "KILL", "TYPE", "pubsub")
}

// sendCommand sends a command to the engine.
func sendCommand(t *testing.T, engine *redistest.Server, args ...string) {
	t.Helper()
	if _, err := engine.Do(args...); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

func (w *cutWriters) stop() {
	w.stopped.Store(true)
	w.running.Wait()
}

// await waits for the given number of writes.
func (w *cutWriters) await(ctx context.Context, writes int32) {
	w.t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for w.writes.Load() < writes {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			w.t.Fatalf("%d writes, want %d", w.writes.Load(), writes)
		}
	}
}

// write sends requests, each to any server, until it is answered.
func (w *cutWriters) write(ctx context.Context, random *rand.Rand) {
	for !w.stopped.Load() {
		s, id := w.servers[random.IntN(len(w.servers))], w.ids[random.IntN(len(w.ids))]
		content, kind, deleted := fmt.Sprint("write ", w.writes.Add(1)), random.IntN(8), random.IntN(2) == 0
		err := answered(func() error {
			switch kind {
			case 0:
				return follow(streamOf(s.Chat(ctx, &parleyv1.ChatRequest{
					ConversationId: id, Content: content, OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE, RequestId: content,
				}))).err
			case 1:
				return w.createAndDelete(ctx, s, content, deleted)
			default:
				return appendTo(ctx, s, id, content)
			}
		})
		if err != nil {
			w.t.Errorf("%s in %s: %v", content, id, err)
			return
		}
	}
}

// answered sends a request again, with the same request_id, while the store does not know whether it was made.
func answered(request func() error) error {
	for {
		if err := request(); status.Code(err) != codes.Unavailable {
			return err
		}
	}
}

// createAndDelete writes to a new conversation, changes its header, and may delete it.
func (w *cutWriters) createAndDelete(ctx context.Context, s *server, content string, deleted bool) error {
	reply, err := s.CreateConversation(ctx, &parleyv1.CreateConversationRequest{RequestId: content})
	if err != nil {
		return err
	}
	id := reply.GetConversation().GetId()
	if err := appendTo(ctx, w.servers[0], id, content); err != nil {
		return err
	}
	if _, err := w.servers[1].UpdateConversation(ctx, &parleyv1.UpdateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: id, Title: content},
	}); err != nil || !deleted {
		return err
	}
	_, err = w.servers[2].DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{ConversationId: id})
	return err
}

func appendTo(ctx context.Context, s *server, id, content string) error {
	_, err := s.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
		RequestId: content,
	})
	return err
}
