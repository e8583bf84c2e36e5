package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestAppenderThroughRandomCuts appends to 64 conversations while 200 connections are cut, each after a random number
// of bytes in one direction. Each message must be stored once and in order. Eight appenders with eight conversations
// each share the cuts, because the client waits after each one. With PARLEY_LONG=1 in the environment there is only
// one appender.
func TestAppenderThroughRandomCuts(t *testing.T) {
	t.Parallel()
	const conversations, cuts = 64, 200
	appenders := 8
	if os.Getenv("PARLEY_LONG") != "" {
		appenders = 1
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s, err := startProcess("--store=bolt", "--data-dir="+t.TempDir(), "--max-messages=1000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	var appended, replayed atomic.Int64
	var running sync.WaitGroup
	for n := range appenders {
		running.Go(func() {
			w := &cutWriter{t: t, random: rand.New(rand.NewPCG(seed, uint64(n))), appended: &appended, replayed: &replayed}
			w.cuts.Store(int64(cuts / appenders))
			for i := range conversations / appenders {
				w.conversations = append(w.conversations, fmt.Sprintf("c%d-%d", n, i))
			}
			w.run(s.address)
		})
	}
	running.Wait()
	t.Logf("%d messages appended, %d answers were lost", appended.Load(), replayed.Load())
	if replayed.Load() == 0 {
		t.Error("no answer was lost, want some")
	}
}

// cutWriter appends through connections that it cuts.
type cutWriter struct {
	t                  *testing.T
	conversations      []string
	appended, replayed *atomic.Int64

	cuts   atomic.Int64 // The number of connections that are still to be cut.
	mu     sync.Mutex
	random *rand.Rand
}

// run appends until all connections have been cut, then checks the conversations.
func (w *cutWriter) run(address string) {
	t := w.t
	c, err := client.Dial("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(w.dial))
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	appender := c.NewAppender(t.Context())
	var results []*client.AppendResult
	for round := 0; w.cuts.Load() > 0 && appender.Err() == nil; round++ {
		for _, id := range w.conversations {
			results = append(results, appender.Append(t.Context(), appendRequest(id, fmt.Sprint("message", round))))
		}
	}
	if err := appender.Close(); err != nil {
		t.Errorf("Close = %v, want no error", err)
	}
	for _, result := range results {
		response, err := result.Wait(t.Context())
		if err != nil {
			t.Errorf("Wait = %v, want no error", err)
			return
		}
		w.appended.Add(1)
		if response.GetReplayed() {
			w.replayed.Add(1)
		}
	}
	w.check(c, len(results)/len(w.conversations))
}

// check checks that each conversation contains the messages of all rounds, once and in order.
func (w *cutWriter) check(c *client.Client, rounds int) {
	var want []string
	for round := range rounds {
		want = append(want, fmt.Sprint("message", round))
	}
	want = want[max(0, len(want)-1000):] // The rest has been dropped.
	for _, id := range w.conversations {
		list, err := c.ListMessages(w.t.Context(), &parleyv1.ListMessagesRequest{
			ConversationId: id, PageSize: 1000, Ascending: true,
		})
		if err != nil {
			w.t.Errorf("ListMessages: %v", err)
			return
		}
		var got []string
		for _, message := range list.GetMessages() {
			got = append(got, message.GetContent())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			w.t.Errorf("messages of %s (-want +got):\n%s", id, diff)
		}
		if last := list.GetMessages()[len(got)-1].GetSequence(); int(last) != rounds {
			w.t.Errorf("last sequence of %s = %d, want %d", id, last, rounds)
		}
	}
}

// dial opens a connection that is cut after a random number of bytes, unless all cuts have been made.
func (w *cutWriter) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	cut := &cutConn{Conn: conn, w: w}
	cut.read.Store(1 << 60)
	cut.written.Store(1 << 60)
	if w.random.IntN(2) == 0 {
		cut.read.Store(w.random.Int64N(12 << 10))
	} else {
		cut.written.Store(w.random.Int64N(12 << 10))
	}
	return cut, nil
}

// cutConn is a connection that is reset after some bytes.
type cutConn struct {
	net.Conn

	w             *cutWriter
	read, written atomic.Int64 // The number of bytes until the connection is cut.
	once          sync.Once
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return c.pass(&c.read, n), err
}

func (c *cutConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.pass(&c.written, n)
	return n, err
}

// pass counts n bytes, and resets the connection if it is to be cut among them. It returns the number of bytes before
// the cut.
func (c *cutConn) pass(left *atomic.Int64, n int) int {
	rest := left.Add(-int64(n))
	if rest > 0 || c.w.cuts.Load() <= 0 {
		return n
	}
	c.once.Do(func() {
		c.w.cuts.Add(-1)
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
	})
	return max(0, n+int(rest))
}

// TestAppenderReturnsTheErrorsOfAppendMessages checks that a refused request stops nothing.
func TestAppenderReturnsTheErrorsOfAppendMessages(t *testing.T) {
	t.Parallel()
	c := dialServer(t)
	appender := c.NewAppender(t.Context())
	defer appender.Close()
	late, nowhere, invalid := appendRequest("c", "r2"), appendRequest("nowhere", "r3"), appendRequest("c", "no blank at the end ")
	late.IfVersion, nowhere.MustExist = new(int32(7)), true
	reused := appendRequest("c", "r1")
	reused.Messages[0].Content = "other"
	requests := []*parleyv1.AppendMessagesRequest{
		appendRequest("c", "r1"), late, nowhere, invalid, reused, {}, appendRequest("d", "r4"),
	}
	var results []*client.AppendResult
	for _, request := range requests {
		results = append(results, appender.Append(t.Context(), request))
	}
	if err := appender.Flush(t.Context()); err != nil {
		t.Errorf("Flush = %v, want no error", err)
	}
	for i, result := range results {
		_, got := result.Wait(t.Context())
		_, want := c.AppendMessages(t.Context(), requests[i])
		if diff := cmp.Diff(status.Convert(want).Proto(), status.Convert(got).Proto(), protocmp.Transform()); diff != "" {
			t.Errorf("request %d: status (-AppendMessages +Appender):\n%s", i, diff)
		}
		if accepted := i == 0 || i == len(results)-1; accepted != (got == nil) {
			t.Errorf("request %d: Wait = %v, want success: %t", i, got, accepted)
		}
	}
}
