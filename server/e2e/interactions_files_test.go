package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// interactionLine is a line of the interaction log.
type interactionLine struct {
	Timestamp time.Time
	SessionID string `json:"session_id"`
	Tenant    string
	Role      string
	Content   string
	Metadata  struct {
		TurnNumber int32 `json:"turn_number"`
		LostLines  int   `json:"lost_lines"` // of the log's own lines
	}
}

// interactionFiles are the files of an interaction log, which are read as they grow.
type interactionFiles struct {
	dir    string
	ends   map[string]int64 // by name: up to where it was read, which is behind a line break
	broken int              // lines that are not JSON
}

// next returns the lines that have come to their end since the last time.
func (f *interactionFiles) next(t *testing.T) (lines []interactionLine) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(f.dir, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths) // by day
	for _, path := range paths {
		text, err := readFrom(path, f.ends[path])
		if err != nil {
			t.Fatal(err)
		}
		text = text[:bytes.LastIndexByte(text, '\n')+1]
		f.ends[path] += int64(len(text))
		for text := range bytes.Lines(text) {
			var line interactionLine
			if json.Unmarshal(text, &line) != nil {
				f.broken++
				continue
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// readFrom returns what stands behind a place of a file.
func readFrom(path string, offset int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// roleName is a role as the log has it.
func roleName(r parleyv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}
