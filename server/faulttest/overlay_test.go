package faulttest

import (
	"path/filepath"
	"testing"

	"github.com/parleyhq/parley/server/parleydtest"
)

// buildWith builds a parleyd for a control test. In one file of the main module it replaces the text
// before with after, which removes the property under test. It returns the wrapper that makes launch
// run this program instead of the real one.
func buildWith(t *testing.T, file, before, after string) (wrapper []string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "parleyd")
	if err := parleydtest.BuildChanged(t.Context(), program, file, before, after); err != nil {
		t.Fatal(err)
	}
	return []string{"sh", "-c", `shift; exec "$0" "$@"`, program}
}
