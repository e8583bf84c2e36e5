package main

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

// importOver imports a conversation in place of another one, and says whether that was done.
func importOver(t *testing.T, s *server, whole *parleyv1.ExportConversationsResponse) bool {
	t.Helper()
	stream, err := s.ImportConversations(t.Context())
	if err == nil {
		_ = stream.Send(&parleyv1.ImportConversationsRequest{ // CloseAndRecv says why it fails.
			Conversation: whole.GetConversation(), Messages: whole.GetMessages(), Overwrite: true,
		})
		var reply *parleyv1.ImportConversationsResponse
		if reply, err = stream.CloseAndRecv(); err == nil {
			return reply.GetImportedCount() == 1 // Else a turn runs on it.
		}
	}
	t.Errorf("ImportConversations: %v", err)
	return false
}

// A conversation that imports overwrite again and again, while clients chat in it in every mode,
// is not busy afterwards, and can be chatted with.
func TestChatsBesideImports(t *testing.T) {
	t.Parallel()
	const conversations, chats = 4, 25
	s := startServer(t, t.TempDir())
	for c := range conversations {
		add(t, s, fmt.Sprint("c", c), words("before"))
	}
	wholes := export(t, s)
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
					// Busy, or replaced while the turn waited or ran.
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
				imported = importOver(t, s, wholes[c]) || imported
				select {
				case <-done:
					if !imported {
						t.Errorf("every import of %s met a turn", id)
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
			t.Errorf("%s is busy with turn %s, and every chat has ended", id, running)
			continue
		}
		k := chat(t, s, &parleyv1.ChatRequest{ConversationId: id, Content: "after"})
		k.hear(t, func() bool { return k.finished != nil })
		if state := k.finished.GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_COMPLETED {
			t.Errorf("the turn after the imports in %s ended as %v", id, state)
		}
	}
}

// Nothing that a client knows of a conversation holds for the one that an import puts in its
// place, at the same version: no version, no page token, no request_id, no turn.
func TestImportOverIsAnotherConversation(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	add(t, s, "c", words("one"), words("two"), words("three"))
	whole := export(t, s)[0]
	ask := func() *talk {
		t.Helper()
		k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "hi", RequestId: "r"})
		k.hear(t, func() bool { return k.finished != nil })
		return k
	}
	first := ask()
	known := header(t, s, "c")
	page := &parleyv1.ListMessagesRequest{ConversationId: "c", PageSize: 1}
	listed, err := s.ListMessages(t.Context(), page)
	if err != nil || listed.GetNextPageToken() == "" {
		t.Fatalf("ListMessages = %v, %v, want a page token", listed, err)
	}
	if !importOver(t, s, whole) {
		t.Fatal("the conversation was not imported")
	}

	page.PageToken = listed.GetNextPageToken()
	_, err = s.ListMessages(t.Context(), page)
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	_, err = s.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c", TurnId: first.finished.GetTurn().GetId()})
	wantError(t, err, codes.NotFound, "TURN_NOT_FOUND")
	second := ask()
	if second.started.GetReplayed() || second.finished.GetTurn().GetId() == first.finished.GetTurn().GetId() {
		t.Errorf("the request of the conversation before is answered with its turn: %v", second.started)
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
		t.Errorf("GetRoutingSummary, known version %d of uid %s = %v, %v, want the summary", known.GetVersion(), known.GetUid(), reply, err)
	}
}
