package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parleyhq/parley/server/internal/auth"
)

// MaxMetricsTenants is the maximum number of tenants with metrics of their own.
const MaxMetricsTenants = 20

// telemetrySettings returns the rows of the table of settings for monitoring.
func (c *Config) telemetrySettings() []*setting {
	return []*setting{
		newSetting("metrics-address", httpAddress(&c.MetricsAddress, ""),
			"address of a listener of its own for /metrics; empty: the HTTP listener serves it if its address is loopback"),
		newSetting("metrics-tenants", tenantNames(&c.MetricsTenants),
			"tenants that metrics name, at most 20, separated by commas; all others are counted as \"other\""),
		reloadable(newSetting("log-calls", choice(&c.LogCalls, "errors", "off", "errors", "slow", "all"),
			"calls with a log entry: none, those that failed, also those slower than slow-call-time, or all")),
		reloadable(newSetting("slow-call-time", duration(&c.SlowCallTime, time.Second, time.Millisecond, day),
			"time above which a call is slow; a stream counts until its first reply")),
	}
}

// MetricsOverHTTP reports whether the HTTP listener serves /metrics.
func (c *Config) MetricsOverHTTP() bool {
	return c.MetricsAddress == "" && isLoopbackAddress(c.HTTPAddress)
}

// tenantNames is a value of names of tenants, separated by commas. The initial value is empty.
func tenantNames(target *[]string) value[[]string] {
	return value[[]string]{target, "names", func(s string) ([]string, error) {
		var parsed []string
		if strings.TrimSpace(s) == "" {
			return nil, nil // An empty setting means no tenants.
		}
		for name := range strings.SplitSeq(s, ",") {
			parsed = append(parsed, strings.TrimSpace(name))
		}
		switch {
		case slices.Contains(parsed, auth.AllTenants):
			return nil, fmt.Errorf("%q would have no limit; name the tenants", auth.AllTenants)
		case slices.Contains(parsed, OtherTenants):
			return nil, fmt.Errorf("%q is the name for all tenants that are not in the list; remove it", OtherTenants)
		case len(parsed) > MaxMetricsTenants:
			return nil, fmt.Errorf("has %d tenants, at most %d are allowed", len(parsed), MaxMetricsTenants)
		}
		return parsed, auth.CheckTenants(parsed)
	}, func(names []string) string { return strings.Join(names, ",") }}
}

// OtherTenants is the name in metrics for all tenants that the setting metrics-tenants does not name.
const OtherTenants = "other"
