package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// So many write at once, each one message after the other to any of so many conversations.
// All of it stays within what a server keeps for watchers.
const (
	watchedWriters       = 64
	watchedConversations = 16
	watchedMessages      = 100 // of each writer
	watchBreaks          = 50
)

// changes is a stream of a watch.
type changes struct {
	stream grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]
	cursor string // of the last one
}

func watchFrom(ctx context.Context, by parleyv1.ConversationServiceClient, cursor string, ids ...string) (*changes, error) {
	stream, err := by.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{ConversationIds: ids, Cursor: cursor})
	return &changes{stream, cursor}, err
}

// next takes the next change that is no heartbeat.
func (c *changes) next() (*parleyv1.ConversationChange, error) {
	for {
		response, err := c.stream.Recv()
		if err != nil {
			return nil, err
		}
		c.cursor = response.GetChange().GetCursor()
		if response.GetChange().GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
			return response.GetChange(), nil
		}
	}
}

// begin takes the first heartbeat, which says that nothing is missed from here on.
func (c *changes) begin(t *testing.T) {
	t.Helper()
	response, err := c.stream.Recv()
	if err != nil || response.GetChange().GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
		t.Fatalf("a watch begins with %v, %v", response, err)
	}
	c.cursor = response.GetChange().GetCursor()
}

// seenChanges is what a watcher of all conversations has seen, and what was wrong with it.
type seenChanges struct {
	lines     []string // of every change, in order
	sequences map[string]int32
	messages  map[string]int // how far each writer is
	faults    []string
}

func newSeenChanges() *seenChanges {
	return &seenChanges{sequences: make(map[string]int32), messages: make(map[string]int)}
}

// see takes note of a change. A message has the name of its writer, and its number.
func (s *seenChanges) see(c *parleyv1.ConversationChange) {
	id, m := c.GetConversationId(), c.GetMessage()
	s.lines = append(s.lines, fmt.Sprint(c.GetKind(), " ", id, " ", c.GetVersion(), " ", m.GetContent()))
	if c.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_CREATED && s.sequences[id] == 0 {
		return
	}
	writer, n, _ := strings.Cut(m.GetContent(), " ")
	s.sequences[id]++
	s.messages[writer]++
	// A writer waits for each reply, so that its messages are committed in this order,
	// whatever conversations they are in.
	if c.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED || m.GetSequence() != s.sequences[id] || n != fmt.Sprint(s.messages[writer]) {
		s.faults = append(s.faults, fmt.Sprintf("change %d is %v, want message %d of %s, or message %d of %s", len(s.lines), c, s.sequences[id], id, s.messages[writer], writer))
	}
}

// isWhole reports whether all messages of all writers were seen.
func (s *seenChanges) isWhole() bool {
	return len(s.lines) >= watchedConversations+watchedWriters*watchedMessages
}

func (s *seenChanges) check(t *testing.T, who string) {
	t.Helper()
	for _, fault := range s.faults[:min(len(s.faults), 10)] {
		t.Errorf("%s: %s", who, fault)
	}
	for i := range watchedWriters {
		if n := s.messages[fmt.Sprint("w", i)]; n != watchedMessages {
			t.Errorf("%s has seen %d messages of writer %d", who, n, i)
		}
	}
}

// TestWatcherUnderWriters: a watcher of all conversations sees every append once, in the
// order of commit, however often its stream is broken.
func TestWatcherUnderWriters(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--max-messages=1000")
	ctx := patient(t)
	steady, err := watchFrom(ctx, newWire(t, s), "")
	if err != nil {
		t.Fatal(err)
	}
	steady.begin(t)
	first := steady.cursor
	whole, broken := newSeenChanges(), newSeenChanges()
	var group sync.WaitGroup
	group.Go(func() {
		for !whole.isWhole() {
			change, err := steady.next()
			if err != nil {
				t.Errorf("after %d changes: %v", len(whole.lines), err)
				return
			}
			whole.see(change)
		}
	})
	breaks := 0
	group.Go(func() {
		for cursor := first; !broken.isWhole(); breaks++ {
			if cursor, err = broken.leg(ctx, t, s, cursor, breaks); err != nil {
				t.Errorf("leg %d, after %d changes: %v", breaks, len(broken.lines), err)
				return
			}
		}
	})
	for w := range watchedWriters {
		group.Go(func() {
			for n := range watchedMessages {
				message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprint("w", w, " ", n+1)}
				if _, err := s.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
					ConversationId: fmt.Sprint("c", rand.IntN(watchedConversations)), Messages: []*parleyv1.Message{message},
				}); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	group.Wait()
	whole.check(t, "the steady watcher")
	broken.check(t, "the watcher whose stream was broken")
	if !slices.Equal(whole.lines, broken.lines) {
		t.Errorf("the watchers have seen %d and %d changes in different orders", len(whole.lines), len(broken.lines))
	}
	if breaks < watchBreaks {
		t.Errorf("the stream was broken %d times", breaks)
	}
}

// leg goes on from a cursor until the stream breaks, by the client or by the network, and
// returns the cursor of the last change that came.
func (s *seenChanges) leg(ctx context.Context, t *testing.T, from *server, cursor string, number int) (string, error) {
	t.Helper()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	by := newWire(t, from)
	defer by.cut()
	watch, err := watchFrom(ctx, by, cursor)
	for left := rand.IntN(watchedWriters * watchedMessages / watchBreaks); err == nil && left >= 0 && !s.isWhole(); left-- {
		var change *parleyv1.ConversationChange
		if change, err = watch.next(); err == nil {
			s.see(change)
		}
	}
	if number%2 == 0 {
		leave() // Else the connection is cut.
	}
	return watch.cursor, err
}

// TestStalledWatcher: one that does not read holds nobody up. When it reads again it gets a
// GAP in the place of what is gone, and then what is committed.
func TestStalledWatcher(t *testing.T) {
	t.Parallel()
	const batches, batch = 150, 100 // More than the 10,000 changes that are kept.
	s := startServer(t, t.TempDir(), "--max-messages=1000")
	ctx := patient(t)
	stalled, err := watchFrom(ctx, lazyClient(t, s), "")
	if err != nil {
		t.Fatal(err)
	}
	stalled.begin(t)
	quiet, err := watchFrom(ctx, lazyClient(t, s), "", "quiet")
	if err != nil {
		t.Fatal(err)
	}
	quiet.begin(t)
	messages := make([]*parleyv1.Message, batch)
	for i := range messages {
		messages[i] = &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "hello"}
	}
	for range batches {
		add(t, s, "c", messages...)
	}
	count := int32(0)
	for {
		change, err := stalled.next()
		if err != nil {
			t.Fatalf("after %d messages: %v", count, err)
		}
		if change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_GAP {
			break
		}
		if change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED {
			count++
			if change.GetMessage().GetSequence() != count {
				t.Fatalf("message %d is %v", count, change)
			}
		}
	}
	if count == 0 || count > batches*batch/2 {
		t.Errorf("a GAP came after %d messages", count)
	}
	t.Logf("a GAP came after %d messages of %d", count, batches*batch)
	add(t, s, "c", &parleyv1.Message{Content: "after that"})
	if change, err := stalled.next(); err != nil || change.GetMessage().GetSequence() != batches*batch+1 {
		t.Errorf("after the GAP: %v, %v", change, err)
	}
	// Who watches a conversation in which nothing happens has missed nothing.
	add(t, s, "quiet", &parleyv1.Message{Content: "hello"})
	if change, err := quiet.next(); err != nil || change.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_CREATED {
		t.Errorf("in the quiet conversation: %v, %v", change, err)
	}
}

// TestStopWithStalledWatchers: a stop does not wait for clients that do not read, and tells
// the others.
func TestStopWithStalledWatchers(t *testing.T) {
	t.Parallel()
	const grace = 100 * time.Millisecond
	s := startServer(t, t.TempDir(), fmt.Sprint("--stop-grace=", grace), "--max-messages=1000")
	ctx := patient(t)
	watch := func(by parleyv1.ConversationServiceClient) *changes {
		c, err := watchFrom(ctx, by, "")
		if err != nil {
			t.Fatal(err)
		}
		c.begin(t)
		return c
	}
	var reading, stalled []*changes
	for range 5 {
		reading, stalled = append(reading, watch(s)), append(stalled, watch(lazyClient(t, s)))
	}
	ends := make([]error, len(reading))
	var group sync.WaitGroup
	for i, c := range reading {
		group.Go(func() {
			for ends[i] == nil {
				_, ends[i] = c.next()
			}
		})
	}
	content := strings.Repeat("hello ", 10_000)
	for range 20 { // More than a stream holds.
		add(t, s, "c", &parleyv1.Message{Content: content})
	}
	latest := time.Now().Add(grace + stopWithin)
	s.terminate()
	s.wantStop(t)
	if late := time.Since(latest); late > 0 {
		t.Errorf("the process ended %s too late", late)
	}
	group.Wait()
	for _, err := range ends {
		wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")
	}
	for _, c := range stalled {
		_, err := c.next()
		for err == nil {
			_, err = c.next()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("one that did not read was told %v", err)
		}
	}
}
