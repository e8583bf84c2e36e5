package parleydtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// BuildChanged builds parleyd at path with one change: in file, a path in the repository, it replaces
// the text before with after. Tests of checks use it to build a parleyd that a check must reject. It
// returns an error unless the file has the text exactly once.
func BuildChanged(ctx context.Context, path, file, before, after string) error {
	root, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	original := filepath.Join(root, filepath.FromSlash(file))
	source, err := os.ReadFile(original)
	if err != nil {
		return err
	}
	if n := strings.Count(string(source), before); n != 1 {
		return fmt.Errorf("%s has the text %q %d times, want 1; update the test", file, before, n)
	}
	changed, list := path+".changed.go", path+".overlay.json"
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return err
	}
	if err := errors.Join(
		//nolint:gosec // The test chooses path.
		os.WriteFile(changed, []byte(strings.Replace(string(source), before, after, 1)), 0o600),
		os.WriteFile(list, overlay, 0o600),
	); err != nil {
		return err
	}
	return Build(ctx, path, "-overlay="+list)
}
