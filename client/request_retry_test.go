package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// call is a request and a function that sends it and reads the whole reply.
type call struct {
	name    string
	request proto.Message
	send    func(context.Context, *client.Client) error
}

// writes returns the calls that carry a request_id.
func writes() []call {
	create := &parleyv1.CreateConversationRequest{}
	load := &parleyv1.LoadConversationRequest{ConversationId: "a"}
	fork := &parleyv1.ForkConversationRequest{ConversationId: "a"}
	one, many := batch(1, "hello"), batch(12, strings.Repeat("x", 250<<10))
	chat := &parleyv1.ChatRequest{Content: "hello"}
	write := &parleyv1.WriteRecordsRequest{Writes: []*parleyv1.RecordWrite{{Key: "k"}}}
	return []call{
		{"write records", write, func(ctx context.Context, c *client.Client) error {
			_, err := c.WriteRecords(ctx, write)
			return err
		}},
		{"put a record", write.GetWrites()[0], func(ctx context.Context, c *client.Client) error {
			_, err := c.TenantRecords().Put(ctx, write.GetWrites()[0])
			return err
		}},
		{"create", create, func(ctx context.Context, c *client.Client) error {
			_, err := c.CreateConversation(ctx, create)
			return err
		}},
		{"load", load, func(ctx context.Context, c *client.Client) error {
			_, err := c.LoadConversation(ctx, load)
			return err
		}},
		{"fork", fork, func(ctx context.Context, c *client.Client) error {
			_, err := c.ForkConversation(ctx, fork)
			return err
		}},
		{"append", one, func(ctx context.Context, c *client.Client) error {
			_, err := c.AppendMessages(ctx, one)
			return err
		}},
		{"append of 3 MiB", many, func(ctx context.Context, c *client.Client) error {
			_, err := c.AppendMessages(ctx, many)
			return err
		}},
		{"chat", chat, func(ctx context.Context, c *client.Client) error {
			for _, err := range c.Chat(ctx, chat) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"generated chat", chat, func(ctx context.Context, c *client.Client) error {
			stream, err := c.ConversationServiceClient.Chat(ctx, chat)
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}},
	}
}

// batch returns a request that appends n messages.
func batch(n int, content string) *parleyv1.AppendMessagesRequest {
	request := &parleyv1.AppendMessagesRequest{ConversationId: "a"}
	for range n {
		request.Messages = append(request.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content})
	}
	return request
}

func TestRetriesCarryOneRequestID(t *testing.T) {
	for _, call := range writes() {
		t.Run(call.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := turnFake(2)
				before := proto.Clone(call.request)
				if err := call.send(t.Context(), f.dial(t)); err != nil {
					t.Fatalf("after two failures: %v", err)
				}
				_, ids := f.recordedCalls()
				if len(ids) != 3 || ids[0] == "" || ids[1] != ids[0] || ids[2] != ids[0] {
					t.Errorf("request ids = %q, want the same id three times", ids)
				}
				if diff := cmp.Diff(before, call.request, protocmp.Transform()); diff != "" {
					t.Errorf("the caller's request was changed (-before +after):\n%s", diff)
				}
			})
		})
	}
}

func TestRequestIDsAreNotReplacedAndNotReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := turnFake(0)
		c := f.dial(t)
		for _, id := range []string{"mine", "mine", "", ""} {
			if _, err := c.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{RequestId: id}); err != nil {
				t.Fatal(err)
			}
		}
		_, ids := f.recordedCalls()
		if ids[0] != "mine" || ids[1] != "mine" {
			t.Errorf("the ids of the caller became %q, want no change", ids[:2])
		}
		if ids[2] == ids[3] {
			t.Errorf("two calls have the same id %q, want different ids", ids[2])
		}
	})
}

func TestUnavailableCallsGiveUp(t *testing.T) {
	tests := []struct {
		name     string
		attempts int
		call     func(context.Context, *client.Client) error
	}{
		{"a read after five attempts", 5, func(ctx context.Context, c *client.Client) error {
			_, err := c.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: "a"})
			return err
		}},
		{"a list of records after five attempts", 5, func(ctx context.Context, c *client.Client) error {
			for _, err := range c.Records("a").List(ctx, nil) {
				return err
			}
			return nil
		}},
		{"a call without request_id after one attempt", 1, func(ctx context.Context, c *client.Client) error {
			_, err := c.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{ConversationId: "a"})
			return err
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := turnFake(100)
				begin := time.Now()
				err := test.call(t.Context(), f.dial(t))
				if status.Code(err) != codes.Unavailable {
					t.Errorf("error = %v, want UNAVAILABLE", err)
				}
				if calls, _ := f.recordedCalls(); len(calls) != test.attempts {
					t.Errorf("server received %d calls, want %d", len(calls), test.attempts)
				}
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("took %v, want at most 2 s", took)
				}
			})
		})
	}
}

func TestCallsSucceedDuringARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conns := make(chan net.Conn, 1)
		upAgain := time.Now().Add(600 * time.Millisecond)
		c := (&fake{}).dialThrough(t, func(connect dialer) dialer {
			return func(ctx context.Context, address string) (net.Conn, error) {
				if time.Now().Before(upAgain) {
					return nil, errors.New("connection refused")
				}
				conn, err := connect(ctx, address)
				conns <- conn
				return conn, err
			}
		})
		if err := getConversation(t.Context(), c); err != nil {
			t.Errorf("GetConversation while the server starts: %v", err)
		}
		upAgain = time.Now().Add(600 * time.Millisecond)
		(<-conns).Close()
		if err := getConversation(t.Context(), c); err != nil {
			t.Errorf("GetConversation while the server restarts: %v", err)
		}
	})
}

// TestServiceConfigListsTheRetriedMethods checks that each method of the three services is listed in the
// service config or in sentOnce.
func TestServiceConfigListsTheRetriedMethods(t *testing.T) {
	sentOnce := []string{
		"UpdateConversation", "DeleteConversation", "PurgeConversations",
		"SetActiveAgent", "ImportConversations", "DeleteInteractions",
	}
	var want []string
	for _, file := range []protoreflect.FileDescriptor{
		parleyv1.File_parley_v1_conversation_service_proto,
		parleyv1.File_parley_v1_record_service_proto,
		parleyv1.File_parley_v1_interaction_log_service_proto,
		parleyv1.File_parley_v1_admin_service_proto,
	} {
		methods := file.Services().Get(0).Methods()
		for i := range methods.Len() {
			method := methods.Get(i)
			if method.Input().Fields().ByName("request_id") == nil && slices.Contains(sentOnce, string(method.Name())) {
				continue
			}
			want = append(want, string(file.Services().Get(0).FullName())+"/"+string(method.Name()))
		}
	}

	content, err := os.ReadFile("service_config.json")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		MethodConfig []struct {
			Name []struct{ Service, Method string }
		}
	}
	if err := json.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range config.MethodConfig[0].Name {
		got = append(got, name.Service+"/"+name.Method)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("retried methods (-want +got):\n%s", diff)
	}
}
