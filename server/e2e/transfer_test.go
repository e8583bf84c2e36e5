package e2e

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestTransfer(t *testing.T) {
	t.Parallel()
	t.Run("an export under load is consistent, and unchanged by an import", exportUnderLoad)
	t.Run("many conversations are unchanged by two imports", transferMany)
	t.Run("a slow receiver does not block the store", exportToSlowReceiver)
}

// receive returns the rest of an export, with the parts of each conversation joined.
func receive(
	t *testing.T, stream grpc.ServerStreamingClient[parleyv1.ExportConversationsResponse],
) []*parleyv1.ExportConversationsResponse {
	t.Helper()
	var conversations []*parleyv1.ExportConversationsResponse
	for {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return conversations
		case err != nil:
			t.Fatalf("ExportConversations after %d conversations: %v", len(conversations), err)
		}
		if n := len(conversations); n > 0 && conversations[n-1].GetConversation().GetId() == part.GetConversation().GetId() {
			conversations[n-1].Messages = append(conversations[n-1].Messages, part.GetMessages()...)
			continue
		}
		conversations = append(conversations, part)
	}
}

func export(t *testing.T, s *server) []*parleyv1.ExportConversationsResponse {
	t.Helper()
	stream, err := s.ExportConversations(t.Context(), &parleyv1.ExportConversationsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return receive(t, stream)
}

// exportUnderLoad appends batches, each of which adds one version and three sequences, so that a header
// and messages of different versions are detected.
func exportUnderLoad(t *testing.T) {
	t.Parallel()
	const appenders, targets, most = 64, 24, 20
	batches := 40
	if testing.Short() {
		batches = 15
	}
	s := startServer(t, t.TempDir(), fmt.Sprint("--max-messages=", most))
	var acked [targets]atomic.Int32
	var group sync.WaitGroup
	var left atomic.Int32
	left.Store(appenders)
	for w := range appenders {
		group.Go(func() {
			defer left.Add(-1)
			for i := range batches {
				c := (w + i) % targets
				reply, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
					ConversationId: fmt.Sprint("c", c), Messages: []*parleyv1.Message{messageOf("a"), messageOf("b"), messageOf("c")},
				})
				if err != nil {
					t.Errorf("AppendMessages: %v", err)
					return
				}
				for v := acked[c].Load(); v < reply.GetConversation().GetVersion() &&
					!acked[c].CompareAndSwap(v, reply.GetConversation().GetVersion()); {
					v = acked[c].Load()
				}
			}
		})
	}
	exports := 0
	for ; left.Load() > 0; exports++ {
		var before [targets]int32
		for c := range targets {
			before[c] = acked[c].Load()
		}
		exported := make(map[string]*parleyv1.Conversation)
		for _, conversation := range export(t, s) {
			checkConsistent(t, conversation, most)
			exported[conversation.GetConversation().GetId()] = conversation.GetConversation()
		}
		for c, version := range before {
			if got := exported[fmt.Sprint("c", c)].GetVersion(); got < version {
				t.Errorf("c%d exported at version %d, want at least %d, which was acknowledged before", c, got, version)
			}
		}
	}
	group.Wait()
	t.Logf("%d exports while %d clients wrote", exports, appenders)

	// Another server imports the last export.
	exported, other := export(t, s), startServer(t, t.TempDir())
	if len(exported) != targets {
		t.Errorf("%d conversations exported, want %d", len(exported), targets)
	}
	importAll(t, other, exported)
	if d := cmp.Diff(exported, export(t, other), protocmp.Transform(), exceptUID()); d != "" {
		t.Errorf("export before (-) and after (+) an import:\n%s", d)
	}
}

// exceptUID ignores the uid in comparisons with the result of an import, which has a new uid.
func exceptUID() cmp.Option { return protocmp.IgnoreFields(&parleyv1.Conversation{}, "uid") }

// importAll imports conversations. All must be imported.
func importAll(t *testing.T, s *server, conversations []*parleyv1.ExportConversationsResponse) {
	t.Helper()
	stream, err := s.ImportConversations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, conversation := range conversations {
		if err := stream.Send(&parleyv1.ImportConversationsRequest{Conversation: conversation.GetConversation(), Messages: conversation.GetMessages()}); err != nil {
			break // CloseAndRecv returns the error.
		}
	}
	if reply, err := stream.CloseAndRecv(); err != nil || int(reply.GetImportedCount()) != len(conversations) {
		t.Fatalf("ImportConversations of %d = %v, %v; want all imported", len(conversations), reply, err)
	}
}

// transferMany exports and imports conversations with equal times, so that only their order in the file orders them.
func transferMany(t *testing.T) {
	t.Parallel()
	count := 10_000
	if testing.Short() {
		count = 1000
	}
	flags := []string{"--store=memory", "--max-conversations=20000", "--memory-warning-bytes=1GiB"}
	at := timestamppb.Now()
	first := make([]*parleyv1.ExportConversationsResponse, count)
	for i := range first {
		m := messageOf(fmt.Sprint("hello ", i))
		m.Id, m.Sequence, m.CreateTime, m.Status = "m", 7, at, parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
		first[i] = &parleyv1.ExportConversationsResponse{Messages: []*parleyv1.Message{m}, Conversation: &parleyv1.Conversation{
			Id: fmt.Sprint("c", i), Version: int32(i + 1), LastSequence: 9, CreateTime: at, UpdateTime: at, LastAppendTime: at,
		}}
	}
	var exported [2][]*parleyv1.ExportConversationsResponse
	for i := range exported {
		s := startServer(t, t.TempDir(), flags...)
		importAll(t, s, first)
		exported[i] = export(t, s)
		first = exported[i]
		s.kill()
	}
	if len(exported[0]) != count || len(exported[1]) != count {
		t.Fatalf("%d and %d conversations exported, want %d each", len(exported[0]), len(exported[1]), count)
	}
	for i, want := range exported[0] {
		got := exported[1][i]
		if got.GetConversation().GetUid() == want.GetConversation().GetUid() {
			t.Fatalf("conversation %d has uid %s on both servers", i, got.GetConversation().GetUid())
		}
		got.Conversation.Uid = want.GetConversation().GetUid()
		if want.GetConversation().GetId() != fmt.Sprint("c", i) || !proto.Equal(got, want) {
			t.Fatalf("conversation %d after the first (-) and second (+) import:\n%s", i,
				cmp.Diff(want, got, protocmp.Transform()))
		}
	}
}

func messageOf(content string) *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content}
}

// checkConsistent checks that the header and messages are of the same version.
func checkConsistent(t *testing.T, conversation *parleyv1.ExportConversationsResponse, most int32) {
	t.Helper()
	c, messages := conversation.GetConversation(), conversation.GetMessages()
	last := 3 * c.GetVersion()
	if stored := int32(len(messages)); c.GetLastSequence() != last || c.GetMessageCount() != stored ||
		stored != min(most, last) {
		t.Errorf("%s has %d messages and the header %v, want those of one version", c.GetId(), stored, c)
	}
	for i, m := range messages {
		want := last - int32(len(messages)-1-i)
		if content := string("abc"[(want-1)%3]); m.GetSequence() != want || m.GetContent() != content {
			t.Errorf("%s, message %d of %d: sequence %d with %q, want %d with %q", c.GetId(), i, len(messages), m.GetSequence(),
				m.GetContent(), want, content)
		}
	}
}

// exportToSlowReceiver stops receiving and continues to write. A read transaction that stayed open would
// keep the old version of every written page, and the file would grow with each write.
func exportToSlowReceiver(t *testing.T) {
	t.Parallel()
	const targets, rounds, size = 48, 4, 250 << 10
	s := startServer(t, t.TempDir(), "--max-messages=1")
	write := func(round int) {
		t.Helper()
		var group sync.WaitGroup
		for c := range targets {
			group.Go(func() {
				m := messageOf(fmt.Sprint(round, strings.Repeat(" ", size)))
				if _, err := s.AppendMessages(t.Context(),
					&parleyv1.AppendMessagesRequest{ConversationId: fmt.Sprint("c", c), Messages: []*parleyv1.Message{m}}); err != nil {
					t.Errorf("AppendMessages: %v", err)
				}
			})
		}
		group.Wait()
	}
	fileBytes := func() int64 {
		t.Helper()
		stats, err := s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return stats.GetFileBytes()
	}
	for round := range 3 { // Grow the file to the size that the writes need.
		write(-round)
	}
	// Fixed windows limit the number of bytes in transit.
	conn, err := grpc.NewClient(s.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := parleyv1.NewConversationServiceClient(conn).ExportConversations(t.Context(),
		&parleyv1.ExportConversationsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	before := fileBytes()
	for round := range rounds {
		write(round)
	}
	const written = targets * rounds * size
	if grown := fileBytes() - before; grown > written/2 {
		t.Errorf("the file grew by %d bytes while the receiver stopped and %d bytes were overwritten, want at most half",
			grown, written)
	}
	rest := receive(t, stream)
	if len(rest) != targets-1 {
		t.Fatalf("%d conversations received after the first, %s, want %d", len(rest), first.GetConversation().GetId(),
			targets-1)
	}
	// Conversations that were not in transit yet are exported in their current version.
	newest := rest[len(rest)-1]
	if c := newest.GetConversation(); c.GetVersion() != 3+rounds ||
		!strings.HasPrefix(newest.GetMessages()[0].GetContent(), fmt.Sprint(rounds-1, " ")) {
		t.Errorf("the last conversation has version %d, want %d", c.GetVersion(), 3+rounds)
	}
}
