package rpc

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// withLimits sets the limits of all tenants.
func withLimits(l limit.Limits, clock *manualClock) func(*setup) {
	return func(s *setup) {
		onClock(clock)(s)
		s.Limits = limit.New(limit.Config{Default: l}, clock.Now)
		s.Hub = watch.New(watch.Options{MaxOf: func(string) int { return l.MaxWatchers }})
		s.storeOptions.Limits = func(string) store.Limits { return store.Limits{MaxBytes: int64(l.MaxBytes)} }
	}
}

// refusalLog is a monitor that records refusals.
type refusalLog struct {
	noMonitor

	mu      sync.Mutex
	refused []string // tenant and reason of each
}

// Refused records a refusal.
func (l *refusalLog) Refused(tenant, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = append(l.refused, tenant+" "+reason)
}

// want checks which refusals were reported.
func (l *refusalLog) want(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if diff := cmp.Diff(want, l.refused); diff != "" {
		t.Errorf("reported refusals (-want +got):\n%s", diff)
	}
}

// retryOf returns the delay of RetryInfo.
func retryOf(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			return retry.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// TestTenantRequests exceeds the rate of calls with calls of each kind.
func TestTenantRequests(t *testing.T) {
	clock := newManualClock()
	monitor := new(refusalLog)
	f := open(t, func(s *setup) {
		withLimits(limit.Limits{RequestsPerSecond: 2}, clock)(s)
		s.Monitor = monitor
	})
	f.append(t, "c1", user("1"))
	f.append(t, "c1", user("2"))
	for name, call := range map[string]func() error{
		"unary": func() error {
			_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c1"})
			return err
		},
		"stream": func() error {
			_, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "hello"})
			return err
		},
		"admin": func() error {
			_, err := f.admin.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
			return err
		},
		"invalid": func() error { // Limits come before validation.
			_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := call()
			wantError(t, err, codes.ResourceExhausted, "TENANT_REQUESTS")
			if retryOf(err) != time.Second/2 || !strings.Contains(err.Error(), "limit of 2 requests a second") {
				t.Errorf("error = %v with a delay of %v, want one of 0.5 s and the limit", err, retryOf(err))
			}
		})
	}
	monitor.want(t, slices.Repeat([]string{auth.DefaultTenant + " TENANT_REQUESTS"}, 4)...)
	clock.advance(time.Second / 2)
	if c := f.get(t, "c1"); c.GetMessageCount() != 2 {
		t.Errorf("the conversation has %d messages, want 2, because refused calls change nothing", c.GetMessageCount())
	}
}

// TestTenantAppendBytes exceeds the rate of bytes with each method that stores its request.
func TestTenantAppendBytes(t *testing.T) {
	clock := newManualClock()
	f := open(t, withLimits(limit.Limits{AppendBytesPerSecond: limit.MinAppendBurst}, clock))
	large := strings.Repeat("x", 200<<10)
	for range limit.MinAppendBurst / len(large) {
		f.append(t, "c1", user(large))
	}
	for name, call := range map[string]func() error{
		"AppendMessages": func() error {
			_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
				ConversationId: "c2", Messages: []*parleyv1.Message{user(large)},
			})
			return err
		},
		"Chat": func() error {
			_, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c2", Content: large})
			return err
		},
		"WriteRecords": func() error {
			_, err := f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{Writes: []*parleyv1.RecordWrite{put("a", large)}})
			return err
		},
		"CreateConversation": func() error {
			_, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
				Conversation: &parleyv1.Conversation{Id: "c2", SystemPrompt: large},
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := call()
			wantError(t, err, codes.ResourceExhausted, "TENANT_APPEND_BYTES")
			if d := retryOf(err); d <= 0 || d > time.Second {
				t.Errorf("delay of RetryInfo = %v, want the time until the rate allows the call", d)
			}
		})
	}
	f.get(t, "c1") // Reads are not limited.
	_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c2"})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	clock.advance(time.Second)
	f.append(t, "c2", user(large))
}

// TestTenantForkBytes checks that a fork counts with the size of the copy.
func TestTenantForkBytes(t *testing.T) {
	clock := newManualClock()
	f := open(t, withLimits(limit.Limits{AppendBytesPerSecond: limit.MinAppendBurst}, clock))
	large := strings.Repeat("x", 200<<10)
	const copied = 12 * 200 << 10
	for range copied / len(large) {
		f.append(t, "c1", user(large))
	}
	clock.advance(time.Second)
	fork := func(id string) error {
		_, err := f.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{
			ConversationId: "c1", NewConversationId: id, RequestId: id,
		})
		return err
	}
	if err := fork("c2"); err != nil {
		t.Fatal(err)
	}
	refused := fork("c3")
	wantError(t, refused, codes.ResourceExhausted, "TENANT_APPEND_BYTES")
	want := time.Second * (2*copied - limit.MinAppendBurst) / limit.MinAppendBurst
	if d := retryOf(refused); d < want || d > want+10*time.Millisecond {
		t.Errorf("delay of RetryInfo = %v, want a little more than %v", d, want)
	}
	_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c3"})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if err := fork("c2"); err != nil {
		t.Errorf("a retry of the fork = %v, want the reply of the first call", err)
	}
	clock.advance(retryOf(refused))
	if err := fork("c3"); err != nil {
		t.Errorf("fork after the delay = %v", err)
	}
}

// TestTenantImportWaits imports more than the rate allows. The import takes the time that it needs.
func TestTenantImportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := limit.New(limit.Config{Default: limit.Limits{AppendBytesPerSecond: 1 << 20}}, time.Now)
		s := &meteredStream{
			ServerStream: receivedStream{ctx: t.Context()}, limits: limits, tenant: "acme", waits: true,
		}
		start := time.Now()
		for range 5 {
			if err := s.RecvMsg(&parleyv1.ImportConversationsRequest{
				Conversation: &parleyv1.Conversation{SystemPrompt: strings.Repeat("x", 2<<20)},
			}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < 6*time.Second || took > 7*time.Second {
			t.Errorf("10 MiB at 1 MiB a second with a burst of 4 MiB took %v, want 6 s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.ServerStream = receivedStream{ctx: ctx}
		if err := s.RecvMsg(&parleyv1.ImportConversationsRequest{
			Conversation: &parleyv1.Conversation{SystemPrompt: "x"},
		}); err == nil {
			t.Error("a cancelled stream waits")
		}
	})
}

// receivedStream is a stream whose messages have been received.
type receivedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s receivedStream) Context() context.Context { return s.ctx }
func (s receivedStream) RecvMsg(any) error        { return nil }

func TestTenantStreams(t *testing.T) {
	f := open(t, withLimits(limit.Limits{MaxStreams: 2}, newManualClock()))
	ctx, cancel := context.WithCancel(t.Context())
	first := f.watchFrom(ctx, t)
	f.watchFrom(t.Context(), t)
	_, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "hello"})
	wantError(t, err, codes.ResourceExhausted, "TENANT_STREAMS")
	f.append(t, "c1", user("unary calls are not streams"))
	cancel()
	for err = nil; err == nil; {
		_, err = first.Recv()
	}
	for { // The handler ends a moment after its client.
		if _, err = f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "hello"}); status.Code(err) != codes.ResourceExhausted {
			break
		}
	}
	if err != nil {
		t.Errorf("Chat after the end of a stream = %v", err)
	}
}

// watchFrom starts a watch and returns it after its first heartbeat.
func (f *fixture) watchFrom(
	ctx context.Context, t *testing.T,
) grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse] {
	t.Helper()
	stream, err := f.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestTenantWatchers(t *testing.T) {
	f := open(t, withLimits(limit.Limits{MaxWatchers: 1}, newManualClock()))
	f.append(t, "c1", user("1"))
	f.watchFrom(t.Context(), t)
	stream, err := f.WatchConversations(t.Context(), &parleyv1.WatchConversationsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	wantError(t, err, codes.ResourceExhausted, "TENANT_WATCHERS")
}

func TestTenantImports(t *testing.T) {
	f := open(t, withLimits(limit.Limits{MaxImports: 1}, newManualClock()))
	ended := make(chan error, 2)
	streams := make([]grpc.ClientStreamingClient[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse], 2)
	for i := range streams {
		var err error
		if streams[i], err = f.ImportConversations(t.Context()); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- streams[i].RecvMsg(new(parleyv1.ImportConversationsResponse)) }()
	}
	// Either may begin first: that one runs until its client ends it, and the other is refused.
	wantError(t, <-ended, codes.ResourceExhausted, "TENANT_IMPORTS")
	for _, stream := range streams {
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the other import = %v", err)
	}
}

func TestTenantBytes(t *testing.T) {
	f := open(t, withLimits(limit.Limits{MaxBytes: 4000}, newManualClock()))
	f.append(t, "c1", user("1"))
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c2", Messages: []*parleyv1.Message{user(strings.Repeat("x", 4000))},
	})
	wantError(t, err, codes.ResourceExhausted, "TENANT_BYTES")
	// The question fits, and the answer, which repeats it, does not. It is stored.
	question := strings.Repeat("x", 1500)
	if _, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c3", Content: question}); err != nil {
		t.Errorf("Chat whose answer exceeds the limit = %v", err)
	}
	if c := f.get(t, "c3"); c.GetMessageCount() != 2 || c.GetActiveTurnId() != "" {
		t.Errorf("conversation = %v, want the question and its answer", c)
	}
	_, err = f.chat(t, &parleyv1.ChatRequest{ConversationId: "c3", Content: question})
	wantError(t, err, codes.ResourceExhausted, "TENANT_BYTES")
}

// TestMethodsThatStore decides for each method whether it stores its requests, so that a new one is not forgotten.
func TestMethodsThatStore(t *testing.T) {
	want := map[string]bool{
		"CreateConversation": true, "AppendMessages": true, "UpdateConversation": true, "SetActiveAgent": true,
		"Chat": true, "ImportConversations": true,

		"AppendStream": false, // Each of its requests counts as one of AppendMessages.

		"GetConversation": false, "ListConversations": false, "LoadConversation": false, "DeleteConversation": false,
		"ClearConversation": false, "ForkConversation": false, "PurgeConversations": false, "ExportConversations": false,
		"ListMessages": false, "GetContext": false, "GetRoutingSummary": false, "BatchGetRoutingSummaries": false,
		"WatchConversations": false, "ResumeTurn": false, "GetTurn": false, "ListTurns": false, "CancelTurn": false,
		"ListAgents":       false,
		"ListInteractions": false, "SearchInteractions": false, "DeleteInteractions": false,
		"GetStats": false, "BackupStore": false,
	}
	for _, service := range []*grpc.ServiceDesc{
		&parleyv1.ConversationService_ServiceDesc, &parleyv1.InteractionLogService_ServiceDesc,
		&parleyv1.AdminService_ServiceDesc,
	} {
		var names []string
		for _, m := range service.Methods {
			names = append(names, m.MethodName)
		}
		for _, s := range service.Streams {
			names = append(names, s.StreamName)
		}
		for _, name := range names {
			stores, known := want[name]
			if got := storesRequests("/" + service.ServiceName + "/" + name); !known || got != stores {
				t.Errorf("storesRequests(%s) = %v, want %v, known %v", name, got, stores, known)
			}
		}
	}
}

// TestLargeRequestCounts checks that a request that the codec leaves encoded counts with its size.
func TestLargeRequestCounts(t *testing.T) {
	f := open(t, withLimits(limit.Limits{AppendBytesPerSecond: 1}, newManualClock()))
	messages := make([]*parleyv1.Message, 15)
	for i := range messages {
		messages[i] = user(strings.Repeat("x", 200<<10))
	}
	r := &parleyv1.AppendMessagesRequest{ConversationId: "c1", Messages: messages}
	f.append(t, "c1", messages...)
	_, err := f.AppendMessages(t.Context(), r)
	wantError(t, err, codes.ResourceExhausted, "TENANT_APPEND_BYTES")
	missing := time.Duration(2*proto.Size(r)-limit.MinAppendBurst) * time.Second
	if d := retryOf(err); d < missing-100*time.Second || d > missing+100*time.Second {
		t.Errorf("delay of RetryInfo = %v, want about %v", d, missing)
	}
}
