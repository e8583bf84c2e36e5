package rpc

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// rawCodec encodes requests of type []byte as they are.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// appendRaw calls AppendMessages with an encoded request.
func (f *fixture) appendRaw(t *testing.T, request []byte) error {
	t.Helper()
	return f.conn.Invoke(t.Context(), parleyv1.ConversationService_AppendMessages_FullMethodName, request,
		new(parleyv1.AppendMessagesResponse), grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(protocodec.Name)}))
}

// largeMessage returns a message that needs more memory than requests that are decoded at once, and is
// smaller than the default of Options.MaxMessageBytes.
func largeMessage() *parleyv1.Message {
	nulls := new(structpb.ListValue)
	for range 20_000 {
		nulls.Values = append(nulls.Values, structpb.NewNullValue())
	}
	return &parleyv1.Message{
		Role: parleyv1.Role_ROLE_USER, Content: "large", StructuredData: data("nulls", structpb.NewListValue(nulls)),
	}
}

// TestLargeRequests checks the limit of the memory of large requests: it refuses a large one while others use
// all of the memory, never a small one, and all calls return their memory.
func TestLargeRequests(t *testing.T) {
	f := open(t, nil)
	f.server.requests.maxWait = 10 * time.Millisecond
	memory := f.server.requests.memory
	large := &parleyv1.AppendMessagesRequest{ConversationId: "a", Messages: []*parleyv1.Message{largeMessage()}}
	load := &parleyv1.LoadConversationRequest{ConversationId: "a"}
	if _, err := f.LoadConversation(t.Context(), load); err != nil {
		t.Fatal(err)
	}
	if !memory.TryAcquire(maxDecodedBytes) {
		t.Fatal("memory is in use before the first large request")
	}
	_, err := f.AppendMessages(t.Context(), large)
	if got := wantError(t, err, codes.ResourceExhausted, "TOO_MANY_LARGE_REQUESTS"); got.retry == 0 {
		t.Error("TOO_MANY_LARGE_REQUESTS has no RetryInfo")
	}
	if _, err := f.LoadConversation(t.Context(), load); err != nil {
		t.Errorf("small request while all memory is in use: %v", err)
	}
	memory.Release(maxDecodedBytes)
	f.server.requests.maxWait = maxDecodeWait // The requests that follow must not be refused by a busy machine.
	if _, err := f.AppendMessages(t.Context(), large); err != nil {
		t.Errorf("large request: %v", err)
	}
	chat, err := f.Chat(t.Context(), &parleyv1.ChatRequest{
		ConversationId: "a", Content: "large", StructuredData: largeMessage().GetStructuredData(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = chat.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("Chat with a large request: %v", err)
	}
	imports, err := f.ImportConversations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := imports.Send(&parleyv1.ImportConversationsRequest{
			Conversation: &parleyv1.Conversation{Id: "imported"}, Messages: large.GetMessages(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	// These messages have no sequences, so the handler refuses the conversation after it has received all.
	if reply, err := imports.CloseAndRecv(); err != nil || len(reply.GetFailures()) != 1 {
		t.Errorf("import of large requests = %v, %v, want one failure", reply, err)
	}
	if !memory.TryAcquire(maxDecodedBytes) {
		t.Error("memory is in use after all large requests")
	}
}

// TestUndecodableRequests sends requests that the server must not decode.
func TestUndecodableRequests(t *testing.T) {
	f := open(t, nil)
	messages := (&parleyv1.AppendMessagesRequest{}).ProtoReflect().Descriptor().Fields().ByName("messages")
	tooMany := strings.Repeat(string([]byte{byte(messages.Number()<<3 | 2), 0}), 1<<20)
	wantError(t, f.appendRaw(t, []byte(tooMany)), codes.ResourceExhausted, "REQUEST_TOO_LARGE")
	for _, malformed := range []string{"\xff", strings.Repeat("\xff", 100_000), "\x0a\x05a", "\x0a\x01\xff"} {
		wantError(t, f.appendRaw(t, []byte(malformed)), codes.InvalidArgument, "INVALID_REQUEST")
	}
	if !f.server.requests.memory.TryAcquire(maxDecodedBytes) {
		t.Error("memory is in use after undecodable requests")
	}
	stream, err := f.conn.NewStream(t.Context(), &parleyv1.ConversationService_ServiceDesc.Streams[0],
		parleyv1.ConversationService_Chat_FullMethodName,
		grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(protocodec.Name)}))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg([]byte{0xff}), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	wantError(t, stream.RecvMsg(new(parleyv1.ChatResponse)), codes.InvalidArgument, "INVALID_REQUEST")
	if n := f.changeCount(); n != 0 {
		t.Errorf("got %d changes, want 0", n)
	}
}

// TestAuthenticationBeforeDecoding checks that the server decodes no large request of a caller that is not
// signed in.
func TestAuthenticationBeforeDecoding(t *testing.T) {
	f := open(t, func(s *setup) { s.Auth = byMetadata() })
	f.server.requests.maxWait = 10 * time.Millisecond
	if !f.server.requests.memory.TryAcquire(maxDecodedBytes) {
		t.Fatal("memory is in use before the first request")
	}
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "a", Messages: []*parleyv1.Message{largeMessage()},
	})
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
}
