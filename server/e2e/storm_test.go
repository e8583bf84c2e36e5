package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// stormWorkers is the number of concurrent callers, stormIDs that of their conversations.
const (
	stormWorkers = 24
	stormIDs     = 4
)

// stormAgents answer at once, in two parts with a pause, with an error, or with a tool call.
const stormAgents = `
agents:
  slow: {kind: command, command: [sh, -c, 'cat >/dev/null; printf "one "; sleep 0.3; printf two']}
  fail: {kind: command, command: [sh, -c, 'cat >/dev/null; printf "half "; exit 3']}
`

// TestStormReleasesResources: after random calls in every mode, with imports that overwrite,
// ephemeral watches and deletes, no conversation is busy and every id accepts a Chat. The
// server's goroutines and heap are back at the base. The calls last 5 s, or 60 s with PARLEY_LONG=1
// in the environment.
func TestStormReleasesResources(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	duration := 5 * time.Second
	if os.Getenv("PARLEY_LONG") != "" {
		duration = time.Minute
	}
	seed := rand.Uint64()
	t.Logf("seed = %d", seed)
	s := startServer(t, t.TempDir(), agents(t, stormAgents))
	w := &storm{t: t, seen: map[string]int{}, exports: map[string]*parleyv1.ExportConversationsResponse{}}
	w.awaitIdle(s)
	base := s.usage(t, 1)
	w.run(s, seed, duration)
	w.awaitIdle(s)
	for _, call := range slices.Sorted(maps.Keys(w.seen)) {
		t.Logf("%6d %s", w.seen[call], call)
	}
	// The server notices closed connections soon after.
	after := s.usage(t, 2)
	for n := 3; after.goroutines > base.goroutines && n < 100; n++ {
		after = s.usage(t, n)
	}
	t.Logf("base %+v, after %+v", base, after)
	if after.goroutines > base.goroutines {
		t.Errorf("goroutines = %d, want at most the %d of the base; the log lists them", after.goroutines, base.goroutines)
		_ = s.process.Process.Signal(syscall.SIGQUIT)
	}
	// Events of ended turns and changes for watchers stay in memory for a while. Each has a limit.
	const retained = 32 << 20
	if after.heap > base.heap+retained {
		t.Errorf("heap = %d bytes, want at most %d of the base plus %d", after.heap, base.heap, retained)
	}
	s.terminate()
	s.wantStop(t)
	for _, line := range s.log.Entries() {
		if line["level"] == "ERROR" {
			t.Errorf("the server logged %v", line)
		}
	}
}

// storm is one run of random calls and its results.
type storm struct {
	t *testing.T

	mu      sync.Mutex
	seen    map[string]int                                   // calls by name, code and reason
	exports map[string]*parleyv1.ExportConversationsResponse // the last export by conversation id
}

// stormCaller is one worker: a connection and a random source.
type stormCaller struct {
	*storm
	*client.Client
	random *rand.Rand
}

// run lets all workers make calls for the duration.
func (w *storm) run(s *server, seed uint64, duration time.Duration) {
	over := time.Now().Add(duration)
	var group sync.WaitGroup
	for i := range stormWorkers {
		group.Go(func() {
			c, err := client.Dial(s.conn.Target())
			if err != nil {
				w.t.Error(err)
				return
			}
			defer c.Close()
			caller := &stormCaller{w, c, rand.New(rand.NewPCG(seed, uint64(i)))}
			for time.Now().Before(over) {
				ctx, cancel := context.WithTimeout(w.t.Context(), timeout)
				if id := caller.random.IntN(stormIDs); id == 0 {
					caller.race(ctx, fmt.Sprint("storm-", id))
				} else {
					caller.call(ctx, fmt.Sprint("storm-", id))
				}
				cancel()
			}
		})
	}
	group.Wait()
}

// record counts the result of a call. Some errors are never a valid result, whatever a caller does.
func (c *stormCaller) record(name string, err error) {
	if errors.Is(err, io.EOF) {
		err = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[strings.TrimSpace(fmt.Sprint(name, " ", status.Code(err), " ", client.Reason(err)))]++
	switch status.Code(err) {
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.DeadlineExceeded, codes.Unimplemented:
		c.t.Errorf("%s: %v", name, err)
	}
}

// call makes one random call, each kind as often as its weight.
func (c *stormCaller) call(ctx context.Context, id string) {
	kinds := []struct {
		weight int
		call   func(ctx context.Context, id string)
	}{
		{12, c.chat},
		{4, c.cancel},
		{4, c.resume},
		{2, c.watch},
		{2, c.ephemeral},
		{2, c.export},
		{6, c.overwrite},
		{1, c.remove},
		{4, c.change},
		{4, c.read},
	}
	n := 0
	for _, kind := range kinds {
		n += kind.weight
	}
	n = c.random.IntN(n)
	for _, kind := range kinds {
		if n -= kind.weight; n < 0 {
			kind.call(ctx, id)
			return
		}
	}
}

// race makes a call of the kinds that often race: a new turn and an import that overwrites.
func (c *stormCaller) race(ctx context.Context, id string) {
	switch c.random.IntN(8) {
	case 0:
		c.export(ctx, id)
	case 1, 2, 3:
		c.overwrite(ctx, id)
	default:
		for _, err := range c.Chat(ctx, &parleyv1.ChatRequest{ConversationId: id, Content: "one", Agent: "echo"}) {
			if err != nil {
				c.record("Chat", err)
				return
			}
		}
		c.record("Chat", nil)
	}
}

// oneIn returns true once in n times on average.
func (c *stormCaller) oneIn(n int) bool { return c.random.IntN(n) == 0 }

// disconnecting returns a context that is cancelled after a random time, like a client that disconnects. It
// has no deadline, because the server would receive the deadline and fail the call.
func (c *stormCaller) disconnecting(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	until, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(time.Duration(c.random.Int64N(int64(within))), cancel)
	return until, func() {
		timer.Stop()
		cancel()
	}
}

func (c *stormCaller) chat(ctx context.Context, id string) {
	r := &parleyv1.ChatRequest{
		ConversationId: id, Content: "one two three", Agent: []string{"", "echo", "echo", "slow", "fail"}[c.random.IntN(5)],
		OnBusy: parleyv1.OnBusy(c.random.IntN(4)), OnDisconnect: parleyv1.OnDisconnect(c.random.IntN(3)),
	}
	switch c.random.IntN(8) {
	case 0:
		r.AnswerPending, r.Content = true, ""
	case 1:
		r.Content, r.ToolResults = "", []*parleyv1.ToolResult{{CallId: "call-1", Content: "four"}}
	case 2:
		r.StructuredData = []*parleyv1.StructuredData{{Type: "list", Value: structpb.NewStringValue("x")}}
	}
	if c.oneIn(3) {
		r.RequestId = fmt.Sprint("r", c.random.IntN(40))
	}
	if c.oneIn(4) {
		version := int32(c.random.IntN(30))
		r.IfVersion = &version
	}
	until := ctx
	if c.oneIn(2) {
		var cancel context.CancelFunc
		until, cancel = c.disconnecting(ctx, 600*time.Millisecond)
		defer cancel()
	}
	last := int32(0)
	for event, err := range c.Chat(until, r) {
		if err != nil {
			if until.Err() == nil {
				c.record("Chat", err)
			}
			return
		}
		if event.GetIndex() <= last {
			c.t.Errorf("Chat: event %d came after event %d", event.GetIndex(), last)
		}
		last = event.GetIndex()
		if finished := event.GetFinished(); finished != nil {
			c.record("Chat "+finished.GetTurn().GetState().String(), nil)
		}
	}
}

// turn returns one of the conversation's four newest turns at random, or nil if there is none.
func (c *stormCaller) turn(ctx context.Context, id string) *parleyv1.Turn {
	reply, err := c.ListTurns(ctx, &parleyv1.ListTurnsRequest{ConversationId: id})
	c.record("ListTurns", err)
	if len(reply.GetTurns()) == 0 {
		return nil
	}
	return reply.GetTurns()[c.random.IntN(min(4, len(reply.GetTurns())))]
}

func (c *stormCaller) cancel(ctx context.Context, id string) {
	if turn := c.turn(ctx, id); turn != nil {
		_, err := c.CancelTurn(ctx, &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: turn.GetId()})
		c.record("CancelTurn", err)
	}
}

// resume reads a turn from its start. The text of the deltas must match the stored messages.
func (c *stormCaller) resume(ctx context.Context, id string) {
	turn := c.turn(ctx, id)
	if turn == nil {
		return
	}
	shown, stored := "", ""
	for event, err := range c.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{ConversationId: id, TurnId: turn.GetId()}) {
		if err != nil {
			c.record("ResumeTurn", err)
			return
		}
		shown += event.GetTextDelta().GetText()
		for _, m := range event.GetFinished().GetMessages() {
			stored += m.GetContent()
		}
	}
	c.record("ResumeTurn", nil)
	if stored != "" && stored != shown {
		c.t.Errorf("ResumeTurn(%s): deltas %q, messages %q, want them equal", turn.GetId(), shown, stored)
	}
}

func (c *stormCaller) watch(ctx context.Context, id string) {
	c.watches(ctx, &parleyv1.WatchConversationsRequest{ConversationIds: []string{id}, IncludeTurnEvents: c.oneIn(2)})
}

func (c *stormCaller) ephemeral(ctx context.Context, id string) {
	deleteAfter := durationpb.New(time.Duration(c.random.IntN(300)) * time.Millisecond)
	c.watches(ctx, &parleyv1.WatchConversationsRequest{ConversationIds: []string{id}, DeleteAfterDisconnect: deleteAfter})
}

func (c *stormCaller) watches(ctx context.Context, r *parleyv1.WatchConversationsRequest) {
	until, cancel := c.disconnecting(ctx, 400*time.Millisecond)
	defer cancel()
	for _, err := range c.WatchConversations(until, r) {
		if err != nil {
			if until.Err() == nil {
				c.record("WatchConversations", err)
			}
			return
		}
	}
}

// export stores a conversation for a later import.
func (c *stormCaller) export(ctx context.Context, id string) {
	stream, err := c.ExportConversations(ctx, &parleyv1.ExportConversationsRequest{ConversationIds: []string{id}})
	var exported *parleyv1.ExportConversationsResponse
	if err == nil {
		exported, err = stream.Recv()
	}
	c.record("ExportConversations", err)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exports[id] = exported
}

func (c *stormCaller) overwrite(ctx context.Context, id string) {
	c.mu.Lock()
	exported := c.exports[id]
	c.mu.Unlock()
	if exported == nil {
		return
	}
	stream, err := c.ImportConversations(ctx)
	if err == nil {
		err = stream.Send(&parleyv1.ImportConversationsRequest{
			Conversation: exported.GetConversation(), Messages: exported.GetMessages(), Overwrite: true,
		})
	}
	if err == nil {
		_, err = stream.CloseAndRecv()
	}
	c.record("ImportConversations", err)
}

func (c *stormCaller) remove(ctx context.Context, id string) {
	if c.oneIn(4) {
		_, err := c.PurgeConversations(ctx, &parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(time.Second)})
		c.record("PurgeConversations", err)
		return
	}
	_, err := c.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{ConversationId: id})
	c.record("DeleteConversation", err)
}

func (c *stormCaller) change(ctx context.Context, id string) {
	switch c.random.IntN(4) {
	case 0:
		_, err := c.ClearConversation(ctx, &parleyv1.ClearConversationRequest{ConversationId: id})
		c.record("ClearConversation", err)
	case 1:
		_, err := c.UpdateConversation(ctx, &parleyv1.UpdateConversationRequest{
			Conversation: &parleyv1.Conversation{Id: id, Title: fmt.Sprint(c.random.Int())},
		})
		c.record("UpdateConversation", err)
	case 2:
		// Add a call without a result, for the Chat with tool_results.
		m := &parleyv1.Message{
			Role: parleyv1.Role_ROLE_ASSISTANT, ToolCalls: []*parleyv1.ToolCall{{Id: "call-1", Name: "add"}},
		}
		_, err := c.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{m}})
		c.record("AppendMessages", err)
	case 3:
		_, err := c.SetActiveAgent(ctx, &parleyv1.SetActiveAgentRequest{
			ConversationId: id, Agent: "slow", LeaseDuration: durationpb.New(time.Second),
		})
		c.record("SetActiveAgent", err)
	}
}

func (c *stormCaller) read(ctx context.Context, id string) {
	switch c.random.IntN(3) {
	case 0:
		_, err := c.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: id})
		c.record("LoadConversation", err)
	case 1:
		known := int32(c.random.IntN(20))
		_, err := c.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{
			ConversationId: id, KnownVersion: &known, WaitTimeout: durationpb.New(200 * time.Millisecond), AllowMissing: true,
		})
		c.record("GetRoutingSummary", err)
	case 2:
		_, err := c.ListConversations(ctx, &parleyv1.ListConversationsRequest{Order: parleyv1.ListOrder(c.random.IntN(3))})
		c.record("ListConversations", err)
	}
}
