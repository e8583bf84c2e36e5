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

// checkEnv is an environment variable with a path. It makes the test binary check the pages of that
// file.
const checkEnv = "FAULTS_CHECK"

// soundPages checks with bbolt that each page of a file is either used once or free. The check runs in
// a process of its own, because a cycle of pages makes bbolt overflow the stack, which a process cannot
// recover from.
func soundPages(t *testing.T, path string) error {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), testTimeout)
	defer stop()
	check := exec.CommandContext(ctx, self)
	// By default the race detector sleeps for a second at exit.
	check.Env = append(os.Environ(), checkEnv+"="+path, "GORACE=atexit_sleep_ms=0")
	if out, err := check.CombinedOutput(); err != nil {
		const maxOutput = 1000
		return fmt.Errorf("check of the pages: %w:\n%s", err, quote(string(out[:min(maxOutput, len(out))])))
	}
	return nil
}

// checkPages is the main function of the process that checks pages. It returns the exit code.
func checkPages(path string) int {
	const maxStack = 16 << 20 // bytes, far more than sound pages need
	debug.SetMaxStack(maxStack)
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
