package faulttest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// buildWith builds a parleyd for a control test. In one file of the main module it replaces the text
// before with after, which removes the property under test. It returns the wrapper that makes launch
// run this program instead of the real one.
func buildWith(t *testing.T, file, before, after string) (wrapper []string) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), before); n != 1 {
		t.Fatalf("%s has %q %d times, want 1; update the control", file, before, n)
	}
	dir := t.TempDir()
	changed, list, program := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "parleyd")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), before, after, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, file): changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-overlay", list, "-o", program, "./server")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the control: %v\n%s", err, out)
	}
	return []string{"sh", "-c", `shift; exec "$0" "$@"`, program}
}
