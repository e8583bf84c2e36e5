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

// TestTooManyImports: one that ends makes room for one, and those that are open still go on.
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
		file := fileOf("a", time.Now())
		_, err := f.importing(t.Context(), false, file)
		if got := wantError(t, err, codes.ResourceExhausted, "TOO_MANY_IMPORTS"); got.retry == 0 {
			t.Error("nothing says that a retry helps")
		}
		// An import that ends makes room.
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
			t.Errorf("their ends took %v", waited)
		}
		if n := len(f.server.imports); n != 0 {
			t.Errorf("%d imports are left", n)
		}
	})
}

// TestSlowSender: a client that sends no request for five minutes loses its stream, and what
// it began to send is not taken for a whole. Until then it may take its time.
func TestSlowSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		stream, err := f.ImportConversations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b", "c"} {
			<-time.After(maxReceiveTime - time.Second)
			part := fileOf(id, time.Now())
			if err := stream.Send(&parleyv1.ImportConversationsRequest{Conversation: part.GetConversation(), Messages: part.GetMessages()}); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		err = stream.RecvMsg(new(parleyv1.ImportConversationsResponse))
		wantError(t, err, codes.ResourceExhausted, "SLOW_SENDER")
		if waited := time.Since(start); waited < maxReceiveTime || waited > maxReceiveTime+limitLook {
			t.Errorf("the stream ended after %v", waited)
		}
		if got := strings.Join(exportedIDs(f.exported(t)), " "); got != "a b" {
			t.Errorf("imported %q", got)
		}
		synctest.Wait()
		if n := len(f.server.imports); n != 0 {
			t.Errorf("%d imports are left", n)
		}
	})
}

// TestImportLetsGo: what the store has taken in is not held until the client sends more.
func TestImportLetsGo(t *testing.T) {
	f := open(t, nil)
	i := &importing{server: f.server, tenant: auth.DefaultTenant, reply: new(parleyv1.ImportConversationsResponse)}
	now, sent := time.Now(), 0
	err := i.run(t.Context(), func() (*parleyv1.ImportConversationsRequest, error) {
		if sent == importsAtOnce {
			if err := i.group.Wait(); err != nil {
				return nil, err
			}
			if len(i.stored) != importsAtOnce-1 {
				t.Errorf("%d are in the hands of the store", len(i.stored))
			}
			for _, a := range i.stored {
				if len(a.kept) > 0 {
					t.Errorf("messages of %s are held", a.header.GetId())
				}
			}
			return nil, io.EOF
		}
		sent++
		part := fileOf(string(rune('a'+sent)), now.Add(-time.Duration(sent)*time.Second))
		return &parleyv1.ImportConversationsRequest{Conversation: part.GetConversation(), Messages: part.GetMessages()}, nil
	})
	if err != nil || i.reply.GetImportedCount() != importsAtOnce {
		t.Errorf("%v, %v", i.reply, err)
	}
}

// TestPanicInAnImport: it happens in a goroutine of its own.
func TestPanicInAnImport(t *testing.T) {
	f, spy := openSpied(t, nil)
	var calls atomic.Int32
	spy.imported = func(*store.Import) error {
		if calls.Add(1) == 1 {
			panic("boom " + secret)
		}
		return nil
	}
	_, err := f.importing(t.Context(), false, fileOf("a", time.Now()))
	if got := wantError(t, err, codes.Internal, "INTERNAL"); got.text != "internal error" {
		t.Errorf("text %q", got.text)
	}
	if len(f.log.lines("level=ERROR", "/ImportConversations", "boom "+secret, "import_bounds_test.go")) != 1 {
		t.Error("no line in the log with the stack")
	}
	f.wantImport(t, false, 1, 0, fileOf("a", time.Now()))
}

// TestImportOfTheSameTwice: where the header says how many messages there are, two copies in
// a row are two conversations, in one part each or in several, good or bad.
func TestImportOfTheSameTwice(t *testing.T) {
	f := open(t, nil)
	first, second := fileOf("a", time.Now()), fileOf("a", time.Now())
	second.Conversation = first.GetConversation()
	second.Messages[0].Sequence = 6
	first.Conversation.MessageCount = 2
	f.wantImport(t, false, 1, 1, first, second, first, second)
	f.wantImport(t, true, 2, 0, first, second, first, second)
	if got := sequences(f.exported(t, "a")[0].GetMessages()); len(got) != 2 {
		t.Errorf("messages %v", got)
	}
	first.Messages[0].Role = 0
	if failures := f.wantImport(t, true, 0, 0, first, second, first, second); len(failures) != 2 {
		t.Errorf("failures %v", failures)
	}
	// What comes beyond that is none of it, and is not taken for all.
	first.Messages[0].Role = parleyv1.Role_ROLE_USER
	if failures := f.wantImport(t, true, 1, 0, first, second, second); len(failures) != 1 {
		t.Errorf("failures %v", failures)
	}
}
