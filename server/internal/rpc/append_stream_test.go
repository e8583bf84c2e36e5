package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/rpc/pipeline"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

// appendClient is the client's end of an AppendStream call.
type appendClient = grpc.BidiStreamingClient[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]

// openAppends starts an AppendStream call and sends requests, which must be few.
func (f *fixture) openAppends(
	t *testing.T, ctx context.Context, requests ...*parleyv1.AppendMessagesRequest,
) appendClient {
	t.Helper()
	stream, err := f.AppendStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if err := stream.Send(&parleyv1.AppendStreamRequest{Append: r}); err != nil {
			t.Fatal(err)
		}
	}
	return stream
}

// receiveAppends receives all replies of a stream and the error that ended it.
func receiveAppends(stream appendClient) (replies []*parleyv1.AppendStreamResponse, err error) {
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return replies, nil
		case err != nil:
			return replies, err
		}
		replies = append(replies, reply)
	}
}

// wantNoMemory fails the test if the memory of a request was not released.
func (f *fixture) wantNoMemory(t *testing.T) {
	t.Helper()
	if !f.server.requests.memory.TryAcquire(maxDecodedBytes) {
		t.Fatal("memory of requests was not released")
	}
	f.server.requests.memory.Release(maxDecodedBytes)
}

// appendOf returns a request with one message.
func appendOf(conversation, content string) *parleyv1.AppendMessagesRequest {
	return &parleyv1.AppendMessagesRequest{ConversationId: conversation, Messages: []*parleyv1.Message{user(content)}}
}

// TestAppendStreamIsAppendMessages sends requests over a stream to one server and as calls of AppendMessages to
// another. Responses, errors and log entries are the same.
func TestAppendStreamIsAppendMessages(t *testing.T) {
	with := func(r *parleyv1.AppendMessagesRequest, change func(*parleyv1.AppendMessagesRequest)) *parleyv1.AppendMessagesRequest {
		change(r)
		return r
	}
	var requests []*parleyv1.AppendMessagesRequest
	for i, r := range []*parleyv1.AppendMessagesRequest{
		appendOf("a", "first"),
		appendOf("b", "first"),
		{ConversationId: "a"},
		appendOf("not an id", "x"),
		with(appendOf("c", "x"), func(r *parleyv1.AppendMessagesRequest) { r.MustExist = true }),
		appendOf("a", strings.Repeat("x", defaultMaxMessageBytes)),
		with(appendOf("a", "second"), func(r *parleyv1.AppendMessagesRequest) { r.IfVersion = proto.Int32(1) }),
		with(appendOf("a", "third"), func(r *parleyv1.AppendMessagesRequest) { r.IfVersion = proto.Int32(1) }),
		with(appendOf("a", "first"), func(r *parleyv1.AppendMessagesRequest) { r.RequestId = "r0" }),
		with(appendOf("a", "other"), func(r *parleyv1.AppendMessagesRequest) { r.RequestId = "r0" }),
		with(appendOf("a", "deep"), func(r *parleyv1.AppendMessagesRequest) {
			deep := structpb.NewNullValue()
			for range rules.MaxDepth {
				deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
			}
			r.Messages[0].StructuredData = []*parleyv1.StructuredData{{Type: "t", Value: deep}}
		}),
		with(appendOf("a", "forty"), func(r *parleyv1.AppendMessagesRequest) {
			r.Messages = slices.Repeat(r.GetMessages(), 40)
			for i := range r.GetMessages() {
				r.Messages[i] = user(strings.Repeat("x", 20<<10)) // Large together.
			}
		}),
		appendOf("a", "last"),
	} {
		if r.GetRequestId() == "" {
			r.RequestId = fmt.Sprint("r", i)
		}
		requests = append(requests, r)
	}
	change := func(s *setup) {
		onClock(newManualClock())(s)
		s.Calls = calllog.Settings{Calls: calllog.All}
	}
	streamed, called := open(t, change), open(t, change)
	stream := streamed.openAppends(t, t.Context(), requests...)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	replies, err := receiveAppends(stream)
	if err != nil || len(replies) != len(requests) {
		t.Fatalf("AppendStream of %d requests = %d responses, %v", len(requests), len(replies), err)
	}
	for i, r := range requests {
		reply, err := called.AppendMessages(t.Context(), r)
		want := &parleyv1.AppendStreamResponse{Result: &parleyv1.AppendStreamResponse_Response{Response: reply}}
		if err != nil {
			want.Result = &parleyv1.AppendStreamResponse_Error{Error: status.Convert(err).Proto()}
		}
		if diff := cmp.Diff(want, replies[i], protocmp.Transform(), ignoreUID()); diff != "" {
			t.Errorf("response %d (-AppendMessages +AppendStream):\n%s", i, diff)
		}
	}
	for i, r := range requests {
		entry := []string{"msg=call", "/AppendMessages", " request_id=" + r.GetRequestId() + "\n", "tenant="}
		if n, want := len(streamed.log.lines(entry...)), len(called.log.lines(entry...)); n != want {
			t.Errorf("request %d has %d log entries, want %d", i, n, want)
		}
	}
	streamed.wantNoMemory(t)

	stream = streamed.openAppends(t, t.Context(), nil)
	reply, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got := wantError(t, status.FromProto(reply.GetError()).Err(), codes.InvalidArgument, "INVALID_REQUEST")
	if !slices.Equal(got.fields, []string{"append"}) {
		t.Errorf("violations of a request without append = %q, want append", got.fields)
	}
}

// TestAppendStreamUnderWay holds the appends in the store before they are queued. The maximum number of requests is under
// way; those of one conversation reach the store one after the other.
func TestAppendStreamUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, hooks := openHooked(t)
		running := make(chan string, 2*pipeline.MaxUnderWay)
		release := make(chan struct{})
		hooks.appended = func(_ context.Context, a *store.Append) error {
			running <- a.ConversationID
			<-release
			return nil
		}
		const same, others = 3, pipeline.MaxUnderWay + 10
		stream := f.openAppends(t, t.Context())
		go func() {
			for i := range same + others {
				id := "same"
				if i >= same {
					id = fmt.Sprint("c", i)
				}
				_ = stream.Send(&parleyv1.AppendStreamRequest{Append: appendOf(id, fmt.Sprint(i))}) // Recv returns the error.
			}
			_ = stream.CloseSend()
		}()
		synctest.Wait()
		begun := map[string]int{}
		for range len(running) {
			begun[<-running]++
		}
		if want := pipeline.MaxUnderWay - same + 1; len(begun) != want || begun["same"] != 1 {
			t.Errorf("the store has appends of %d conversations, %d of the same one; want %d and 1",
				len(begun), begun["same"], want)
		}
		close(release)
		replies, err := receiveAppends(stream)
		if err != nil || len(replies) != same+others {
			t.Fatalf("AppendStream = %d responses, %v, want %d", len(replies), err, same+others)
		}
		for i, reply := range replies {
			sequence := reply.GetResponse().GetAppended()[0].GetSequence()
			if want := int32(min(i+1, same)); i < same && sequence != want || i >= same && sequence != 1 {
				t.Errorf("response %d has the sequence %d", i, sequence)
			}
		}
		f.wantNoMemory(t)
	})
}

// TestAppendStreamQueued holds the appends of one conversation in the store after they were queued. All reach the store,
// also after a refused one and after panics.
func TestAppendStreamQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, hooks := openHooked(t)
		var reached []string // Each append reaches the store after the one before was queued.
		release := make(chan struct{})
		var ended <-chan struct{}
		hooks.appended = func(ctx context.Context, a *store.Append) error {
			content := a.Messages[0].GetContent()
			if ended == nil {
				ended = ctx.Done()
			} else if ctx.Done() != ended { // See law 17: a client sends those again that were not applied.
				t.Errorf("the context of append %q does not end together with that of the one before", content)
			}
			reached = append(reached, content)
			switch content {
			case "panic":
				panic(content)
			case "panic later":
				defer panic(content)
			}
			a.Queued()
			<-release
			return nil
		}
		requests := []*parleyv1.AppendMessagesRequest{
			appendOf("a", "1"), appendOf("a", "panic"), appendOf("a", "2"), appendOf("a", ""), appendOf("a", "panic later"),
			appendOf("a", "3"),
		}
		requests[3].Messages = nil
		stream := f.openAppends(t, t.Context(), requests...)
		_ = stream.CloseSend() // Recv returns the error.
		synctest.Wait()
		if want := []string{"1", "panic", "2", "panic later", "3"}; !slices.Equal(reached, want) {
			t.Errorf("the store has the appends %q, want %q", reached, want)
		}
		close(release)
		replies, err := receiveAppends(stream)
		var got []string
		for _, reply := range replies {
			got = append(got, statusOf(status.FromProto(reply.GetError()).Err()).reason)
		}
		if want := []string{"", "INTERNAL", "", "INVALID_REQUEST", "INTERNAL", ""}; err != nil || !slices.Equal(got, want) {
			t.Errorf("AppendStream = %q, %v, want %q", got, err, want)
		}
		f.wantNoMemory(t)
	})
}

// TestAppendStreamEnds ends streams while an append is in the store and another waits for it.
func TestAppendStreamEnds(t *testing.T) {
	for _, c := range []struct {
		name      string
		end       func(f *fixture, cancel context.CancelFunc)
		code      codes.Code
		reason    string
		responses int
	}{
		{"a stop", func(f *fixture, _ context.CancelFunc) { f.server.Stop() }, codes.Unavailable, "SHUTTING_DOWN", 2},
		{"a cancellation", func(_ *fixture, cancel context.CancelFunc) { cancel() }, codes.Canceled, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, hooks := openHooked(t)
				ended := make(chan struct{})
				hooks.appended = func(ctx context.Context, _ *store.Append) error {
					select {
					case <-ended:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stream := f.openAppends(t, ctx, appendOf("a", "1"), appendOf("a", "2"))
				synctest.Wait()
				c.end(f, cancel)
				synctest.Wait()
				close(ended)
				replies, err := receiveAppends(stream)
				wantError(t, err, c.code, c.reason)
				if len(replies) != c.responses {
					t.Errorf("%d responses, want %d", len(replies), c.responses)
				}
				for _, reply := range replies {
					if reply.GetResponse() == nil {
						t.Errorf("response = %v, want an accepted append", reply)
					}
				}
				synctest.Wait()
				f.wantNoMemory(t)
			})
		})
	}
}

// TestAppendStreamLimits checks the limits that count each request.
func TestAppendStreamLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := appendOf("large", "")
		for range 90 {
			large.Messages = append(large.Messages, user(strings.Repeat("x", 4<<10)))
		}
		monitor := new(refusalLog)
		f := open(t, func(s *setup) {
			s.Limits = limit.New(limit.Config{Default: limit.Limits{RequestsPerSecond: 4}}, time.Now)
			s.Monitor = monitor
		})
		if err := f.server.requests.memory.Acquire(t.Context(), maxDecodedBytes); err != nil {
			t.Fatal(err)
		}
		// The call of AppendStream is a request, too.
		stream := f.openAppends(t, t.Context(), appendOf("a", "1"), large, appendOf("a", "2"), appendOf("a", "3"))
		start := time.Now()
		for i, want := range []string{"", "TOO_MANY_LARGE_REQUESTS", "", ""} {
			reply, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := statusOf(status.FromProto(reply.GetError()).Err()); got.reason != want {
				t.Errorf("response %d has the reason %q, want %q", i, got.reason, want)
			}
		}
		if waited := time.Since(start); waited != maxDecodeWait {
			t.Errorf("a large request waited %v, want %v", waited, maxDecodeWait)
		}
		for range 5 {
			if err := stream.Send(&parleyv1.AppendStreamRequest{Append: appendOf("a", "x")}); err != nil {
				t.Fatal(err)
			}
		}
		refused := 0
		for range 5 {
			reply, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got := statusOf(status.FromProto(reply.GetError()).Err()); got.reason == "TENANT_REQUESTS" && got.retry > 0 {
				refused++
			}
		}
		if refused == 0 || refused == 5 {
			t.Errorf("%d of 5 requests were over the rate", refused)
		}
		f.server.requests.memory.Release(maxDecodedBytes)
		monitor.want(t, slices.Concat([]string{auth.DefaultTenant + " TOO_MANY_LARGE_REQUESTS"},
			slices.Repeat([]string{auth.DefaultTenant + " TENANT_REQUESTS"}, refused))...)
	})
}
