package rpc

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/rpc/slowstream"
	"github.com/parleyhq/parley/server/internal/transfer"
	"github.com/parleyhq/parley/store"
)

// TestTooManyImports opens the maximum number of imports. When one of them ends, another can start, and
// the open ones still work.
func TestTooManyImports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		var opened []grpc.ClientStreamingClient[parleyv1.ImportConversationsRequest, parleyv1.ImportConversationsResponse]
		for range transfer.MaxImports {
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
		if n := f.server.importer.Running(); n != 0 {
			t.Errorf("%d imports are running, want 0", n)
		}
	})
}

// TestSlowSender checks that an import ends when its client sends no request for five minutes, and that
// the last conversation, which may be incomplete, is not imported.
func TestSlowSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		monitor := new(refusalLog)
		f := open(t, func(s *setup) { s.Monitor = monitor })
		stream, err := f.ImportConversations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b", "c"} {
			<-time.After(slowstream.MaxReceiveTime - time.Second)
			part := exportOf(id, time.Now())
			if err := stream.Send(&parleyv1.ImportConversationsRequest{Conversation: part.GetConversation(), Messages: part.GetMessages()}); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		err = stream.RecvMsg(new(parleyv1.ImportConversationsResponse))
		wantError(t, err, codes.ResourceExhausted, "SLOW_SENDER")
		monitor.want(t, auth.DefaultTenant+" SLOW_SENDER")
		if waited := time.Since(start); waited < slowstream.MaxReceiveTime || waited > slowstream.MaxReceiveTime+slowstream.CheckInterval {
			t.Errorf("the stream ended after %v, want %v to %v", waited, slowstream.MaxReceiveTime, slowstream.MaxReceiveTime+slowstream.CheckInterval)
		}
		if got := strings.Join(exportedIDs(f.mustExport(t)), " "); got != "a b" {
			t.Errorf("imported %q, want %q", got, "a b")
		}
		synctest.Wait()
		if n := f.server.importer.Running(); n != 0 {
			t.Errorf("%d imports are running, want 0", n)
		}
	})
}

// TestImportPanic checks a panic in a goroutine that the import starts.
func TestImportPanic(t *testing.T) {
	f, hooks := openHooked(t)
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
