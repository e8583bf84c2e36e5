package search

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
)

// readNow is the current time in the tests of reading.
var readNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// testReader is a reader of a directory, with its log output.
type testReader struct {
	*Reader

	output bytes.Buffer
	puts   int
}

func newTestReader(tb testing.TB) *testReader {
	tb.Helper()
	r := &testReader{}
	r.Reader = NewReader(tb.TempDir(), slog.New(slog.NewJSONHandler(&r.output, nil)), func() time.Time { return readNow })
	return r
}

// putFile writes the file of a day, an hour ago. No two files have the same time.
func (r *testReader) putFile(tb testing.TB, date, content string) {
	tb.Helper()
	path := filepath.Join(r.dir, date+".jsonl")
	err := os.WriteFile(path, []byte(content), 0o600)
	if err == nil {
		err = os.Chtimes(path, readNow, readNow.Add(time.Duration(r.puts)-time.Hour))
	}
	r.puts++
	if err != nil {
		tb.Fatal(err)
	}
}

// warnings returns the lines that were logged as skipped, as "file:line".
func (r *testReader) warnings(t *testing.T) (lines []string) {
	t.Helper()
	for text := range strings.Lines(r.output.String()) {
		var record struct {
			File string
			Line int
		}
		if err := json.Unmarshal([]byte(text), &record); err != nil {
			t.Fatal(err)
		}
		number, _ := json.Marshal(record.Line)
		lines = append(lines, filepath.Base(record.File)+":"+string(number))
	}
	return lines
}

func contents(page *Page) string {
	var all []string
	for _, i := range page.Interactions {
		all = append(all, i.Content)
	}
	return strings.Join(all, " ")
}

// listAll returns all pages of a list and the number of skipped lines.
func (r *testReader) listAll(tb testing.TB, l List) (all []*parleyv1.Interaction, skipped int) {
	tb.Helper()
	return allPages(tb, func(token string) (*Page, error) {
		l.PageToken = token
		return r.List(tb.Context(), &l)
	})
}

// searchAll is listAll for a search.
func (r *testReader) searchAll(tb testing.TB, s Search) (all []*parleyv1.Interaction, skipped int) {
	tb.Helper()
	return allPages(tb, func(token string) (*Page, error) {
		s.PageToken = token
		return r.Search(tb.Context(), &s)
	})
}

func allPages(tb testing.TB, get func(token string) (*Page, error)) (all []*parleyv1.Interaction, skipped int) {
	tb.Helper()
	for token := ""; ; {
		page, err := get(token)
		if err != nil {
			tb.Fatal(err)
		}
		if token = page.NextPageToken; token != "" && len(page.Interactions) == 0 {
			tb.Fatal("empty page with a token")
		}
		all, skipped = append(all, page.Interactions...), skipped+page.Skipped
		if token == "" {
			return all, skipped
		}
	}
}

// texts returns the contents of interactions.
func texts(all []*parleyv1.Interaction) []string {
	found := []string{}
	for _, i := range all {
		found = append(found, i.Content)
	}
	return found
}

// model is a query that parses every line.
type model struct {
	tenant, conversation, text string
	since                      time.Time
	backward                   bool
}

// find returns the matching contents of files, which begin with the oldest, and the number of invalid lines.
func (n model) find(files ...string) (found []string, skipped int) {
	var parsed []modelFile
	for _, file := range files {
		parsed = append(parsed, parseModelFile(file))
	}
	return n.findIn(parsed...)
}

func (n model) findIn(files ...modelFile) (found []string, skipped int) {
	found = []string{}
	for _, file := range files {
		skipped += file.faults
		for _, l := range file.lines {
			in := l.Interaction
			if l.Tenant == n.tenant && (n.conversation == "" || in.ConversationId == n.conversation) &&
				!in.Timestamp.AsTime().Before(n.since) && strings.Contains(foldText(in.Content), foldText(n.text)) {
				found = append(found, in.Content)
			}
		}
	}
	if n.backward {
		slices.Reverse(found)
	}
	return found, skipped
}

// modelFile is a file with all of its lines parsed.
type modelFile struct {
	lines  []*entry.Entry
	faults int
}

func parseModelFile(file string) (parsed modelFile) {
	for text := range strings.SplitSeq(strings.TrimPrefix(file, "\ufeff"), "\n") {
		text = strings.Trim(text, " \t\r")
		if text == "" {
			continue
		}
		if l, err := entry.Parse([]byte(text)); err != nil || len(text) > entry.MaxBytes {
			parsed.faults++
		} else {
			parsed.lines = append(parsed.lines, l)
		}
	}
	return parsed
}
