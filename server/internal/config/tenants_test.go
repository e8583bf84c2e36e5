package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/limit"
)

const tenantsFile = `
tenants:
  beta: {max_streams: 5}
  acme:
    max_conversations: 5000
    max_bytes: 1GiB
    max_tenant_record_bytes: 2GiB
    requests_per_second: 500
    append_bytes_per_second: 1MiB
    max_turns: 64
    max_watchers: 100
    max_streams: 200
    max_imports: 2
  gamma: {max_conversations: 0}
max_streams: 9
max_turns: 9
`

// TestTenants checks that a tenant has the limits of the file, and the defaults of any source for the others.
func TestTenants(t *testing.T) {
	args := []string{"--config", inFile(t, tenantsFile), "--max-turns=7", "--max-tenant-watchers=8"}
	c, err := load(t, args, []string{"PARLEY_REQUESTS_PER_SECOND=6"})
	if err != nil {
		t.Fatal(err)
	}
	defaults := limit.Limits{
		MaxConversations: 1000, MaxRecordBytes: 1 << 30, RequestsPerSecond: 6, MaxTurns: 7, MaxWatchers: 8, MaxStreams: 9, MaxImports: 16,
	}
	beta, gamma := defaults, defaults
	beta.MaxStreams, gamma.MaxConversations = 5, 0
	want := limit.Config{Default: defaults, ByTenant: map[string]limit.Limits{
		"acme": {
			MaxConversations: 5000, MaxBytes: 1 << 30, MaxRecordBytes: 2 << 30, RequestsPerSecond: 500, AppendBytesPerSecond: 1 << 20, MaxTurns: 64,
			MaxWatchers: 100, MaxStreams: 200, MaxImports: 2,
		},
		"beta": beta, "gamma": gamma,
	}}
	if d := cmp.Diff(want, c.Limits()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestTenantsPrinted checks that check-config prints what the file sets for each tenant, sorted by name.
func TestTenantsPrinted(t *testing.T) {
	path := inFile(t, tenantsFile)
	printed, _ := checkConfig(t, []string{"--config", path, "--max-turns=7"}, nil)
	const want = `
tenants:
  acme: {max_conversations: 5000, max_bytes: 1GiB, max_tenant_record_bytes: 2GiB, requests_per_second: 500, append_bytes_per_second: 1MiB, ` +
		`max_turns: 64, max_watchers: 100, max_streams: 200, max_imports: 2}
  beta: {max_streams: 5}
  gamma: {max_conversations: 0}
`
	if !strings.Contains(printed, want) {
		t.Errorf("check-config prints\n%s\nwant%s", printed, want)
	}
	reread, err := load(t, []string{"--config", inFile(t, printed)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := load(t, []string{"--config", path, "--max-turns=7"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c.Limits(), reread.Limits()); d != "" {
		t.Errorf("limits of the printed settings (-want +got):\n%s", d)
	}
}

func TestTenantFaults(t *testing.T) {
	path := inFile(t, `tenants:
  -acme: {}
  "*": {max_turns: 1}
  a: {max_turns: 0, max_bytes: many, max_watcher: 1}
  b: 5
  c: {max_streams: [1]}
  c: {}
  d: {max_imports: 17, requests_per_second: -1}
`)
	_, err := load(t, []string{"--config", path}, nil)
	if err == nil {
		t.Fatal("load = nil, want faults")
	}
	const name = "use 1 to 64 letters, digits, dots, underscores and hyphens, not starting with a dot or a hyphen"
	want := []string{
		`2: tenants: "-acme" is not a valid tenant name; ` + name,
		`3: tenants: "*" is not a valid tenant name; ` + name,
		`4: tenants.a.max_turns: 0 is too small; the minimum is 1`,
		`4: tenants.a.max_bytes: "many" is not a size; write whole bytes, KiB, MiB or GiB, as in 256KiB`,
		`4: tenants.a: unknown key "max_watcher"; parleyd --help lists the keys`,
		`5: tenants.b: must be a mapping, as in {key: value}`,
		`6: tenants.c.max_streams: must be one value, not a list or a mapping`,
		`7: tenants: key "c" was already set in line 6`,
		`8: tenants.d.max_imports: 17 is too large; the maximum is 16`,
		`8: tenants.d.requests_per_second: -1 is too small; the minimum is 0`,
	}
	got := strings.ReplaceAll(err.Error(), path+":", "")
	if d := cmp.Diff("settings: 10 faults:\n  "+strings.Join(want, "\n  "), got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
