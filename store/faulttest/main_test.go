// Package faulttest breaks the bolt store and the machine below it in every way that a plain
// Debian machine allows, and looks at what is left: nothing that was acknowledged may be
// missing, and nothing wrong may be served.
//
// A module of its own, so that what only these tests need stays out of the others' way. `make
// test-faults` runs a short round of all, `make test-faults-long` one that says more. Most
// need root, and some a kernel that lets them have loop devices or FUSE. What cannot run says
// so, also in the table at the end, see lacks.
package faulttest

import (
	"cmp"
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
)

// The environment of a round.
const (
	// roundEnv is "long" for the long round.
	roundEnv = "FAULTS"
	// requireEnv is "all" where every test must run, whatever this takes.
	requireEnv = "FAULTS_REQUIRE"
)

// patience is how long a test waits for what must come. Only a failing test takes so long.
const patience = time.Minute

var (
	// parleyd is the path of the program under test, built by TestMain.
	parleyd string
	counts  = table{counts: map[string]int{}}
)

// TestMain is also the program that checks the pages of a file.
func TestMain(m *testing.M) {
	if path := os.Getenv(checkEnv); path != "" {
		os.Exit(checkPages(path))
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run builds the program, runs the tests, looks for goroutines that they have left, and prints
// the counts.
func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "faulttest")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	parleyd = filepath.Join(dir, "parleyd")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", parleyd, "./server")
	build.Dir = filepath.Join("..", "..") // It is of the main module, and so is what it needs.
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build parleyd: %w\n%s", err, out)
	}
	code = m.Run()
	if code == 0 {
		err = goleak.Find()
	}
	return code, errors.Join(err, counts.print(os.Stdout))
}

// rounds is how often a test does what it does: short of the times, or long in a long round.
func rounds(short, long int) int {
	if os.Getenv(roundEnv) == "long" {
		return long
	}
	return short
}

// need skips a test, out loud, where a program is missing that the Debian package has. With
// CI=true the test fails: there it can be installed.
func need(t *testing.T, program, debianPackage string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not on the PATH; on Debian: apt-get install %s", program, debianPackage)
	}
	lacks(t, "%s is not on the PATH; on Debian: apt-get install %s", program, debianPackage)
}

// lacks skips a test, out loud, for want of something that not every machine gives: root,
// loop devices, FUSE. With FAULTS_REQUIRE=all the test fails.
func lacks(t *testing.T, format string, args ...any) {
	t.Helper()
	why := fmt.Sprintf(format, args...)
	if os.Getenv(requireEnv) == "all" {
		t.Fatal(why)
	}
	counts.lack(t.Name(), why)
	t.Skip("SKIPPED: " + why)
}

// needRoot skips a test where it is not run by root.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		lacks(t, "it needs root")
	}
}

// table is what the tests of a round have counted.
type table struct {
	mu     sync.Mutex
	counts map[string]int // by test and what is counted, parted by a tab
	lacked []string
}

// add counts n more of something under the name of a test: "kills", "writes acknowledged".
func (c *table) add(t *testing.T, what string, n int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[t.Name()+"\t"+what] += n
}

// lack notes why a test was not run.
func (c *table) lack(test, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lacked = append(c.lacked, test+"\tNOT RUN: "+why)
}

// print writes the table, in order of the tests' names.
func (c *table) print(w io.Writer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	tabs := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, key := range slices.SortedFunc(maps.Keys(c.counts), cmp.Compare[string]) {
		fmt.Fprintf(tabs, "%s\t%d\n", key, c.counts[key])
	}
	for _, line := range c.lacked {
		fmt.Fprintln(tabs, line)
	}
	return tabs.Flush()
}

// quote makes lines of a process fit into the message of a failure.
func quote(text string) string {
	return "  | " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  | ")
}
