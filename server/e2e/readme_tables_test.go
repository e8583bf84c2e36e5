package e2e_test

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// operatorPage is the page with the tables.
const operatorPage = "server/README.md"

var (
	row  = regexp.MustCompile(`(?m)^\|(.+)\|$`) // of a table
	term = regexp.MustCompile("`([^`]+)`")
)

// tableOf returns the cells of the first table below a heading of the operator's page, without its header.
func tableOf(t *testing.T, heading string) (table [][]string) {
	t.Helper()
	_, section, found := strings.Cut(readPage(t, operatorPage), "\n"+heading+"\n")
	_, section, hasTable := strings.Cut(section, "\n|---")
	if !found || !hasTable {
		t.Fatalf("%s has no heading %q with a table", operatorPage, heading)
	}
	_, section, _ = strings.Cut(section, "\n") // The rest of the line below the header.
	section, _, _ = strings.Cut(section, "\n\n")
	for _, match := range row.FindAllStringSubmatch(section, -1) {
		table = append(table, strings.Split(match[1], " | "))
	}
	return table
}

// TestLogTable compares the table of log entries with the entries of level info, warn and error in the source.
func TestLogTable(t *testing.T) {
	documented := map[string]bool{}
	for _, cells := range tableOf(t, "## Log") {
		for level := range strings.SplitSeq(strings.TrimSpace(cells[0]), ", ") {
			for _, match := range term.FindAllStringSubmatch(cells[1], -1) {
				entry := level + ": " + match[1]
				if documented[entry] {
					t.Errorf("%s has the entry %s twice", operatorPage, entry)
				}
				documented[entry] = true
			}
		}
	}
	logged := map[string]bool{ // The entries whose level or text is not a constant of the call that logs them.
		"info: audit": true,
		"info: call":  true,
		"warn: call":  true,
		"error: ephemeral conversations not released yet": true,
		"warn: ephemeral conversations not released yet":  true,
		"warn: log entries dropped":                       true,

		"warn: can be reached from other machines without TLS and sign-in": true,
	}
	err := filepath.WalkDir("../internal", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			err = addLogged(logged, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(logged)), slices.Sorted(maps.Keys(documented))); d != "" {
		t.Errorf("log entries of %s (-logged +documented):\n%s", operatorPage, d)
	}
}

// addLogged adds the levels and texts of the entries that a file logs: calls of methods Info, Warn and Error with a
// constant text, and the problems of settings, which are logged as warnings.
func addLogged(logged map[string]bool, path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	constants := constantsOf(file)
	add := func(level string, message ast.Expr) {
		if text, ok := textOf(message, constants); ok {
			logged[level+": "+text] = true
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if warning, ok := n.(*ast.CompositeLit); ok && len(warning.Elts) == 3 { // config.Warning: setting, problem, advice.
			if name, ok := warning.Type.(*ast.Ident); ok && name.Name == "Warning" {
				add("warn", warning.Elts[1])
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name, isContext := strings.CutSuffix(method.Sel.Name, "Context")
		at := 0
		switch {
		case name == "warn" && len(call.Args) == 4: // A warning about a setting: key, node, problem, advice.
			at = 2
		case name != "Info" && name != "Warn" && name != "Error":
			return true
		case isContext:
			at = 1
		}
		if len(call.Args) > at {
			add(strings.ToLower(name), call.Args[at])
		}
		return true
	})
	return nil
}

// constantsOf returns the constants of a file that are texts, by name.
func constantsOf(file *ast.File) map[string]string {
	constants := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
			for i, name := range spec.Names {
				if text, ok := textOf(spec.Values[i], nil); ok {
					constants[name.Name] = text
				}
			}
		}
		return true
	})
	return constants
}

// textOf returns the value of a constant text.
func textOf(e ast.Expr, constants map[string]string) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		return constant.StringVal(constant.MakeFromLiteral(e.Value, e.Kind, 0)), true
	case *ast.BinaryExpr:
		left, isLeft := textOf(e.X, constants)
		right, isRight := textOf(e.Y, constants)
		return left + right, isLeft && isRight
	case *ast.Ident:
		text, ok = constants[e.Name]
	}
	return text, ok
}

// TestPackageTable checks that each package directly below server/internal has one row, and each row a directory.
func TestPackageTable(t *testing.T) {
	var documented []string
	for _, cells := range tableOf(t, "## Packages") {
		match := term.FindStringSubmatch(cells[0])
		if match == nil {
			t.Errorf("row %q names no package", cells[0])
			continue
		}
		path, _, _ := strings.Cut(match[1], "/{")
		if info, err := os.Stat(filepath.Join("..", "..", path)); err != nil || !info.IsDir() {
			t.Errorf("%s: no directory %s: %v", operatorPage, path, err)
		}
		if name, ok := strings.CutPrefix(match[1], "server/internal/"); ok && !strings.Contains(name, "/") {
			documented = append(documented, name)
		}
	}
	slices.Sort(documented)
	entries, err := os.ReadDir("../internal")
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for _, entry := range entries {
		packages = append(packages, entry.Name())
	}
	if d := cmp.Diff(packages, documented); d != "" {
		t.Errorf("packages of %s (-existing +documented):\n%s", operatorPage, d)
	}
}
