package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// lastContent is the content of the last message of a conversation that readers follow to its end.
const lastContent = "the last message"

// replica is the state of conversations that a client knows from a watch. After a GAP it reads them again. On a busy
// machine, a GAP needs no fault: a server waits 100 ms for a change that another one has made before its own.
type replica struct {
	name    string
	server  *server
	ids     []string // of the watch; none for all conversations
	changes *changes
	known   map[string]*replicated
	gaps    atomic.Int32
}

// replicated is the state of a conversation that a client knows.
type replicated struct {
	version  int32
	read     int32 // version that was read after a GAP: changes up to it are known
	messages []*parleyv1.Message
}

// startReplicas starts two watches at each server: one of all conversations, and one of some of them.
func startReplicas(t *testing.T, servers []*server, ids ...string) []*replica {
	t.Helper()
	var all []*replica
	for i, s := range servers {
		for _, watched := range [][]string{nil, ids} {
			c, err := watchFrom(timeLimited(t), s, "", watched...)
			if err != nil {
				t.Fatal(err)
			}
			c.start(t)
			all = append(all, &replica{
				name: fmt.Sprintf("watch of %v at server %d", watched, i), server: s, ids: watched, changes: c,
				known: map[string]*replicated{},
			})
		}
	}
	return all
}

// follow applies the changes until all these conversations that it watches have their last message.
func (r *replica) follow(ctx context.Context, ids []string) error {
	for !r.isOver(ids) {
		change, err := r.changes.next()
		if err == nil && change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_GAP {
			r.gaps.Add(1)
			err = r.readAgain(ctx)
		} else if err == nil {
			err = r.apply(change)
		}
		if err != nil {
			return fmt.Errorf("%s: change %v: %w", r.name, change, err)
		}
	}
	return nil
}

func (r *replica) watches(id string) bool { return len(r.ids) == 0 || slices.Contains(r.ids, id) }

func (r *replica) isOver(ids []string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool {
		c := r.known[id]
		return r.watches(id) && (c == nil || len(c.messages) == 0 ||
			c.messages[len(c.messages)-1].GetContent() != lastContent)
	})
}

// apply applies a change, which must be the next one of its conversation.
func (r *replica) apply(change *parleyv1.ConversationChange) error {
	id, version := change.GetConversationId(), change.GetVersion()
	c := r.known[id]
	switch {
	case !r.watches(id):
		return fmt.Errorf("want changes of %v", r.ids)
	case c != nil && version <= c.read:
		return nil
	case change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_CREATED:
		if c != nil {
			return fmt.Errorf("the conversation exists at version %d", c.version)
		}
		r.known[id] = &replicated{version: version}
		return nil
	case c == nil && r.gaps.Load() > 0: // It was deleted before it was read again.
		return nil
	case c == nil || version < c.version:
		return fmt.Errorf("the conversation is %+v", c)
	}
	c.version = version
	switch change.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
		if n := len(c.messages); change.GetMessage().GetSequence() != int32(n+1) {
			return fmt.Errorf("want message %d", n+1)
		}
		c.messages = append(c.messages, change.GetMessage())
	case parleyv1.ChangeKind_CHANGE_KIND_DELETED:
		delete(r.known, id)
	case parleyv1.ChangeKind_CHANGE_KIND_UPDATED:
	default:
		return fmt.Errorf("want no change of this kind")
	}
	return nil
}

// readAgain reads the watched conversations at the server of the watch.
func (r *replica) readAgain(ctx context.Context) (err error) {
	r.known, err = readReplica(ctx, r.server, r.watches)
	return err
}

// readReplica returns the state of conversations from a list and reads.
func readReplica(ctx context.Context, s *server, wanted func(id string) bool) (map[string]*replicated, error) {
	const pageSize = 1000
	known := map[string]*replicated{}
	list, err := s.ListConversations(ctx, &parleyv1.ListConversationsRequest{PageSize: pageSize})
	if err != nil {
		return nil, err
	}
	for _, entry := range list.GetConversations() {
		id := entry.GetConversation().GetId()
		if !wanted(id) {
			continue
		}
		reply, err := s.ListMessages(ctx, &parleyv1.ListMessagesRequest{
			ConversationId: id, PageSize: pageSize, Ascending: true,
		})
		switch {
		case reasonOf(err) == "CONVERSATION_NOT_FOUND":
			continue // It was deleted after the list.
		case err != nil:
			return nil, err
		case list.GetNextPageToken() != "" || reply.GetNextPageToken() != "":
			return nil, fmt.Errorf("more than %d conversations, or messages in %s", pageSize, id)
		}
		version := reply.GetConversation().GetVersion()
		known[id] = &replicated{version: version, read: version, messages: reply.GetMessages()}
	}
	return known, nil
}

// wantSame checks that a replica equals the state from a list and reads at another server.
func (r *replica) wantSame(t *testing.T, elsewhere *server) {
	t.Helper()
	want, err := readReplica(t.Context(), elsewhere, r.watches)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(r.known)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
		t.Errorf("%s: conversations = %v, want %v", r.name, got, want)
		return
	}
	for id, c := range want {
		got := r.known[id]
		if got.version != c.version || !slices.EqualFunc(got.messages, c.messages, func(a, b *parleyv1.Message) bool {
			return proto.Equal(a, b)
		}) {
			t.Errorf("%s: %s has version %d and the messages %v, want %d and %v", r.name, id, got.version,
				contents(got.messages), c.version, contents(c.messages))
		}
	}
}

// awaitVersion waits at a server until a conversation has another version than this one, and returns it. It fails if no
// event ends the wait.
func awaitVersion(ctx context.Context, s *server, id string, version int32) (*parleyv1.RoutingSummary, error) {
	reply, err := s.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{
		ConversationId: id, KnownVersion: &version, WaitTimeout: durationpb.New(timeout / 2), AllowMissing: true,
	})
	if err == nil && reply.GetNotModified() {
		err = fmt.Errorf("%s is still at version %d", id, version)
	}
	return reply.GetSummary(), err
}

// followSummaries waits for each version of a conversation until its last message.
func followSummaries(ctx context.Context, s *server, id string) error {
	for version := int32(0); ; {
		summary, err := awaitVersion(ctx, s, id, version)
		if err != nil {
			return err
		}
		if summary.GetVersion() <= version {
			return fmt.Errorf("%s: version %d follows %d", id, summary.GetVersion(), version)
		}
		version = summary.GetVersion()
		if recent := summary.GetRecentMessages(); len(recent) > 0 && recent[len(recent)-1].GetContent() == lastContent {
			return nil
		}
	}
}

// readers are replicas and waiting summaries at several servers.
type readers struct {
	t        *testing.T
	servers  []*server
	ids      []string // conversations that are not deleted
	replicas []*replica
	running  sync.WaitGroup
}

// startReaders starts readers of all conversations, and of some that will not be deleted.
func startReaders(t *testing.T, servers []*server, ids []string) *readers {
	t.Helper()
	r := &readers{t: t, servers: servers, ids: ids, replicas: startReplicas(t, servers, ids[:len(ids)/2]...)}
	ctx := timeLimited(t)
	t.Cleanup(r.running.Wait)
	for _, replica := range r.replicas {
		r.running.Go(func() {
			if err := replica.follow(ctx, ids); err != nil {
				t.Error(err)
			}
		})
	}
	for i, s := range servers {
		for _, id := range ids {
			r.running.Go(func() {
				if err := followSummaries(ctx, s, id); err != nil {
					t.Errorf("summaries at server %d: %v", i, err)
				}
			})
		}
	}
	return r
}

// writeLast appends the last messages.
func (r *readers) writeLast() {
	r.t.Helper()
	for i, id := range r.ids {
		add(r.t, r.servers[i%len(r.servers)], id, userMessage(lastContent))
	}
}

// end checks the state of the readers when they have received the last messages.
func (r *readers) end() {
	r.t.Helper()
	r.running.Wait()
	for i, replica := range r.replicas {
		replica.wantSame(r.t, r.servers[i%len(r.servers)])
		r.t.Logf("%s: %d gaps, %d conversations at the end", replica.name, replica.gaps.Load(), len(replica.known))
	}
}

// TestServersWaitingSummaries: a call that waits for another version of a conversation at one server ends when a
// message comes through any other.
func TestServersWaitingSummaries(t *testing.T) {
	t.Parallel()
	servers := startServers(t, redistest.Start(t), 3)
	for i, waiting := range servers {
		for j, writing := range servers {
			if i == j {
				continue
			}
			id := fmt.Sprintf("c%d%d", i, j)
			known := add(t, writing, id, userMessage("one")).GetConversation().GetVersion()
			result := make(chan *parleyv1.RoutingSummary, 1)
			go func() {
				summary, err := awaitVersion(timeLimited(t), waiting, id, known)
				if err != nil {
					t.Error(err)
				}
				result <- summary
			}()
			awaitWatchers(t, waiting, 1)
			want := add(t, writing, id, userMessage("two")).GetConversation().GetVersion()
			if got := <-result; got.GetVersion() != want || len(got.GetRecentMessages()) != 2 {
				t.Errorf("summary at server %d after a message at server %d = %v, want version %d", i, j, got, want)
			}
			awaitWatchers(t, waiting, 0)
		}
	}
}
