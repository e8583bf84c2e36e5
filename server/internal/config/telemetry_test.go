package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMetricsOverHTTP(t *testing.T) {
	for _, test := range []struct {
		http, metrics string
		want          bool
	}{
		{"127.0.0.1:0", "", true},
		{"localhost:0", "", true},
		{"[::1]:0", "", true},
		{"", "", false},
		{"0.0.0.0:0", "", false},
		{":0", "", false},
		{"parley.example:0", "", false},
		{"127.0.0.1:0", "127.0.0.1:0", false},
	} {
		c, err := load(t, []string{"--insecure", "--http-address=" + test.http, "--metrics-address=" + test.metrics}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.MetricsOverHTTP(); got != test.want {
			t.Errorf("HTTP %q, metrics %q: MetricsOverHTTP() = %t, want %t", test.http, test.metrics, got, test.want)
		}
	}
}

func TestMetricsTenants(t *testing.T) {
	c, err := load(t, []string{"--metrics-tenants= acme, trial "}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"acme", "trial"}, c.MetricsTenants); d != "" {
		t.Errorf("MetricsTenants (-want +got):\n%s", d)
	}
	var many []string
	for i := range MaxMetricsTenants + 1 {
		many = append(many, fmt.Sprint("t", i))
	}
	for value, want := range map[string]string{
		"acme,,trial":           `tenant "": use 1 to 64`,
		"acme,acme":             `tenant "acme" is named twice`,
		"*":                     `"*" would have no limit; name the tenants`,
		"acme,other":            `"other" is the name for all tenants that are not in the list; remove it`,
		"a b":                   `tenant "a b": use 1 to 64`,
		strings.Join(many, ","): "has 21 tenants, at most 20 are allowed",
	} {
		if _, err := load(t, []string{"--metrics-tenants=" + value}, nil); err == nil ||
			!strings.Contains(err.Error(), "--metrics-tenants: "+want) {
			t.Errorf("--metrics-tenants=%s: error %v, want %q", value, err, want)
		}
	}
}

func TestMetricsAddressNeedsSignIn(t *testing.T) {
	_, err := load(t, []string{"--metrics-address=0.0.0.0:9100"}, nil)
	const want = `--metrics-address: "0.0.0.0:9100" can be reached from other machines without TLS and sign-in`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
