package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// needProgram skips a test with a message if a program of the Debian package prometheus is missing. In CI it fails the
// test.
func needProgram(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing: run make tools", name)
	}
	t.Skipf("SKIPPED: this test needs %s, which is not installed", name)
}

// TestAlertRules lets promtool check the alert rules, and run their tests: no alert fires if nothing is wrong, and
// each fires after its cause.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	needProgram(t, "promtool")
	for _, command := range [][]string{
		{"check", "rules", "parley.rules.yaml"},
		{"test", "rules", "parley.rules.test.yaml"},
		{"check", "config", "prometheus.yaml"},
	} {
		cmd := exec.CommandContext(t.Context(), "promtool", command...)
		cmd.Dir = "../deploy/prometheus"
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", command, err, output)
		}
	}
	tests, err := os.ReadFile("../deploy/prometheus/parley.rules.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range readRules(t) {
		// Once in the case without a cause, once in the case with all causes.
		if n := strings.Count(string(tests), "alertname: "+rule.Alert); n != 2 {
			t.Errorf("alert %s is in %d tests of rules, want 2", rule.Alert, n)
		}
	}
}

// prometheus is a running Prometheus.
type prometheus struct{ url string }

// startPrometheus starts a Prometheus with rules from a file and with the settings of a job. It scrapes every
// second, which is also the limit of time of a scrape.
func startPrometheus(t *testing.T, rules, job string) prometheus {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 500ms}\nrule_files: [%q]\n"+
		"scrape_configs: [{job_name: parley, %s}]\n", rules, job)
	path := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+path, "--web.listen-address="+address,
		"--storage.tsdb.path="+filepath.Join(dir, "data"))
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return prometheus{"http://" + address}
}

// query returns the labels of the series with which Prometheus answers a query. It returns an error while Prometheus
// does not answer.
func (p prometheus) query(t *testing.T, query string) (series []map[string]string, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		p.url+"/api/v1/query?query="+url.QueryEscape(query), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return nil, err
	}
	if reply.StatusCode == http.StatusServiceUnavailable {
		return nil, fmt.Errorf("prometheus is not ready: %s", text)
	}
	var answer struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil || reply.StatusCode != http.StatusOK {
		t.Fatalf("query %s: %d %s", query, reply.StatusCode, text)
	}
	for _, result := range answer.Data.Result {
		series = append(series, result.Metric)
	}
	return series, nil
}

// await calls load until Prometheus answers a query with data.
func (p prometheus) await(t *testing.T, query string, load func()) bool {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); <-ticker.C {
		if series, err := p.query(t, query); err == nil && len(series) > 0 {
			return true
		}
		load()
	}
	return false
}

// TestPrometheus lets Prometheus scrape a server under load. It answers each query of the dashboard with data, except
// those that need TLS. Alerts are in TestAlerts.
func TestPrometheus(t *testing.T) {
	needProgram(t, "prometheus")
	flag := agents(t, testAgents)
	s := startHTTPServer(t, t.TempDir(), flag, "--max-turns=1", "--metrics-tenants=default")
	p := startPrometheus(t, rulesPath, fmt.Sprintf("static_configs: [{targets: [%q]}]", strings.TrimPrefix(s.url, "http://")))
	backupOf(t, s.server)
	calls := 0
	load := func() {
		calls++
		id := fmt.Sprint("c", calls)
		ask(t, s.server, id, "hello")
		chat(t, s.server, &parleyv1.ChatRequest{ConversationId: id, Content: "x", Agent: "fail"}).finish(t)
		s.do(t, http.MethodGet, "/v1/conversations/none", "")
	}
	for place, query := range readPanels(t) {
		if strings.Contains(query, "certificate") {
			continue // There is no TLS.
		}
		if !p.await(t, query, load) {
			t.Errorf("%s: no data for %s", place, query)
		}
	}
	// An alert with a time is pending before it fires.
	if !p.await(t, `ALERTS{alertname="ParleyAgentFailing", alertstate="pending"}`, load) {
		t.Error("ParleyAgentFailing is not pending")
	}
}
