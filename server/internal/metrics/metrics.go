// Package metrics measures the server and serves the results to Prometheus.
//
// Only this package knows the Prometheus library. Other packages report through small interfaces of their own or
// through callbacks, which package app connects to the methods of [Metrics]. What another package counts anyway is
// read during a scrape, see [Sources]. So nothing here runs by a timer, and a scrape reads no conversation.
//
// # Labels
//
// The values of all labels are bounded: methods and codes of gRPC, reasons of errors, names of configured
// agents, and the tenants that the operator has named. All other tenants are counted as "other". No label has an
// id of a conversation, turn or caller.
//
// Start at [New].
package metrics

import (
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// maxScrapes is the maximum number of scrapes at the same time. Each needs some hundred kilobytes.
const maxScrapes = 4

// otherTenants is the value of the label tenant for tenants that Options.Tenants does not name.
const otherTenants = "other"

// Options configure Metrics. All fields are optional.
type Options struct {
	// Version is the version of the program, and StoreName the kind of its store.
	Version, StoreName string
	// Tenants are the tenants that labels name.
	Tenants []string
	// LimitReasons are the reasons of limits that callers may exceed, FailureReasons those of faults in the server.
	// Their counters exist from the start.
	LimitReasons, FailureReasons []string
}

// Metrics are all metrics of a server. Its methods may be called from many goroutines. Create it with New.
type Metrics struct {
	registry *prometheus.Registry
	calls    calls
	tenants  []string

	fileCommits, journalCommits commits
	queueWait                   prometheus.Histogram

	created, messages, dropped, purged prometheus.Counter
	removed                            map[string]prometheus.Counter // by reason; does not change

	turns              *prometheus.CounterVec
	turnWait           prometheus.Histogram
	firstPiece, answer *prometheus.HistogramVec
	agentFailures      *prometheus.CounterVec
	refused, failed    *prometheus.CounterVec
	signInFailures     *prometheus.CounterVec
	reloads            *prometheus.CounterVec

	mu     sync.Mutex // held while the agents change
	agents []string   // those whose metrics exist
}

// commits are the metrics of commits to a target.
type commits struct{ seconds, operations prometheus.Observer }

// The reasons why conversations are removed. Reason evicted means the limit of conversations.
const (
	deleted        = "deleted"
	ephemeralEnded = "ephemeral_ended"
	expired        = "expired"
	evicted        = "evicted"
)

// New returns the metrics of a server without those that need Sources.
func New(o Options) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), tenants: o.Tenants, removed: map[string]prometheus.Counter{},
	}
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.addCalls()
	m.addStore()
	m.addTurns()
	m.refused = m.counters("parley_refused_calls_total",
		"Calls that exceeded a limit, by the reason of the error and by tenant.", "reason", "tenant")
	for _, reason := range o.LimitReasons {
		for _, tenant := range append([]string{otherTenants}, o.Tenants...) {
			m.refused.WithLabelValues(reason, tenant)
		}
	}
	m.failed = m.counters("parley_failed_calls_total",
		"Calls that failed because of a fault in the server, by the reason of the error.", "reason")
	for _, reason := range o.FailureReasons {
		m.failed.WithLabelValues(reason)
	}
	m.signInFailures = m.counters("parley_sign_in_failures_total",
		"Calls and scrapes without a valid credential, by transport.", "transport")
	m.signInFailures.WithLabelValues("grpc")
	m.signInFailures.WithLabelValues("http")
	m.reloads = m.counters("parley_settings_reloads_total", "Reloads of the settings, by result.", "result")
	m.reloads.WithLabelValues("ok")
	m.reloads.WithLabelValues("failed")
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "parley_build_info", Help: "1, with the version of the program, of Go, and the kind of store as labels.",
	}, []string{"version", "go_version", "store"})
	info.WithLabelValues(o.Version, runtime.Version(), o.StoreName).Set(1)
	m.registry.MustRegister(info)
	return m
}

func (m *Metrics) addStore() {
	seconds := m.histograms("parley_store_commit_seconds",
		"Time of commits of the store with their sync, by target: the journal or the file.",
		[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}, "target")
	operations := m.histograms("parley_store_commit_operations",
		"Writes that a commit of the store made durable, by target: the journal or the file.",
		[]float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, "target")
	m.fileCommits = commits{seconds.WithLabelValues("file"), operations.WithLabelValues("file")}
	m.journalCommits = commits{seconds.WithLabelValues("journal"), operations.WithLabelValues("journal")}
	m.queueWait = m.histogram("parley_store_queue_wait_seconds",
		"Longest time that a write of a commit had waited for the commit.",
		[]float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5})
	m.created = m.counter("parley_conversations_created_total", "Conversations created.")
	m.messages = m.counter("parley_messages_appended_total", "Messages appended.")
	m.dropped = m.counter("parley_messages_dropped_total",
		"Oldest messages dropped to stay within the limits of a conversation.")
	m.purged = m.counter("parley_conversations_purged_total", "Conversations that calls of PurgeConversations deleted.")
	removed := m.counters("parley_conversations_removed_total",
		"Conversations removed, by reason: deleted (also by a purge), ephemeral_ended, expired, or evicted because of the "+
			"limit of conversations.", "reason")
	for _, reason := range []string{deleted, ephemeralEnded, expired, evicted} {
		m.removed[reason] = removed.WithLabelValues(reason)
	}
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.registry.MustRegister(h)
	return h
}

func (m *Metrics) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	m.registry.MustRegister(h)
	return h
}

// Handler returns the handler of scrapes. It does not check the caller.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true, MaxRequestsInFlight: maxScrapes,
	})
}

// StoreCommit records a commit of the store.
func (m *Metrics) StoreCommit(c store.Commit) {
	target := m.fileCommits
	if c.Journal {
		target = m.journalCommits
	}
	target.seconds.Observe(c.Seconds)
	target.operations.Observe(float64(c.Operations))
	m.queueWait.Observe(c.WaitSeconds)
}

// Committed counts the changes that this process has made, as one of the observers of the store.
func (m *Metrics) Committed(changes []store.Change) {
	for i := range changes {
		c := &changes[i]
		if c.Elsewhere {
			continue
		}
		switch c.Kind {
		case parleyv1.ChangeKind_CHANGE_KIND_CREATED:
			m.created.Inc()
		case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
			m.messages.Inc()
		case parleyv1.ChangeKind_CHANGE_KIND_DELETED:
			reason := deleted
			if c.EphemeralEnded {
				reason = ephemeralEnded
			}
			m.removed[reason].Inc()
		case parleyv1.ChangeKind_CHANGE_KIND_EXPIRED:
			m.removed[expired].Inc()
		case parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
			m.removed[evicted].Inc()
		default:
		}
		if c.Trimmed > 0 {
			m.dropped.Add(float64(c.Trimmed))
		}
	}
}

// Refused counts a call that exceeded a limit.
func (m *Metrics) Refused(tenant, reason string) {
	if !slices.Contains(m.tenants, tenant) {
		tenant = otherTenants
	}
	m.refused.WithLabelValues(reason, tenant).Inc()
}

// Failed counts a call that failed because of a fault in the server.
func (m *Metrics) Failed(reason string) { m.failed.WithLabelValues(reason).Inc() }

// SignInFailed counts a call without a valid credential. transport is grpc or http.
func (m *Metrics) SignInFailed(transport string) { m.signInFailures.WithLabelValues(transport).Inc() }

// Purged counts the conversations that a purge deleted.
func (m *Metrics) Purged(conversations int64) { m.purged.Add(float64(conversations)) }

// Reloaded counts a reload of the settings.
func (m *Metrics) Reloaded(ok bool) {
	result := "failed"
	if ok {
		result = "ok"
	}
	m.reloads.WithLabelValues(result).Inc()
}

// stateName returns the value of the label state.
func stateName(s parleyv1.TurnState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TURN_STATE_"))
}
