package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

const (
	rollingPieces = 10                    // of an answer
	rollingPause  = 20 * time.Millisecond // before each piece, and at least between two calls
	rollingGrace  = 5 * time.Second       // of the first server; longer than an answer, also on a busy machine
	longQuestion  = "long"                // is answered completely only if rollingAgent.answers is set
	rollingCalls  = 40                    // acknowledged between two restarts, at least
)

// rollingAgent answers with rollingPieces pieces. It answers longQuestion with one piece, unless answers is set.
type rollingAgent struct {
	parleyv1.UnimplementedAgentServiceServer

	answers atomic.Bool // also answer longQuestion completely
}

func (a *rollingAgent) Respond(
	r *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	question := r.GetMessages()[len(r.GetMessages())-1].GetContent()
	pieces := time.NewTicker(rollingPause)
	defer pieces.Stop()
	for i := range rollingPieces {
		select {
		case <-pieces.C:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if err := stream.Send(&parleyv1.RespondResponse{
			Piece: &parleyv1.RespondResponse_Text{Text: rollingPiece(question, i)},
		}); err != nil {
			return err
		}
		if question == longQuestion && !a.answers.Load() {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
	}
	return nil
}

func rollingPiece(question string, i int) string { return fmt.Sprintf("%s: piece %d. ", question, i) }

func rollingAnswer(question string) string {
	var b strings.Builder
	for i := range rollingPieces {
		b.WriteString(rollingPiece(question, i))
	}
	return b.String()
}

// start starts the agent, which ends with the test, and returns the flag for the servers.
func (a *rollingAgent) start(t *testing.T) (config string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(service, a)
	var serving sync.WaitGroup
	serving.Go(func() { _ = service.Serve(l) })
	t.Cleanup(func() {
		service.Stop()
		serving.Wait()
	})
	return agents(t, fmt.Sprintf("default_agent: paced\nagents:\n  paced: {kind: remote, address: %q}\n", l.Addr()))
}

// rolling is a load on several servers while each of them is restarted in turn. Each worker has its own conversation,
// and the first error of any call ends the test.
type rolling struct {
	*client.Client

	t        *testing.T
	stop     chan struct{}
	workers  sync.WaitGroup
	finished chan struct{} // receives a value for each call that has succeeded

	mu   sync.Mutex
	want map[string][]string // contents by conversation, acknowledged
}

// dialAll returns a Go client of several servers under one name.
func dialAll(t *testing.T, servers []*server, opts ...grpc.DialOption) *client.Client {
	t.Helper()
	var state resolver.State
	for _, s := range servers {
		addresses := []resolver.Address{{Addr: s.conn.Target()}}
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: addresses})
	}
	names := manual.NewBuilderWithScheme("names")
	names.InitialState(state)
	c, err := client.Dial("names:///parley", append([]grpc.DialOption{
		client.WithRoundRobin(), grpc.WithResolvers(names), grpc.WithTransportCredentials(insecure.NewCredentials()),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// work repeats a call in a conversation until the load stops. The call returns what it has added.
func (w *rolling) work(id string, call func(ctx context.Context, id, content string) ([]string, error)) {
	w.workers.Go(func() {
		pause := time.NewTicker(rollingPause)
		defer pause.Stop()
		for n := 0; ; n++ {
			select {
			case <-pause.C:
			case <-w.stop:
				return
			}
			content := fmt.Sprint(id, " ", n)
			added, err := call(w.t.Context(), id, content)
			if err != nil {
				w.t.Errorf("%s: %v (%s)", content, err, client.Reason(err))
				return
			}
			w.mu.Lock()
			if len(added) > 0 {
				w.want[id] = append(w.want[id], added...)
			}
			w.mu.Unlock()
			select {
			case w.finished <- struct{}{}:
			default:
			}
		}
	})
}

func (w *rolling) append(ctx context.Context, id, content string) ([]string, error) {
	_, err := w.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
	})
	return []string{content}, err
}

func (w *rolling) chat(ctx context.Context, id, content string) ([]string, error) {
	text, finished, err := w.ask(ctx, &parleyv1.ChatRequest{ConversationId: id, Content: content})
	if state := finished.GetTurn().GetState(); err == nil && state != parleyv1.TurnState_TURN_STATE_COMPLETED {
		err = fmt.Errorf("turn ended as %v", finished.GetTurn())
	}
	if want := rollingAnswer(content); err == nil && text != want {
		err = fmt.Errorf("the stream has the text %q, want %q", text, want)
	}
	return []string{content, rollingAnswer(content)}, err
}

// ask chats to the end of the turn.
func (w *rolling) ask(
	ctx context.Context, r *parleyv1.ChatRequest,
) (text string, finished *parleyv1.TurnFinished, err error) {
	for event, err := range w.Chat(ctx, r) {
		if err != nil {
			return text, nil, err
		}
		text += event.GetTextDelta().GetText()
		finished = event.GetFinished()
	}
	if finished == nil {
		err = errors.New("the stream ended without a finished event")
	}
	return text, finished, err
}

// read reads a conversation to which another worker appends. It must return all messages that were acknowledged before.
func (w *rolling) read(ctx context.Context, _, _ string) ([]string, error) {
	w.mu.Lock()
	want := len(w.want["append 0"])
	w.mu.Unlock()
	reply, err := w.ListMessages(ctx, &parleyv1.ListMessagesRequest{ConversationId: "append 0", PageSize: 1})
	if want == 0 {
		return nil, nil // It may not exist yet.
	}
	if got := int(reply.GetConversation().GetLastSequence()); err == nil && got < want {
		err = fmt.Errorf("last sequence = %d after %d acknowledged messages", got, want)
	}
	return nil, err
}

// wait waits for a change of a conversation that rarely changes. A stop ends such a call at once.
func (w *rolling) wait(ctx context.Context, _, _ string) ([]string, error) {
	now, err := w.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{ConversationId: "long"})
	if err != nil {
		return nil, err
	}
	version := now.GetSummary().GetVersion()
	_, err = w.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{
		ConversationId: "long", KnownVersion: &version, WaitTimeout: durationpb.New(time.Second),
	})
	return nil, err
}

// watch follows all changes until it has seen the last version of each conversation, and closes begun when it begins.
// After a GAP it lists the conversations. Otherwise it must miss no version.
func (w *rolling) watch(ctx context.Context, begun chan<- struct{}, last <-chan map[string]int32) error {
	begin := sync.OnceFunc(func() { close(begun) })
	seen, want := map[string]int32{}, map[string]int32(nil)
	for change, err := range w.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{}) {
		if err != nil {
			return fmt.Errorf("after %v: %w", seen, err)
		}
		switch id, version := change.GetConversationId(), change.GetVersion(); change.GetKind() {
		case parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT:
			begin() // All changes from now on are sent.
		case parleyv1.ChangeKind_CHANGE_KIND_GAP:
			if seen, err = w.versions(ctx); err != nil {
				return err
			}
		default:
			if version > seen[id]+1 {
				return fmt.Errorf("%s has a change of version %d after %d", id, version, seen[id])
			}
			seen[id] = max(seen[id], version)
		}
		if want == nil {
			select {
			case want = <-last:
			default:
				continue
			}
		}
		missing := false
		for id, version := range want {
			missing = missing || seen[id] < version
		}
		if !missing {
			return nil
		}
	}
	return errors.New("the watch ended")
}

// versions returns the versions of all conversations.
func (w *rolling) versions(ctx context.Context) (map[string]int32, error) {
	list, err := w.ListConversations(ctx, &parleyv1.ListConversationsRequest{PageSize: 1000})
	all := map[string]int32{}
	for _, entry := range list.GetConversations() {
		all[entry.GetConversation().GetId()] = entry.GetConversation().GetVersion()
	}
	return all, err
}

// awaitCalls waits until calls have succeeded since the last call of awaitCalls.
func (w *rolling) awaitCalls(n int) {
	w.t.Helper()
	ctx := timeLimited(w.t)
	for len(w.finished) > 0 {
		<-w.finished
	}
	for range n {
		select {
		case <-w.finished:
		case <-ctx.Done():
			w.t.Fatalf("fewer than %d calls have ended within %v", n, timeout)
		}
	}
}

// wantOnce checks that a conversation has all acknowledged messages, once and in order, and no others.
func (w *rolling) wantOnce(s *server, id string, want []string) {
	w.t.Helper()
	var messages []*parleyv1.Message
	for after := int32(0); ; after = messages[len(messages)-1].GetSequence() {
		page, err := s.ListMessages(w.t.Context(), &parleyv1.ListMessagesRequest{
			ConversationId: id, PageSize: 1000, Ascending: true, AfterSequence: after,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		messages = append(messages, page.GetMessages()...)
		if len(page.GetMessages()) == 0 {
			break
		}
	}
	if len(messages) != len(want) {
		w.t.Errorf("%s has %d messages, want %d", id, len(messages), len(want))
		return
	}
	for i, m := range messages {
		if m.GetContent() != want[i] || m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
			w.t.Errorf("%s: message %d = %v, want %q", id, i, m, want[i])
		}
	}
}

// TestServersRollingRestart: while each of three servers is stopped and started again in turn, no call of the Go client
// fails: each message and each answer is stored once, reads return all messages that were acknowledged before, and a
// watch misses no change. Only a turn that takes longer than the grace period is interrupted, and can be answered
// again.
func TestServersRollingRestart(t *testing.T) {
	t.Parallel()
	agent := &rollingAgent{}
	config, engine, keep := agent.start(t), redistest.Start(t), "--max-messages=100000"
	servers := append(startServersWith(t, engine, 1, config, keep, "--stop-grace="+rollingGrace.String()),
		startServersWith(t, engine, 2, config, keep)...)
	w := &rolling{
		Client: dialAll(t, servers), t: t, stop: make(chan struct{}), finished: make(chan struct{}, 1000),
		want: map[string][]string{},
	}
	last, begun, watched := make(chan map[string]int32, 1), make(chan struct{}), make(chan error, 1)
	go func() { watched <- w.watch(timeLimited(t), begun, last) }()
	select {
	case <-begun:
	case err := <-watched:
		t.Fatalf("WatchConversations = %v before the first change", err)
	}
	for i := range 4 {
		w.work(fmt.Sprint("append ", i), w.append)
		w.work(fmt.Sprint("chat ", i), w.chat)
	}
	w.work("read", w.read)
	appender := w.NewAppender(t.Context())
	w.work("appender", func(ctx context.Context, id, content string) ([]string, error) {
		_, err := appender.Append(ctx, &parleyv1.AppendMessagesRequest{
			ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
		}).Wait(ctx)
		return []string{content}, err
	})
	long := w.startLong(servers[0])
	for i := range 8 {
		w.work(fmt.Sprint("wait ", i), w.wait)
	}
	for i, s := range servers {
		w.awaitCalls(rollingCalls)
		s.terminate()
		s.wantStop(t)
		w.awaitCalls(rollingCalls)
		address := s.conn.Target()
		servers[i] = startServer(t, t.TempDir(), "--store=redis", "--redis-url="+engine.URL(), "--grpc-address="+address,
			"--advertise-address="+address, config, keep)
	}
	w.awaitCalls(rollingCalls)
	close(w.stop)
	w.workers.Wait()
	if err := appender.Close(); err != nil {
		t.Errorf("Close of the appender = %v, want nil", err)
	}
	if state := <-long; state != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
		t.Errorf("turn that outlasted the grace period ended as %v, want INTERRUPTED", state)
	}
	w.answerLong(agent)
	versions, err := w.versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last <- versions
	w.append(t.Context(), "end", "one more change for the watch") //nolint:errcheck // The watch fails without it.
	if err := <-watched; err != nil {
		t.Errorf("WatchConversations = %v, want the last versions %v", err, versions)
	}
	for id, want := range w.want {
		w.wantOnce(servers[0], id, want)
	}
}

// startLong starts a turn that takes longer than the grace period of its server, and returns when the first piece has
// arrived. The channel receives the state with which the turn ends.
func (w *rolling) startLong(s *server) <-chan parleyv1.TurnState {
	w.t.Helper()
	c := dialAll(w.t, []*server{s})
	begun, state := make(chan struct{}), make(chan parleyv1.TurnState, 1)
	w.workers.Go(func() {
		var finished *parleyv1.TurnFinished
		request := &parleyv1.ChatRequest{ConversationId: "long", Content: longQuestion}
		for event, err := range c.Chat(w.t.Context(), request) {
			if err != nil {
				w.t.Errorf("Chat at the server that stops = %v, want no error", err)
			}
			if event.GetTextDelta() != nil {
				close(begun)
			}
			finished = event.GetFinished()
		}
		state <- finished.GetTurn().GetState()
	})
	select {
	case <-begun:
	case <-timeLimited(w.t).Done():
		w.t.Fatal("the turn has not begun")
	}
	return state
}

// answerLong requests a new answer to the question whose turn was interrupted.
func (w *rolling) answerLong(agent *rollingAgent) {
	w.t.Helper()
	agent.answers.Store(true)
	text, finished, err := w.ask(w.t.Context(), &parleyv1.ChatRequest{ConversationId: "long", AnswerPending: true})
	if err != nil || text != rollingAnswer(longQuestion) {
		w.t.Errorf("Chat with answer_pending = %q, %v, %v, want the whole answer", text, finished.GetTurn(), err)
	}
}
