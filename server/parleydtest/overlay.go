package parleydtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Change is a change of the source of parleyd: in File, a path in the repository, the text Before is replaced
// with After. File must have Before exactly once. If Before is empty, File is a new file.
type Change struct{ File, Before, After string }

// BuildChanged builds parleyd at path with changes, which are made one after the other. Tests of checks use it to
// build a parleyd that a check must reject.
func BuildChanged(ctx context.Context, path string, changes ...Change) error {
	root, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	sources, replaced := map[string]string{}, map[string]string{}
	for _, c := range changes {
		original := filepath.Join(root, filepath.FromSlash(c.File))
		source, changed := sources[original]
		if !changed {
			replaced[original] = fmt.Sprintf("%s.changed%d.go", path, len(replaced))
		}
		if c.Before == "" {
			sources[original] = c.After
			continue
		}
		if !changed {
			b, err := os.ReadFile(original)
			if err != nil {
				return err
			}
			source = string(b)
		}
		if n := strings.Count(source, c.Before); n != 1 {
			return fmt.Errorf("%s has the text %q %d times, want 1; update the test", c.File, c.Before, n)
		}
		sources[original] = strings.Replace(source, c.Before, c.After, 1)
	}
	for original, changed := range replaced {
		if err := os.WriteFile(changed, []byte(sources[original]), 0o600); err != nil {
			return err
		}
	}
	list := path + ".overlay.json"
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return err
	}
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return err
	}
	return Build(ctx, path, "-overlay="+list)
}
