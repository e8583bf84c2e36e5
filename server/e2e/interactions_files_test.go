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

// interactionEntry is an entry of the interaction log.
type interactionEntry struct {
	Timestamp      time.Time
	ConversationID string `json:"session_id"`
	Tenant         string
	Role           string
	Content        string
	Metadata       struct {
		TurnNumber int32 `json:"turn_number"`
		LostLines  int   `json:"lost_lines"` // only in the entries that the log writes about itself
	}
}

// interactionFiles reads the files of an interaction log as they grow.
type interactionFiles struct {
	dir    string
	ends   map[string]int64 // by path: the offset after the last complete line that was read
	broken int              // number of lines that are not JSON
}

// next returns the entries that were completed since the last call.
func (f *interactionFiles) next(t *testing.T) (lines []interactionEntry) {
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
			var line interactionEntry
			if json.Unmarshal(text, &line) != nil {
				f.broken++
				continue
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// readFrom returns the content of a file from an offset on.
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

// roleName returns the name of a role in the log.
func roleName(r parleyv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}
