package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
)

// The ceiling is the speed that gRPC allows on this machine. It is a process of its own with the options
// of parleyd and without interceptors. It answers an empty call with a reply as large as that of a read,
// reads conversations from a store as parleyd does, and answers appends, and reads of constantID, with a constant.

const (
	// serveCeiling is the argument with which this program runs as the ceiling process.
	serveCeiling = "serve-ceiling"
	emptyCall    = "/bench.Ceiling/Call"
	// constantID is the id of a conversation that is not in the store of the ceiling process.
	constantID = "constant"
	// readReplyBytes is about the size of the reply to a read: 20 messages with their fields, and a header.
	// TestReadReplyBytes checks it.
	readReplyBytes = 11_450
)

// ceilingServer serves empty calls and reads.
type ceilingServer struct {
	parleyv1.UnimplementedConversationServiceServer
	store    store.Store
	appended *parleyv1.AppendMessagesResponse
	loaded   *parleyv1.LoadConversationResponse
}

// newCeilingServer returns a server whose constant answers are those for one conversation of the store.
func newCeilingServer(ctx context.Context, s store.Store) (*ceilingServer, error) {
	c := &ceilingServer{store: s}
	var err error
	r := &parleyv1.LoadConversationRequest{ConversationId: conversationID(0)}
	if c.loaded, err = c.LoadConversation(ctx, r); err != nil {
		return nil, err
	}
	newest, err := store.Frames(c.loaded.ProtoReflect().GetUnknown()).Newest(1).Messages()
	if err != nil {
		return nil, err
	}
	c.appended = &parleyv1.AppendMessagesResponse{
		Conversation: c.loaded.GetConversation(),
		Appended: []*parleyv1.AppendedMessage{{
			Id: newest[0].GetId(), Sequence: newest[0].GetSequence(), Exchange: newest[0].GetExchange(),
			CreateTime: newest[0].GetCreateTime(),
		}},
	}
	return c, nil
}

// AppendMessages appends nothing.
func (c *ceilingServer) AppendMessages(
	context.Context, *parleyv1.AppendMessagesRequest,
) (*parleyv1.AppendMessagesResponse, error) {
	return c.appended, nil
}

// LoadConversation does the same as in parleyd for a conversation that exists.
func (c *ceilingServer) LoadConversation(
	ctx context.Context, r *parleyv1.LoadConversationRequest,
) (*parleyv1.LoadConversationResponse, error) {
	if r.GetConversationId() == constantID {
		return c.loaded, nil
	}
	snapshot, err := c.store.Read(ctx, &store.Read{
		Tenant: tenant, ConversationID: r.GetConversationId(), Newest: maxMessages,
	})
	if err != nil {
		return nil, err
	}
	reply := &parleyv1.LoadConversationResponse{Conversation: snapshot.Conversation}
	reply.ProtoReflect().SetUnknown(protoreflect.RawFields(snapshot.Messages))
	return reply, nil
}

// runCeiling serves the store in dir until ctx ends. It prints the address.
func runCeiling(ctx context.Context, dir string, output io.Writer) error {
	b, err := openBolt(dir, boltstore.Options{})
	if err != nil {
		return err
	}
	// The options of parleyd that affect speed.
	server := grpc.NewServer(grpc.MaxConcurrentStreams(1024), grpc.WaitForHandlers(true), grpc.WriteBufferSize(64<<10),
		grpc.NumStreamWorkers(128))
	ballast := make([]byte, 64<<20) // It delays garbage collections, as in parleyd.
	defer runtime.KeepAlive(ballast)
	service, err := newCeilingServer(ctx, b.store)
	if err != nil {
		return errors.Join(err, b.close())
	}
	parleyv1.RegisterConversationServiceServer(server, service)
	server.RegisterService(emptyService(), nil)
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, b.close())
	}
	fmt.Fprintln(output, l.Addr())
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	return errors.Join(server.Serve(l), b.close())
}

// emptyService returns the service of the empty call.
func emptyService() *grpc.ServiceDesc {
	reply := &wrapperspb.BytesValue{Value: make([]byte, readReplyBytes)}
	return &grpc.ServiceDesc{ServiceName: "bench.Ceiling", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Call",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := decode(new(wrapperspb.StringValue)); err != nil {
				return nil, err
			}
			return reply, nil
		},
	}}}
}

// ceiling is a client of the ceiling process.
type ceiling struct {
	*process
	conn   *grpc.ClientConn
	client parleyv1.ConversationServiceClient
}

func startCeiling(ctx context.Context, dir string) (*ceiling, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &ceiling{}
	if c.process, err = startProcess(dir, nil, program, serveCeiling, dir); err != nil {
		return nil, err
	}
	var address string
	if err := c.awaitReady(ctx, func(context.Context) error {
		output, err := os.ReadFile(c.log)
		line, _, complete := strings.Cut(string(output), "\n")
		if err == nil && !complete {
			err = errors.New("process has not printed its address")
		}
		address = line
		return err
	}); err != nil {
		return nil, err
	}
	if c.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, errors.Join(err, c.stop(syscall.SIGTERM))
	}
	c.client = parleyv1.NewConversationServiceClient(c.conn)
	return c, nil
}

// call makes the empty call.
func (c *ceiling) call(ctx context.Context) error {
	return c.conn.Invoke(ctx, emptyCall, wrapperspb.String(conversationID(0)), new(wrapperspb.BytesValue))
}

// append makes a call that is answered with a constant.
func (c *ceiling) append(ctx context.Context, message string) error {
	return appendTo(ctx, c.client, conversationID(0), message)
}

func (c *ceiling) read(ctx context.Context, id string) ([]string, error) {
	return load(ctx, c.client, id)
}

func (c *ceiling) close() error {
	return errors.Join(c.conn.Close(), c.stop(syscall.SIGTERM))
}
