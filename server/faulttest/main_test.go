// Package faulttest injects faults into the bolt store and the machine below it, in every way that a
// plain Debian machine allows. After each fault it checks that no acknowledged write is lost and that
// the server returns no wrong data.
//
// The package is a module of its own, so that its dependencies stay out of the main module. `make
// test-faults` runs a short round of all tests, `make test-faults-long` a longer one. Most tests need
// root, and some need a kernel with loop devices or FUSE. A test that cannot run is skipped and
// listed in the table at the end; see skipTest. Start at [TestKilled].
package faulttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhq/parley/server/parleydtest"
)

// Environment variables of a round.
const (
	// roundEnv is "long" for the long round.
	roundEnv = "FAULTS"
	// requireEnv is "all" if a test that cannot run must fail instead of being skipped.
	requireEnv = "FAULTS_REQUIRE"
	// countsEnv is the path of a file for the counts; go test hides the standard output of a test that passes.
	countsEnv = "FAULTS_COUNTS"
)

// testTimeout is how long a test waits for an expected event. Only a failing test takes that long.
const testTimeout = time.Minute

var (
	// parleyd is the path of the program under test, built by TestMain.
	parleyd string
	// smallParleyd is the path of the same program with smallParts.
	smallParleyd string
	counts       = table{counts: map[string]int{}}
)

// TestMain runs the tests. If checkEnv is set, it instead checks the pages of that file; see checkPages. If
// h2specEnv is set, it runs h2spec.
func TestMain(m *testing.M) {
	if path := os.Getenv(checkEnv); path != "" {
		os.Exit(checkPages(path))
	}
	if target := os.Getenv(h2specEnv); target != "" {
		if err := runH2spec(target); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run builds parleyd, runs the tests, checks that they leave no goroutines, and prints the counts.
func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "faulttest")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	parleyd, smallParleyd = filepath.Join(dir, "parleyd"), filepath.Join(dir, "small", "parleyd")
	if err := errors.Join(
		os.Mkdir(filepath.Dir(smallParleyd), 0o700), parleydtest.Build(ctx, parleyd),
		parleydtest.BuildChanged(ctx, smallParleyd, smallParts()...),
	); err != nil {
		return 0, err
	}
	code = m.Run()
	if code == 0 {
		err = goleak.Find()
	}
	if path := os.Getenv(countsEnv); path != "" {
		file, createErr := os.Create(path)
		if createErr != nil {
			return code, errors.Join(err, createErr)
		}
		return code, errors.Join(err, counts.print(file), file.Close())
	}
	return code, errors.Join(err, counts.print(os.Stdout))
}

// rounds returns how often a test repeats its work: short times, or long times in a long round.
func rounds(short, long int) int {
	if os.Getenv(roundEnv) == "long" {
		return long
	}
	return short
}

// requireProgram skips a test if a program of a Debian package is missing. With CI=true it fails the
// test, because CI can install the package.
func requireProgram(t *testing.T, program, debianPackage string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not on the PATH; on Debian: apt-get install %s", program, debianPackage)
	}
	skipTest(t, "%s is not on the PATH; on Debian: apt-get install %s", program, debianPackage)
}

// skipTest skips a test because the machine lacks something: root, loop devices or FUSE. With
// FAULTS_REQUIRE=all it fails the test.
func skipTest(t *testing.T, format string, args ...any) {
	t.Helper()
	why := fmt.Sprintf(format, args...)
	if os.Getenv(requireEnv) == "all" {
		t.Fatal(why)
	}
	counts.addSkipped(t.Name(), why)
	t.Skip("SKIPPED: " + why)
}

// requireRoot skips a test that is not run by root.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		skipTest(t, "test needs root")
	}
}

// table contains the counts of all tests of a round.
type table struct {
	mu      sync.Mutex
	counts  map[string]int // by the test's name, a tab, and the name of the count
	skipped []string
}

// add adds n to a count of a test, for example "kills" or "steps acknowledged".
func (c *table) add(t *testing.T, what string, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[t.Name()+"\t"+what] += n
}

// addSkipped records why a test was skipped.
func (c *table) addSkipped(test, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skipped = append(c.skipped, test+"\tNOT RUN: "+why)
}

// print writes the table, ordered by the tests' names.
func (c *table) print(w io.Writer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	tabs := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, key := range slices.SortedFunc(maps.Keys(c.counts), cmp.Compare[string]) {
		fmt.Fprintf(tabs, "%s\t%d\n", key, c.counts[key])
	}
	for _, line := range c.skipped {
		fmt.Fprintln(tabs, line)
	}
	return tabs.Flush()
}

// quote indents the output of a process for the message of a failure.
func quote(text string) string {
	return "  | " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  | ")
}
