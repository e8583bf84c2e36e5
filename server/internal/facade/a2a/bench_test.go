package a2a

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// BenchmarkSend compares a message over each binding with the call of Chat that it becomes, one after the other in
// random order, all over TCP. It reports the medians of what is added until the first piece of the answer and until the
// end. The JSON of replies is read but not parsed, since parsing is the client's part.
func BenchmarkSend(b *testing.B) {
	f := newFixture(b)
	conn, err := grpc.NewClient(f.grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	service := a2apb.NewA2AServiceClient(conn)
	client := &http.Client{Transport: new(http.Transport)}
	b.Cleanup(client.CloseIdleConnections)
	calls := []struct {
		name string
		call func(ctx context.Context, id string) (first time.Time, err error)
		took [2][]time.Duration // until the first piece, until the end
	}{
		{name: "chat", call: func(ctx context.Context, _ string) (time.Time, error) {
			stream, err := parleyv1.NewConversationServiceClient(conn).Chat(ctx, &parleyv1.ChatRequest{
				Content: "hello", Agent: "echo",
			})
			return received(stream, err, func(r *parleyv1.ChatResponse) bool { return r.GetEvent().GetTextDelta() != nil })
		}},
		{name: "grpc", call: func(ctx context.Context, id string) (time.Time, error) {
			ctx = metadata.AppendToOutgoingContext(ctx, a2a.SvcParamVersion, "1.0")
			stream, err := service.SendStreamingMessage(ctx, &a2apb.SendMessageRequest{Tenant: "echo", Message: &a2apb.Message{
				MessageId: id, Role: a2apb.Role_ROLE_USER, Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: "hello"}}},
			}})
			return received(stream, err, func(r *a2apb.StreamResponse) bool { return r.GetArtifactUpdate() != nil })
		}},
		{name: "rest", call: func(ctx context.Context, id string) (time.Time, error) {
			return post(ctx, client, f.url+Path+"echo/message:stream", fmt.Sprintf(benchMessage, id))
		}},
		{name: "jsonrpc", call: func(ctx context.Context, id string) (time.Time, error) {
			return post(ctx, client, f.url+Path+"echo", fmt.Sprintf(
				`{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":%s}`, fmt.Sprintf(benchMessage, id)))
		}},
	}
	for i := 0; b.Loop(); i++ {
		for _, k := range rand.Perm(len(calls)) { // What a call leaves to do slows the next one down.
			c := &calls[k]
			began := time.Now()
			first, err := c.call(b.Context(), fmt.Sprintf("%s-%d", c.name, i))
			if err != nil || first.IsZero() {
				b.Fatalf("%s: first piece at %v, error %v", c.name, first, err)
			}
			c.took[0] = append(c.took[0], first.Sub(began))
			c.took[1] = append(c.took[1], time.Since(began))
		}
	}
	first, end := median(calls[0].took[0]), median(calls[0].took[1])
	b.ReportMetric(float64(end.Microseconds()), "chat-µs")
	for _, c := range calls[1:] {
		b.ReportMetric(float64((median(c.took[0]) - first).Microseconds()), c.name+"-adds-first-µs")
		b.ReportMetric(float64((median(c.took[1]) - end).Microseconds()), c.name+"-adds-µs")
	}
}

// benchMessage has the id of the message to fill in.
const benchMessage = `{"message":{"messageId":%q,"role":"ROLE_USER","parts":[{"text":"hello"}]}}`

// received reads a stream to its end. It returns when the first piece of the answer came.
func received[R any](stream grpc.ServerStreamingClient[R], err error, isPiece func(*R) bool) (first time.Time, _ error) {
	if err != nil {
		return first, err
	}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return first, nil
		}
		if err != nil {
			return first, err
		}
		if first.IsZero() && isPiece(reply) {
			first = time.Now()
		}
	}
}

// post is like received, of a request over HTTP.
func post(ctx context.Context, client *http.Client, url, body string) (first time.Time, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return first, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(a2a.SvcParamVersion, "1.0")
	reply, err := client.Do(r)
	if err != nil {
		return first, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return first, errors.New(reply.Status)
	}
	for lines := bufio.NewScanner(reply.Body); ; {
		if !lines.Scan() {
			return first, lines.Err()
		}
		if first.IsZero() && bytes.Contains(lines.Bytes(), []byte("artifactUpdate")) {
			first = time.Now()
		}
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
