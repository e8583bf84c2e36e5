// Package linear checks that what many clients of a server see at once, through gRPC and
// across kill -9, is what they would see if every call happened at one instant between its
// beginning and its end: that the service is linearizable. A call whose answer was lost with
// the server may have happened or not.
//
// It is a package of its own for its checker, porcupine.
package linear

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a test waits for what must come. Only a failing test takes so long.
const patience = time.Minute

// parleyd is the path of the program under test, built by TestMain.
var parleyd string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "linear")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	parleyd = filepath.Join(dir, "parleyd")
	if err := build(parleyd); err != nil {
		return 0, err
	}
	if code = m.Run(); code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// build builds parleyd, which is of the main module.
func build(program string, flags ...string) error {
	args := append([]string{"build", "-buildvcs=false", "-o", program}, flags...)
	process := exec.Command("go", append(args, "./server")...)
	process.Dir = root()
	process.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := process.CombinedOutput(); err != nil {
		return fmt.Errorf("build parleyd: %w\n%s", err, out)
	}
	return nil
}

// root is the directory of the main module.
func root() string { return filepath.Join("..", "..", "..") }

// rounds is how often a test does what it does: short of the times, or long in a long round.
func rounds(short, long int) int {
	if os.Getenv("FAULTS") == "long" {
		return long
	}
	return short
}
