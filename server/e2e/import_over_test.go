package e2e

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// importOver imports a conversation over another one and reports whether the import was done.
func importOver(t *testing.T, s *server, conversation *parleyv1.ExportConversationsResponse) bool {
	t.Helper()
	stream, err := s.ImportConversations(t.Context())
	if err == nil {
		_ = stream.Send(&parleyv1.ImportConversationsRequest{ // CloseAndRecv returns the error.
			Conversation: conversation.GetConversation(), Messages: conversation.GetMessages(), Overwrite: true,
		})
		var reply *parleyv1.ImportConversationsResponse
		if reply, err = stream.CloseAndRecv(); err == nil {
			return reply.GetImportedCount() == 1 // 0 if a turn runs on it
		}
	}
	t.Errorf("ImportConversations = %v, want no error", err)
	return false
}

// TestChatsDuringImports: a conversation is not busy after imports that overwrite it while clients
// chat in it in every mode. A client can chat with it.
func TestChatsDuringImports(t *testing.T) {
	t.Parallel()
	const conversations, chats = 4, 25
	s := startServer(t, t.TempDir())
	for c := range conversations {
		add(t, s, fmt.Sprint("c", c), messageOf("before"))
	}
	exports := export(t, s)
	var chatters, importers sync.WaitGroup
	for c := range conversations {
		id, done := fmt.Sprint("c", c), make(chan struct{})
		var group sync.WaitGroup
		for _, mode := range []parleyv1.OnBusy{parleyv1.OnBusy_ON_BUSY_REJECT, parleyv1.OnBusy_ON_BUSY_QUEUE, parleyv1.OnBusy_ON_BUSY_INTERRUPT} {
			group.Go(func() {
				for n := range chats {
					stream, err := s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: id, Content: fmt.Sprint(n), OnBusy: mode})
					for err == nil {
						_, err = stream.Recv()
					}
					// It was busy, or replaced while the turn waited or ran.
					if code := status.Code(err); !errors.Is(err, io.EOF) && code != codes.Aborted && code != codes.NotFound {
						t.Errorf("Chat in %s, %v: %v", id, mode, err)
					}
				}
			})
		}
		chatters.Go(func() {
			defer close(done)
			group.Wait()
		})
		importers.Go(func() {
			for imported := false; ; {
				imported = importOver(t, s, exports[c]) || imported
				select {
				case <-done:
					if !imported {
						t.Errorf("no import of %s succeeded: a turn ran at each", id)
					}
					return
				default:
				}
			}
		})
	}
	chatters.Wait()
	importers.Wait()
	for c := range conversations {
		id := fmt.Sprint("c", c)
		if running := header(t, s, id).GetActiveTurnId(); running != "" {
			t.Errorf("%s is busy with turn %s after every chat has ended", id, running)
			continue
		}
		k := chat(t, s, &parleyv1.ChatRequest{ConversationId: id, Content: "after"})
		k.receiveUntil(t, func() bool { return k.finished != nil })
		if state := k.finished.GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_COMPLETED {
			t.Errorf("turn after the imports in %s = %v, want completed", id, state)
		}
	}
}

// TestImportReplacesTheConversation: after an import over a conversation, no version, page token,
// request_id or turn of the replaced one is valid, even at the same version.
func TestImportReplacesTheConversation(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	add(t, s, "c", messageOf("one"), messageOf("two"), messageOf("three"))
	conversation := export(t, s)[0]
	ask := func() *chatCall {
		t.Helper()
		k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "hi", RequestId: "r"})
		k.receiveUntil(t, func() bool { return k.finished != nil })
		return k
	}
	first := ask()
	known := header(t, s, "c")
	page := &parleyv1.ListMessagesRequest{ConversationId: "c", PageSize: 1}
	listed, err := s.ListMessages(t.Context(), page)
	if err != nil || listed.GetNextPageToken() == "" {
		t.Fatalf("ListMessages = %v, %v, want a page token", listed, err)
	}
	if !importOver(t, s, conversation) {
		t.Fatal("the conversation was not imported")
	}

	page.PageToken = listed.GetNextPageToken()
	_, err = s.ListMessages(t.Context(), page)
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	_, err = s.GetTurn(t.Context(), &parleyv1.GetTurnRequest{
		ConversationId: "c", TurnId: first.finished.GetTurn().GetId(),
	})
	wantError(t, err, codes.NotFound, "TURN_NOT_FOUND")
	second := ask()
	if second.started.GetReplayed() || second.finished.GetTurn().GetId() == first.finished.GetTurn().GetId() {
		t.Errorf("Chat returned the turn of the replaced conversation: %v", second.started)
	}
	now := header(t, s, "c")
	if now.GetVersion() != known.GetVersion() || now.GetUid() == known.GetUid() {
		t.Errorf("version %d of uid %s follows version %d of uid %s, want the same version of another uid",
			now.GetVersion(), now.GetUid(), known.GetVersion(), known.GetUid())
	}
	reply, err := s.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
		ConversationId: "c", KnownVersion: new(known.GetVersion()), KnownUid: known.GetUid(),
	})
	if err != nil || reply.GetNotModified() {
		t.Errorf("GetRoutingSummary, known version %d of uid %s = %v, %v, want the summary", known.GetVersion(),
			known.GetUid(), reply, err)
	}
}
