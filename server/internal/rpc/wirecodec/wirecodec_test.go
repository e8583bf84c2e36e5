package wirecodec

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// frames returns n messages of a size as frames. The messages have a field that this version does not know.
func frames(n, size int) (all store.Frames) {
	for i := range n {
		m := &parleyv1.Message{Content: strings.Repeat(string(rune('a'+i%26)), size)}
		m.ProtoReflect().SetUnknown(unknownField())
		body, _ := proto.Marshal(m) // It has no text that is not valid.
		all = store.AppendFrame(all, body)
	}
	return all
}

func unknownField() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
}

// halves returns the second half of frames and then the first.
func halves(all store.Frames) []store.Frames {
	return []store.Frames{all[len(all)/2:], all[:len(all)/2]}
}

// replyCase is a reply.
type replyCase struct {
	rest   *parleyv1.ListMessagesResponse
	frames []store.Frames
}

func replyCases() map[string]replyCase {
	rest := func() *parleyv1.ListMessagesResponse {
		return &parleyv1.ListMessagesResponse{
			Conversation: &parleyv1.Conversation{Id: "c"}, NextPageToken: strings.Repeat("t", 2000), OldestSequence: 7,
		}
	}
	unknown := rest()
	unknown.GetConversation().ProtoReflect().SetUnknown(unknownField())
	return map[string]replyCase{
		"empty":         {new(parleyv1.ListMessagesResponse), nil},
		"no messages":   {rest(), []store.Frames{nil}},
		"only messages": {new(parleyv1.ListMessagesResponse), []store.Frames{frames(3, 10)}},
		"one piece":     {unknown, []store.Frames{frames(20, 500)}},
		"two pieces":    {rest(), halves(frames(20, 500))},
	}
}

// TestReplies sends replies. A client must receive the same message as from gRPC's codec.
func TestReplies(t *testing.T) {
	plain := encoding.GetCodecV2(protocodec.Name)
	next := make(chan *Reply, 1)
	conn := serve(t, func(context.Context, *parleyv1.ListMessagesRequest) (*Reply, error) { return <-next, nil })
	for name, c := range replyCases() {
		want := proto.CloneOf(c.rest)
		for _, f := range c.frames {
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(f, want); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		reply := NewReply(c.rest, c.frames...)
		for _, options := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
			got := new(parleyv1.ListMessagesResponse)
			next <- reply
			err := conn.Invoke(t.Context(), "/test.Service/Call", new(parleyv1.ListMessagesRequest), got, options...)
			if err != nil || !proto.Equal(got, want) {
				t.Errorf("%s: Invoke = a reply of %d bytes, %v, want %d bytes", name, proto.Size(got), err, proto.Size(want))
			}
		}
		got := &parleyv1.ListMessagesResponse{NextPageToken: "old"}
		if err := reply.Decode(got, proto.UnmarshalOptions{}); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: Decode = a reply of %d bytes, %v, want %d bytes", name, proto.Size(got), err, proto.Size(want))
		}
		data, err := Codec(plain).Marshal(reply)
		if err != nil || data.Len() != proto.Size(want) {
			t.Errorf("%s: Marshal = %d bytes, %v, want %d bytes", name, data.Len(), err, proto.Size(want))
		}
		data.Free()
	}
}

// TestLargeReply sends a reply of 16 MiB, which is many times the windows of flow control.
func TestLargeReply(t *testing.T) {
	conn := serve(t, func(context.Context, *parleyv1.ListMessagesRequest) (*Reply, error) {
		return NewReply(new(parleyv1.ListMessagesResponse), halves(frames(2, 8<<20))...), nil
	})
	got := new(parleyv1.ListMessagesResponse)
	if err := conn.Invoke(t.Context(), "/test.Service/Call", new(parleyv1.ListMessagesRequest), got); err != nil {
		t.Fatal(err)
	}
	for i, letter := range []string{"b", "a"} { // The halves are swapped.
		if content := got.GetMessages()[i].GetContent(); strings.Trim(content, letter) != "" || len(content) != 8<<20 {
			t.Errorf("message %d has %d bytes, or others than %q", i, len(content), letter)
		}
	}
}

// serve serves a method and returns a connection to it.
func serve(t *testing.T, call func(context.Context, *parleyv1.ListMessagesRequest) (*Reply, error)) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(Codec(encoding.GetCodecV2(protocodec.Name))))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Service", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: Handler("/test.Service/Call", call)}},
	}, nil)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); server.Stop(); serving.Wait() })
	return conn
}

// TestMarshal compares the codec with gRPC's for messages that are no replies, and checks the order of fields in a
// reply.
func TestMarshal(t *testing.T) {
	plain := encoding.GetCodecV2(protocodec.Name)
	c := Codec(plain)
	for _, m := range []any{
		&parleyv1.Message{Content: "short"}, &parleyv1.Message{Content: strings.Repeat("long", 1000)}, new(parleyv1.Message),
		&parleyv1.Message{Content: "\xff"}, new(int), nil,
	} {
		want, wantErr := plain.Marshal(m)
		got, err := c.Marshal(m)
		if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() ||
			!bytes.Equal(got.Materialize(), want.Materialize()) || len(got) != len(want) {
			t.Errorf("Marshal(%T) = %d buffers, %v, want %d buffers, %v", m, len(got), err, len(want), wantErr)
		}
	}
	rest := &parleyv1.ListMessagesResponse{Conversation: &parleyv1.Conversation{Id: "c"}, OldestSequence: 7}
	f := frames(3, 10)
	got, err := c.Marshal(NewReply(proto.CloneOf(rest), f))
	if err != nil {
		t.Fatal(err)
	}
	rest.ProtoReflect().SetUnknown(protoreflect.RawFields(f))
	if want, err := proto.Marshal(rest); err != nil || !bytes.Equal(got.Materialize(), want) {
		t.Errorf("Marshal(a reply) = %x, want %x, %v", got.Materialize(), want, err)
	}
	if last := got[len(got)-1].ReadOnlyData(); &last[0] != &f[0] {
		t.Error("Marshal copied the frames")
	}
}

// TestFaults checks the errors of replies that cannot be sent.
func TestFaults(t *testing.T) {
	c, options := Codec(encoding.GetCodecV2(protocodec.Name)), proto.UnmarshalOptions{}
	invalid := NewReply(&parleyv1.ListMessagesResponse{NextPageToken: "\xff"}, frames(1, 10))
	if _, err := c.Marshal(invalid); err == nil {
		t.Error("Marshal(invalid text) = nil, want an error")
	}
	if err := invalid.Decode(new(parleyv1.ListMessagesResponse), options); err == nil {
		t.Error("Decode(invalid text) = nil, want an error")
	}
	malformed := NewReply(new(parleyv1.ListMessagesResponse), store.Frames{0xff})
	if err := malformed.Decode(new(parleyv1.ListMessagesResponse), options); err == nil {
		t.Error("Decode(malformed frames) = nil, want an error")
	}
	failed := errors.New("failed")
	handle := Handler("/test.Service/Call", func(context.Context, *parleyv1.ListMessagesRequest) (*Reply, error) {
		return nil, failed
	})
	if reply, err := handle(nil, t.Context(), func(any) error { return nil }, nil); reply != nil || !errors.Is(err, failed) {
		t.Errorf("handler = %v, %v, want nil, %v", reply, err, failed)
	}
	if _, err := handle(nil, t.Context(), func(any) error { return failed }, nil); !errors.Is(err, failed) {
		t.Errorf("handler without a request = %v, want %v", err, failed)
	}
}
