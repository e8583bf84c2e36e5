package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// noticesName is the name of the file with the licenses of the modules in the programs. Most of these licenses require
// that it comes with the programs.
const noticesName = "THIRD_PARTY_NOTICES"

// licenseFile matches the names of files with a license or a notice.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// notices returns the licenses of Go and of all modules in the programs for a target, which are built.
func (r *release) notices(ctx context.Context, t target) ([]byte, error) {
	modules := map[string]bool{}
	for _, p := range programs() {
		info, err := buildinfo.ReadFile(r.built(t, p))
		if err != nil {
			return nil, err
		}
		for _, module := range info.Deps {
			modules[module.Path] = true
		}
	}
	list := append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}}\t{{.Dir}}"}, slices.Sorted(maps.Keys(modules))...)
	out, err := r.output(ctx, nil, "go", list...)
	if err != nil {
		return nil, err
	}
	goes, err := r.output(ctx, nil, "go", "env", "GOVERSION", "GOROOT")
	if err != nil {
		return nil, err
	}
	directories := "Go " + strings.Replace(string(goes), "\n", "\t", 1) + string(out)
	var notices bytes.Buffer
	for line := range strings.Lines(directories) {
		name, dir, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if err := appendLicenses(&notices, name, dir); err != nil {
			return nil, err
		}
	}
	return notices.Bytes(), nil
}

// appendLicenses appends the licenses in the directory of a module. A module must have one.
func appendLicenses(to *bytes.Buffer, module, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", module, err)
	}
	found := false
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !licenseFile.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(to, "%s: %s\n\n%s\n\n", module, entry.Name(), bytes.TrimSpace(text))
		found = true
	}
	if !found {
		return fmt.Errorf("%s: no file with a license", module)
	}
	return nil
}
