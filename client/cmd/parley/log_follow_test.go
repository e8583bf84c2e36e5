package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// logFake is a server with an interaction log of one file, and with WatchConversations.
type logFake struct {
	parleyv1.UnimplementedConversationServiceServer
	parleyv1.UnimplementedInteractionLogServiceServer

	changes chan *parleyv1.ConversationChange // The changes that the watch sends.

	mu       sync.Mutex
	file     []*parleyv1.Interaction
	lists    int   // The number of calls of ListInteractions.
	failure  error // The error of the next calls of ListInteractions.
	failures int   // The number of calls that fail.
	// beforeList is called before the first list of a conversation.
	beforeList func()
	erased     []string
	// unreachable contains the servers that have not answered. If there are any, the replies omit the entries of the
	// conversation away.
	unreachable []string
	within      time.Duration // of the last list
}

func serveLog(t *testing.T) (f *logFake, address string) {
	t.Helper()
	f = &logFake{changes: make(chan *parleyv1.ConversationChange)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	parleyv1.RegisterConversationServiceServer(s, f)
	parleyv1.RegisterInteractionLogServiceServer(s, f)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(listener) })
	t.Cleanup(func() { s.Stop(); running.Wait() })
	return f, listener.Addr().String()
}

// append adds an entry at a time after noon, and returns the change that a watch reports for it.
func (f *logFake) append(id string, turn int, seconds float64, content string) *parleyv1.ConversationChange {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := timestamppb.New(noon().Add(time.Duration(seconds * float64(time.Second))))
	f.file = append(f.file, &parleyv1.Interaction{
		Timestamp: at, ConversationId: id, Agent: "User", Role: parleyv1.Role_ROLE_USER, Content: content,
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"turn_number": structpb.NewNumberValue(float64(turn))}},
	})
	change := messageChange(&parleyv1.Message{Sequence: int32(turn), CreateTime: at})
	change.ConversationId = id
	return change
}

// failNext makes the next calls of ListInteractions fail with err.
func (f *logFake) failNext(failures int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure, f.failures = err, failures
}

func (f *logFake) listCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// ListInteractions lists the file: from its end with a span, and from its beginning without one. A span always
// covers the whole file.
func (f *logFake) ListInteractions(
	_ context.Context, request *parleyv1.ListInteractionsRequest,
) (*parleyv1.ListInteractionsResponse, error) {
	if f.beforeList != nil && request.GetSpan() == nil {
		f.beforeList()
		f.beforeList = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	f.within = request.GetWithin().AsDuration()
	if f.failures > 0 {
		f.failures--
		return nil, f.failure
	}
	begin := 0
	if request.GetPageToken() != "" {
		if _, err := fmt.Sscan(request.GetPageToken(), &begin); err != nil {
			return nil, err
		}
	} else if request.GetSpan() != nil {
		begin = len(f.file)
	}
	reply := &parleyv1.ListInteractionsResponse{}
	for at := begin; ; {
		if request.GetSpan() != nil {
			at--
		}
		reply.Unreachable = f.unreachable
		if at < 0 || at >= len(f.file) {
			return reply, nil
		}
		if len(reply.GetInteractions()) == int(request.GetPageSize()) {
			if reply.NextPageToken = fmt.Sprint(at); request.GetSpan() != nil {
				reply.NextPageToken = fmt.Sprint(at + 1)
			}
			return reply, nil
		}
		isAway := len(f.unreachable) > 0 && f.file[at].GetConversationId() == "away"
		if id := request.GetConversationId(); !isAway && (id == "" || id == f.file[at].GetConversationId()) {
			reply.Interactions = append(reply.Interactions, f.file[at])
		}
		if request.GetSpan() == nil {
			at++
		}
	}
}

// SearchInteractions returns the whole file and reports one unreadable entry.
func (f *logFake) SearchInteractions(
	context.Context, *parleyv1.SearchInteractionsRequest,
) (*parleyv1.SearchInteractionsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &parleyv1.SearchInteractionsResponse{Interactions: f.file, SkippedCount: 1, Unreachable: f.unreachable}, nil
}

// DeleteInteractions records the conversation to erase.
func (f *logFake) DeleteInteractions(
	_ context.Context, request *parleyv1.DeleteInteractionsRequest,
) (*parleyv1.DeleteInteractionsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.erased = append(f.erased, request.GetConversationId())
	return &parleyv1.DeleteInteractionsResponse{DeletedCount: 1}, nil
}

// WatchConversations sends the changes.
func (f *logFake) WatchConversations(_ *parleyv1.WatchConversationsRequest,
	stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
) error {
	for {
		select {
		case change := <-f.changes:
			if err := stream.Send(&parleyv1.WatchConversationsResponse{Change: change}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// contents returns the contents of the entries on the screen.
func (s *terminal) contents() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var contents []string
	for line := range strings.Lines(s.screen.String()) {
		if _, content, found := strings.Cut(line, "user:"); found {
			_, content, _ = strings.Cut(content, " ") // The content follows the escape sequence of the colour.
			contents = append(contents, strings.TrimSpace(content))
		}
	}
	return contents
}

// TestFollowLog checks that each entry is printed once and in the order of the log, for each way in which the
// follower learns of it.
func TestFollowLog(t *testing.T) {
	const attempts = 5 // The attempts of gRPC for a call that fails with UNAVAILABLE.
	f, address := serveLog(t)
	f.append("a", 1, 0, "too old")
	f.append("a", 2, 1, "old")
	last := f.append("b", 1, 2, "last")
	s := openTerminal(t.Context(), t, "--address", address, "log", "recent", "--follow", "--limit", "2")
	want := []string{"old", "last"}
	expect := func(content string) {
		t.Helper()
		want = append(want, content)
		s.expect(content)
	}
	f.changes <- heartbeat()
	s.expect("last")
	s.expect("there are older messages")

	// Listed entries are not printed again when the watch reports them, or reports another change.
	f.changes <- last
	f.changes <- conversationChange(parleyv1.ChangeKind_CHANGE_KIND_UPDATED, nil)
	f.changes <- f.append("a", 3, 3, "first")
	expect("first")

	// One poll may return several new entries.
	one, two := f.append("a", 4, 4, "one"), f.append("b", 2, 4, "two")
	f.changes <- one
	expect("one")
	expect("two")
	f.changes <- two
	f.changes <- two

	// People may add entries without a turn number and with equal times.
	f.append("a", 0, 4, "by hand")
	f.append("a", 0, 4, "by hand too")
	f.changes <- heartbeat()
	expect("by hand")
	expect("by hand too")

	// The next poll returns the entries of a poll that failed.
	f.failNext(attempts, status.Error(codes.Unavailable, "closing"))
	f.changes <- f.append("a", 6, 5, "late")
	f.changes <- heartbeat()
	expect("late")
	f.append("a", 7, 6, "after a gap")
	f.changes <- gap()
	expect("after a gap")

	// More than a page of new entries at once; then an entry among older ones.
	for i := range 250 {
		f.append("a", 8+i, 7, fmt.Sprintf("number %03d", i))
	}
	f.changes <- heartbeat()
	for i := range 250 {
		expect(fmt.Sprintf("number %03d", i))
	}
	moved := f.append("c", 1, 6.5, "in its place")
	f.mu.Lock()
	f.file = append(append(f.file[:len(f.file)-202:len(f.file)-202], f.file[len(f.file)-1]),
		f.file[len(f.file)-202:len(f.file)-1]...)
	f.mu.Unlock()
	f.changes <- moved
	expect("in its place")

	s.interrupt()
	s.expectEnd(0)
	if diff := cmp.Diff(want, s.contents()); diff != "" {
		t.Errorf("entries on the screen (-want +got):\n%s", diff)
	}
}

// TestMayHaveNewEntries checks that a change of a known message causes no poll.
func TestMayHaveNewEntries(t *testing.T) {
	server := new(logFake)
	known := server.append("a", 1, 0.123456789, "known")
	f := &logFollower{seen: map[entryKey]time.Time{keyOfEntry(server.file[0]): noon()}}
	for _, test := range []struct {
		change *parleyv1.ConversationChange
		want   bool
	}{
		{known, false},
		{server.append("a", 2, 0.123456789, "another"), true},
		{server.append("b", 1, 0.123456789, "in another conversation"), true},
		{server.append("a", 1, 1, "of a later conversation with the same id"), true},
		{heartbeat(), true},
		{gap(), true},
		{conversationChange(parleyv1.ChangeKind_CHANGE_KIND_UPDATED, nil), false},
	} {
		if got := f.mayHaveNewEntries(test.change); got != test.want {
			t.Errorf("mayHaveNewEntries(%v) = %t, want %t", test.change, got, test.want)
		}
	}
}

// TestFollowSession follows one conversation from its beginning.
func TestFollowSession(t *testing.T) {
	f, address := serveLog(t)
	f.append("a", 1, 0, "one")
	f.append("b", 1, 1, "other")
	var inserted *parleyv1.ConversationChange
	f.beforeList = func() { inserted = f.append("a", 2, 2, "in between") }
	s := openTerminal(t.Context(), t, "--address", address, "log", "session", "a", "-f")
	f.changes <- heartbeat()
	s.expect("in between")
	f.changes <- inserted
	f.append("b", 2, 2, "another")
	f.changes <- f.append("a", 3, 3, "two")
	s.expect("two")
	f.failNext(1, status.Error(codes.PermissionDenied, "not any more"))
	f.changes <- f.append("a", 4, 4, "three")
	s.expect("not any more")
	s.expectEnd(1)
	if diff := cmp.Diff([]string{"one", "in between", "two"}, s.contents()); diff != "" {
		t.Errorf("entries on the screen (-want +got):\n%s", diff)
	}
}

// TestFollowEnds checks the end of --timeout and errors at the beginning.
func TestFollowEnds(t *testing.T) {
	f, address := serveLog(t)
	f.failNext(1, status.Error(codes.FailedPrecondition, "no log"))
	s := openTerminal(t.Context(), t, "--address", address, "log", "recent", "-f")
	f.changes <- heartbeat()
	s.expect("no log")
	s.expectEnd(1)
	limitless := serveWatch(t, func(_ *parleyv1.WatchConversationsRequest,
		stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
	) error {
		_, limited := stream.Context().Deadline()
		return status.Errorf(codes.Unauthenticated, "limited: %t", limited)
	})
	s = openTerminal(t.Context(), t, "--address", limitless, "log", "recent", "-f")
	s.expect("limited: false")
	s.expectEnd(1)
	refusing := serveWatch(t, sendChanges(status.Error(codes.DeadlineExceeded, "the time is up")))
	s = openTerminal(t.Context(), t, "--address", refusing, "log", "recent", "-f")
	s.expect("no reply from")
	s.expectEnd(1)
	f, address = serveLog(t) // The watch of the first terminal may not have ended, and would take the next change.
	s = openTerminal(t.Context(), t, "--address", address, "log", "recent", "-f", "--timeout", "1h")
	f.changes <- heartbeat()
	f.failNext(1, status.Error(codes.DeadlineExceeded, "the time is up"))
	go func() {
		select {
		case f.changes <- heartbeat():
		case <-t.Context().Done(): // The first heartbeat was enough to end it.
		}
	}()
	s.expectEnd(0)
}
