package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	dashboardPath = "../deploy/grafana/parley.json"
	rulesPath     = "../deploy/prometheus/parley.rules.yaml"
)

// alertRule is a rule of Prometheus.
type alertRule struct{ Alert, Expr string }

func readRules(t *testing.T) []alertRule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alertRule } }
	text, err := os.ReadFile(rulesPath)
	if err == nil {
		err = yaml.Unmarshal(text, &file)
	}
	if err != nil || len(file.Groups) != 1 || len(file.Groups[0].Rules) == 0 {
		t.Fatalf("%s: %v, want one group of rules", rulesPath, err)
	}
	return file.Groups[0].Rules
}

// readPanels returns the queries of the dashboard by the title of their panel and their index in it. The variables
// of Grafana have values.
func readPanels(t *testing.T) map[string]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(dashboardPath)
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*")
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q has no query", panel.Title)
		}
		for i, target := range panel.Targets {
			queries[fmt.Sprintf("panel %q, query %d", panel.Title, i)] = variables.Replace(target.Expr)
		}
	}
	return queries
}

// monitoringQueries returns all queries of the dashboard and the rules by their place.
func monitoringQueries(t *testing.T) map[string]string {
	t.Helper()
	queries := readPanels(t)
	for _, rule := range readRules(t) {
		queries["alert "+rule.Alert] = rule.Expr
	}
	return queries
}

// queryFaults returns what is wrong with the names of metrics and labels in a query. It marks the metrics as used. The
// syntax is checked by [TestPrometheus].
func queryFaults(query string, families map[string]*family, used map[string]bool) (faults []string) {
	known := []string{"job", "instance", "le"}
	metric := regexp.MustCompile(`\b((?:parley|grpc|go|process)_\w+|up)\b(\{[^}]*\})?`)
	stripped := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(query, `""`)
	var labels []string
	for _, match := range metric.FindAllStringSubmatch(stripped, -1) {
		name := match[1]
		if strings.HasPrefix(name, "grpc_") && (name == "grpc_method" || name == "grpc_code" || name == "grpc_type") {
			continue // a label
		}
		f := families[name]
		if f == nil {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base := strings.TrimSuffix(name, suffix)
				if h := families[base]; base != name && h != nil && h.kind == "histogram" {
					name, f = base, h
				}
			}
		}
		if f == nil {
			faults = append(faults, "there is no metric "+name)
			continue
		}
		used[name] = true
		labels = append(labels, f.labels...)
		for _, label := range regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`).FindAllStringSubmatch(match[2], -1) {
			if !slices.Contains(f.labels, label[1]) && !slices.Contains(known, label[1]) {
				faults = append(faults, name+" has no label "+label[1])
			}
		}
	}
	for _, by := range regexp.MustCompile(`\bby \(([^)]*)\)`).FindAllStringSubmatch(stripped, -1) {
		for label := range strings.SplitSeq(by[1], ",") {
			if label = strings.TrimSpace(label); !slices.Contains(labels, label) && !slices.Contains(known, label) {
				faults = append(faults, "no metric of the query has the label "+label)
			}
		}
	}
	return faults
}
