package faulttest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// checkEnv makes the test program one that checks the pages of the file that it names.
const checkEnv = "FAULTS_CHECK"

// soundPages has bbolt check that each page of a file is in use once or free. It does so in a
// process of its own: pages that lead in a circle have bbolt run out of stack, from which no
// process recovers.
func soundPages(t *testing.T, path string) error {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	check := exec.CommandContext(ctx, self)
	// The race detector would else wait a second at the end.
	check.Env = append(os.Environ(), checkEnv+"="+path, "GORACE=atexit_sleep_ms=0")
	if out, err := check.CombinedOutput(); err != nil {
		const enough = 1000
		return fmt.Errorf("check of the pages: %w:\n%s", err, quote(string(out[:min(enough, len(out))])))
	}
	return nil
}

// checkPages is that process, and returns its exit code.
func checkPages(path string) int {
	const enough = 16 << 20 // bytes, far more than pages that are sound take
	debug.SetMaxStack(enough)
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer db.Close()
	code := 0
	err = db.View(func(tx *bolt.Tx) error {
		for fault := range tx.Check() {
			fmt.Fprintln(os.Stderr, fault)
			code = 1
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}
