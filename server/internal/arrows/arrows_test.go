// Package arrows checks which package may import which, and which calls only programs may make. It
// does not check imports of test files. Start at [TestArrows].
package arrows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	modulePath       = "github.com/parleyhq/parley"
	maxFileLines     = 400
	maxTestFileLines = 520        // Tables of tests are long.
	root             = "../../.." // of the module
)

// arrow allows the packages that match from to import the packages of this module that match to. The
// patterns are those of [path.Match]: "*" is one folder. The first matching row of a table applies.
type arrow struct {
	from string
	to   []string
}

func allowedArrows() []arrow {
	const api, record, shared = "gen/parley/v1", "gen/parley/store/v1", "gen/parley/rules/v1"
	return []arrow{
		{shared, nil},
		{api, []string{shared}},
		{record, []string{api}},
		{"gen/gateway/parley/v1", []string{api}},

		{"store", []string{api, record}},
		{"store/internal/checksum", nil},
		{"store/internal/records", []string{"store", "store/internal/checksum", api, record}},
		{"store/internal/record", []string{"store", "store/internal/checksum", "store/internal/records", api, record}},
		{"store/memstore", []string{"store", "store/internal/record", "store/internal/records", api, record}},
		{
			"store/boltstore",
			[]string{"store", "store/internal/record", "store/internal/records", "store/boltstore/internal/*", api, record},
		},
		{"store/boltstore/internal/layout", []string{"store", "store/internal/record", "store/internal/records"}},
		{"store/boltstore/internal/boltfile", []string{"store", "store/boltstore/internal/layout"}},
		{
			"store/boltstore/internal/fsck",
			[]string{
				"store/boltstore/internal/layout", "store/boltstore/internal/boltfile", "store/boltstore/internal/chunks",
				"store/internal/record", "store/internal/records",
			},
		},
		{"store/boltstore/internal/chunks", []string{"store", "store/boltstore/internal/layout", "store/internal/record"}},
		{"store/boltstore/internal/journal", []string{"store/boltstore/internal/boltfile"}},
		{"store/boltstore/internal/cache", []string{"store"}},
		{"store/boltstore/internal/overlay", []string{
			"store/boltstore/internal/journal", "store/boltstore/internal/layout", "store/internal/record", "store/internal/records",
		}},
		{"store/boltstore/internal/fairqueue", nil},
		{"store/boltstore/internal/backup", []string{"store", "store/boltstore/internal/boltfile"}},
		{"store/redisstore", []string{"store", "store/internal/record", "store/internal/records", api, record}},
		{"store/redisstore/redistest", nil}, // Tests call it, also those of other modules.
		{"store/storetest", []string{"store", api, record}},

		{"server", []string{"server/internal/app", "client/buildinfo"}},
		{"server/internal/app", []string{
			"server/internal/*", "server/internal/agent/*", "server/internal/auth/*", "server/internal/tracing/*", "store",
			"store/*store", api, "client/buildinfo",
		}},
		{"server/internal/transport", []string{
			"server/internal/rpc", "server/internal/gateway", "server/internal/rules", "server/internal/auth",
			"server/internal/secretfile", "server/internal/tracing", "server/internal/facade/*", "server/internal/console", "client", "client/mcp", api,
		}},
		{"server/internal/facade/*", []string{"server/internal/gateway", "server/internal/auth", "server/internal/a2aparts", api}},
		{"server/internal/a2aparts", []string{api}},
		{"server/internal/console", []string{"server/internal/gateway", "server/internal/auth", api}},
		{"server/internal/healthcheck", nil},
		{"server/internal/supervisor", nil},
		{"server/deploy/release", nil},
		{"server/deploy/release/manual", nil},
		{"server/internal/logqueue", nil},
		{"server/internal/nettest", nil}, // Tests call it.
		{"server/internal/rpc/rpctest", []string{"server/internal/*", "server/internal/agent/echo", "store", "store/memstore"}}, // Likewise.
		{"server/internal/arrows", nil},
		{"server/e2e", nil},
		{"server/e2e/hostile", nil},
		{"server/bench", nil},
		{"server/parleydtest", nil},                                   // Tests call it, also those of other modules.
		{"server/parleydtest/signin", []string{"server/parleydtest"}}, // Tests in other languages run it.
		{"server/internal/rpc", []string{
			"server/internal/rules", "server/internal/turn", "server/internal/routing", "server/internal/watch",
			"server/internal/auth", "server/internal/peer", "server/internal/interactionlog", "server/internal/transfer",
			"server/internal/window", "server/internal/agent", "server/internal/limit", "server/internal/calllog",
			"server/internal/tracing", "server/internal/rpc/receive", "server/internal/rpc/localstream",
			"server/internal/rpc/slowstream", "server/internal/rpc/pipeline", "server/internal/rpc/summaries",
			"server/internal/rpc/wirecodec", "server/internal/rpc/pages", "server/internal/rpc/retries", "store", api,
		}},
		{"server/internal/peer", []string{
			"server/internal/turn", "server/internal/watch", "server/internal/auth", "server/internal/rules",
			"server/internal/tracing", "server/internal/interactionlog", "server/internal/interactionlog/search", "store", api,
		}},
		{"server/internal/tracing", nil},
		{"server/internal/tracing/tracestore", []string{"server/internal/tracing", "store"}},
		{"server/internal/calllog", []string{"server/internal/auth", "server/internal/rules/ids", api}},
		{"server/internal/rpc/receive", nil},
		{"server/internal/rpc/slowstream", nil},
		{"server/internal/rpc/localstream", nil},
		{"server/internal/rpc/pipeline", nil},
		{"server/internal/rpc/summaries", []string{"server/internal/routing", "store"}},
		{"server/internal/rpc/pages", []string{"server/internal/turn", "store", api}},
		{"server/internal/rpc/retries", []string{"store"}},
		{"server/internal/rpc/wirecodec", []string{"store"}},
		{"server/internal/limit", nil},
		{"server/internal/metrics", []string{"store", api}},
		{"server/internal/secretfile", nil},
		{"server/internal/migrate", []string{"store", api}},
		{"server/internal/transfer", []string{"server/internal/rules", "server/internal/rules/ids", "store", api}},
		{"server/internal/turn", []string{
			"server/internal/turn/*", "server/internal/window", "server/internal/agent", "server/internal/tracing", "store", api,
			record,
		}},
		{"server/internal/turn/changes", nil},
		{"server/internal/turn/eventlog", []string{api}},
		{"server/internal/turn/history", []string{"store", api}},
		{"server/internal/turn/replay", []string{"server/internal/turn/eventlog", "store", api, record}},
		{"server/internal/turn/answer", []string{
			"server/internal/turn/eventlog", "server/internal/turn/history", "server/internal/rules", "server/internal/agent",
			api, record,
		}},
		{"server/internal/rules", []string{"server/internal/rules/checks", api}},
		{"server/internal/rules/checks", []string{"server/internal/rules/ids", api}},
		{"server/internal/rules/ids", nil},
		{"server/internal/rules/predefined", nil},
		{"server/internal/rules/protoc-gen-checks", []string{"server/internal/rules/predefined"}},
		{"server/internal/window", []string{api}},
		{"server/internal/routing", []string{"store", api}},
		{"server/internal/watch", []string{"store", api}},
		{"server/internal/config", []string{
			"server/internal/agent", "server/internal/auth", "server/internal/auth/tokenfile", "server/internal/limit",
			"server/internal/secretfile", "store", "store/redisstore", api, // The URL of an engine is checked with all settings.
		}},
		{"server/internal/config/configtest", nil}, // Tests read its file.
		{"server/internal/auth", []string{api}},
		{"server/internal/auth/*", []string{"server/internal/auth"}},
		{"server/internal/gateway", []string{
			"server/internal/gateway/openapi", "server/internal/rules", "server/internal/auth", "server/internal/calllog", "server/internal/tracing", api, "gen/gateway/parley/v1",
		}},
		{"server/internal/gateway/openapi", nil},
		{
			"server/internal/gateway/openapi/protoc-gen-openapi",
			[]string{"server/internal/rules/ids", "server/internal/rules/predefined"},
		},
		{"server/internal/interactionlog", []string{
			"server/internal/interactionlog/search", "server/internal/interactionlog/scan",
			"server/internal/interactionlog/dayfile", "server/internal/interactionlog/entry", "store", api,
		}},
		{"server/internal/interactionlog/search", []string{
			"server/internal/interactionlog/scan", "server/internal/interactionlog/dayfile",
			"server/internal/interactionlog/entry", "server/internal/rules", "store", api,
		}},
		{"server/internal/interactionlog/scan", []string{"server/internal/interactionlog/entry"}},
		{"server/internal/interactionlog/dayfile", nil},
		{"server/internal/interactionlog/entry", []string{"store", api}},
		{"server/internal/interactionlog/entrytest", []string{"store", api}}, // what its tests write
		{"server/internal/agent", []string{"server/internal/tracing", api}},
		{"server/internal/agent/providertest", nil}, // Tests of agents call its servers.
		{"server/internal/agent/*/*test", []string{"server/internal/agent/providertest"}},
		{"server/internal/agent/remote", []string{
			"server/internal/agent", "server/internal/rules", "server/internal/tracing", api,
		}},
		{"server/internal/agent/a2a", []string{"server/internal/agent", "server/internal/tracing", "server/internal/a2aparts", api}},
		{"server/internal/agent/command", []string{"server/internal/agent", "server/internal/tracing", api}},
		{"server/internal/agent/*", []string{"server/internal/agent", api}},

		{"client", []string{api}},
		{"client/cmd/parley", []string{"client", "client/mcp", "client/buildinfo", api}},
		{"client/buildinfo", nil},
		{"client/mcp", []string{"client", api}},
		{"client/examples/*", []string{api}},
	}
}

// restriction allows only some packages to import a package of another module, or one below it.
type restriction struct {
	imported string
	only     []string
}

func restrictions() []restriction {
	statuses := []string{
		"gen/parley/v1", "gen/gateway/parley/v1", "server/internal/rpc", "server/internal/rpc/localstream",
		"server/internal/peer", "server/internal/gateway", "server/internal/agent/remote", "server/internal/agent/a2a",
		"server/internal/metrics", "server/internal/facade/a2a", "server/internal/facade/agui",
		"server/internal/facade/openai", "client", "client/mcp", "client/cmd/parley", "client/examples/agent",
	}
	return []restriction{
		{"go.etcd.io/bbolt", []string{
			"store/boltstore", "store/boltstore/internal/boltfile", "store/boltstore/internal/fsck", "store/boltstore/internal/backup", "store/boltstore/internal/chunks",
		}},
		{"github.com/redis/rueidis", []string{"store/redisstore"}},
		{"google.golang.org/grpc/status", statuses},
		{"google.golang.org/grpc/codes", statuses},
		{"github.com/prometheus", []string{"server/internal/metrics"}},
		{"github.com/grpc-ecosystem/go-grpc-middleware/providers", []string{"server/internal/metrics"}},
		// If the server is process 1, it reaps all children except those that these packages start.
		{"os/exec", []string{
			"server/internal/app", "server/internal/agent/command", "server/parleydtest", "server/deploy/release", "store/redisstore/redistest",
		}},
	}
}

// programCalls returns the names that only package main, package app and tests may use, by import path.
// "*" is any name.
func programCalls() map[string][]string {
	return map[string][]string{
		"os":        {"Exit"},
		"os/signal": {"*"},
		"context":   {"Background", "TODO"},
	}
}

// listedPackage is the output of `go list -json` about a package.
type listedPackage struct {
	ImportPath string
	Imports    []string
}

// importFaults returns a fault for each import that allowedArrows or a restriction forbids.
func importFaults(packages []listedPackage) []string {
	var faults []string
	rows := allowedArrows()
	for _, p := range packages {
		from := relativePath(p.ImportPath)
		row := slices.IndexFunc(rows, func(a arrow) bool { return matches(a.from, from) })
		if row < 0 {
			faults = append(faults, from+": unknown package, add a row to allowedArrows in server/internal/arrows/arrows_test.go")
			continue
		}
		for _, imported := range p.Imports {
			if fault := importFault(from, imported, rows[row].to); fault != "" {
				faults = append(faults, fault)
			}
		}
	}
	return faults
}

// importFault returns why from must not import the package, or "" if it may. to are the patterns
// that its arrow allows.
func importFault(from, imported string, to []string) string {
	if ours := relativePath(imported); ours != imported {
		if slices.ContainsFunc(to, func(pattern string) bool { return matches(pattern, ours) }) {
			return ""
		}
		return fmt.Sprintf("%s must not import %s", from, ours)
	}
	for _, r := range restrictions() {
		matches := imported == r.imported || strings.HasPrefix(imported, r.imported+"/")
		if matches && !slices.Contains(r.only, from) {
			return fmt.Sprintf("%s must not import %s, only %s", from, imported, strings.Join(r.only, ", "))
		}
	}
	return ""
}

// relativePath returns an import path of this module relative to it, and other paths unchanged.
func relativePath(importPath string) string {
	return strings.TrimPrefix(importPath, modulePath+"/")
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// fileFaults returns the faults of a Go file: its length, and calls that only package main, package app
// and tests may make.
func fileFaults(name string, source []byte) []string {
	var faults []string
	most := maxFileLines
	if strings.HasSuffix(name, "_test.go") {
		most = maxTestFileLines
	}
	if lines := bytes.Count(source, []byte("\n")); lines > most {
		faults = append(faults, fmt.Sprintf("%s: %d lines, at most %d", name, lines, most))
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		return append(faults, err.Error())
	}
	isTest := strings.HasSuffix(name, "_test.go") || path.Dir(name) == "store/storetest"
	if isTest || file.Name.Name == "main" || path.Dir(name) == "server/internal/app" {
		return faults
	}
	forbidden := forbiddenNames(file)
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if of, ok := selector.X.(*ast.Ident); ok {
			if names := forbidden[of.Name]; slices.Contains(names, "*") || slices.Contains(names, selector.Sel.Name) {
				faults = append(faults, fmt.Sprintf("%s: %s.%s outside of main, app and tests",
					files.Position(selector.Pos()), of.Name, selector.Sel.Name))
			}
		}
		return true
	})
	return faults
}

// forbiddenNames returns programCalls by the local names of the file's imports.
func forbiddenNames(file *ast.File) map[string][]string {
	forbidden := map[string][]string{}
	for _, spec := range file.Imports {
		importPath, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // The parser rejects such a file.
		}
		local := path.Base(importPath)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		if names, ok := programCalls()[importPath]; ok {
			forbidden[local] = names
		}
	}
	return forbidden
}

func TestArrows(t *testing.T) {
	t.Run("imports", func(t *testing.T) {
		packages := listPackages(t)
		if len(packages) == 0 {
			t.Error("go list = no packages, want some")
		}
		for _, fault := range importFaults(packages) {
			t.Error(fault)
		}
	})
	t.Run("files", func(t *testing.T) {
		files := readFiles(t)
		if len(files) == 0 {
			t.Error("no Go files found, want some")
		}
		for name, source := range files {
			for _, fault := range fileFaults(name, source) {
				t.Error(fault)
			}
		}
	})
}

// TestArrowFaults checks that the tests of arrows reject what is forbidden.
func TestArrowFaults(t *testing.T) {
	const known = ": unknown package, add a row to allowedArrows in server/internal/arrows/arrows_test.go"
	const statuses = "gen/parley/v1, gen/gateway/parley/v1, server/internal/rpc, server/internal/rpc/localstream, " +
		"server/internal/peer, server/internal/gateway, server/internal/agent/remote, server/internal/agent/a2a, server/internal/metrics, " +
		"server/internal/facade/a2a, server/internal/facade/agui, server/internal/facade/openai, client, client/mcp, client/cmd/parley, client/examples/agent"
	imports := []struct{ from, imported, want string }{
		{"server/internal/rpc", modulePath + "/server/internal/turn", ""},
		{"server/internal/agent/echo", modulePath + "/server/internal/agent", ""},
		{"server/internal/app", modulePath + "/store/boltstore", ""},
		{"store/boltstore", "go.etcd.io/bbolt", ""},
		{"client", "google.golang.org/grpc/status", ""},
		{"server/internal/transport", "google.golang.org/grpc", ""},

		{"server/internal/util", "fmt", "server/internal/util" + known},
		{
			"server/internal/turn", modulePath + "/server/internal/rpc",
			"server/internal/turn must not import server/internal/rpc",
		},
		{
			"server/internal/routing", modulePath + "/server/internal/watch",
			"server/internal/routing must not import server/internal/watch",
		},
		{
			"server/internal/config", modulePath + "/server/internal/agent/echo",
			"server/internal/config must not import server/internal/agent/echo",
		},
		{
			"server/internal/agent", modulePath + "/server/internal/agent/echo",
			"server/internal/agent must not import server/internal/agent/echo",
		},
		{
			"server/internal/agent/echo", modulePath + "/server/internal/agent/command",
			"server/internal/agent/echo must not import server/internal/agent/command",
		},
		{
			"server/internal/agent/openai", modulePath + "/server/internal/agent/providertest",
			"server/internal/agent/openai must not import server/internal/agent/providertest",
		},
		{"server/internal/rpc", modulePath + "/store/boltstore", "server/internal/rpc must not import store/boltstore"},
		{
			"server/internal/rpc", modulePath + "/gen/parley/store/v1",
			"server/internal/rpc must not import gen/parley/store/v1",
		},
		{"store", modulePath + "/store/internal/record", "store must not import store/internal/record"},
		{"client", modulePath + "/store", "client must not import store"},

		{"store/redisstore", "github.com/redis/rueidis", ""},
		{
			"server/internal/app", "github.com/redis/rueidis",
			"server/internal/app must not import github.com/redis/rueidis, only store/redisstore",
		},
		{"server/internal/app", "go.etcd.io/bbolt/errors", "server/internal/app must not import go.etcd.io/bbolt/errors, " +
			"only store/boltstore, store/boltstore/internal/boltfile, store/boltstore/internal/fsck, " +
			"store/boltstore/internal/backup, store/boltstore/internal/chunks"},
		{
			"server/internal/turn", "google.golang.org/grpc/status",
			"server/internal/turn must not import google.golang.org/grpc/status, only " + statuses,
		},
		{
			"server/internal/rpc", "os/exec",
			"server/internal/rpc must not import os/exec, only server/internal/app, server/internal/agent/command, " +
				"server/parleydtest, server/deploy/release, store/redisstore/redistest",
		},
		{
			"store/memstore", "google.golang.org/grpc/codes",
			"store/memstore must not import google.golang.org/grpc/codes, only " + statuses,
		},
	}
	for _, test := range imports {
		got := importFaults([]listedPackage{{ImportPath: modulePath + "/" + test.from, Imports: []string{test.imported}}})
		if diff := cmp.Diff(test.want, strings.Join(got, "\n")); diff != "" {
			t.Errorf("importFaults(%s importing %s) (-want +got):\n%s", test.from, test.imported, diff)
		}
	}

	files := []struct{ name, source, want string }{
		{"store/a.go", "package store\nimport \"os\"\nvar _ = os.Getenv\n", ""},
		{"server/main.go", "package main\nimport \"os\"\nfunc main() { os.Exit(1) }\n", ""},
		{"store/a_test.go", "package store\nimport \"context\"\nvar _ = context.Background()\n", ""},
		{"store/a.go", "package store\nvar context struct{ Background int }\nvar _ = context.Background\n", ""},

		{
			"store/a.go", "package store\nimport \"os\"\nfunc f() { os.Exit(1) }\n",
			"store/a.go:3:12: os.Exit outside of main, app and tests",
		},
		{
			"store/a.go", "package store\nimport c \"context\"\nvar _ = c.Background()\n",
			"store/a.go:3:9: c.Background outside of main, app and tests",
		},
		{
			"store/a.go", "package store\nimport \"os/signal\"\nvar _ = signal.Stop\n",
			"store/a.go:3:9: signal.Stop outside of main, app and tests",
		},
		{"store/a.go", "package", "store/a.go:1:8: expected 'IDENT', found 'EOF'"},
		{"server/main.go", "package main\n" + strings.Repeat("\n", maxFileLines), "server/main.go: 401 lines, at most 400"},
		{"server/main_test.go", "package main\n" + strings.Repeat("\n", maxFileLines), ""},
		{
			"server/main_test.go", "package main\n" + strings.Repeat("\n", maxTestFileLines),
			"server/main_test.go: 521 lines, at most 520",
		},
	}
	for _, test := range files {
		got := fileFaults(test.name, []byte(test.source))
		if diff := cmp.Diff(test.want, strings.Join(got, "\n")); diff != "" {
			t.Errorf("fileFaults(%q, %q) (-want +got):\n%s", test.name, test.source, diff)
		}
	}
}

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...")
	command.Dir = root
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var packages []listedPackage
	decoder := json.NewDecoder(bytes.NewReader(out))
	for decoder.More() {
		var p listedPackage
		if err := decoder.Decode(&p); err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages = append(packages, p)
	}
	return packages
}

// readFiles returns the content of the module's Go files, except generated ones, by slash-separated
// path.
func readFiles(t *testing.T) map[string][]byte {
	t.Helper()
	module := os.DirFS(root)
	files := map[string][]byte{}
	err := fs.WalkDir(module, ".", func(name string, entry fs.DirEntry, err error) error {
		switch hidden := name != "." && strings.HasPrefix(entry.Name(), "."); {
		case err != nil:
			return err
		case entry.IsDir() && (hidden || name == "gen" || name == "data" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		files[name], err = fs.ReadFile(module, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
