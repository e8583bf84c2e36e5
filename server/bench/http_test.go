package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// BenchmarkHTTP measures the cost that JSON over HTTP adds to a load of 20 messages. One caller loads
// conversations alternately over gRPC and over HTTP, and the medians are compared. The reply over HTTP
// is read but not parsed, since parsing is the client's part.
func BenchmarkHTTP(b *testing.B) {
	const maxMicros = 100
	rounds, slice := benchRounds(b)
	s := openBenchServer(b, benchWatchedConversations)
	client := &http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	var overGRPC, overHTTP, added []float64
	for round := range rounds + 1 { // The first warms up.
		runtime.GC() // The garbage of the previous round must not slow this one down.
		var took [2][]time.Duration
		for start := time.Now(); time.Since(start) < 4*slice; {
			id := s.anyID()
			begin := time.Now()
			reply, err := s.client.LoadConversation(s.ctx, &parleyv1.LoadConversationRequest{ConversationId: id})
			took[0] = append(took[0], time.Since(begin))
			must(b, err)
			begin = time.Now()
			body, err := s.loadOverHTTP(client, id)
			took[1] = append(took[1], time.Since(begin))
			must(b, err)
			if len(took[0]) == 1 {
				must(b, sameMessages(reply, body))
			}
		}
		if round > 0 {
			direct, viaHTTP := medianMicros(took[0]), medianMicros(took[1])
			overGRPC, overHTTP, added = append(overGRPC, direct), append(overHTTP, viaHTTP), append(added, viaHTTP-direct)
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "median of %d rounds, least to most; client and server share %d processors\n", rounds,
		runtime.GOMAXPROCS(0))
	row(&table, "a load of 20 messages over gRPC, median, µs", overGRPC)
	row(&table, "the same over HTTP, median, µs", overHTTP)
	cost := row(&table, "the difference, µs", added)
	reportBound(&table, cost, maxMicros)
	b.ReportMetric(cost, "http-µs")
	b.ReportMetric(0, "ns/op") // The default value would be the length of the run.
	b.Log(table.String())
}

func (s *benchServer) loadOverHTTP(client *http.Client, id string) ([]byte, error) {
	body := strings.NewReader(`{"conversationId":"` + id + `"}`)
	request, err := http.NewRequestWithContext(s.ctx, http.MethodPost, "http://"+s.http+"/v1/conversations:load", body)
	if err != nil {
		return nil, err
	}
	reply, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	read, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", reply.Status, read)
	}
	return read, err
}

// sameMessages returns an error unless both replies have the same messages.
func sameMessages(reply *parleyv1.LoadConversationResponse, body []byte) error {
	var read struct{ Messages []struct{ Content string } }
	if err := json.Unmarshal(body, &read); err != nil {
		return err
	}
	for i, message := range reply.GetMessages() {
		if i >= len(read.Messages) || read.Messages[i].Content != message.GetContent() {
			return fmt.Errorf("message %d differs over HTTP", i)
		}
	}
	return nil
}

func medianMicros(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1000
}
