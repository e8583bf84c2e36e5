package interactionlog

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
)

// fiveHundred returns a text of 500 B.
func fiveHundred() string { return strings.Repeat("all happy families are alike. \n", 17)[:500] }

// BenchmarkCommitted writes entries of 500 B messages, in batches like those of 64 callers, one by one,
// and to a failing log.
func BenchmarkCommitted(b *testing.B) {
	for _, test := range []struct {
		size  int
		fails bool
	}{{1, false}, {64, false}, {64, true}} {
		b.Run(fmt.Sprintf("batch=%d/fails=%v", test.size, test.fails), func(b *testing.B) {
			l := newLog(b, Options{Dir: filepath.Join(b.TempDir(), "interactions")})
			changes := make([]store.Change, test.size)
			for i := range changes {
				changes[i] = entrytest.Appended(b, "default", "11111111-2222-4333-8444-555555555555", &parleyv1.Message{
					Id: "11111111-2222-4333-8444-555555555555", Sequence: int32(i), Exchange: 2,
					Role: parleyv1.Role_ROLE_USER, Content: fiveHundred(),
					Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE, CreateTime: timestamppb.New(noon),
				})
			}
			if path := filepath.Join(l.options.Dir, dayfile.DayOf(noon).FileName()); test.fails {
				must(b, os.Mkdir(path, dayfile.DirMode))
				b.Cleanup(func() { os.Remove(path) })
			}
			b.ReportAllocs()
			for b.Loop() {
				l.Committed(changes)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*test.size), "ns/message")
		})
	}
}

// BenchmarkAppend has 64 callers append 500 B messages, alternately to a store in a file with a log and
// to one without. The metric "log/plain" is the ratio of the two rates.
func BenchmarkAppend(b *testing.B) {
	const callers, slice = 64, 200 * time.Millisecond
	stores := map[string]store.Store{}
	l := newLog(b, Options{Dir: filepath.Join(b.TempDir(), "interactions")})
	startMaintain(b, l)
	for name, observe := range map[string]func([]store.Change){"plain": nil, "log": l.Committed} {
		options := boltstore.Options{Options: store.Options{Observe: observe}}
		s, err := boltstore.Open(filepath.Join(b.TempDir(), "parley.db"), options)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		stores[name] = s
	}
	appends, spent := map[string]int64{}, map[string]time.Duration{}
	for b.Loop() {
		for _, name := range []string{"plain", "log", "log", "plain"} {
			start := time.Now()
			var n atomic.Int64
			var group sync.WaitGroup
			for caller := range callers {
				group.Go(func() {
					for i := 0; time.Since(start) < slice; i++ {
						_, err := stores[name].Append(b.Context(), &store.Append{
							Tenant: "default", ConversationID: fmt.Sprint("c", (i*callers+caller)%2048),
							Messages: []*parleyv1.Message{{Id: "m", Role: parleyv1.Role_ROLE_USER, Content: fiveHundred()}},
						})
						if err != nil {
							b.Error(err)
							return
						}
						n.Add(1)
					}
				})
			}
			group.Wait()
			appends[name] += n.Load()
			spent[name] += time.Since(start)
		}
	}
	rate := func(name string) float64 { return float64(appends[name]) / spent[name].Seconds() }
	b.ReportMetric(rate("plain"), "plain/s")
	b.ReportMetric(rate("log"), "log/s")
	b.ReportMetric(rate("log")/rate("plain"), "log/plain")
	b.ReportMetric(0, "ns/op")
	if l.Lost() > 0 {
		b.Errorf("Lost() = %d, want 0", l.Lost())
	}
}

// newLog opens a log and closes it at the end of the test.
func newLog(tb testing.TB, o Options) *Log {
	tb.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l, err := Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
	})
	return l
}
