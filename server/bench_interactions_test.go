package main

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

// benchLogged is how many conversations there are.
const benchLogged = 5000

// BenchmarkInteractionLog measures what the interaction log costs: two servers with a store
// in a file each, on the same disk, of which one has the log on, take turns as those of
// BenchmarkService do. A turn is long enough for the log to be made durable in it, once a
// second; what is left of that at its end nobody else pays for. PARLEY_BENCH_ROUNDS,
// PARLEY_BENCH_SLICE and PARLEY_BENCH_ONLY are as there.
func BenchmarkInteractionLog(b *testing.B) {
	const turn = 4 // slices
	rounds, slice := benchRounds(b)
	only := benchSetting(b, "ONLY", regexp.Compile, regexp.MustCompile(""))
	off, on := openBenchServer(b, benchLogged), openBenchServer(b, benchLogged, "--interaction-log")
	var all []*contestant
	for _, callers := range []int{64, 1} {
		for _, t := range []struct {
			contest string
			caller  func(*benchServer) func() (call, error)
		}{
			{"append in process", func(s *benchServer) func() (call, error) { return s.appendingInProcess }},
			{"append", func(s *benchServer) func() (call, error) { return s.appending(false) }},
			{"chat with echo", func(s *benchServer) func() (call, error) { return s.echoing }},
		} {
			without := newContestant(t.contest, callers, "log off", t.caller(off))
			with := newContestant(t.contest, callers, "log on", t.caller(on), comparison{without, 0.95})
			all = append(all, without, with)
		}
	}
	all = slices.DeleteFunc(all, func(c *contestant) bool { return !only.MatchString(c.name) })
	for round := range rounds + 1 { // The first warms up.
		for _, c := range order(all, round, rounds) {
			runtime.GC() // Nobody pays for the one before.
			rate, cost, err := c.measure(b, turn*slice)
			check(b, errors.Join(err, on.syncInteractions()))
			if round > 0 {
				c.rates, c.costs = append(c.rates, rate), append(c.costs, cost)
			}
		}
	}
	report(b, all)
	var table strings.Builder
	fmt.Fprintf(&table, "processor time, which a busy disk does not change\n")
	for _, c := range all {
		for _, other := range c.beside {
			if len(other.with.costs) > 0 {
				ratios := slices.Clone(c.costs)
				for i := range ratios {
					ratios[i] /= other.with.costs[i]
				}
				contest, _, _ := strings.Cut(c.name, "/")
				b.ReportMetric(row(&table, contest+": log on / log off", ratios), metric(contest+"-CPU"))
			}
		}
	}
	b.Log(table.String())
}

// syncInteractions makes durable what is in the interaction log.
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

// echoing makes a conversation in which echo answers a new message every time.
func (s *benchServer) echoing() (call, error) {
	made, err := s.client.CreateConversation(s.ctx, &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: benchMessages}},
	})
	r := &parleyv1.ChatRequest{ConversationId: made.GetConversation().GetId(), Content: s.message.GetContent(), Agent: "echo"}
	return func(done *atomic.Int64) error {
		stream, err := s.client.Chat(s.ctx, r)
		if err == nil {
			err = drain(stream.Recv, func(*parleyv1.TurnEvent) {})
		}
		done.Add(1)
		return err
	}, err
}
