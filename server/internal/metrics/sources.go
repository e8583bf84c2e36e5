package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/parleyhq/parley/store"
)

// Sources are what a scrape reads. Each function must return in constant time, and may be called from many goroutines.
// If one is nil, its metrics do not exist.
type Sources struct {
	Stats       func() (store.Stats, error)
	TenantStats func(tenant string) (store.Stats, error)
	State       func() store.State // nil if the store has no file

	RunningTurns, WaitingTurns, Watchers func() int
	WatchGaps                            func() int64

	// InteractionLog returns the number of entries that could not be written, and whether the latest could not.
	InteractionLog func() (lost int64, failing bool)
	// Log returns the number of entries for standard error that were dropped, and the size of those that wait.
	Log func() (dropped int64, queuedBytes int)
	// LostSpans returns the number of spans that could not be sent to the collector.
	LostSpans func() int64

	// CertificateExpiry returns the time at which the certificate of the listeners expires.
	CertificateExpiry func() time.Time
	// LastBackup returns the time of the last complete backup, or the zero time.
	LastBackup func() time.Time
	// LastFailure returns the time of the last permanent failure of the store, or the zero time.
	LastFailure func() time.Time
}

// AddSources adds the metrics that are read during a scrape. Call it once.
func (m *Metrics) AddSources(s Sources) {
	c := &collector{}
	if s.Stats != nil {
		c.addStats(s.Stats)
	}
	if s.TenantStats != nil {
		for _, tenant := range m.tenants {
			c.addTenant(tenant, s.TenantStats)
		}
	}
	if s.State != nil {
		c.addState(s.State)
	}
	if s.RunningTurns != nil {
		c.gauge("parley_turns_running", "Turns that run.", func() float64 { return float64(s.RunningTurns()) })
	}
	if s.WaitingTurns != nil {
		c.gauge("parley_turns_waiting", "Turns in the queues of conversations.",
			func() float64 { return float64(s.WaitingTurns()) })
	}
	if s.Watchers != nil {
		c.gauge("parley_watchers", "Streams of WatchConversations and waiting calls of GetRoutingSummary.",
			func() float64 { return float64(s.Watchers()) })
	}
	if s.WatchGaps != nil {
		c.counter("parley_watch_gaps_total", "GAPs that watchers received, because they were too slow or came back too late.",
			func() float64 { return float64(s.WatchGaps()) })
	}
	c.addLogs(s)
	if s.LostSpans != nil {
		c.counter("parley_trace_lost_spans_total", "Spans that could not be sent to the collector.",
			func() float64 { return float64(s.LostSpans()) })
	}
	if s.CertificateExpiry != nil {
		c.gauge("parley_tls_certificate_expiry_timestamp_seconds", "Time at which the certificate of the listeners expires.",
			func() float64 { return seconds(s.CertificateExpiry()) })
	}
	if s.LastBackup != nil {
		c.gauge("parley_last_backup_timestamp_seconds", "Time of the last complete backup; 0 if there was none.",
			func() float64 { return seconds(s.LastBackup()) })
	}
	if s.LastFailure != nil {
		c.gauge("parley_store_last_failure_timestamp_seconds",
			"Time of the last permanent failure of the store; 0 if there was none.",
			func() float64 { return seconds(s.LastFailure()) })
	}
	m.registry.MustRegister(c)
}

// seconds returns a time as seconds since 1970, and 0 for the zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// collector reads the sources during a scrape.
type collector struct {
	groups []group
}

// group is some metrics that are read together.
type group struct {
	descriptions []*prometheus.Desc
	kinds        []prometheus.ValueType
	// read returns the values in the order of descriptions. If there are none at the moment, it returns nil.
	read func() []float64
}

// Describe sends the descriptions of all metrics.
func (c *collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, g := range c.groups {
		for _, d := range g.descriptions {
			descriptions <- d
		}
	}
}

// Collect sends the values of all metrics.
func (c *collector) Collect(values chan<- prometheus.Metric) {
	for _, g := range c.groups {
		for i, v := range g.read() {
			values <- prometheus.MustNewConstMetric(g.descriptions[i], g.kinds[i], v)
		}
	}
}

func (g *group) add(kind prometheus.ValueType, name, help string, labels prometheus.Labels) {
	g.descriptions = append(g.descriptions, prometheus.NewDesc(name, help, nil, labels))
	g.kinds = append(g.kinds, kind)
}

func (c *collector) gauge(name, help string, value func() float64) {
	c.single(prometheus.GaugeValue, name, help, value)
}

func (c *collector) counter(name, help string, value func() float64) {
	c.single(prometheus.CounterValue, name, help, value)
}

func (c *collector) single(kind prometheus.ValueType, name, help string, value func() float64) {
	g := group{read: func() []float64 { return []float64{value()} }}
	g.add(kind, name, help, nil)
	c.groups = append(c.groups, g)
}

// addStats adds the counts of the store. When the store is closed, there are none.
func (c *collector) addStats(stats func() (store.Stats, error)) {
	g := group{read: func() []float64 {
		s, err := stats()
		if err != nil {
			return nil
		}
		return []float64{
			float64(s.Conversations), float64(s.Messages), float64(s.Bytes), float64(s.Records), float64(s.RecordBytes),
			float64(s.FileBytes), float64(s.Corrupt),
		}
	}}
	g.add(prometheus.GaugeValue, "parley_conversations", "Stored conversations.", nil)
	g.add(prometheus.GaugeValue, "parley_messages", "Messages of the stored conversations.", nil)
	g.add(prometheus.GaugeValue, "parley_conversation_bytes", "Size of the stored conversations and records.", nil)
	g.add(prometheus.GaugeValue, "parley_records", "Stored records of conversations and tenants.", nil)
	g.add(prometheus.GaugeValue, "parley_record_bytes", "Size of the stored records.", nil)
	g.add(prometheus.GaugeValue, "parley_store_file_bytes",
		"Size of the file of the store, without its journal; 0 if it has none.", nil)
	g.add(prometheus.CounterValue, "parley_store_corrupt_calls_total", "Calls that met damaged data.", nil)
	c.groups = append(c.groups, g)
}

// addTenant adds the counts of a tenant.
func (c *collector) addTenant(tenant string, stats func(string) (store.Stats, error)) {
	g := group{read: func() []float64 {
		s, err := stats(tenant)
		if err != nil {
			return nil
		}
		return []float64{
			float64(s.Conversations), float64(s.Messages), float64(s.Bytes), float64(s.Records), float64(s.RecordBytes),
		}
	}}
	of := prometheus.Labels{"tenant": tenant}
	g.add(prometheus.GaugeValue, "parley_tenant_conversations", "Stored conversations of a tenant.", of)
	g.add(prometheus.GaugeValue, "parley_tenant_messages", "Messages of the stored conversations of a tenant.", of)
	g.add(prometheus.GaugeValue, "parley_tenant_conversation_bytes",
		"Size of the stored conversations and records of a tenant.", of)
	g.add(prometheus.GaugeValue, "parley_tenant_records", "Stored records of a tenant and of its conversations.", of)
	g.add(prometheus.GaugeValue, "parley_tenant_record_bytes", "Size of the stored records of a tenant.", of)
	c.groups = append(c.groups, g)
}

func (c *collector) addLogs(s Sources) {
	if s.InteractionLog != nil {
		g := group{read: func() []float64 {
			lost, failing := s.InteractionLog()
			if failing {
				return []float64{float64(lost), 1}
			}
			return []float64{float64(lost), 0}
		}}
		g.add(prometheus.CounterValue, "parley_interaction_log_lost_entries_total",
			"Entries that the interaction log could not write.", nil)
		g.add(prometheus.GaugeValue, "parley_interaction_log_failing",
			"1 if the interaction log could not write the latest entries.", nil)
		c.groups = append(c.groups, g)
	}
	if s.Log != nil {
		g := group{read: func() []float64 {
			dropped, queued := s.Log()
			return []float64{float64(dropped), float64(queued)}
		}}
		g.add(prometheus.CounterValue, "parley_log_dropped_entries_total",
			"Entries for standard error that were dropped, because its reader was too slow.", nil)
		g.add(prometheus.GaugeValue, "parley_log_queued_bytes",
			"Size of the entries that wait for the reader of standard error.", nil)
		c.groups = append(c.groups, g)
	}
}
