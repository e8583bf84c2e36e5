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

// logFake is a server with an interaction log of one file, and a watch.
type logFake struct {
	parleyv1.UnimplementedConversationServiceServer
	parleyv1.UnimplementedInteractionLogServiceServer

	changes chan *parleyv1.ConversationChange // for the watcher

	mu     sync.Mutex
	file   []*parleyv1.Interaction
	lists  int   // calls of ListInteractions
	broken error // of so many of the next of them
	breaks int
	// between happens ahead of the first list of a conversation.
	between func()
	erased  []string
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

// say adds a line, so many seconds after noon, and returns what a watcher is told of it.
func (f *logFake) say(id string, turn int, seconds float64, content string) *parleyv1.ConversationChange {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := timestamppb.New(noon().Add(time.Duration(seconds * float64(time.Second))))
	f.file = append(f.file, &parleyv1.Interaction{
		Timestamp: at, ConversationId: id, Agent: "User", Role: parleyv1.Role_ROLE_USER, Content: content,
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"turn_number": structpb.NewNumberValue(float64(turn))}},
	})
	change := appended(&parleyv1.Message{Sequence: int32(turn), CreateTime: at})
	change.ConversationId = id
	return change
}

// breakNext has the next lists fail.
func (f *logFake) breakNext(breaks int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken, f.breaks = err, breaks
}

func (f *logFake) listCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// ListInteractions lists the file, from its end unless it is for a conversation alone. Spans
// hold all lines, and tell by skipped_count how long they are.
func (f *logFake) ListInteractions(_ context.Context, request *parleyv1.ListInteractionsRequest) (*parleyv1.ListInteractionsResponse, error) {
	if f.between != nil && request.GetSpan() == nil {
		f.between()
		f.between = nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	if f.breaks > 0 {
		f.breaks--
		return nil, f.broken
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
		if at < 0 || at >= len(f.file) {
			return reply, nil
		}
		if len(reply.GetInteractions()) == int(request.GetPageSize()) {
			if reply.NextPageToken = fmt.Sprint(at); request.GetSpan() != nil {
				reply.NextPageToken = fmt.Sprint(at + 1)
			}
			return reply, nil
		}
		if id := request.GetConversationId(); id == "" || id == f.file[at].GetConversationId() {
			reply.Interactions = append(reply.Interactions, f.file[at])
		}
		if request.GetSpan() == nil {
			at++
		}
	}
}

// SearchInteractions finds the whole file, of which one line is broken.
func (f *logFake) SearchInteractions(context.Context, *parleyv1.SearchInteractionsRequest) (*parleyv1.SearchInteractionsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &parleyv1.SearchInteractionsResponse{Interactions: f.file, SkippedCount: 1}, nil
}

// DeleteInteractions remembers what was to be erased.
func (f *logFake) DeleteInteractions(_ context.Context, request *parleyv1.DeleteInteractionsRequest) (*parleyv1.DeleteInteractionsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.erased = append(f.erased, request.GetConversationId())
	return &parleyv1.DeleteInteractionsResponse{DeletedCount: 1}, nil
}

// WatchConversations sends the changes.
func (f *logFake) WatchConversations(_ *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
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

// said are the contents of the lines on the screen.
func (s *terminal) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var contents []string
	for line := range strings.Lines(s.screen.String()) {
		if _, content, found := strings.Cut(line, "user:"); found {
			_, content, _ = strings.Cut(content, " ") // Behind the colour.
			contents = append(contents, strings.TrimSpace(content))
		}
	}
	return contents
}

// TestFollowLog: each line is shown once, in the order of the log, however a follower hears
// of it.
func TestFollowLog(t *testing.T) {
	const attempts = 5 // of gRPC for a call that fails with UNAVAILABLE
	f, address := serveLog(t)
	f.say("a", 1, 0, "too old")
	f.say("a", 2, 1, "old")
	last := f.say("b", 1, 2, "last")
	s := open(t.Context(), t, "--address", address, "log", "recent", "--follow", "--limit", "2")
	want := []string{"old", "last"}
	shows := func(content string) {
		t.Helper()
		want = append(want, content)
		s.expect(content)
	}
	f.changes <- heartbeat()
	s.expect("last")
	s.expect("there are older ones")

	// What is in the list is not shown again when the watch tells of it, or of nothing.
	f.changes <- last
	f.changes <- header(parleyv1.ChangeKind_CHANGE_KIND_UPDATED, nil)
	f.changes <- f.say("a", 3, 3, "first")
	shows("first")

	// One look may find several.
	one, two := f.say("a", 4, 4, "one"), f.say("b", 2, 4, "two")
	f.changes <- one
	shows("one")
	shows("two")
	f.changes <- two
	f.changes <- two

	// People write lines without a number, and of the same time.
	f.say("a", 0, 4, "by hand")
	f.say("a", 0, 4, "by hand too")
	f.changes <- heartbeat()
	shows("by hand")
	shows("by hand too")

	// A look that fails is made up for.
	f.breakNext(attempts, status.Error(codes.Unavailable, "closing"))
	f.changes <- f.say("a", 6, 5, "late")
	f.changes <- heartbeat()
	shows("late")
	f.say("a", 7, 6, "behind a gap")
	f.changes <- gap()
	shows("behind a gap")

	// More than a page at once; and one that stands among older ones.
	for i := range 250 {
		f.say("a", 8+i, 7, fmt.Sprintf("number %03d", i))
	}
	f.changes <- heartbeat()
	for i := range 250 {
		shows(fmt.Sprintf("number %03d", i))
	}
	moved := f.say("c", 1, 6.5, "in its place")
	f.mu.Lock()
	f.file = append(append(f.file[:len(f.file)-202:len(f.file)-202], f.file[len(f.file)-1]), f.file[len(f.file)-202:len(f.file)-1]...)
	f.mu.Unlock()
	f.changes <- moved
	shows("in its place")

	s.interrupt()
	s.expectEnd(0)
	if diff := cmp.Diff(want, s.said()); diff != "" {
		t.Errorf("the screen (-want +got):\n%s", diff)
	}
}

// TestOnlyNewsIsLookedFor: of a message that was met with another one nobody is asked.
func TestOnlyNewsIsLookedFor(t *testing.T) {
	server := new(logFake)
	known := server.say("a", 1, 0.123456789, "known")
	f := &logFollower{seen: map[lineKey]time.Time{keyOfLine(server.file[0]): noon()}}
	for _, test := range []struct {
		change *parleyv1.ConversationChange
		want   bool
	}{
		{known, false},
		{server.say("a", 2, 0.123456789, "another"), true},
		{server.say("b", 1, 0.123456789, "of another"), true},
		{server.say("a", 1, 1, "of another that had the name later"), true},
		{heartbeat(), true},
		{gap(), true},
		{header(parleyv1.ChangeKind_CHANGE_KIND_UPDATED, nil), false},
	} {
		if got := f.isNews(test.change); got != test.want {
			t.Errorf("%v: news %t", test.change, got)
		}
	}
}

// TestFollowSession shows a conversation from its beginning, and nothing of others.
func TestFollowSession(t *testing.T) {
	f, address := serveLog(t)
	f.say("a", 1, 0, "one")
	f.say("b", 1, 1, "other")
	var between *parleyv1.ConversationChange
	f.between = func() { between = f.say("a", 2, 2, "in between") }
	s := open(t.Context(), t, "--address", address, "log", "session", "a", "-f")
	f.changes <- heartbeat()
	s.expect("in between")
	f.changes <- between
	f.say("b", 2, 2, "another")
	f.changes <- f.say("a", 3, 3, "two")
	s.expect("two")
	f.breakNext(1, status.Error(codes.PermissionDenied, "not any more"))
	f.changes <- f.say("a", 4, 4, "three")
	s.expect("not any more")
	s.expectEnd(1)
	if diff := cmp.Diff([]string{"one", "in between", "two"}, s.said()); diff != "" {
		t.Errorf("the screen (-want +got):\n%s", diff)
	}
}

// TestFollowEnds: the time that it was given, or the server's refusal at its begin.
func TestFollowEnds(t *testing.T) {
	f, address := serveLog(t)
	f.breakNext(1, status.Error(codes.FailedPrecondition, "no log"))
	s := open(t.Context(), t, "--address", address, "log", "recent", "-f")
	f.changes <- heartbeat()
	s.expect("no log")
	s.expectEnd(1)
	limitless := watched(t, func(_ *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
		_, limited := stream.Context().Deadline()
		return status.Errorf(codes.Unauthenticated, "limited: %t", limited)
	})
	s = open(t.Context(), t, "--address", limitless, "log", "recent", "-f")
	s.expect("limited: false")
	s.expectEnd(1)
	refusing := watched(t, showing(status.Error(codes.DeadlineExceeded, "the time is up")))
	s = open(t.Context(), t, "--address", refusing, "log", "recent", "-f")
	s.expect("no reply from")
	s.expectEnd(1)
	s = open(t.Context(), t, "--address", address, "log", "recent", "-f", "--timeout", "1h")
	f.changes <- heartbeat()
	f.breakNext(1, status.Error(codes.DeadlineExceeded, "the time is up"))
	f.changes <- heartbeat()
	s.expectEnd(0)
}
