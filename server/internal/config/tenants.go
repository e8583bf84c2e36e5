package config

import (
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/limit"
)

// Tenant contains the limits of one tenant.
type Tenant struct {
	Name   string
	Limits limit.Limits // those of the file; for the others the defaults
	rows   []*setting
}

// Limits returns the limits of all tenants.
func (c *Config) Limits() limit.Config {
	all := limit.Config{Default: limit.Limits{
		MaxConversations: c.MaxConversations, MaxBytes: c.MaxBytes, MaxRecordBytes: c.MaxTenantRecordBytes,
		RequestsPerSecond: c.RequestsPerSecond, AppendBytesPerSecond: c.AppendBytesPerSecond,
		MaxTurns: c.MaxTurns, MaxWatchers: c.MaxTenantWatchers, MaxStreams: c.MaxStreams, MaxImports: c.MaxImports,
	}, ByTenant: map[string]limit.Limits{}}
	for _, t := range c.Tenants {
		all.ByTenant[t.Name] = t.Limits
	}
	return all
}

// limitRows returns the table of limits that the file can set for one tenant. Their defaults are the settings
// of the same names, and max-tenant-watchers.
func limitRows(l *limit.Limits) []*setting {
	return []*setting{
		newSetting("max-conversations", count(&l.MaxConversations, 0, 0, math.MaxInt32), ""),
		newSetting("max-bytes", size(&l.MaxBytes, 0, 0, math.MaxInt), ""),
		newSetting("max-tenant-record-bytes", size(&l.MaxRecordBytes, 0, 0, math.MaxInt), ""),
		newSetting("requests-per-second", count(&l.RequestsPerSecond, 0, 0, math.MaxInt32), ""),
		newSetting("append-bytes-per-second", size(&l.AppendBytesPerSecond, 0, 0, math.MaxInt32), ""),
		newSetting("max-turns", count(&l.MaxTurns, 1, 1, maxTurns), ""),
		newSetting("max-watchers", count(&l.MaxWatchers, 0, 0, math.MaxInt32), ""),
		newSetting("max-streams", count(&l.MaxStreams, 0, 0, math.MaxInt32), ""),
		newSetting("max-imports", count(&l.MaxImports, 0, 0, maxImports), ""),
	}
}

// tenants reads the limits of tenants.
func (f *file) tenants(key string, n *yaml.Node) {
	c := f.loader.config
	f.pairs(key, n, func(name, value *yaml.Node) {
		if !isTenantName(name.Value) {
			f.fault(key, name, "%.80q is not a valid tenant name; use 1 to %d letters, digits, dots, underscores and hyphens, "+
				"not starting with a dot or a hyphen", name.Value, auth.MaxTenantBytes)
			return
		}
		t := &Tenant{Name: name.Value}
		t.rows = limitRows(&t.Limits)
		fields := map[string]field{}
		for _, row := range t.rows {
			fields[row.key()] = f.setting(row)
		}
		f.mapping(key+"."+t.Name, value, fields)
		c.Tenants = append(c.Tenants, t)
	})
	slices.SortFunc(c.Tenants, func(a, b *Tenant) int { return strings.Compare(a.Name, b.Name) })
}

// isTenantName reports whether a tenant may have this name.
func isTenantName(name string) bool {
	return name != auth.AllTenants && auth.CheckTenants([]string{name}) == nil
}

// addDefaults sets the limits that the file does not set for a tenant. It is called after all sources have been read.
func (c *Config) addDefaults() {
	var defaults limit.Limits
	rows := limitRows(&defaults)
	defaults = c.Limits().Default
	for _, t := range c.Tenants {
		for i, row := range t.rows {
			if !row.isSet {
				_ = row.value.Set(rows[i].String()) // The value of a setting with the same bounds.
			}
		}
	}
}

// node returns the limits in the form of the file: those that the file sets.
func (t *Tenant) node() *yaml.Node {
	m := &mapping{}
	for _, row := range t.rows {
		if row.isSet {
			m.put(row.key(), unquoted(row.String()))
		}
	}
	return m.flow()
}
