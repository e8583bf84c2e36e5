package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// loggedConversations is the number of conversations.
const loggedConversations = 5000

// BenchmarkInteractionLog measures the cost of the interaction log. Two servers with stores on the same
// disk, one of them with the log, run alternately as in BenchmarkService. A turn is long enough for the
// log's sync, which happens once a second. Data that is unsynced at its end is synced outside the
// measurement. PARLEY_BENCH_ROUNDS, PARLEY_BENCH_SLICE and PARLEY_BENCH_ONLY apply as there.
func BenchmarkInteractionLog(b *testing.B) {
	const turn = 4 // slices
	rounds, slice := benchRounds(b)
	only := benchSetting(b, "ONLY", regexp.Compile, regexp.MustCompile(""))
	off, on := openBenchServer(b, loggedConversations), openBenchServer(b, loggedConversations, "--interaction-log")
	var all []*benchCase
	for _, callers := range []int{64, 1} {
		for _, t := range []struct {
			group  string
			caller func(*benchServer) func() (call, error)
		}{
			{"append in process", func(s *benchServer) func() (call, error) { return s.appendingInProcess }},
			{"append", func(s *benchServer) func() (call, error) { return s.appending(false) }},
			{"chat with echo", func(s *benchServer) func() (call, error) { return s.chattingWithEcho }},
		} {
			without := newBenchCase(t.group, callers, "log off", t.caller(off))
			with := newBenchCase(t.group, callers, "log on", t.caller(on), comparison{with: without, least: 0.95})
			all = append(all, without, with)
		}
	}
	all = slices.DeleteFunc(all, func(c *benchCase) bool { return !only.MatchString(c.name) })
	for round := range rounds + 1 { // The first warms up.
		for _, c := range order(all, round, rounds) {
			runtime.GC() // The garbage of the previous case must not slow this one down.
			rate, cost, err := c.measure(b, turn*slice)
			must(b, errors.Join(err, on.syncInteractions()))
			if round > 0 {
				c.rates, c.costs = append(c.rates, rate), append(c.costs, cost)
			}
		}
	}
	report(b, all)
	var table strings.Builder
	fmt.Fprintf(&table, "processor time, which a busy disk does not affect\n")
	for _, c := range all {
		for _, other := range c.comparisons {
			if len(other.with.costs) > 0 {
				ratios := slices.Clone(c.costs)
				for i := range ratios {
					ratios[i] /= other.with.costs[i]
				}
				group, _, _ := strings.Cut(c.name, "/")
				b.ReportMetric(row(&table, group+": log on / log off", ratios), metric(group+"-CPU"))
			}
		}
	}
	b.Log(table.String())
}

// syncInteractions syncs the files of the interaction log.
func (s *benchServer) syncInteractions() error {
	paths, err := filepath.Glob(filepath.Join(s.dir, "interactions", "*.jsonl"))
	for _, path := range paths {
		f, fault := os.Open(path)
		if fault == nil {
			fault = errors.Join(f.Sync(), f.Close())
		}
		err = errors.Join(err, fault)
	}
	return err
}

// chattingWithEcho creates a conversation and returns a call that sends it a message, which echo answers.
func (s *benchServer) chattingWithEcho() (call, error) {
	made, err := s.client.CreateConversation(s.ctx, &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: benchMessages}},
	})
	r := &parleyv1.ChatRequest{
		ConversationId: made.GetConversation().GetId(), Content: s.message.GetContent(), Agent: "echo",
	}
	return func(done *atomic.Int64) error {
		stream, err := s.client.Chat(s.ctx, r)
		if err == nil {
			err = drain(stream.Recv, func(*parleyv1.TurnEvent) {})
		}
		done.Add(1)
		return err
	}, err
}
