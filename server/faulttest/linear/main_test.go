// Package linear checks that the service is linearizable through gRPC and across kill -9: concurrent
// clients see what they would see if every call took effect at one instant between its start and its
// end. A call without an answer, because the server was killed, may have taken effect or not. The same holds for
// clients of three servers on one Redis.
//
// The package is separate because of its checker, porcupine. Start at [TestLinear] and
// [TestThreeServers].
package linear

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhq/parley/server/parleydtest"
)

// testTimeout is how long a test waits for an expected event. Only a failing test takes that long.
const testTimeout = time.Minute

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
	if err := parleydtest.Build(context.Background(), parleyd); err != nil {
		return 0, err
	}
	if code = m.Run(); code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// rounds returns how often a test repeats its work: short times, or long times in a long round.
func rounds(short, long int) int {
	if os.Getenv("FAULTS") == "long" {
		return long
	}
	return short
}
