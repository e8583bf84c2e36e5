package adk_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/database"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// BenchmarkBesideSQLite compares the service with the framework's database service on SQLite, through a server with the
// store bolt on the same machine. All of them sync each append to the disk. A round appends one event of 1 KiB with a
// change of the state to a session of at least 100 events, and gets the newest 20 events, with each service in turn.
// It reports the medians, and the median and the quartiles of the quotients of a round. Run it with
//
//	go test -run '^$' -bench BesideSQLite -benchtime 400x
func BenchmarkBesideSQLite(b *testing.B) {
	services := []*measured{
		{name: "parley", service: newService(b, startServer(b).address)},
		{name: "sqlite", service: newDatabase(b, "")}, // As it is by default: a rollback journal, synchronous=FULL.
		{name: "wal", service: newDatabase(b, "?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")},
	}
	text := strings.Repeat("x", 1024)
	for _, m := range services {
		m.session = create(b, m.service, "bench", "anna", "1", nil)
		for range 100 {
			m.append(b, text, 0)
		}
		m.appends = nil
	}
	for i := 0; b.Loop(); i++ {
		for at := range services {
			m := services[(i+at)%len(services)]
			m.append(b, text, i)
			m.get(b)
		}
	}
	parley := services[0]
	for _, m := range services {
		b.ReportMetric(median(m.appends)/1e3, m.name+"-append-µs")
		b.ReportMetric(median(m.gets)/1e3, m.name+"-get20-µs")
		if m != parley {
			b.Logf("append, parley / %s: %s", m.name, spread(parley.appends, m.appends))
			b.Logf("get 20, parley / %s: %s", m.name, spread(parley.gets, m.gets))
		}
	}
	b.ReportMetric(0, "ns/op")
}

// newDatabase returns the framework's database service on a file of SQLite.
func newDatabase(b *testing.B, options string) session.Service {
	b.Helper()
	file := filepath.Join(b.TempDir(), "sessions.db") + options
	s, err := database.NewSessionService(sqlite.Open(file), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		b.Fatal(err)
	}
	if err := database.AutoMigrate(s); err != nil {
		b.Fatal(err)
	}
	return s
}

// measured is a service with the times of its calls, in nanoseconds.
type measured struct {
	name          string
	service       session.Service
	session       session.Session
	appends, gets []float64
}

func (m *measured) append(b *testing.B, text string, i int) {
	b.Helper()
	event := says(b, "user", text, map[string]any{"n": i})
	start := time.Now()
	if err := m.service.AppendEvent(b.Context(), m.session, event); err != nil {
		b.Fatal(err)
	}
	m.appends = append(m.appends, float64(time.Since(start)))
}

func (m *measured) get(b *testing.B) {
	b.Helper()
	start := time.Now()
	reply, err := m.service.Get(b.Context(), &session.GetRequest{
		AppName: "bench", UserID: "anna", SessionID: "1", NumRecentEvents: 20,
	})
	if err != nil || reply.Session.Events().Len() != 20 {
		b.Fatalf("Get = %v, %v, want 20 events", reply, err)
	}
	m.gets = append(m.gets, float64(time.Since(start)))
}

// median returns the median of numbers.
func median(of []float64) float64 { return quantile(of, 0.5) }

// quantile returns a quantile of numbers.
func quantile(of []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[int(q*float64(len(sorted)-1))]
}

// spread describes the quotients of two times of each round.
func spread(a, b []float64) string {
	quotients := make([]float64, len(a))
	for i := range a {
		quotients[i] = a[i] / b[i]
	}
	return fmt.Sprintf("%.2f (quartiles %.2f to %.2f)",
		median(quotients), quantile(quotients, 0.25), quantile(quotients, 0.75))
}
