package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// StartSentinel starts a Sentinel that monitors a master under a name, waits until it knows the given number of
// replicas, and returns its URL, "redis+sentinel://127.0.0.1:12345/name". The Sentinel decides alone, and promotes a
// replica when the master has not answered for one second.
//
// The rules of [Start] for missing programs, the end of the test and the output apply.
func StartSentinel(tb testing.TB, name string, master *Server, replicas int) string {
	tb.Helper()
	program, dir := findProgram(tb), tb.TempDir()
	port, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	sentinel := func(words ...string) string { return directive("sentinel", words...) }
	config := directive("bind", host) + directive("port", strconv.Itoa(port)) + directive("dir", dir) +
		sentinel("monitor", name, host, strconv.Itoa(master.port), "1") +
		sentinel("down-after-milliseconds", name, "1000") + sentinel("failover-timeout", name, "5000")
	file := filepath.Join(dir, "sentinel.conf") // The Sentinel writes into it.
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	p, err := startProcess(program, dir, "", file, "--sentinel")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		p.stop()
		if tb.Failed() {
			tb.Logf("output of the Sentinel:\n%s", p.output.String())
		}
	})
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	err = poll(func() error {
		known, err := client{addr: addr}.do("SENTINEL", "REPLICAS", name)
		if n := strings.Count(known, "slave-repl-offset\n"); err == nil && n < replicas { // Each has this field.
			err = fmt.Errorf("%d of %d replicas known", n, replicas)
		}
		return err
	})
	if err != nil {
		tb.Fatalf("start a Sentinel: %v", err)
	}
	return "redis+sentinel://" + addr + "/" + name
}
