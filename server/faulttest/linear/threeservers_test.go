package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/server/parleydtest"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

const (
	callsPerPart = 60 // before a fault, and after it
	maxCalls     = 4 * callsPerPart
)

// threeServers is a history of three servers on one engine.
type threeServers struct {
	program string
	urls    [groupSize]string
	ids     int // conversations in use
	rounds  int // with a fault each
	// fault disturbs a server while calls are running. It may allow further calls and returns their number.
	fault func(ctx context.Context, g *group, i int) (calls int, err error)
}

// record records a history. It returns an error if an answer is invalid in any history.
func (h threeServers) record(t *testing.T, seed uint64) ([]operation, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	g := startGroup(t, h, fmt.Sprint("history-", seed))
	var running sync.WaitGroup
	for i := range clients {
		c := &client{number: i, ids: h.ids, random: rand.New(rand.NewPCG(seed, uint64(i))), versions: map[string]int32{}}
		running.Go(func() { g.run(ctx, c) })
	}
	err := h.disturb(ctx, g)
	close(g.permits)
	if err != nil {
		cancel()
	}
	running.Wait()
	for i := range groupSize {
		g.server(i).close()
	}
	return g.history, err
}

// disturb makes the rounds. After each, no call is running.
func (h threeServers) disturb(ctx context.Context, g *group) error {
	for round := range h.rounds {
		g.allow(2 * callsPerPart)
		if err := g.await(ctx, callsPerPart); err != nil {
			return err
		}
		more, err := h.fault(ctx, g, round%groupSize)
		if err != nil {
			return err
		}
		if err := g.await(ctx, callsPerPart+more); err != nil {
			return err
		}
		// The engine has answered calls that were made after those that a fault left without an answer. It executes commands
		// in the order in which it received them.
		g.endLost()
		if err := g.list(ctx); err != nil {
			return err
		}
	}
	return nil
}

// undisturbed is a fault that does nothing.
func undisturbed(context.Context, *group, int) (int, error) { return 0, nil }

// killOne kills a server and starts another one in its place.
func killOne(_ context.Context, g *group, i int) (int, error) {
	s := g.server(i)
	g.use(i, false)
	s.close()
	g.start(i)
	g.allow(callsPerPart)
	return callsPerPart, nil
}

// pauseOne stops a server until its lease has ended, and lets it continue.
func pauseOne(engine *redistest.Server) func(context.Context, *group, int) (int, error) {
	return func(ctx context.Context, g *group, i int) (int, error) {
		s := g.server(i)
		g.use(i, false)
		if err := s.process.Process.Signal(syscall.SIGSTOP); err != nil {
			return 0, err
		}
		g.allow(callsPerPart)
		err := awaitLeases(ctx, engine, groupSize-1)
		if err := errors.Join(err, s.process.Process.Signal(syscall.SIGCONT)); err != nil {
			return 0, err
		}
		g.use(i, true)
		g.allow(callsPerPart)
		return 2 * callsPerPart, nil
	}
}

// awaitLeases waits until the given number of servers has a lease.
func awaitLeases(ctx context.Context, engine *redistest.Server, n int) error {
	const script = `local time, most = redis.call('TIME'), 0
		for _, key in ipairs(redis.call('KEYS', '*}ls')) do
			most = math.max(most, redis.call('ZCOUNT', key, time[1] * 1000 + math.floor(time[2] / 1000), '+inf'))
		end
		return most`
	for ticker := time.NewTicker(100 * time.Millisecond); ; {
		leases, err := engine.Do("EVAL", script, "0")
		if err != nil || leases == fmt.Sprint(n) {
			ticker.Stop()
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			ticker.Stop()
			return fmt.Errorf("%s servers have a lease, want %d: %w", leases, n, ctx.Err())
		}
	}
}

// same returns one URL for all servers.
func same(url string) [groupSize]string { return [groupSize]string{url, url, url} }

// TestThreeServers checks that the histories of three servers on one engine are linearizable, when each client calls
// another server each time, and servers are killed, paused for longer than their lease, or lose their connections to
// the engine.
func TestThreeServers(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T) (h threeServers, histories int){
		"undisturbed": func(t *testing.T) (threeServers, int) {
			t.Helper()
			return threeServers{urls: same(redistest.Start(t).URL()), rounds: 3, fault: undisturbed}, rounds(3, 50)
		},
		"cluster": func(t *testing.T) (threeServers, int) {
			t.Helper()
			return threeServers{urls: same(redistest.StartCluster(t, 3, 0).URL()), rounds: 3, fault: undisturbed}, rounds(1, 20)
		},
		"killed": func(t *testing.T) (threeServers, int) {
			t.Helper()
			return threeServers{urls: same(redistest.Start(t).URL()), rounds: 3, fault: killOne}, rounds(3, 50)
		},
		"paused": func(t *testing.T) (threeServers, int) {
			t.Helper()
			engine := redistest.Start(t)
			return threeServers{urls: same(engine.URL()), rounds: 1, fault: pauseOne(engine)}, rounds(1, 10)
		},
		"cut": func(t *testing.T) (threeServers, int) {
			t.Helper()
			engine := redistest.Start(t)
			p := startProxy(t, engine.Addr())
			urls := same(engine.URL())
			urls[0] = "redis://" + p.listener.Addr().String()
			return threeServers{urls: urls, rounds: 6, fault: func(context.Context, *group, int) (int, error) {
				if p.cut() == 0 {
					return 0, errors.New("no connection was cut")
				}
				return 0, nil
			}}, rounds(2, 50)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, histories := prepare(t)
			h.program, h.ids = parleyd, idsInUse
			operations, lost := 0, 0
			for seed := range histories {
				history, err := h.record(t, uint64(seed))
				if err != nil {
					t.Fatalf("history %d: %v", seed, err)
				}
				if result := check(history); result != porcupine.Ok {
					t.Fatalf("history %d: %v\n%s", seed, result, describe(history))
				}
				operations += len(history)
				for _, o := range history {
					if o.got.lost {
						lost++
					}
				}
			}
			t.Logf("%d calls, %d of them lost", operations, lost)
		})
	}
}

// TestThreeWrongServers is a control: the checker rejects servers that are right alone and wrong together.
func TestThreeWrongServers(t *testing.T) {
	for name, wrong := range map[string][]parleydtest.Change{
		"commits do not compare what was read": {{
			File:   "store/redisstore/lua/commit.lua",
			Before: "if (f[1] or '') ~= read then return { 'moved' } end",
		}},
		"reads of what this server has read before": {
			{File: "store/redisstore/stale.go", After: "package redisstore\n\nimport \"sync\"\n\nvar stale sync.Map\n"},
			{
				File: "store/redisstore/read.go", Before: "	snapshot, err := again(ctx,",
				After: `	if known, ok := stale.LoadAndDelete(q.ConversationID); ok {
						if snapshot, ok := known.(*store.Snapshot); ok {
							return snapshot, nil
						}
					}
					snapshot, err := again(ctx,`,
			},
			{
				File: "store/redisstore/read.go", Before: "	return snapshot, nil\n}\n\nfunc (s *Store) readOnce(",
				After: "	stale.Store(q.ConversationID, snapshot)\n	return snapshot, nil\n}\n\nfunc (s *Store) readOnce(",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := redistest.Start(t)
			h := threeServers{
				program: filepath.Join(t.TempDir(), "parleyd"), urls: same(engine.URL()), ids: idsInUse, rounds: 3,
				fault: undisturbed,
			}
			if err := parleydtest.BuildChanged(t.Context(), h.program, wrong...); err != nil {
				t.Fatal(err)
			}
			for seed := range 5 {
				history, err := h.record(t, uint64(seed))
				if status.Code(err) == codes.DataLoss || err == nil && check(history) == porcupine.Illegal {
					return // With DATA_LOSS, a server has noticed it.
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			t.Error("check of 5 histories = no violation, want one")
		})
	}
}
