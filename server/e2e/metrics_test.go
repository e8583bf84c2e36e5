package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// family is a metric with its labels, without le.
type family struct {
	kind   string
	labels []string
}

// exported is the result of a scrape.
type exported struct {
	families map[string]*family
	values   map[string]float64 // by name and labels: turns_total{agent="echo",state="completed"}
}

// parseMetrics parses the text format of Prometheus.
func parseMetrics(t *testing.T, text string) exported {
	t.Helper()
	e := exported{families: map[string]*family{}, values: map[string]float64{}}
	label := regexp.MustCompile(`(\w+)="`)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 4 && words[1] == "TYPE" {
			e.families[words[2]] = &family{kind: words[3]}
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		series := line[:end]
		value, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		e.values[series] = value
		name, labels, _ := strings.Cut(series, "{")
		f := e.families[name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if f == nil {
				f = e.families[strings.TrimSuffix(name, suffix)]
			}
		}
		if f == nil {
			t.Fatalf("line %q has no TYPE", line)
		}
		for _, match := range label.FindAllStringSubmatch(labels, -1) {
			if match[1] != "le" && !slices.Contains(f.labels, match[1]) {
				f.labels = append(f.labels, match[1])
			}
		}
	}
	for _, f := range e.families {
		slices.Sort(f.labels)
	}
	return e
}

// scrape reads the metrics.
func (d *httpServer) scrape(t *testing.T) exported {
	t.Helper()
	code, text := d.do(t, http.MethodGet, "/metrics", "")
	if code != http.StatusOK {
		t.Fatalf("GET /metrics = %d: %s", code, text)
	}
	return parseMetrics(t, text)
}

// startEverything starts a server that exports all metrics, and returns what it exports.
func startEverything(t *testing.T) exported {
	t.Helper()
	files := newSignIn(t)
	token := files.createToken(t, "--tenant=*", "--role=reader")
	s := startSecure(t, files, "--store=bolt", "--data-dir="+t.TempDir(), "--metrics-tenants=acme",
		"--metrics-address=127.0.0.1:0")
	address := fmt.Sprint(s.await(t, "serving metrics", "tls=true")["address"])
	s.baseURL = "https://localhost" + address[strings.LastIndex(address, ":"):]
	response, text := s.get(t, "/metrics", false, bearer(token))
	if response.StatusCode != http.StatusOK {
		t.Fatalf("GET /metrics = %d: %s", response.StatusCode, text)
	}
	return parseMetrics(t, text)
}

// TestMetricsOfPage compares the table of the page for operators with what a server exports.
func TestMetricsOfPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	row := regexp.MustCompile(`(?m)^\| (parley_\w+) \| (\w+) \| ([^|]*) \| [^|]+ \|$`)
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		documented[match[1]] = match[2] + " " + strings.TrimSpace(match[3])
	}
	found := map[string]string{}
	for name, f := range startEverything(t).families {
		if strings.HasPrefix(name, "parley_") {
			found[name] = f.kind + " " + strings.Join(f.labels, ", ")
		}
	}
	if d := cmp.Diff(found, documented); d != "" {
		t.Errorf("metrics of server/README.md (-exported +documented):\n%s", d)
	}
}

// TestMetricsConventions checks the names of all metrics of Parley.
func TestMetricsConventions(t *testing.T) {
	t.Parallel()
	for name, f := range startEverything(t).families {
		if !strings.HasPrefix(name, "parley_") {
			continue
		}
		if (f.kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s; counters, and only these, end in _total", name, f.kind)
		}
		if unit := regexp.MustCompile(`_(ms|millis|milliseconds|minutes|kb|mb|kib|mib)(_|$)`).FindString(name); unit != "" {
			t.Errorf("%s has the unit %s, want seconds or bytes", name, unit)
		}
		for _, label := range f.labels {
			if strings.HasSuffix(label, "id") {
				t.Errorf("%s has the label %s, which looks like an id", name, label)
			}
		}
	}
}

// TestScrapeNeedsRole checks who may read the metrics.
func TestScrapeNeedsRole(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	tokens := map[string]string{}
	for name, flags := range map[string][]string{
		"all":  {"--tenant=*", "--role=reader"},
		"acme": {"--tenant=acme", "--role=admin"},
	} {
		tokens[name] = files.createToken(t, flags...)
	}
	s := startSecure(t, files, "--metrics-address=127.0.0.1:0")
	address := fmt.Sprint(s.await(t, "serving metrics", "tls=true")["address"])
	if response, text := s.get(t, "/metrics", false, bearer(tokens["all"])); response.StatusCode != http.StatusNotFound {
		t.Errorf("GET /metrics of the HTTP listener = %d: %s, want 404", response.StatusCode, text)
	}
	s.baseURL = "https://localhost" + address[strings.LastIndex(address, ":"):]
	for _, test := range []struct {
		path   string
		header http.Header
		code   int
		text   string
	}{
		{"/metrics", bearer(tokens["all"]), 200, "parley_build_info"},
		{"/metrics", nil, 401, "send a token in the header Authorization"},
		{"/metrics", bearer("parley_wrong"), 401, "it needs the role reader for all tenants"},
		{"/metrics", bearer(tokens["acme"]), 403, "/metrics needs the role reader for all tenants; use a credential"},
		{"/v1/conversations", bearer(tokens["all"]), 404, "there is only /metrics at this address"},
	} {
		response, text := s.get(t, test.path, false, test.header)
		if response.StatusCode != test.code || !strings.Contains(text, test.text) {
			t.Errorf("GET %s with %v = %d: %.300s, want %d with %q", test.path, test.header, response.StatusCode, text,
				test.code, test.text)
		}
	}
	for _, want := range [][]string{
		{"event=sign_in_failed", "credential=none"},
		{"event=sign_in_failed", "credential=token"},
		{"event=permission_denied", "tenant=acme"},
	} {
		entry := s.await(t, "audit", append(want, "method=/metrics", "transport=http")...)
		if peer := fmt.Sprint(entry["peer"]); !strings.Contains(peer, ":") {
			t.Errorf("entry %v has no address of the client", entry)
		}
	}
	const failures = `parley_sign_in_failures_total{transport="http"}`
	_, text := s.get(t, "/metrics", false, bearer(tokens["all"]))
	if got := parseMetrics(t, text).values[failures]; got != 2 {
		t.Errorf("%s = %v, want 2", failures, got)
	}
	s.terminate()
	s.wantStop(t)
}

// TestScrapeFormats checks the format, the compression and the method of a scrape.
func TestScrapeFormats(t *testing.T) {
	t.Parallel()
	s := startHTTPServer(t, t.TempDir())
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	request.Header.Set("Accept-Encoding", "gzip")
	reply, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if _, err := io.Copy(io.Discard, reply.Body); err != nil {
		t.Fatal(err)
	}
	if kind, encoding := reply.Header.Get("Content-Type"), reply.Header.Get("Content-Encoding"); encoding != "gzip" ||
		!strings.HasPrefix(kind, "application/openmetrics-text") {
		t.Errorf("Content-Type %q, Content-Encoding %q, want OpenMetrics and gzip", kind, encoding)
	}
	if code, text := s.do(t, http.MethodPost, "/metrics", ""); code != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics = %d: %s, want 405", code, text)
	}
}

// measured is a server whose metrics a test observes.
type measured struct {
	*httpServer
	agents string // path of the settings
}

// wantRise checks that a cause raises these series. Changes are counted after they are committed, so a reply may arrive
// before that.
func (m *measured) wantRise(t *testing.T, cause func(), series ...string) {
	t.Helper()
	before := m.scrape(t).values
	for _, name := range series {
		if _, exists := before[name]; !exists {
			t.Errorf("there is no %s", name)
		}
	}
	cause()
	eventually(t, "series that do not rise", []string{}, func() []string {
		after := m.scrape(t).values
		return slices.DeleteFunc(slices.Clone(series), func(name string) bool { return after[name] > before[name] })
	})
}

// TestMetricsRise checks that each family of metrics changes when its cause happens.
func TestMetricsRise(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flag := agents(t, testAgents)
	flags := []string{
		flag, "--max-conversations=4", "--max-message-bytes=1KiB", "--max-turns=1", "--metrics-tenants=default",
	}
	m := &measured{startHTTPServer(t, dir, flags...), strings.TrimPrefix(flag, "--config=")}
	m.conversationsRise(t)
	m.turnsRise(t)
	m.refusalsRise(t)
	m.watchesRise(t)
	m.wantRise(t, func() { m.reload(t, m.agents, testAgents, "settings reloaded") },
		`parley_settings_reloads_total{result="ok"}`)
	m.wantRise(t, func() { m.reload(t, m.agents, "agents: 7", "reload failed; nothing has changed") },
		`parley_settings_reloads_total{result="failed"}`)
	m.reload(t, m.agents, testAgents, "settings reloaded")
	before := time.Now().Add(-time.Second)
	m.wantRise(t, func() { backupOf(t, m.server) }, "parley_last_backup_timestamp_seconds")

	m.terminate()
	m.wantStop(t)
	m.httpServer = startHTTPServer(t, dir, flags...)
	at := m.scrape(t).values["parley_last_backup_timestamp_seconds"]
	if at < float64(before.Unix()) || at > float64(time.Now().Unix()) {
		t.Errorf("time of the last backup after a restart = %v, want that of the backup", at)
	}
	if err := os.WriteFile(filepath.Join(dir, "last-backup"), []byte("yesterday\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.terminate()
	m.wantStop(t)
	m.httpServer = startHTTPServer(t, dir, flags...)
	m.await(t, "time not read from its file", "path="+filepath.Join(dir, "last-backup"))
}

func (m *measured) conversationsRise(t *testing.T) {
	t.Helper()
	m.wantRise(t, func() { add(t, m.server, "a", &parleyv1.Message{Content: "hello"}) },
		"parley_conversations", "parley_messages", "parley_conversation_bytes", "parley_conversations_created_total",
		`parley_tenant_conversations{tenant="default"}`, `parley_tenant_messages{tenant="default"}`,
		`parley_tenant_conversation_bytes{tenant="default"}`,
		"parley_messages_appended_total", `parley_store_commit_seconds_count{target="file"}`,
		`parley_store_commit_seconds_sum{target="file"}`, `parley_store_commit_operations_sum{target="file"}`,
		"parley_store_queue_wait_seconds_count",
		`grpc_server_handled_total{grpc_code="OK",grpc_method="AppendMessages",`+
			`grpc_service="parley.v1.ConversationService",grpc_type="unary"}`)
	overHTTP := `grpc_server_handled_total{grpc_code="NotFound",grpc_method="GetConversation",` +
		`grpc_service="parley.v1.ConversationService",grpc_type="unary"}`
	m.wantRise(t, func() { m.do(t, http.MethodGet, "/v1/conversations/none", "") }, overHTTP)
	short := &parleyv1.Retention{MaxMessages: 1, Ttl: durationpb.New(100 * time.Millisecond)}
	m.wantRise(t, func() {
		if _, err := m.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
			Conversation: &parleyv1.Conversation{Id: "short", Retention: short},
		}); err != nil {
			t.Fatal(err)
		}
		add(t, m.server, "short", &parleyv1.Message{Content: "1"}, &parleyv1.Message{Content: "2"})
		m.await(t, "conversation expired", "conversation_id=short")
	}, "parley_messages_dropped_total", `parley_conversations_removed_total{reason="expired"}`)
	m.wantRise(t, func() {
		if _, err := m.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "a"}); err != nil {
			t.Fatal(err)
		}
	}, `parley_conversations_removed_total{reason="deleted"}`)
	m.wantRise(t, func() {
		for i := range 5 {
			add(t, m.server, fmt.Sprint("many", i), &parleyv1.Message{Content: "hello"})
		}
	}, `parley_conversations_removed_total{reason="evicted"}`)
	m.wantRise(t, func() {
		if _, err := m.PurgeConversations(t.Context(), &parleyv1.PurgeConversationsRequest{
			InactiveFor: durationpb.New(time.Nanosecond),
		}); err != nil {
			t.Fatal(err)
		}
	}, "parley_conversations_purged_total", `parley_conversations_removed_total{reason="deleted"}`)
}

// TestJournalMetricsRise checks that the metrics of the journal and of the cache change when their cause happens.
func TestJournalMetricsRise(t *testing.T) {
	t.Parallel()
	m := &measured{httpServer: startHTTPServer(t, t.TempDir(), "--journal-budget=64KiB")}
	add(t, m.server, "a", &parleyv1.Message{Content: "hello"}) // It creates the conversation, so it is not in the journal.
	m.wantRise(t, func() { add(t, m.server, "a", &parleyv1.Message{Content: "hello"}) },
		`parley_store_commit_seconds_count{target="journal"}`, `parley_store_commit_operations_sum{target="journal"}`,
		`parley_store_journal_unfolded_bytes{state="waiting"}`, "parley_store_journal_unfolded_age_seconds")
	m.wantRise(t, func() { history(t, m.server, "a") }, `parley_store_cache_lookups_total{result="miss"}`,
		"parley_store_cache_bytes")
	m.wantRise(t, func() { history(t, m.server, "a") }, `parley_store_cache_lookups_total{result="hit"}`)
	m.wantRise(t, func() {
		add(t, m.server, "a", &parleyv1.Message{Content: strings.Repeat("many words ", 10_000)})
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for deadline := time.Now().Add(timeout); time.Now().Before(deadline); <-ticker.C {
			if m.scrape(t).values["parley_store_journal_folds_total"] > 0 {
				return
			}
		}
	}, "parley_store_journal_folds_total", "parley_store_journal_fold_seconds_total",
		"parley_store_journal_folded_conversations_total", `parley_store_commit_seconds_count{target="file"}`)
	values := m.scrape(t).values
	for name, want := range map[string]float64{
		"parley_store_journal_budget_bytes":                          64 << 10,
		"parley_store_cache_limit_bytes":                             56 << 20, // the rest is for summaries
		`parley_store_journal_unfolded_bytes{state="waiting"}`:       0,
		`parley_store_journal_unfolded_bytes{state="folding"}`:       0,
		"parley_store_journal_unfolded_age_seconds":                  0,
		`parley_store_journal_bypassed_appends_total{reason="disk"}`: 0,
	} {
		if values[name] != want {
			t.Errorf("%s = %v after the fold, want %v", name, values[name], want)
		}
	}
	if size := values["parley_store_journal_file_bytes"]; size < 4<<20 {
		t.Errorf("parley_store_journal_file_bytes = %v, want at least 4 MiB", size)
	}
}

func (m *measured) turnsRise(t *testing.T) {
	t.Helper()
	m.wantRise(t, func() { ask(t, m.server, "t", "hello") },
		`parley_turns_total{agent="echo",state="completed"}`, `parley_agent_answer_seconds_count{agent="echo"}`,
		`parley_agent_first_piece_seconds_count{agent="echo"}`, "parley_turn_wait_seconds_count")
	m.wantRise(t, func() {
		chat(t, m.server, &parleyv1.ChatRequest{ConversationId: "t", Content: "x", Agent: "fail"}).finish(t)
	}, `parley_turns_total{agent="fail",state="failed"}`, `parley_agent_failures_total{agent="fail",reason="AGENT_FAILED"}`)
	h := (*held)(nil)
	m.wantRise(t, func() { h = hold(t, m.server, "t") }, "parley_turns_running")
	stream, err := m.Chat(t.Context(), &parleyv1.ChatRequest{
		ConversationId: "t", Content: "x", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if waiting := m.scrape(t).values["parley_turns_waiting"]; waiting != 1 {
		t.Errorf("parley_turns_waiting = %v, want 1", waiting)
	}
	m.wantRise(t, func() {
		_, err := m.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "u", Content: "x"})
		if err != nil {
			t.Fatal(err)
		}
		code, text := m.do(t, http.MethodPost, "/v1/chat", `{"content": "x"}`)
		if code != http.StatusTooManyRequests {
			t.Errorf("second turn = %d: %s, want 429", code, text)
		}
	}, `parley_refused_calls_total{reason="TOO_MANY_TURNS",tenant="default"}`)
	h.release(t, "answer")
	for { // The queued turn ends.
		if _, err := stream.Recv(); err != nil {
			break
		}
	}
	values := m.scrape(t).values
	if values["parley_turns_waiting"] != 0 || values["parley_turns_running"] != 0 {
		t.Errorf("after all turns: %v waiting, %v running, want none", values["parley_turns_waiting"],
			values["parley_turns_running"])
	}
}

func (m *measured) refusalsRise(t *testing.T) {
	t.Helper()
	m.wantRise(t, func() {
		code, text := m.do(t, http.MethodPost, "/v1/chat", `{"content": "`+strings.Repeat("x", 2<<10)+`"}`)
		if code != http.StatusRequestEntityTooLarge {
			t.Errorf("large message = %d: %s, want 413", code, text)
		}
	}, `parley_refused_calls_total{reason="MESSAGE_TOO_LARGE",tenant="default"}`)
	m.wantRise(t, func() {
		if code, text := m.do(t, http.MethodPost, "/v1/chat", strings.Repeat(" ", 5<<20)); code !=
			http.StatusRequestEntityTooLarge {
			t.Errorf("large body = %d: %s, want 413", code, text)
		}
	}, `parley_refused_calls_total{reason="BODY_TOO_LARGE",tenant="default"}`)
}

func (m *measured) watchesRise(t *testing.T) {
	t.Helper()
	m.wantRise(t, func() {
		stream, err := m.WatchConversations(t.Context(), &parleyv1.WatchConversationsRequest{
			Cursor: base64.RawURLEncoding.EncodeToString(make([]byte, 16)), // of another server
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // a GAP and a heartbeat
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
	}, "parley_watchers", "parley_watch_gaps_total")
}

// TestDashboardAndAlerts checks the names of metrics and labels in the dashboard and the alert rules.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	families := startEverything(t).families
	families["up"] = &family{kind: "gauge"}
	used := map[string]bool{}
	for place, query := range monitoringQueries(t) {
		for _, fault := range queryFaults(query, families, used) {
			t.Errorf("%s: %s: %s", place, query, fault)
		}
	}
	for name := range families {
		if strings.HasPrefix(name, "parley_") && !used[name] {
			t.Errorf("neither the dashboard nor a rule has %s", name)
		}
	}
	if faults := queryFaults(`rate(parley_none{job="x"}[5m])`, families, used); len(faults) == 0 {
		t.Error("a query of an unknown metric has no fault")
	}
	if faults := queryFaults(`parley_turns_total{tenant="x"}`, families, used); len(faults) == 0 {
		t.Error("a query of an unknown label has no fault")
	}
	t.Log(len(used), "metrics in", slices.Sorted(maps.Keys(used)))
}
