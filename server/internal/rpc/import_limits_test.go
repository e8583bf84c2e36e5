package rpc

import (
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/store"
)

// TestTooManyImports opens the maximum number of imports. When one of them ends, another can start, and
// the open ones still work.
func TestTooManyImports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		var opened []grpc.ClientStreamingClient[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]
		for range maxImports {
			stream, err := f.ImportConversations(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			opened = append(opened, stream)
		}
		synctest.Wait()
		file := exportOf("a", time.Now())
		_, err := f.tryImport(t.Context(), false, file)
		if got := wantError(t, err, codes.ResourceExhausted, "TOO_MANY_IMPORTS"); got.retry == 0 {
			t.Error("the error has no RetryInfo")
		}
		if _, err := opened[0].CloseAndRecv(); err != nil {
			t.Error(err)
		}
		f.wantImport(t, false, 1, 0, file)

		start := time.Now()
		for _, stream := range opened[1:] {
			_, err := stream.CloseAndRecv()
			if err != nil {
				t.Error(err)
			}
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("the other imports ended after %v, want 0s", waited)
		}
		if n := len(f.server.imports); n != 0 {
			t.Errorf("%d imports are running, want 0", n)
		}
	})
}

// TestSlowSender checks that an import ends when its client sends no request for five minutes, and that
// the last conversation, which may be incomplete, is not imported.
func TestSlowSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		stream, err := f.ImportConversations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b", "c"} {
			<-time.After(maxReceiveTime - time.Second)
			part := exportOf(id, time.Now())
			if err := stream.Send(&parleyv1.ImportConversationsRequest{Conversation: part.GetConversation(), Messages: part.GetMessages()}); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		err = stream.RecvMsg(new(parleyv1.ImportConversationsResponse))
		wantError(t, err, codes.ResourceExhausted, "SLOW_SENDER")
		if waited := time.Since(start); waited < maxReceiveTime || waited > maxReceiveTime+checkInterval {
			t.Errorf("the stream ended after %v, want %v to %v", waited, maxReceiveTime, maxReceiveTime+checkInterval)
		}
		if got := strings.Join(exportedIDs(f.mustExport(t)), " "); got != "a b" {
			t.Errorf("imported %q, want %q", got, "a b")
		}
		synctest.Wait()
		if n := len(f.server.imports); n != 0 {
			t.Errorf("%d imports are running, want 0", n)
		}
	})
}

// TestImportReleasesMessages checks that an import does not hold the messages of stored conversations
// while it waits for its client.
func TestImportReleasesMessages(t *testing.T) {
	f := open(t, nil)
	i := &importer{server: f.server, tenant: auth.DefaultTenant, reply: new(parleyv1.ImportConversationsResponse)}
	now, sent := time.Now(), 0
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
		part := exportOf(string(rune('a'+sent)), now.Add(-time.Duration(sent)*time.Second))
		return &parleyv1.ImportConversationsRequest{
			Conversation: part.GetConversation(),
			Messages:     part.GetMessages(),
		}, nil
	})
	if err != nil || i.reply.GetImportedCount() != maxConcurrentStores {
		t.Errorf("run = %v, reply %v, want %d imported", err, i.reply, maxConcurrentStores)
	}
}

// TestImportPanic checks a panic in a goroutine that the import starts.
func TestImportPanic(t *testing.T) {
	f, hooks := openHooked(t, nil)
	var calls atomic.Int32
	hooks.imported = func(*store.Import) error {
		if calls.Add(1) == 1 {
			panic("boom " + secret)
		}
		return nil
	}
	_, err := f.tryImport(t.Context(), false, exportOf("a", time.Now()))
	if got := wantError(t, err, codes.Internal, "INTERNAL"); got.text != "internal error" {
		t.Errorf("text = %q, want %q", got.text, "internal error")
	}
	if len(f.log.lines("level=ERROR", "/ImportConversations", "boom "+secret, "import_limits_test.go")) != 1 {
		t.Error("the log has no line with the stack")
	}
	f.wantImport(t, false, 1, 0, exportOf("a", time.Now()))
}

// TestImportSameTwice imports two copies of a conversation in a row. If the header has a message count,
// they are two conversations, whether they have one request or several, and whether they are valid.
func TestImportSameTwice(t *testing.T) {
	f := open(t, nil)
	first, second := exportOf("a", time.Now()), exportOf("a", time.Now())
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
	// A request beyond the count starts another conversation, which is incomplete.
	first.Messages[0].Role = parleyv1.Role_ROLE_USER
	if failures := f.wantImport(t, true, 1, 0, first, second, second); len(failures) != 1 {
		t.Errorf("failures = %v, want 1", failures)
	}
}
