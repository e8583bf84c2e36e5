package main

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

// BenchmarkHTTPDoor measures what JSON over HTTP adds to a load of 20 messages: one caller
// loads a conversation over gRPC, then the same one over HTTP, and so on, and the medians of
// both are compared. The reply over HTTP is read, not parsed: that is the client's part.
func BenchmarkHTTPDoor(b *testing.B) {
	const mostMicros = 100
	rounds, slice := benchRounds(b)
	s := openBenchServer(b, benchWatched)
	client := &http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	var overGRPC, overHTTP, added []float64
	for round := range rounds + 1 { // The first warms up.
		runtime.GC() // Nobody pays for the one before.
		var took [2][]time.Duration
		for start := time.Now(); time.Since(start) < 4*slice; {
			id := s.anyID()
			begin := time.Now()
			reply, err := s.client.LoadConversation(s.ctx, &parleyv1.LoadConversationRequest{ConversationId: id})
			took[0] = append(took[0], time.Since(begin))
			check(b, err)
			begin = time.Now()
			body, err := s.loadOverHTTP(client, id)
			took[1] = append(took[1], time.Since(begin))
			check(b, err)
			if len(took[0]) == 1 {
				check(b, sameMessages(reply, body))
			}
		}
		if round > 0 {
			direct, door := medianMicros(took[0]), medianMicros(took[1])
			overGRPC, overHTTP, added = append(overGRPC, direct), append(overHTTP, door), append(added, door-direct)
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "median of %d rounds, least to most; client and server share %d processors\n", rounds, runtime.GOMAXPROCS(0))
	row(&table, "a load of 20 messages over gRPC, median, µs", overGRPC)
	row(&table, "the same over HTTP, median, µs", overHTTP)
	cost := row(&table, "the difference, µs", added)
	expectAtMost(&table, cost, mostMicros)
	b.ReportMetric(cost, "http-door-µs")
	b.ReportMetric(0, "ns/op") // It would be the length of the run.
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

// sameMessages fails unless both replies have all messages.
func sameMessages(reply *parleyv1.LoadConversationResponse, body []byte) error {
	var read struct{ Messages []struct{ Content string } }
	if err := json.Unmarshal(body, &read); err != nil {
		return err
	}
	for i, message := range reply.GetMessages() {
		if i >= len(read.Messages) || read.Messages[i].Content != message.GetContent() {
			return fmt.Errorf("message %d is not the same over HTTP", i)
		}
	}
	return nil
}

func medianMicros(took []time.Duration) float64 {
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1000
}
