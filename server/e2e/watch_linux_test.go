package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// waitingReaders is the number of readers that wait at once, each for its own conversation.
const waitingReaders = 1000

// maxWaiterBytes is the maximal memory of the server for each waiting reader.
const maxWaiterBytes = 32 << 10

// TestThousandReadersWait lets readers wait for summaries. An append wakes only the reader of its
// conversation. The memory of the server grows by less than 32 KiB for each reader. The server is a
// process of its own without the race detector.
func TestThousandReadersWait(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	pid, target := startPlain(t)
	client := func() *apiClient { return newAPIClient(t, target) }
	writer, all := client(), make([]*waiter, waitingReaders)
	ids := make([]string, waitingReaders)
	inParallel(waitingReaders, func(i int) {
		ids[i] = fmt.Sprint("c", i)
		if err := writer.append(t.Context(), ids[i]); err != nil {
			t.Error(err)
		}
	})
	writer.warmUp(t)
	before := residentBytes(t, pid)
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan *waiter, waitingReaders)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	readers := []*apiClient{client(), client(), client(), client()}
	for i, id := range ids {
		all[i] = &waiter{id: id, client: readers[i%len(readers)]}
		waiting.Go(func() { all[i].wait(ctx, woken) })
	}
	writer.awaitWatchers(t, waitingReaders)
	grown := residentBytes(t, pid) - before
	t.Logf("%d waiters: the server grew by %.1f KiB each", waitingReaders, float64(grown)/waitingReaders/1024)
	if grown > waitingReaders*maxWaiterBytes {
		t.Errorf("%d waiters cost %d bytes, want less than %d each", waitingReaders, grown, maxWaiterBytes)
	}

	var sent, acknowledged []time.Duration
	for i := range all {
		start := time.Now()
		if err := writer.append(t.Context(), ids[i]); err != nil {
			t.Fatal(err)
		}
		done := time.Now()
		select {
		case w := <-woken:
			if w != all[i] || w.err != nil || w.version != 2 {
				t.Fatalf("an append to %s woke %s with version %d, %v; want its own reader with version 2", ids[i], w.id, w.version,
					w.err)
			}
			sent, acknowledged = append(sent, w.at.Sub(start)), append(acknowledged, w.at.Sub(done))
		case <-time.After(timeout):
			t.Fatalf("an append to %s woke no reader", ids[i])
		}
	}
	t.Logf("from the call of an append to its reader's reply: %s", distribution(sent))
	t.Logf("from the reply of an append to its reader's reply: %s", distribution(acknowledged))
	writer.awaitWatchers(t, 0)
}

// distribution formats the median, the 99th percentile and the maximum of some durations.
func distribution(all []time.Duration) string {
	slices.Sort(all)
	at := func(share float64) time.Duration { return all[int(share*float64(len(all)-1))].Round(time.Microsecond) }
	return fmt.Sprintf("median %s, 99 %% %s, at most %s", at(0.5), at(0.99), at(1))
}

// waiter is a reader that waits for the second version of a conversation.
type waiter struct {
	id      string
	client  *apiClient
	version int32
	at      time.Time
	err     error
}

// wait repeats its call until there is a new version, and sends itself to woken.
func (w *waiter) wait(ctx context.Context, woken chan<- *waiter) {
	known := int32(1)
	for {
		reply, err := w.client.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{
			ConversationId: w.id, KnownVersion: &known, WaitTimeout: durationpb.New(time.Minute),
		})
		if err == nil && reply.GetNotModified() {
			continue
		}
		if ctx.Err() == nil {
			w.version, w.at, w.err = reply.GetSummary().GetVersion(), time.Now(), err
			woken <- w
		}
		return
	}
}

// startPlain builds the released program and starts it.
func startPlain(t *testing.T) (pid int, target string) {
	t.Helper()
	dir := t.TempDir()
	program, socket := filepath.Join(dir, "parleyd"), filepath.Join(dir, "s")
	if err := parleydtest.Build(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	command := parleyd(t, "--grpc-address=unix:"+socket, "--data-dir="+dir, "--max-conversations=2000")
	command.Path = program
	return startUnconnected(t, command).process.Process.Pid, "unix:" + socket
}

// residentBytes returns the resident memory of a process.
func residentBytes(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	resident := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if resident == nil {
		t.Fatalf("no VmRSS in %s", status)
	}
	kib, err := strconv.Atoi(string(resident[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// apiClient is a client on its own connection, which waits until the server listens.
type apiClient struct {
	parleyv1.ConversationServiceClient
	parleyv1.AdminServiceClient
}

func newAPIClient(t *testing.T, target string) *apiClient {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &apiClient{parleyv1.NewConversationServiceClient(conn), parleyv1.NewAdminServiceClient(conn)}
}

// append appends a message.
func (c *apiClient) append(ctx context.Context, id string) error {
	_, err := c.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
	})
	return err
}

// awaitWatchers polls until the server has this number of watchers and waiting readers.
func (c *apiClient) awaitWatchers(t *testing.T, want int32) {
	t.Helper()
	for late := time.Now().Add(timeout); ; {
		stats, err := c.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if stats.GetWatcherCount() == want {
			return
		}
		if time.Now().After(late) {
			t.Fatal(errors.Join(fmt.Errorf("%d watchers, want %d", stats.GetWatcherCount(), want), t.Context().Err()))
		}
	}
}

// warmUp makes the server do some work, so that its memory is that of a server in use.
func (c *apiClient) warmUp(t *testing.T) {
	t.Helper()
	inParallel(waitingReaders, func(i int) {
		if _, err := c.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{ConversationId: fmt.Sprint("c", i)}); err != nil {
			t.Error(err)
		}
	})
}
