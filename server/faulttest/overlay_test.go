package faulttest

import (
	"path/filepath"
	"testing"

	"github.com/parleyhq/parley/server/parleydtest"
)

// changes is a list of changes of the source of parleyd.
type changes []parleydtest.Change

// smallParts makes the parts of the store small that a short test would not fill: a segment of the journal has
// 64 KiB or 128 KiB, a transaction folds two conversations, and a chunk has 1000 bytes.
func smallParts() changes {
	const sizes = "store/boltstore/internal/journal/journal.go"
	return changes{
		{File: sizes, Before: "MinSegmentBytes = 4 << 20", After: "MinSegmentBytes = 64 << 10"},
		{File: sizes, Before: "MaxSegmentBytes = 64 << 20", After: "MaxSegmentBytes = 128 << 10"},
		{File: "store/boltstore/fold.go", Before: "foldStep  = 256", After: "foldStep  = 2"},
		{File: "store/boltstore/encode.go", Before: "defaultChunkSize = 32 << 10", After: "defaultChunkSize = 1000"},
	}
}

// buildWith builds a parleyd for a control test. In one file of the main module it replaces the text
// before with after, which removes the property under test. It returns the wrapper that makes launch
// run this program instead of the real one.
func buildWith(t *testing.T, file, before, after string) (wrapper []string) {
	t.Helper()
	return buildChanged(t, changes{{File: file, Before: before, After: after}})
}

// buildChanged is buildWith for several changes.
func buildChanged(t *testing.T, c changes) (wrapper []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "parleyd")
	if err := parleydtest.BuildChanged(t.Context(), path, c...); err != nil {
		t.Fatal(err)
	}
	return program(path)
}

// program returns the wrapper that makes launch run another program.
func program(path string) (wrapper []string) {
	return []string{"sh", "-c", `shift; exec "$0" "$@"`, path}
}
