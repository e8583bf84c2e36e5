package transfer

import (
	"io"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestImportReleasesMessages checks that an import does not hold the messages of stored conversations
// while it waits for its client.
func TestImportReleasesMessages(t *testing.T) {
	f := open(t)
	i := &importing{Importer: f.importer, tenant: tenant, reply: new(parleyv1.ImportConversationsResponse)}
	sent := 0
	err := i.run(t.Context(), func() (*parleyv1.ImportConversationsRequest, error) {
		if sent == maxConcurrentStores {
			if err := i.group.Wait(); err != nil {
				return nil, err
			}
			if len(i.storing) != maxConcurrentStores-1 {
				t.Errorf("%d conversations were passed to the store, want %d", len(i.storing), maxConcurrentStores-1)
			}
			for _, a := range i.storing {
				if len(a.frames) > 0 {
					t.Errorf("conversation %s still has its messages", a.header.GetId())
				}
			}
			return nil, io.EOF
		}
		sent++
		part := exportOf(string(rune('a'+sent)), f.clock.Now().Add(-time.Duration(sent)*time.Second))
		return &parleyv1.ImportConversationsRequest{
			Conversation: part.GetConversation(), Messages: part.GetMessages(),
		}, nil
	})
	if err != nil || i.reply.GetImportedCount() != maxConcurrentStores {
		t.Errorf("run = %v, reply %v, want %d imported", err, i.reply, maxConcurrentStores)
	}
}

// TestImportSameTwice imports two copies of a conversation in a row. If the header has a message count,
// they are two conversations, whether they have one request or several, and whether they are valid.
func TestImportSameTwice(t *testing.T) {
	f := open(t)
	first, second := exportOf("a", f.clock.Now()), exportOf("a", f.clock.Now())
	second.Conversation = first.GetConversation()
	second.Messages[0].Sequence = 6
	first.Conversation.MessageCount = 2
	f.wantImport(t, false, 1, 1, first, second, first, second)
	f.wantImport(t, true, 2, 0, first, second, first, second)
	if got := sequences(f.mustExport(t, "a")[0].GetMessages()); len(got) != 2 {
		t.Errorf("got sequences %v, want 2", got)
	}
	first.Messages[0].Role = 0
	if failures := f.wantImport(t, true, 0, 0, first, second, first, second); len(failures) != 2 {
		t.Errorf("failures = %v, want 2", failures)
	}
	// A request after the last one of the count starts another conversation, which is incomplete.
	first.Messages[0].Role = parleyv1.Role_ROLE_USER
	if failures := f.wantImport(t, true, 1, 0, first, second, second); len(failures) != 1 {
		t.Errorf("failures = %v, want 1", failures)
	}
}

// TestImportBoundsKeptMessages checks that an import holds no more messages of a conversation that keeps all of them
// than a store accepts.
func TestImportBoundsKeptMessages(t *testing.T) {
	a := &incoming{
		header: &parleyv1.Conversation{Retention: &parleyv1.Retention{KeepAll: true, MaxMessages: 1}},
		limit:  store.MaxMessageBytes,
	}
	content := strings.Repeat("x", 1<<20)
	for i := range 6 {
		if a.fault != "" {
			t.Errorf("fault after %d messages = %q, want none", i, a.fault)
		}
		if err := a.addMessage(&parleyv1.Message{Sequence: int32(i + 1), Content: content[:len(content)-100]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.addMessage(&parleyv1.Message{Sequence: 7, Content: content}); err != nil {
		t.Fatal(err)
	}
	if len(a.frames) > 0 || !strings.Contains(a.fault, "CONVERSATION_FULL") {
		t.Errorf("%d messages are held with the fault %q, want none with CONVERSATION_FULL", len(a.frames), a.fault)
	}
}
