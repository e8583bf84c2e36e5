package client

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestAppenderResumesAfterIdleStream adds a request after an idle stream has ended, and before run notices that.
func TestAppenderResumesAfterIdleStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := grpc.NewClient("passthrough:///none", grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		a := &Appender{
			retry: retry{conn: conn}, changed: make(chan struct{}, 1),
			queue: appendQueue{conversations: map[string]int{}},
		}
		a.noteConnected()
		<-time.After(5 * giveUpAfter)
		a.err = status.Error(codes.Unavailable, "the server restarts")
		request := &parleyv1.AppendMessagesRequest{ConversationId: "c", RequestId: "r"}
		if added, err := a.tryAdd(&AppendResult{request: request, done: make(chan struct{})}); !added {
			t.Fatalf("tryAdd = %t, %v", added, err)
		}
		if !a.hasWork() || !a.resume(t.Context()) {
			t.Errorf("the appender does not resume: %v", a.err)
		}
	})
}
