package bench

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// recordsOfPrefix is the number of records with the same prefix, and recordBytes the size of their values.
	recordsOfPrefix, recordBytes = 100, 100
	// maxListMillis is the expected maximum of the median time of a list.
	maxListMillis = 2
)

// BenchmarkRecordList measures how long one caller waits for a list of 100 records of the tenant by their prefix, with
// values and with keys only, and compares it with a list of a conversation that has only 100 records. The metrics are
// medians in milliseconds. PARLEY_BENCH_ROUNDS and PARLEY_BENCH_SLICE apply as in BenchmarkService.
// PARLEY_BENCH_RECORDS is the number of records of the tenant. If it is not set, it is 1,000,000 if the flag -bench
// names this benchmark, and 50,000 if not.
func BenchmarkRecordList(b *testing.B) {
	rounds, slice := benchRounds(b)
	records := benchSetting(b, "RECORDS", positive, defaultRecords())
	prefixes := max(records/recordsOfPrefix, 1)
	s := openEmptyBenchServer(b, telemetry{})
	start := time.Now()
	must(b, s.fillRecords(prefixes))
	b.Logf("%d records of the tenant with values of %d B written in %.0f s",
		prefixes*recordsOfPrefix, recordBytes, time.Since(start).Seconds())

	of := fmt.Sprintf("100 of %d of the tenant", prefixes*recordsOfPrefix)
	anyPrefix := func() string { return recordPrefix(rand.N(prefixes)) }
	kinds := []struct {
		name    string
		request func() *parleyv1.ListRecordsRequest
		medians []float64 // in ms, one of each round
	}{
		{name: "100 of 100 of a conversation", request: func() *parleyv1.ListRecordsRequest {
			return &parleyv1.ListRecordsRequest{ConversationId: listedConversation}
		}},
		{name: of, request: func() *parleyv1.ListRecordsRequest {
			return &parleyv1.ListRecordsRequest{Prefix: anyPrefix()}
		}},
		{name: of + " without values", request: func() *parleyv1.ListRecordsRequest {
			return &parleyv1.ListRecordsRequest{Prefix: anyPrefix(), KeysOnly: true}
		}},
	}
	for round := range rounds + 1 { // The first warms up.
		for i := range kinds {
			runtime.GC() // The garbage of the previous kind must not slow this one down.
			median, err := s.listRecords(kinds[i].request, slice)
			must(b, err)
			if round > 0 {
				kinds[i].medians = append(kinds[i].medians, median)
			}
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "median time of a list in ms; median of %d rounds, least to most\n", rounds)
	for _, k := range kinds {
		b.ReportMetric(row(&table, k.name, k.medians), metric(k.name)+"/ms")
	}
	median, _, _ := spread(kinds[1].medians)
	reportBound(&table, median, maxListMillis)
	ratios := make([]float64, rounds)
	for i := range ratios {
		ratios[i] = kinds[1].medians[i] / kinds[0].medians[i]
	}
	row(&table, "of the tenant / of a conversation", ratios)
	b.ReportMetric(0, "ns/op") // The default value would be the length of the run.
	b.Log(table.String())
}

// defaultRecords returns the number of records if PARLEY_BENCH_RECORDS is not set.
func defaultRecords() int {
	if f := flag.Lookup("test.bench"); f != nil && strings.Contains(f.Value.String(), "RecordList") {
		return 1_000_000
	}
	return 50_000
}

// listedConversation is the conversation that has as many records as a prefix.
const listedConversation = "listed"

// recordPrefix returns the prefix of the keys of recordsOfPrefix records.
func recordPrefix(i int) string { return fmt.Sprintf("user/%06d/", i) }

// fillRecords writes the records of the prefixes, and as many records of listedConversation as a prefix has.
func (s *benchServer) fillRecords(prefixes int) error {
	if _, err := s.client.AppendMessages(s.ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: listedConversation, Messages: []*parleyv1.Message{s.message},
	}); err != nil {
		return err
	}
	client := parleyv1.NewRecordServiceClient(s.conn)
	write := func(conversationID string, prefix int) error {
		r := &parleyv1.WriteRecordsRequest{ConversationId: conversationID}
		for i := range recordsOfPrefix {
			r.Writes = append(r.Writes, putRecord(fmt.Sprintf("%s%02d", recordPrefix(prefix), i), recordBytes))
		}
		_, err := client.WriteRecords(s.ctx, r)
		return err
	}
	var callers errgroup.Group
	callers.SetLimit(16)
	callers.Go(func() error { return write(listedConversation, 0) })
	for _, prefix := range rand.Perm(prefixes) {
		callers.Go(func() error { return write("", prefix) })
	}
	return callers.Wait()
}

// listRecords makes lists for a duration, at least one. It returns the median of their times in milliseconds.
func (s *benchServer) listRecords(
	request func() *parleyv1.ListRecordsRequest, slice time.Duration,
) (median float64, err error) {
	client := parleyv1.NewRecordServiceClient(s.conn)
	var took []float64
	for end := time.Now().Add(slice); len(took) == 0 || time.Now().Before(end); {
		r := request()
		start := time.Now()
		reply, err := client.ListRecords(s.ctx, r)
		if err != nil {
			return 0, err
		}
		took = append(took, time.Since(start).Seconds()*1000)
		if n := len(reply.GetRecords()); n != recordsOfPrefix {
			return 0, fmt.Errorf("ListRecords(%v) = %d records, want %d", r, n, recordsOfPrefix)
		}
	}
	median, _, _ = spread(took)
	return median, nil
}
