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

// watchedWriters clients write at once, each watchedMessages messages in sequence to random ones of
// watchedConversations conversations. The server keeps that number of changes for watchers.
const (
	watchedWriters       = 32
	watchedConversations = 16
	watchedMessages      = 100 // of each writer
	watchBreaks          = 50
)

// changes is the stream of a watch.
type changes struct {
	stream grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]
	cursor string // cursor of the last change
}

func watchFrom(
	ctx context.Context, by parleyv1.ConversationServiceClient, cursor string, ids ...string,
) (*changes, error) {
	stream, err := by.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{ConversationIds: ids, Cursor: cursor})
	return &changes{stream, cursor}, err
}

// next returns the next change that is not a heartbeat.
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

// start receives the first heartbeat. The stream contains every change after it.
func (c *changes) start(t *testing.T) {
	t.Helper()
	response, err := c.stream.Recv()
	if err != nil || response.GetChange().GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
		t.Fatalf("first change of a watch = %v, %v; want HEARTBEAT", response, err)
	}
	c.cursor = response.GetChange().GetCursor()
}

// seenChanges records the changes that a watcher received, and those that were wrong.
type seenChanges struct {
	lines     []string // one line for each change, in order
	sequences map[string]int32
	messages  map[string]int // number of the last message of each writer
	faults    []string
}

func newSeenChanges() *seenChanges {
	return &seenChanges{sequences: make(map[string]int32), messages: make(map[string]int)}
}

// record records a change. The content of a message is the name of its writer and a number.
func (s *seenChanges) record(c *parleyv1.ConversationChange) {
	id, m := c.GetConversationId(), c.GetMessage()
	s.lines = append(s.lines, fmt.Sprint(c.GetKind(), " ", id, " ", c.GetVersion(), " ", m.GetContent()))
	if c.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_CREATED && s.sequences[id] == 0 {
		return
	}
	writer, n, _ := strings.Cut(m.GetContent(), " ")
	s.sequences[id]++
	s.messages[writer]++
	// A writer waits for each reply, so that its messages are committed in order, whatever their
	// conversations.
	if c.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED || m.GetSequence() != s.sequences[id] ||
		n != fmt.Sprint(s.messages[writer]) {
		s.faults = append(s.faults, fmt.Sprintf("change %d = %v, want message %d of %s, or message %d of %s", len(s.lines), c,
			s.sequences[id], id, s.messages[writer], writer))
	}
}

// isComplete reports whether all messages of all writers were received.
func (s *seenChanges) isComplete() bool {
	return len(s.lines) >= watchedConversations+watchedWriters*watchedMessages
}

func (s *seenChanges) check(t *testing.T, who string) {
	t.Helper()
	for _, fault := range s.faults[:min(len(s.faults), 10)] {
		t.Errorf("%s: %s", who, fault)
	}
	for i := range watchedWriters {
		if n := s.messages[fmt.Sprint("w", i)]; n != watchedMessages {
			t.Errorf("%s received %d messages of writer %d, want %d", who, n, i, watchedMessages)
		}
	}
}

// TestWatcherUnderWriters: a watcher of all conversations receives every append once, in the order of
// commits, however often its stream breaks.
func TestWatcherUnderWriters(t *testing.T) {
	t.Parallel()
	skipShort(t)
	s := startServer(t, t.TempDir(), "--max-messages=1000")
	ctx := timeLimited(t)
	steady, err := watchFrom(ctx, newSingleConn(t, s), "")
	if err != nil {
		t.Fatal(err)
	}
	steady.start(t)
	first := steady.cursor
	complete, broken := newSeenChanges(), newSeenChanges()
	var group sync.WaitGroup
	group.Go(func() {
		for !complete.isComplete() {
			change, err := steady.next()
			if err != nil {
				t.Errorf("watch after %d changes: %v", len(complete.lines), err)
				return
			}
			complete.record(change)
		}
	})
	breaks := 0
	group.Go(func() {
		for cursor := first; !broken.isComplete(); breaks++ {
			if cursor, err = broken.watchUntilBreak(ctx, t, s, cursor, breaks); err != nil {
				t.Errorf("watch %d after %d changes: %v", breaks, len(broken.lines), err)
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
	complete.check(t, "the steady watcher")
	broken.check(t, "the watcher whose stream was broken")
	if !slices.Equal(complete.lines, broken.lines) {
		t.Errorf("the watchers received %d and %d changes in different orders", len(complete.lines), len(broken.lines))
	}
	if breaks < watchBreaks {
		t.Errorf("the stream broke %d times, want at least %d", breaks, watchBreaks)
	}
}

// watchUntilBreak watches from a cursor until the client or the network breaks the stream, and returns the cursor of
// the last change received.
func (s *seenChanges) watchUntilBreak(
	ctx context.Context, t *testing.T, from *server, cursor string, number int,
) (string, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	by := newSingleConn(t, from)
	defer by.breakConn()
	watch, err := watchFrom(ctx, by, cursor)
	for left := rand.IntN(watchedWriters * watchedMessages / watchBreaks); err == nil && left >= 0 &&
		!s.isComplete(); left-- {
		var change *parleyv1.ConversationChange
		if change, err = watch.next(); err == nil {
			s.record(change)
		}
	}
	if number%2 == 0 {
		cancel() // Otherwise the deferred breakConn ends the stream.
	}
	return watch.cursor, err
}

// TestStalledWatcher: a watcher that does not read blocks no other client. When it reads again, it receives
// a GAP in place of the lost changes, and then the new ones.
func TestStalledWatcher(t *testing.T) {
	t.Parallel()
	skipShort(t)
	const batches, batch = 150, 100 // more than the 10,000 changes that the server keeps
	s := startServer(t, t.TempDir(), "--max-messages=1000")
	ctx := timeLimited(t)
	stalled, err := watchFrom(ctx, smallWindowClient(t, s), "")
	if err != nil {
		t.Fatal(err)
	}
	stalled.start(t)
	quiet, err := watchFrom(ctx, smallWindowClient(t, s), "", "quiet")
	if err != nil {
		t.Fatal(err)
	}
	quiet.start(t)
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
			t.Fatalf("watch after %d messages: %v", count, err)
		}
		if change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_GAP {
			break
		}
		if change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED {
			count++
			if change.GetMessage().GetSequence() != count {
				t.Fatalf("message %d = %v, want that sequence", count, change)
			}
		}
	}
	if count == 0 || count > batches*batch/2 {
		t.Errorf("GAP after %d messages, want it within the first half", count)
	}
	t.Logf("GAP after %d messages of %d", count, batches*batch)
	add(t, s, "c", &parleyv1.Message{Content: "after that"})
	if change, err := stalled.next(); err != nil || change.GetMessage().GetSequence() != batches*batch+1 {
		t.Errorf("change after the GAP = %v, %v; want the newest message", change, err)
	}
	// A watcher of a conversation without changes has no gap.
	add(t, s, "quiet", &parleyv1.Message{Content: "hello"})
	if change, err := quiet.next(); err != nil || change.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_CREATED {
		t.Errorf("change in the quiet conversation = %v, %v; want CREATED", change, err)
	}
}

// TestStopWithStalledWatchers: a stop does not wait for watchers that do not read. The others receive
// SHUTTING_DOWN.
func TestStopWithStalledWatchers(t *testing.T) {
	t.Parallel()
	const grace = 100 * time.Millisecond
	s := startServer(t, t.TempDir(), fmt.Sprint("--stop-grace=", grace), "--max-messages=1000")
	ctx := timeLimited(t)
	watch := func(by parleyv1.ConversationServiceClient) *changes {
		c, err := watchFrom(ctx, by, "")
		if err != nil {
			t.Fatal(err)
		}
		c.start(t)
		return c
	}
	var reading, stalled []*changes
	for range 5 {
		reading, stalled = append(reading, watch(s)), append(stalled, watch(smallWindowClient(t, s)))
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
	for range 20 { // more than the buffers of a stream
		add(t, s, "c", &parleyv1.Message{Content: content})
	}
	latest := time.Now().Add(grace + stopWithin)
	s.terminate()
	s.wantStop(t)
	if late := time.Since(latest); late > 0 {
		t.Errorf("the process ended %s after the latest time", late)
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
			t.Errorf("stream of a watcher that did not read = %v, want UNAVAILABLE", err)
		}
	}
}
