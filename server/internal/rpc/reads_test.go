package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// checkReads compares the replies with messages, over one of the ways to call the server, with the written
// messages.
func (w *model) checkReads(t *rapid.T) {
	w.mustExist(t)
	client, options := w.f.ConversationServiceClient, []grpc.CallOption(nil)
	switch rapid.SampledFrom([]string{"plain", "gzip", "direct"}).Draw(t, "way") {
	case "gzip":
		options = []grpc.CallOption{grpc.UseCompressor(gzip.Name)}
	case "direct":
		client = parleyv1.NewConversationServiceClient(w.f.server.Direct(t.Context()))
	}
	limit := rapid.Int32Range(0, 30).Draw(t, "limit")
	header, err := client.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: w.id})
	if err != nil {
		t.Fatal(err)
	}

	loaded, err := client.LoadConversation(t.Context(),
		&parleyv1.LoadConversationRequest{ConversationId: w.id, MessageLimit: &limit}, options...)
	wantReply(t, err, &parleyv1.LoadConversationResponse{
		Conversation: header.GetConversation(), Messages: w.stored[max(0, len(w.stored)-int(limit)):],
	}, loaded)

	window, err := client.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: w.id}, options...)
	omitted := len(w.stored) - len(window.GetMessages()) // checkWindow checks how many these are.
	if omitted < 0 {
		t.Fatalf("GetContext = %d messages of %d", len(window.GetMessages()), len(w.stored))
	}
	wantReply(t, err, &parleyv1.GetContextResponse{
		SystemPrompt: header.GetConversation().GetSystemPrompt(), Messages: w.stored[omitted:],
		OmittedCount: int32(omitted), Version: header.GetConversation().GetVersion(),
	}, window)

	request := &parleyv1.ListMessagesRequest{
		ConversationId: w.id, PageSize: rapid.Int32Range(1, 9).Draw(t, "page"), Ascending: rapid.Bool().Draw(t, "ascending"),
	}
	left := slices.Clone(w.stored)
	if !request.GetAscending() {
		slices.Reverse(left)
	}
	for {
		page, err := client.ListMessages(t.Context(), request, options...)
		n := min(len(left), int(request.GetPageSize()))
		want := &parleyv1.ListMessagesResponse{
			Conversation: header.GetConversation(), Messages: left[:n], NextPageToken: page.GetNextPageToken(),
			OldestSequence: header.GetConversation().GetLastSequence() + 1,
		}
		if len(w.stored) > 0 {
			want.OldestSequence = w.stored[0].GetSequence()
		}
		wantReply(t, err, want, page)
		left, request.PageToken = left[n:], page.GetNextPageToken()
		if (request.GetPageToken() == "") != (len(left) == 0) {
			t.Fatalf("page token %q with %d messages left", request.GetPageToken(), len(left))
		}
		if len(left) == 0 {
			return
		}
	}
}

func wantReply(t *rapid.T, err error, want, got proto.Message) {
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, got) {
		t.Fatalf("reply (-want +got):\n%s", cmp.Diff(want, got, protocmp.Transform()))
	}
}

// TestReadsWhileWriting reads conversations in all ways while others append to them. The replies are in the memory of
// the store's cache. Some readers cancel their calls. Each reply must consist of complete messages of the conversation,
// in order.
func TestReadsWhileWriting(t *testing.T) {
	const writers, appends, readers = 3, 25, 4
	f := open(t, func(s *setup) {
		s.wrap = func(store.Store) store.Store { return openBolt(t, s.storeOptions) }
	})
	direct := parleyv1.NewConversationServiceClient(f.direct(t))
	id := func(i int) string { return fmt.Sprint("c", i%writers) }
	for i := range writers {
		f.append(t, id(i), marked(id(i), 1))
	}
	written, done := context.WithCancel(t.Context())
	var writing, reading sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			for n := range appends {
				_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
					ConversationId: id(i), Messages: []*parleyv1.Message{marked(id(i), 1+n*97%4000)},
				})
				if err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	for i := range readers {
		reading.Go(func() {
			client, options := f.ConversationServiceClient, []grpc.CallOption(nil)
			switch i {
			case 1:
				options = []grpc.CallOption{grpc.UseCompressor(gzip.Name)}
			case 2:
				client = direct
			case 3: // These calls end at any time.
				reading.Go(func() {
					for written.Err() == nil {
						ctx, cancel := context.WithCancel(t.Context())
						ended := make(chan struct{})
						go func() {
							defer close(ended)
							_, _ = f.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: id(i)})
						}()
						cancel()
						<-ended
					}
				})
			}
			for n := 0; written.Err() == nil; n++ {
				if err := readMarked(t.Context(), client, id(i+n), options); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writing.Wait()
	done()
	reading.Wait()
}

// marked returns a message whose content depends only on the conversation and the length.
func marked(id string, length int) *parleyv1.Message {
	m := user(strings.Repeat(id+" ", length))
	m.Summary = fmt.Sprint(length)
	return m
}

// readMarked makes all calls that return stored messages and checks their replies.
func readMarked(ctx context.Context, c parleyv1.ConversationServiceClient, id string, o []grpc.CallOption) error {
	loaded, err1 := c.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: id}, o...)
	listed, err2 := c.ListMessages(ctx, &parleyv1.ListMessagesRequest{ConversationId: id}, o...)
	window, err3 := c.GetContext(ctx, &parleyv1.GetContextRequest{ConversationId: id}, o...)
	summary, err4 := c.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{ConversationId: id}, o...)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return fmt.Errorf("read %s: %w", id, err)
	}
	newestFirst := listed.GetMessages()
	slices.Reverse(newestFirst)
	for name, messages := range map[string][]*parleyv1.Message{
		"LoadConversation": loaded.GetMessages(), "ListMessages": newestFirst, "GetContext": window.GetMessages(),
		"GetRoutingSummary": summary.GetSummary().GetRecentMessages(),
	} {
		if len(messages) == 0 {
			return fmt.Errorf("%s(%s) = no messages", name, id)
		}
		for i, m := range messages {
			length := 0
			if _, err := fmt.Sscan(m.GetSummary(), &length); err != nil {
				return fmt.Errorf("%s(%s): message %d: summary %q: %w", name, id, i, m.GetSummary(), err)
			}
			if m.GetContent() != strings.Repeat(id+" ", length) || m.GetSequence() != messages[0].GetSequence()+int32(i) {
				return fmt.Errorf("%s(%s): message %d is not the one that was written: sequence %d, %d bytes",
					name, id, i, m.GetSequence(), len(m.GetContent()))
			}
		}
	}
	return nil
}
