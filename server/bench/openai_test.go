package bench

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// BenchmarkOpenAI measures the cost that the OpenAI API adds to the calls below it: to a list of 20 messages, and to the
// first piece and to the end of a turn with the echo agent. One caller makes them alternately over gRPC and over HTTP,
// and the medians are compared. Replies over HTTP are read but not parsed, since parsing is the client's part.
func BenchmarkOpenAI(b *testing.B) {
	const maxMicros, maxFirstMicros = 150, 5000
	rounds, slice := benchRounds(b)
	s := openBenchServer(b, benchWatchedConversations)
	client := &http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	var list, listAdded, first, firstAdded, turn, turnAdded []float64
	for round := range rounds + 1 { // The first warms up.
		runtime.GC() // The garbage of the previous round must not slow this one down.
		var lists, firsts, turns [2][]time.Duration
		for start := time.Now(); time.Since(start) < 4*slice; {
			id := s.anyID()
			begin := time.Now()
			_, err := s.client.ListMessages(s.ctx, &parleyv1.ListMessagesRequest{ConversationId: id, PageSize: 20})
			lists[0] = append(lists[0], time.Since(begin))
			must(b, err)
			begin = time.Now()
			_, err = s.overOpenAI(client, http.MethodGet, "conversations/"+id+"/items?limit=20", "")
			lists[1] = append(lists[1], time.Since(begin))
			must(b, err)
			piece, end, err := s.echoOverGRPC()
			firsts[0], turns[0] = append(firsts[0], piece), append(turns[0], end)
			must(b, err)
			begin = time.Now()
			piece, err = s.overOpenAI(client, http.MethodPost, "responses", `{"model":"echo","input":"one two","stream":true}`)
			firsts[1], turns[1] = append(firsts[1], piece), append(turns[1], time.Since(begin))
			must(b, err)
		}
		if round > 0 {
			list, listAdded = addMedians(list, listAdded, lists)
			first, firstAdded = addMedians(first, firstAdded, firsts)
			turn, turnAdded = addMedians(turn, turnAdded, turns)
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "median of %d rounds, least to most; client and server share %d processors\n", rounds,
		runtime.GOMAXPROCS(0))
	row(&table, "a list of 20 messages over gRPC, median, µs", list)
	listCost := row(&table, "the OpenAI API adds, µs", listAdded)
	reportBound(&table, listCost, maxMicros)
	row(&table, "the first piece of a turn over gRPC, µs", first)
	firstCost := row(&table, "the OpenAI API adds, µs", firstAdded)
	reportBound(&table, firstCost, maxFirstMicros)
	row(&table, "a turn over gRPC to its end, µs", turn)
	turnCost := row(&table, "the OpenAI API adds, µs", turnAdded)
	reportBound(&table, turnCost, maxMicros)
	b.ReportMetric(listCost, "list-µs")
	b.ReportMetric(firstCost, "first-µs")
	b.ReportMetric(turnCost, "turn-µs")
	b.ReportMetric(0, "ns/op") // The default value would be the length of the run.
	b.Log(table.String())
}

// addMedians adds the median of the first durations, and how much the second ones take longer.
func addMedians(direct, added []float64, took [2][]time.Duration) (first, second []float64) {
	median := medianMicros(took[0])
	return append(direct, median), append(added, medianMicros(took[1])-median)
}

// echoOverGRPC returns how long a turn took to its first piece and to its end.
func (s *benchServer) echoOverGRPC() (first, end time.Duration, err error) {
	begin := time.Now()
	chat, err := s.client.Chat(s.ctx, &parleyv1.ChatRequest{Agent: "echo", Content: "one two"})
	if err != nil {
		return 0, 0, err
	}
	for {
		reply, err := chat.Recv()
		switch {
		case err != nil:
			return 0, 0, err
		case first == 0 && reply.GetEvent().GetTextDelta() != nil:
			first = time.Since(begin)
		case reply.GetEvent().GetFinished() != nil:
			return first, time.Since(begin), nil
		}
	}
}

// overOpenAI makes a request and reads the reply. It returns how long the first piece of a stream took.
func (s *benchServer) overOpenAI(client *http.Client, method, path, body string) (first time.Duration, err error) {
	begin := time.Now()
	request, err := http.NewRequestWithContext(s.ctx, method, "http://"+s.http+"/openai/v1/"+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	reply, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", path, reply.Status)
	}
	lines := bufio.NewReader(reply.Body)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return first, nil
		}
		if err != nil {
			return first, err
		}
		if first == 0 && strings.HasPrefix(line, "event: response.output_text.delta") {
			first = time.Since(begin)
		}
	}
}
