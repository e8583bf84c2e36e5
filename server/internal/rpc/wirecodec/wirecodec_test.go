package wirecodec

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// poisonPool is a Pool that overwrites a buffer when it gets it back: nobody who still reads it finds a message there.
type poisonPool struct {
	Pool
	returned chan struct{}
}

func newPoisonPool() *poisonPool { return &poisonPool{returned: make(chan struct{}, 1000)} }

// Put overwrites the buffer.
func (p *poisonPool) Put(b *[]byte) {
	all := (*b)[:cap(*b)]
	all[0] = 0xff
	for n := 1; n < len(all); n *= 2 {
		copy(all[n:], all[:n])
	}
	p.Pool.Put(b)
	p.returned <- struct{}{}
}

// wait waits until the pool gets a buffer back: gRPC frees it after the client has the reply.
func (p *poisonPool) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.returned:
	case <-time.After(10 * time.Second):
		t.Fatal("the pool did not get the buffer of a reply back within 10 s")
	}
}

// frames returns n messages of a size as frames, in memory of the pool, or in shared memory if pool is nil. The
// messages have a field that this version does not know.
func frames(pool mem.BufferPool, n, size int) mem.Buffer {
	var wire []byte
	for i := range n {
		m := &parleyv1.Message{Content: strings.Repeat(string(rune('a'+i%26)), size)}
		m.ProtoReflect().SetUnknown(unknownField())
		body, _ := proto.Marshal(m) // It has no text that is not valid.
		wire = protowire.AppendBytes(protowire.AppendTag(wire, 2, protowire.BytesType), body)
	}
	if pool == nil {
		return mem.SliceBuffer(wire)
	}
	b := pool.Get(0)
	*b = append((*b)[:0], wire...)
	return mem.NewBuffer(b, pool)
}

func unknownField() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)
}

// halves returns the second half of a buffer and then the first, as two frames, and frees the buffer.
func halves(b mem.Buffer) []mem.Buffer {
	defer b.Free()
	return []mem.Buffer{b.Slice(b.Len()/2, b.Len()), b.Slice(0, b.Len()/2)}
}

// replyCase is a reply and the memory of its frames.
type replyCase struct {
	rest   *parleyv1.ListMessagesResponse
	frames func(mem.BufferPool) []mem.Buffer
}

func replyCases() map[string]replyCase {
	one := func(n, size int) func(mem.BufferPool) []mem.Buffer {
		return func(p mem.BufferPool) []mem.Buffer { return []mem.Buffer{frames(p, n, size)} }
	}
	rest := func() *parleyv1.ListMessagesResponse {
		return &parleyv1.ListMessagesResponse{
			Conversation: &parleyv1.Conversation{Id: "c"}, NextPageToken: strings.Repeat("t", 2000), OldestSequence: 7,
		}
	}
	unknown := rest()
	unknown.GetConversation().ProtoReflect().SetUnknown(unknownField())
	return map[string]replyCase{
		"empty":         {new(parleyv1.ListMessagesResponse), func(mem.BufferPool) []mem.Buffer { return nil }},
		"no messages":   {rest(), one(0, 0)},
		"only messages": {new(parleyv1.ListMessagesResponse), one(3, 10)},
		"one piece":     {unknown, one(20, 500)},
		"two pieces":    {rest(), func(p mem.BufferPool) []mem.Buffer { return halves(frames(p, 20, 500)) }},
	}
}

// TestReplies sends replies from both kinds of memory. A client must receive the same message as from gRPC's codec. A
// pool must get each buffer back once, after it was read.
func TestReplies(t *testing.T) {
	plain := encoding.GetCodecV2(protocodec.Name)
	next := make(chan func() *Reply, 1)
	conn := serve(t, func(context.Context, *parleyv1.ListMessagesRequest) (*Reply, error) { return (<-next)(), nil })
	for name, c := range replyCases() {
		want := proto.CloneOf(c.rest)
		for _, b := range c.frames(nil) {
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(b.ReadOnlyData(), want); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		pool := newPoisonPool()
		for kind, reply := range map[string]func() *Reply{
			"shared": func() *Reply { return NewReply(proto.CloneOf(c.rest), c.frames(nil)...) },
			"pooled": func() *Reply { return NewReply(proto.CloneOf(c.rest), c.frames(pool)...) },
		} {
			for _, options := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
				got := new(parleyv1.ListMessagesResponse)
				next <- reply
				err := conn.Invoke(t.Context(), "/test.Service/Call", new(parleyv1.ListMessagesRequest), got, options...)
				if err != nil || !proto.Equal(got, want) {
					t.Errorf("%s, %s: Invoke = a reply of %d bytes, %v, want %d bytes", name, kind, proto.Size(got), err,
						proto.Size(want))
				}
			}
			got := &parleyv1.ListMessagesResponse{NextPageToken: "old"}
			if err := reply().Decode(got, proto.UnmarshalOptions{}); err != nil || !proto.Equal(got, want) {
				t.Errorf("%s, %s: Decode = a reply of %d bytes, %v, want %d bytes", name, kind, proto.Size(got), err,
					proto.Size(want))
			}
			data, err := Codec(plain).Marshal(reply())
			if err != nil || data.Len() != proto.Size(want) {
				t.Errorf("%s, %s: Marshal = %d bytes, %v, want %d bytes", name, kind, data.Len(), err, proto.Size(want))
			}
			data.Free()
		}
		if len(c.frames(nil)) == 0 {
			continue
		}
		for range 4 { // Two calls, Decode and Marshal.
			pool.wait(t)
		}
		if len(pool.returned) != 0 {
			t.Errorf("%s: the pool got %d buffers back more than once", name, len(pool.returned))
		}
	}
}

// TestLargeReply sends a reply of 16 MiB, which is many times the windows of flow control.
func TestLargeReply(t *testing.T) {
	pool := newPoisonPool()
	conn := serve(t, func(context.Context, *parleyv1.ListMessagesRequest) (*Reply, error) {
		return NewReply(new(parleyv1.ListMessagesResponse), halves(frames(pool, 2, 8<<20))...), nil
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
	pool.wait(t)
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
	b := frames(nil, 3, 10)
	got, err := c.Marshal(NewReply(proto.CloneOf(rest), b))
	if err != nil {
		t.Fatal(err)
	}
	rest.ProtoReflect().SetUnknown(b.ReadOnlyData())
	if want, err := proto.Marshal(rest); err != nil || !bytes.Equal(got.Materialize(), want) {
		t.Errorf("Marshal(a reply) = %x, want %x, %v", got.Materialize(), want, err)
	}
	if last := got[len(got)-1].ReadOnlyData(); &last[0] != &b.ReadOnlyData()[0] {
		t.Error("Marshal copied the frames")
	}
}

// TestFaults checks that frames of replies that cannot be sent return to their pool.
func TestFaults(t *testing.T) {
	c := Codec(encoding.GetCodecV2(protocodec.Name))
	options := proto.UnmarshalOptions{}
	for name, use := range map[string]func(*Reply) error{
		"Marshal": func(r *Reply) error { _, err := c.Marshal(r); return err },
		"Decode":  func(r *Reply) error { return r.Decode(new(parleyv1.ListMessagesResponse), options) },
	} {
		pool := newPoisonPool()
		r := NewReply(&parleyv1.ListMessagesResponse{NextPageToken: "\xff"}, frames(pool, 1, 10))
		if err := use(r); err == nil || errors.Is(err, errUsed) {
			t.Errorf("%s(invalid text) = %v, want an error", name, err)
		}
		pool.wait(t)
		if err := use(r); !errors.Is(err, errUsed) {
			t.Errorf("%s a second time = %v, want %v", name, err, errUsed)
		}
	}
	malformed := NewReply(new(parleyv1.ListMessagesResponse), mem.SliceBuffer{0xff})
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

// TestPool checks which buffers the pool returns again.
func TestPool(t *testing.T) {
	var p Pool
	if b := p.Get(10); len(*b) != 10 || cap(*b) != minBuffer {
		t.Errorf("Get(10) = %d of %d bytes, want 10 of %d", len(*b), cap(*b), minBuffer)
	}
	small := make([]byte, minBuffer-1)
	large := make([]byte, maxBuffer+1)
	p.Put(&small)
	p.Put(&large)
	if b := p.Get(1); cap(*b) != minBuffer {
		t.Errorf("Get after Put of unfit buffers = one of %d bytes, want a new one", cap(*b))
	}
	// A sync.Pool may drop what is put, so this checks only that a buffer that is too small is not returned.
	fit := make([]byte, minBuffer)
	p.Put(&fit)
	if b := p.Get(maxBuffer); len(*b) != maxBuffer {
		t.Errorf("Get(%d) = %d bytes", maxBuffer, len(*b))
	}
}
