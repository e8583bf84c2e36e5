package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// The benchmark has benchCallers callers, each with benchConversations conversations of its own.
const (
	benchCallers       = 64
	benchConversations = 16
	benchRounds        = 7
	benchEach          = 60                      // calls of a caller in a round, of a kind that takes long
	benchEachKnown     = 300                     // those that ask for a known version
	benchSetup         = 40 * benchConversations // appends of a caller before
)

// BenchmarkStore compares the store with the commands that it sends, called directly with arguments made ahead: appends
// with a request id at the limit of 20 messages, reads of these, and reads of a known version. Rounds of both alternate.
// It prints the median of the ratios and their spread, and compares them with the goals of the design.
func BenchmarkStore(b *testing.B) {
	for _, engine := range []struct {
		name  string
		start func(testing.TB) []string
	}{
		{"everysec", func(tb testing.TB) []string {
			tb.Helper()
			return []string{redistest.Start(tb).Addr()}
		}},
		{"always", func(tb testing.TB) []string {
			tb.Helper()
			return []string{redistest.Start(tb, redistest.Setting("appendfsync", "always")).Addr()}
		}},
		{"cluster", func(tb testing.TB) []string {
			tb.Helper()
			return addressesIn(redistest.StartCluster(tb, 3, 0).URL())
		}},
	} {
		for _, size := range []int{500, 4000} {
			b.Run(fmt.Sprintf("%s/%d", engine.name, size), func(b *testing.B) {
				addresses := engine.start(b)
				for range b.N {
					compareDirect(b, addresses, size)
				}
			})
		}
	}
}

func compareDirect(b *testing.B, addresses []string, size int) {
	b.Helper()
	direct, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addresses, DisableCache: true})
	if err != nil {
		b.Fatal(err)
	}
	defer direct.Close()
	measured, recorded := openBench(b, addresses, "bench1"), openBench(b, addresses, "bench2")
	callers, ahead := make([]*caller, benchCallers), make([]*caller, benchCallers)
	for i := range callers {
		callers[i] = newCaller(measured, i, size)
		r := &recorder{Client: recorded.client}
		own := &Store{ // The commands of one caller go through its recorder.
			options: recorded.options, client: r, writer: r, timeout: recorded.timeout, prefix: recorded.prefix,
			buckets: recorded.buckets, spread: recorded.spread, scripts: newScripts(), server: recorded.server,
			writes: newTurnstile(), teller: recorded.teller,
		}
		ahead[i] = newCaller(own, i, size)
		ahead[i].recorder = r
	}
	atOnce(b, callers, func(c *caller) error { return c.repeat(benchSetup, appends) })
	atOnce(b, ahead, func(c *caller) error { return c.record(direct) })
	atOnce(b, ahead, func(c *caller) error { return c.replay(benchSetup, appends) })
	for kind, c := range []struct {
		name  string
		least float64 // the goal
	}{{"append", 0.55}, {"read20", 0.5}, {"not_modified", 0.8}} {
		var ratios, rates []float64
		each := callsOf(kind)
		for round := range benchRounds + 1 {
			own := timed(func() { atOnce(b, callers, func(c *caller) error { return c.repeat(each, kind) }) })
			direct := timed(func() { atOnce(b, ahead, func(c *caller) error { return c.replay(each, kind) }) })
			if round > 0 { // The first one warms up.
				ratios = append(ratios, direct.Seconds()/own.Seconds())
				rates = append(rates, float64(benchCallers*each)/own.Seconds())
			}
		}
		slices.Sort(ratios)
		slices.Sort(rates)
		middle, verdict := ratios[len(ratios)/2], "met"
		if middle < c.least {
			verdict = "not met"
		}
		b.Logf("%s ÷ direct: %.2f (%.2f to %.2f), expected %g: %s; %.0f a second",
			c.name, middle, ratios[0], ratios[len(ratios)-1], c.least, verdict, rates[len(rates)/2])
		b.ReportMetric(middle, c.name+"/direct")
	}
}

func openBench(b *testing.B, addresses []string, prefix string) *Store {
	b.Helper()
	s, err := Open(b.Context(), Options{Client: rueidis.ClientOption{InitAddress: addresses}, Prefix: prefix, Buckets: 16})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

// atOnce runs do for all callers at the same time.
func atOnce(b *testing.B, callers []*caller, do func(*caller) error) {
	b.Helper()
	var group sync.WaitGroup
	for _, c := range callers {
		group.Go(func() {
			if err := do(c); err != nil {
				b.Error(err)
			}
		})
	}
	group.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

func timed(do func()) time.Duration {
	began := time.Now()
	do()
	return time.Since(began)
}

// caller makes the calls of one of the callers.
type caller struct {
	store    *Store
	tenant   string
	messages []*parleyv1.Message        // made ahead
	ids      [benchConversations]string // of the conversations
	made     int
	appended [benchConversations]int32 // to each conversation
	recorder *recorder
	trips    [3][][]rueidis.Completed // recorded, by kind: the commands of each call
	replayed [3]int
	direct   rueidis.Client
}

// The kinds of calls.
const (
	appends = iota
	reads
	known
)

// callsOf returns the calls of a caller in a round.
func callsOf(kind int) int {
	if kind == known {
		return benchEachKnown
	}
	return benchEach
}

func newCaller(s *Store, number, size int) *caller {
	c := &caller{store: s, tenant: fmt.Sprint("tenant", number)}
	for i := range c.ids {
		c.ids[i] = fmt.Sprint("conversation", i)
	}
	for i := range 100 {
		text := strings.Repeat(fmt.Sprintf("%08d", i), size/8)
		c.messages = append(c.messages, &parleyv1.Message{
			Id: fmt.Sprintf("%036d", i), Content: text, Role: parleyv1.Role_ROLE_USER,
		})
	}
	return c
}

// repeat makes n calls.
func (c *caller) repeat(n, kind int) error {
	for range n {
		if err := c.call(kind); err != nil {
			return err
		}
	}
	return nil
}

func (c *caller) call(kind int) error {
	ctx, n := context.Background(), c.made%benchConversations
	id := c.ids[n]
	c.made++
	switch kind {
	case appends:
		c.appended[n]++
		_, err := c.store.Append(ctx, &store.Append{
			Tenant: c.tenant, ConversationID: id, Messages: []*parleyv1.Message{c.messages[c.made%len(c.messages)]},
			Request: &store.Request{ID: fmt.Sprintf("%036d", c.made), Method: "AppendMessages"},
		})
		return err
	case reads:
		_, err := c.store.Read(ctx, &store.Read{Tenant: c.tenant, ConversationID: id, Newest: 20, Shared: true})
		return err
	}
	snapshot, err := c.store.Read(ctx, &store.Read{
		Tenant: c.tenant, ConversationID: id, Newest: 20, Known: store.Known{Version: c.appended[n]},
	})
	if err == nil && !snapshot.Unchanged {
		err = fmt.Errorf("%s has changed", id)
	}
	return err
}

// record makes all calls and keeps their commands, for a store with another prefix.
func (c *caller) record(direct rueidis.Client) error {
	c.direct = direct
	for kind := range c.trips {
		n := callsOf(kind) * (benchRounds + 1)
		if kind == appends {
			n += benchSetup
		}
		for range n {
			c.recorder.trip = nil
			if err := c.call(kind); err != nil {
				return err
			}
			for _, trip := range c.recorder.trip {
				c.trips[kind] = append(c.trips[kind], completed(direct, trip))
			}
			c.trips[kind] = append(c.trips[kind], nil) // The end of a call.
		}
	}
	return nil
}

// replay makes the next n recorded calls.
func (c *caller) replay(n, kind int) error {
	for n > 0 {
		commands := c.trips[kind][c.replayed[kind]]
		c.replayed[kind]++
		if commands == nil {
			n--
			continue
		}
		for _, reply := range c.direct.DoMulti(context.Background(), commands...) {
			if err := reply.Error(); err != nil && !isNil(err) {
				return err
			}
			if list, err := reply.ToArray(); err == nil && len(list) == 1 {
				if text, _ := list[0].ToString(); text == "moved" {
					return errMoved
				}
			}
		}
	}
	return nil
}

// completed returns commands with the prefix of the third store.
func completed(client rueidis.Client, trip [][]string) []rueidis.Completed {
	var commands []rueidis.Completed
	for _, words := range trip {
		own := make([]string, len(words))
		for i, word := range words {
			own[i] = strings.ReplaceAll(word, "bench2", "bench3")
		}
		key := 1
		if own[0] == "EVALSHA" || own[0] == "EVAL" {
			key = 3
		}
		commands = append(commands, client.B().Arbitrary(own[0]).Args(own[1:key]...).Keys(own[key]).Args(own[key+1:]...).
			Build().Pin())
	}
	return commands
}

// recorder records the commands of a caller.
type recorder struct {
	rueidis.Client
	trip [][][]string // of each round trip the words of the commands
}

func (r *recorder) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	r.trip = append(r.trip, [][]string{slices.Clone(cmd.Commands())})
	return r.Client.Do(ctx, cmd)
}

func (r *recorder) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	var trip [][]string
	for _, cmd := range cmds {
		trip = append(trip, slices.Clone(cmd.Commands()))
	}
	r.trip = append(r.trip, trip)
	return r.Client.DoMulti(ctx, cmds...)
}
