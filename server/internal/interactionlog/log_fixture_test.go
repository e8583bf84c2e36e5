package interactionlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/store"
)

// noon is the time of the messages in tests.
var noon = entrytest.Noon()

// testLog is a log in a directory, with its clock and its log output.
type testLog struct {
	*Log

	tb     testing.TB
	dir    string
	output *logOutput

	mu  sync.Mutex
	now time.Time
}

// logOutput collects the log output. It is safe for concurrent use.
type logOutput struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (s *logOutput) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

// take returns the output since the last call.
func (s *logOutput) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.text.String()
	s.text.Reset()
	return text
}

// newTestLog opens a log in a directory that does not exist yet.
func newTestLog(tb testing.TB) *testLog {
	tb.Helper()
	return openTestLog(tb, filepath.Join(tb.TempDir(), "data", "interactions"), Options{})
}

func openTestLog(tb testing.TB, dir string, o Options) *testLog {
	tb.Helper()
	w := &testLog{tb: tb, dir: dir, output: new(logOutput), now: noon}
	o.Dir, o.Now, o.Log = dir, w.clock, slog.New(slog.NewTextHandler(w.output, nil))
	w.Log = newLog(tb, o)
	return w
}

func (w *testLog) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *testLog) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// commit commits messages of a conversation in one batch at the time of the clock.
func (w *testLog) commit(texts ...string) {
	w.tb.Helper()
	w.Committed(messagesAt(w, w.clock(), texts...))
}

func (w *testLog) message(at time.Time, text string) store.Change {
	w.tb.Helper()
	return entrytest.Appended(w.tb, "acme", "c1", &parleyv1.Message{
		Role: parleyv1.Role_ROLE_USER, Content: text, CreateTime: timestamppb.New(at),
	})
}

// crash closes the files of the log without saving anything, as if the process had been killed.
func (w *testLog) crash() {
	w.tb.Helper()
	w.writer.mu.Lock()
	defer w.writer.mu.Unlock()
	var err error
	for _, f := range w.writer.files {
		err = errors.Join(err, f.Close())
	}
	if w.writer.lock != nil {
		err = errors.Join(err, w.writer.lock.Close())
	}
	if w.writer.files, w.writer.lock, w.writer.closed = nil, nil, true; err != nil {
		w.tb.Fatal(err)
	}
}

// fileContents returns a string for each line of each file, by file name: the text of an entry, "!" and
// the line if it cannot be parsed, or "-" and the number of lost entries of a loss entry.
func fileContents(tb testing.TB, dir string) map[string][]string {
	tb.Helper()
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		tb.Fatal(err)
	}
	found := map[string][]string{}
	for _, file := range files {
		if _, isDay := dayfile.ParseFileName(file.Name()); !isDay || !file.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			tb.Fatal(err)
		}
		found[file.Name()] = []string{}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n") // The last line may have none yet.
			l, err := entry.Parse([]byte(line))
			text := "!" + line
			switch {
			case err != nil:
			case l.Tenant == entry.ReservedID:
				text = fmt.Sprint("-", l.Interaction.GetMetadata().GetFields()["lost_lines"].GetNumberValue())
			default:
				text = l.Interaction.GetContent()
			}
			found[file.Name()] = append(found[file.Name()], text)
		}
	}
	return found
}

// wantEntries compares the file of the clock's day with the expected contents.
func (w *testLog) wantEntries(lines ...string) {
	w.tb.Helper()
	got := fileContents(w.tb, w.dir)[dayfile.DayOf(w.clock()).FileName()]
	if !slices.Equal(got, lines) {
		w.tb.Errorf("file = %q, want %q", got, lines)
	}
}

// modeOf returns the permissions of a file.
func modeOf(tb testing.TB, path string) fs.FileMode {
	tb.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		tb.Fatal(err)
	}
	return info.Mode().Perm()
}

// must fails the test at the first error.
func must(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := cmp.Or(errs...); err != nil {
		tb.Fatal(err)
	}
}

func (w *testLog) path(name string) string { return filepath.Join(w.dir, name) }

// today returns the path of the file of the clock's day.
func (w *testLog) today() string { return w.path(dayfile.DayOf(w.clock()).FileName()) }

// startMaintain runs Maintain until the test ends.
func startMaintain(tb testing.TB, l *Log) {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	var running sync.WaitGroup
	running.Go(func() { l.Maintain(ctx) })
	tb.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// messagesAt returns the changes of appending messages at a time.
func messagesAt(w *testLog, at time.Time, texts ...string) []store.Change {
	w.tb.Helper()
	var changes []store.Change
	for _, text := range texts {
		changes = append(changes, w.message(at, text))
	}
	return changes
}
