package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// text returns the result of a scrape.
func (m *Metrics) text(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("scrape = %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// want checks that a scrape has these lines, and not those that begin with "!".
func (m *Metrics) want(t *testing.T, lines ...string) {
	t.Helper()
	text := m.text(t)
	for _, line := range lines {
		unwanted, absent := strings.CutPrefix(line, "!")
		if strings.Contains(text, "\n"+unwanted) == absent {
			t.Errorf("scrape: has line %q = %t, want %t", unwanted, absent, !absent)
		}
	}
}

// TestAgentsAreBounded checks that only configured agents have metrics.
func TestAgentsAreBounded(t *testing.T) {
	m := New(Options{})
	m.SetAgents([]string{"a", "b"})
	m.TurnEnded(Turn{Agent: "a", State: parleyv1.TurnState_TURN_STATE_COMPLETED, Answer: time.Second, FirstPiece: 1})
	m.want(t, `parley_turns_total{agent="a",state="completed"} 1`, `parley_turns_total{agent="b",state="completed"} 0`)
	m.SetAgents([]string{"b", "c"})
	m.TurnEnded(Turn{Agent: "a", State: parleyv1.TurnState_TURN_STATE_FAILED, Reason: "AGENT_FAILED", Answer: 1})
	m.TurnEnded(Turn{Agent: "c", State: parleyv1.TurnState_TURN_STATE_FAILED, Reason: "AGENT_TIMEOUT"})
	m.TurnEnded(Turn{Agent: "c", State: parleyv1.TurnState_TURN_STATE_FAILED, Reason: "INTERNAL"})
	m.want(t, `!parley_turns_total{agent="a"`, `!parley_agent_answer_seconds_bucket{agent="a"`,
		`!parley_agent_first_piece_seconds_bucket{agent="a"`, `!parley_agent_failures_total{agent="a"`,
		`parley_turns_total{agent="c",state="failed"} 2`, `parley_agent_answer_seconds_count{agent="c"} 0`,
		`parley_agent_failures_total{agent="c",reason="AGENT_TIMEOUT"} 1`, `!parley_agent_failures_total{agent="c",reason="INTERNAL"}`,
		`parley_turn_wait_seconds_count 4`)
}

// TestTenantsAreBounded checks that only the tenants of the options are in labels.
func TestTenantsAreBounded(t *testing.T) {
	m := New(Options{Tenants: []string{"acme"}, LimitReasons: []string{"STORE_BUSY"}})
	for _, tenant := range []string{"acme", "trial", ""} {
		m.Refused(tenant, "STORE_BUSY")
	}
	m.AddSources(Sources{TenantStats: func(string) (store.Stats, error) { return store.Stats{Messages: 7}, nil }})
	m.want(t, `parley_refused_calls_total{reason="STORE_BUSY",tenant="acme"} 1`,
		`parley_refused_calls_total{reason="STORE_BUSY",tenant="other"} 2`, `!parley_refused_calls_total{reason="STORE_BUSY",tenant="trial"}`,
		`parley_tenant_messages{tenant="acme"} 7`, `!parley_tenant_messages{tenant="trial"}`)
}

// TestSources checks what is read during a scrape, also when the store is closed or has failed.
func TestSources(t *testing.T) {
	m := New(Options{})
	state, err := store.State{
		QueuedWrites: 3, DiskFreeBytes: 5, DiskBytes: 50,
		Journal: store.JournalState{
			BudgetBytes: 11, WaitingBytes: 12, FoldingBytes: 13, Age: 1400 * time.Millisecond, FileBytes: 15, Folds: 16,
			FoldedConversations: 17, FoldTime: 18 * time.Second, BypassedFull: 19, BypassedDisk: 20,
		},
		Cache: store.CacheState{LimitBytes: 21, Bytes: 22, Hits: 23, Misses: 24},
	}, error(nil)
	m.AddSources(Sources{
		Stats:             func() (store.Stats, error) { return store.Stats{Conversations: 2, FileBytes: 9, Corrupt: 1}, err },
		State:             func() store.State { return state },
		InteractionLog:    func() (int64, bool) { return 4, true },
		Log:               func() (int64, int) { return 6, 8 },
		CertificateExpiry: func() time.Time { return time.Unix(1000, 0) },
		LastBackup:        func() time.Time { return time.Time{} },
		LastFailure:       func() time.Time { return time.Unix(2000, 500e6) },
	})
	m.want(t, "parley_conversations 2", "parley_store_file_bytes 9", "parley_store_corrupt_calls_total 1",
		"parley_store_queued_writes 3", "parley_store_disk_free_bytes 5", "parley_store_disk_bytes 50",
		"parley_store_failed 0", "parley_interaction_log_lost_entries_total 4", "parley_interaction_log_failing 1",
		"parley_log_dropped_entries_total 6", "parley_log_queued_bytes 8",
		"parley_tls_certificate_expiry_timestamp_seconds 1000", "parley_last_backup_timestamp_seconds 0",
		"parley_store_last_failure_timestamp_seconds 2000.5",
		"parley_store_journal_budget_bytes 11", `parley_store_journal_unfolded_bytes{state="waiting"} 12`,
		`parley_store_journal_unfolded_bytes{state="folding"} 13`, "parley_store_journal_unfolded_age_seconds 1.4",
		"parley_store_journal_file_bytes 15", "parley_store_journal_folds_total 16",
		"parley_store_journal_folded_conversations_total 17", "parley_store_journal_fold_seconds_total 18",
		`parley_store_journal_bypassed_appends_total{reason="full"} 19`,
		`parley_store_journal_bypassed_appends_total{reason="disk"} 20`, "parley_store_cache_limit_bytes 21",
		"parley_store_cache_bytes 22", `parley_store_cache_lookups_total{result="hit"} 23`,
		`parley_store_cache_lookups_total{result="miss"} 24`,
		"!parley_turns_running", "!parley_watchers")
	state.Failed, err = true, store.ErrClosed
	m.want(t, "parley_store_failed 1", "!parley_conversations ")
}
