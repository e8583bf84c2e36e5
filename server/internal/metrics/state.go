package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/parleyhq/parley/store"
)

// stateMetrics are metrics that are read from the state of a store.
type stateMetrics struct {
	group
	values []func(*store.State) float64 // in the order of group.descriptions
}

func (m *stateMetrics) add(kind prometheus.ValueType, name, help string, labels prometheus.Labels,
	value func(*store.State) float64,
) {
	m.group.add(kind, name, help, labels)
	m.values = append(m.values, value)
}

func (m *stateMetrics) gauge(name, help string, value func(*store.State) float64) {
	m.add(prometheus.GaugeValue, name, help, nil, value)
}

func (m *stateMetrics) counter(name, help string, value func(*store.State) float64) {
	m.add(prometheus.CounterValue, name, help, nil, value)
}

// part is one series of a metric that a label splits.
type part struct {
	label string
	value func(*store.State) float64
}

// split adds a metric with a series for each value of a label.
func (m *stateMetrics) split(kind prometheus.ValueType, name, help, label string, parts ...part) {
	for _, p := range parts {
		m.add(kind, name, help, prometheus.Labels{label: p.label}, p.value)
	}
}

// addState adds the state of a store with a file. It remains readable when the store has failed.
func (c *collector) addState(state func() store.State) {
	m := &stateMetrics{}
	m.gauge("parley_store_queued_writes", "Writes that wait for a commit of the store.",
		func(s *store.State) float64 { return float64(s.QueuedWrites) })
	m.gauge("parley_store_queued_bytes", "Size of the writes that wait for a commit of the store.",
		func(s *store.State) float64 { return float64(s.QueuedBytes) })
	m.gauge("parley_store_free_pages", "Free pages in the file of the store.",
		func(s *store.State) float64 { return float64(s.FreePages) })
	m.gauge("parley_store_disk_free_bytes", "Free space of the disk of the store; 0 if unknown.",
		func(s *store.State) float64 { return float64(s.DiskFreeBytes) })
	m.gauge("parley_store_disk_bytes", "Size of the disk of the store; 0 if unknown.",
		func(s *store.State) float64 { return float64(s.DiskBytes) })
	m.gauge("parley_store_failed", "1 after a permanent failure of the store; the server stops.",
		func(s *store.State) float64 {
			if s.Failed {
				return 1
			}
			return 0
		})
	m.addJournal()
	m.addCache()
	m.read = func() []float64 {
		s := state()
		values := make([]float64, len(m.values))
		for i, value := range m.values {
			values[i] = value(&s)
		}
		return values
	}
	c.groups = append(c.groups, m.group)
}

// addJournal adds the state of the journal. All values are 0 if the store has none.
func (m *stateMetrics) addJournal() {
	m.split(prometheus.GaugeValue, "parley_store_journal_unfolded_bytes",
		"Size of the appends in the journal that are not folded, by state: waiting for the next fold, or folding.", "state",
		part{"waiting", func(s *store.State) float64 { return float64(s.Journal.WaitingBytes) }},
		part{"folding", func(s *store.State) float64 { return float64(s.Journal.FoldingBytes) }})
	m.gauge("parley_store_journal_unfolded_age_seconds",
		"Age of the oldest append in the journal that is not folded, at most the time since the start; 0 if all are folded.",
		func(s *store.State) float64 { return s.Journal.Age.Seconds() })
	m.gauge("parley_store_journal_budget_bytes",
		"Size of the appends in the journal at which a fold begins; 0 if there is no journal.",
		func(s *store.State) float64 { return float64(s.Journal.BudgetBytes) })
	m.gauge("parley_store_journal_file_bytes", "Size of the files of the journal.",
		func(s *store.State) float64 { return float64(s.Journal.FileBytes) })
	m.counter("parley_store_journal_folds_total", "Folds of the journal that ended.",
		func(s *store.State) float64 { return float64(s.Journal.Folds) })
	m.counter("parley_store_journal_fold_seconds_total", "Time of the folds that ended, with their pauses.",
		func(s *store.State) float64 { return s.Journal.FoldTime.Seconds() })
	m.counter("parley_store_journal_folded_conversations_total",
		"Conversations that folds wrote to the file of the store.",
		func(s *store.State) float64 { return float64(s.Journal.FoldedConversations) })
	m.split(prometheus.CounterValue, "parley_store_journal_bypassed_appends_total",
		"Appends that were written to the file of the store instead of its journal, by reason: full, if the journal was at "+
			"twice its budget, or disk, if the disk had no space for another file of it.", "reason",
		part{"full", func(s *store.State) float64 { return float64(s.Journal.BypassedFull) }},
		part{"disk", func(s *store.State) float64 { return float64(s.Journal.BypassedDisk) }})
}

// addCache adds the state of the cache. All values are 0 if the store has none.
func (m *stateMetrics) addCache() {
	m.split(prometheus.CounterValue, "parley_store_cache_lookups_total",
		"Lookups of a conversation or a record in the cache, by result: hit, if the cache had it, or miss.", "result",
		part{"hit", func(s *store.State) float64 { return float64(s.Cache.Hits) }},
		part{"miss", func(s *store.State) float64 { return float64(s.Cache.Misses) }})
	m.gauge("parley_store_cache_bytes", "Memory of the conversations and records in the cache.",
		func(s *store.State) float64 { return float64(s.Cache.Bytes) })
	m.gauge("parley_store_cache_limit_bytes",
		"Maximum memory of the conversations and records in the cache; 0 if there is no cache.",
		func(s *store.State) float64 { return float64(s.Cache.LimitBytes) })
}
