package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// parley is a process of this service and a client with one connection.
type parley struct {
	*process
	conn    *grpc.ClientConn
	client  parleyv1.ConversationServiceClient
	admin   parleyv1.AdminServiceClient
	version string
}

// startParley starts parleyd on the store in dir and waits until it serves.
func startParley(ctx context.Context, program, dir string, flags ...string) (*parley, error) {
	config := filepath.Join(dir, "parley.yaml")
	if err := os.WriteFile(config, []byte(largeAgentList()), 0o600); err != nil {
		return nil, err
	}
	p := &parley{}
	var err error
	p.process, err = startProcess(dir, nil, program, append([]string{
		"--config=" + config, "--grpc-address=127.0.0.1:0", "--http-address=", "--data-dir=" + dir, "--store=bolt",
		"--max-conversations=0", "--memory-warning-bytes=0", "--log-format=json", "--stop-grace=0s",
	}, flags...)...)
	if err != nil {
		return nil, err
	}
	var address string
	if err := p.awaitReady(ctx, func(context.Context) error {
		address, err = servedAddress(p.log)
		return err
	}); err != nil {
		return nil, err
	}
	if p.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, errors.Join(err, p.stop(syscall.SIGTERM))
	}
	p.client, p.admin = parleyv1.NewConversationServiceClient(p.conn), parleyv1.NewAdminServiceClient(p.conn)
	stats, err := p.admin.GetStats(ctx, &parleyv1.GetStatsRequest{})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	p.version = "parleyd " + stats.GetVersion()
	return p, nil
}

// servedAddress returns the address in the log entry "serving grpc".
func servedAddress(log string) (string, error) {
	entries, err := os.ReadFile(log)
	if err != nil {
		return "", err
	}
	for text := range bytes.Lines(entries) {
		var line struct{ Msg, Address string }
		if json.Unmarshal(text, &line) == nil && line.Msg == "serving grpc" {
			return line.Address, nil
		}
	}
	return "", errors.New("log has no entry \"serving grpc\"")
}

// largeAgentList returns a configuration for which the reply of ListAgents is about as large as that of
// a read. ListAgents only passes all interceptors, without other work.
func largeAgentList() string {
	var b strings.Builder
	b.WriteString("agents:\n")
	const agents, maxDescription = 12, 1000
	for i, left := 0, readReplyBytes; i < agents && left > 100; i++ {
		n := min(maxDescription, left-30)
		fmt.Fprintf(&b, "  bulk%02d: {kind: echo, description: %q}\n", i, message(n))
		left -= n + 30 // the size of an entry's other fields
	}
	return b.String()
}

func (p *parley) append(ctx context.Context, id, message string) error {
	return appendTo(ctx, p.client, id, message)
}

// appendTo appends a message in this service or in the ceiling.
func appendTo(ctx context.Context, client parleyv1.ConversationServiceClient, id, message string) error {
	_, err := client.AppendMessages(ctx, appendRequest(id, message))
	return err
}

func appendRequest(id, message string) *parleyv1.AppendMessagesRequest {
	return &parleyv1.AppendMessagesRequest{
		ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: message}},
	}
}

// appendStream appends over one call of AppendStream, with maxCallers requests under way. It is for one goroutine.
type appendStream struct {
	stream   grpc.BidiStreamingClient[parleyv1.AppendStreamRequest, parleyv1.AppendStreamResponse]
	underWay int
}

// openAppendStream opens a stream that ends with the connection.
func (p *parley) openAppendStream(ctx context.Context) (*appendStream, error) {
	stream, err := p.client.AppendStream(ctx)
	return &appendStream{stream: stream}, err
}

// append sends a request. It waits for the oldest reply if maxCallers requests are under way then.
func (a *appendStream) append(id, message string) error {
	if err := a.stream.Send(&parleyv1.AppendStreamRequest{Append: appendRequest(id, message)}); err != nil {
		return err
	}
	if a.underWay < maxCallers-1 {
		a.underWay++
		return nil
	}
	reply, err := a.stream.Recv()
	if err == nil && reply.GetError() != nil {
		err = fmt.Errorf("append: %v", reply.GetError())
	}
	return err
}

func (p *parley) read(ctx context.Context, id string) ([]string, error) {
	return load(ctx, p.client, id)
}

// load reads a conversation from this service or from the ceiling.
func load(ctx context.Context, client parleyv1.ConversationServiceClient, id string) ([]string, error) {
	reply, err := client.LoadConversation(ctx, &parleyv1.LoadConversationRequest{ConversationId: id})
	if err == nil && reply.GetCreated() {
		err = errNoConversation
	}
	return contents(reply.GetMessages()), err
}

func (p *parley) remaining(ctx context.Context, id string) (time.Duration, error) {
	reply, err := p.client.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: id})
	return time.Until(reply.GetConversation().GetExpireTime().AsTime()), err
}

// listAgents makes a call that only passes the interceptors.
func (p *parley) listAgents(ctx context.Context) error {
	_, err := p.client.ListAgents(ctx, &parleyv1.ListAgentsRequest{})
	return err
}

// fill does nothing: the file is filled before the process starts.
func (p *parley) fill(context.Context, int) error { return nil }

func (p *parley) close() error {
	return errors.Join(p.conn.Close(), p.stop(syscall.SIGTERM))
}
