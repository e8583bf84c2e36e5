package search

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
)

// Contents of the files of BenchmarkRead: 7 days in a temporary directory. PARLEY_BENCH_LOG_LINES and
// PARLEY_BENCH_ROUNDS override the number of lines and rounds.
const (
	benchLines   = 1_000_000
	benchRounds  = 9
	benchDays    = 7
	benchRare    = "quarterly goals"
	benchOnce    = "zeppelin hangar"
	benchSession = "5e551017-0000-4000-8000-000000000100"
)

// BenchmarkRead measures searches and the listing of a conversation, alternately with grep -i on the
// same files, in the C locale and in one with UTF-8 if there is one. The ratios compare runs of the
// same round.
func BenchmarkRead(b *testing.B) {
	const mostMiB = 64
	if b.N > 1 {
		b.Skip("this benchmark times itself; use -benchtime 1x")
	}
	lines := benchSetting(b, "PARLEY_BENCH_LOG_LINES", benchLines)
	rounds := benchSetting(b, "PARLEY_BENCH_ROUNDS", benchRounds)
	dir := b.TempDir()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	size := writeBenchFiles(b, dir, dayfile.DayOf(now), lines)
	runs := benchRuns(b, dir, now)
	for round := range rounds + 1 { // The first round warms up.
		for _, run := range runs {
			debug.FreeOSMemory()
			before := resident(b, true)
			start := time.Now()
			run.do()
			if round > 0 {
				run.millis = append(run.millis, float64(time.Since(start).Microseconds())/1000)
				run.peak = max(run.peak, float64(resident(b, false)-before)/(1<<20))
			}
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%d lines, %d MiB, %d days, %d processors; median of %d rounds in ms, least to most;\n"+
		"how many MiB the process grew by at most; how the time compares with that of grep\n",
		lines, size>>20, benchDays, runtime.GOMAXPROCS(0), rounds)
	var ours *benchRun
	for _, run := range runs {
		fmt.Fprintf(&table, "  %-36s %9.2f  %-17s", run.name, median(run.millis), ends(run.millis))
		if run.most > 0 {
			expectAtMost(&table, median(run.millis), run.most)
		}
		if !run.grep {
			ours = run
			fmt.Fprintf(&table, "  %.1f MiB", run.peak)
			expectAtMost(&table, run.peak, mostMiB)
		} else {
			ratios := make([]float64, len(run.millis))
			for i := range ratios {
				ratios[i] = ours.millis[i] / run.millis[i]
			}
			fmt.Fprintf(&table, "  %.2f of it, %s", median(ratios), ends(ratios))
			expectAtMost(&table, median(ratios), 1)
		}
		table.WriteByte('\n')
	}
	b.ReportMetric(0, "ns/op") // It would be the duration of the complete run.
	b.Log(table.String())
}

// benchRun is an operation that is measured.
type benchRun struct {
	name string
	do   func()
	most float64 // expected maximum in milliseconds; 0: none
	grep bool    // grep for the text of the last run that is not a grep
	// millis has the time of each round. peak is the maximum growth of the process in MiB.
	millis []float64
	peak   float64
}

// benchRuns returns the operations that BenchmarkRead measures.
func benchRuns(b *testing.B, dir string, now time.Time) (runs []*benchRun) {
	b.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	r := NewReader(dir, slog.New(slog.DiscardHandler), func() time.Time { return now })
	conversation := func() {
		page, err := r.List(b.Context(), &List{Tenant: "default", ConversationID: benchSession, PageSize: 1000})
		if err != nil || len(page.Interactions) != 100 {
			b.Fatalf("conversation: %d interactions, %v", len(page.Interactions), err)
		}
	}
	cold := func() {
		indexes, err := filepath.Glob(filepath.Join(dir, ".*.sessions"))
		for _, path := range indexes {
			err = errors.Join(err, os.Remove(path))
		}
		if err != nil {
			b.Fatal(err)
		}
		conversation()
	}
	locales := []string{"C"}
	if name := utf8Locale(b); name != "" {
		locales = append(locales, name)
	}
	for _, search := range []struct {
		name, text string
		want       int
		most       float64
	}{
		{"rare word, in every file", benchRare, 20, 1000},
		{"rare word, in one file", benchOnce, 1, 1000},
		{"frequent letters, no match", "tennereado", 0, 0},
		{"non-ASCII word, no match: ÄPFEL", "ÄPFEL", 0, 0},
		{"frequent word, first page", "the", 50, 0},
		{"word of all metadata, no match", "status", 0, 0},
	} {
		runs = append(runs, &benchRun{name: search.name, most: search.most, do: func() {
			page, err := r.Search(b.Context(), &Search{Tenant: "default", Query: search.text})
			if err != nil || len(page.Interactions) != search.want {
				b.Fatalf("%q: %d interactions, %v", search.text, len(page.Interactions), err)
			}
		}})
		if search.text == "status" {
			continue // grep finds it in every line.
		}
		for _, locale := range locales {
			runs = append(runs, &benchRun{
				name: "  LC_ALL=" + locale + " grep -i", grep: true, do: func() { grep(b, locale, search.text, files) },
			})
		}
	}
	return append(runs,
		&benchRun{name: "conversation of 100, no index yet", do: cold},
		&benchRun{name: "conversation of 100", do: conversation, most: 50})
}

// grep searches files for a text and reads all output.
func grep(b *testing.B, locale, text string, files []string) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), "grep", append([]string{"-ih", "--", text}, files...)...)
	cmd.Env = append(os.Environ(), "LC_ALL="+locale)
	cmd.Stdout = io.Discard // Through a pipe: grep stops early where its output is /dev/null.
	if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != 1 {
		b.Fatal(err)
	}
}

// utf8Locale returns a locale of the system with UTF-8, or "" if there is none.
func utf8Locale(b *testing.B) string {
	b.Helper()
	names, err := exec.CommandContext(b.Context(), "locale", "-a").Output()
	if err != nil {
		return ""
	}
	for name := range strings.Lines(string(names)) {
		name = strings.TrimSpace(name)
		if lower := strings.ToLower(name); strings.HasSuffix(lower, ".utf8") || strings.HasSuffix(lower, ".utf-8") {
			return name
		}
	}
	return ""
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// ends formats the minimum and the maximum of values.
func ends(values []float64) string {
	return fmt.Sprintf("%.2f–%.2f", slices.Min(values), slices.Max(values))
}

// expectAtMost appends whether a value is at most as expected.
func expectAtMost(table *strings.Builder, value, most float64) {
	verdict := "met"
	if value > most {
		verdict = "not met"
	}
	fmt.Fprintf(table, "  expected at most %g: %s", most, verdict)
}

func benchSetting(b *testing.B, name string, value int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return value
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("%s=%s is not a positive number", name, text)
	}
	return n
}

// resident returns the maximum resident memory of the process in bytes since the last call with reset.
// It returns 0 if the system does not report it.
func resident(b *testing.B, reset bool) int64 {
	b.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	if reset {
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			b.Fatal(err)
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kilobytes int64
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		b.Fatal(err)
	}
	return kilobytes << 10
}

// writeBenchFiles writes lines to the files of the days up to last and returns their total size.
// Conversations have 5 to 60 lines, and eight of them are active at a time. One has 100 lines over all
// days. Twenty lines contain benchRare, and one contains benchOnce.
func writeBenchFiles(b *testing.B, dir string, last dayfile.Day, lines int) (size int64) {
	b.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	words := benchWords(random)
	type conversation struct {
		id         string
		turn, left int
	}
	live := make([]conversation, 8)
	number := 0
	for d := range benchDays {
		today := last - benchDays + 1 + dayfile.Day(d)
		f, err := os.Create(filepath.Join(dir, today.FileName()))
		if err != nil {
			b.Fatal(err)
		}
		out := bufio.NewWriterSize(f, 1<<20)
		here := lines * (d + 1) / benchDays
		first := number
		for ; number < here; number++ {
			s := &live[random.IntN(len(live))]
			if s.left == 0 {
				*s = conversation{id: benchID(random), left: 5 + random.IntN(56)}
			}
			s.turn, s.left = s.turn+1, s.left-1
			id, turn := s.id, s.turn
			if number%(lines/100) == 0 {
				id, turn = benchSession, number/(lines/100)+1
			}
			text := benchText(random, words)
			if number%(lines/20) == 7 {
				text += ` About the Quarterly Goals of the team.`
			}
			if number == lines/2 {
				text += ` Beside the Zeppelin Hangar.`
			}
			at := today.Start().Add(time.Duration(number-first) * 100 * time.Millisecond)
			agent, role := "User", "user"
			if turn%2 == 0 {
				agent, role = "planner", "assistant"
			}
			fmt.Fprintf(out, `{"timestamp":"%s","session_id":"%s","tenant":"default","agent":"%s","role":"%s",`+
				`"content":"%s","metadata":{"turn_number":%d,"exchange":%d,"turn_id":"%s","status":"complete"}}`+"\n",
				at.Format(entry.TimestampLayout), id, agent, role, text, turn, (turn+1)/2, benchID(random))
		}
		if err := out.Flush(); err != nil {
			b.Fatal(err)
		}
		info, err := f.Stat()
		if err := errors.Join(err, f.Close()); err != nil {
			b.Fatal(err)
		}
		size += info.Size()
		at := (today + 1).Start().Add(-time.Second)
		if d == benchDays-1 {
			at = today.Start().Add(11 * time.Hour)
		}
		if err := os.Chtimes(f.Name(), at, at); err != nil {
			b.Fatal(err)
		}
	}
	return size
}

func benchID(random *rand.Rand) string {
	var id [16]byte
	for i := range id {
		id[i] = byte(random.Uint32())
	}
	text := hex.EncodeToString(id[:])
	return text[:8] + "-" + text[8:12] + "-4" + text[13:16] + "-8" + text[17:20] + "-" + text[20:]
}

// benchWords returns words with the frequencies of letters in English.
func benchWords(random *rand.Rand) []string {
	const letters = "eeeeeeeeeeeetttttttttaaaaaaaaooooooooiiiiiiinnnnnnnsssssssrrrrrrhhhhhhddddlllluuucccmmmffwwggyyppbb" +
		"vkxjqz"
	words := []string{"the", "and", "of", "to", "a", "in", "is", "you", "that", "it"}
	for len(words) < 5000 {
		word := make([]byte, 2+random.IntN(9))
		for i := range word {
			word[i] = letters[random.IntN(len(letters))]
		}
		words = append(words, string(word))
	}
	return words
}

// benchText returns prose of about 60 to 430 bytes, escaped for a JSON string.
func benchText(random *rand.Rand, words []string) string {
	var text strings.Builder
	for range 8 + random.IntN(60) {
		word := words[min(random.IntN(len(words)), random.IntN(len(words)), random.IntN(len(words)))]
		if random.IntN(4) == 0 {
			word = words[random.IntN(10)]
		}
		switch random.IntN(30) {
		case 0:
			word = strings.ToUpper(word[:1]) + word[1:] + "."
		case 1:
			word += `\n`
		case 2:
			word = `\"` + word + `\"`
		case 3:
			word += ","
		}
		text.WriteString(word)
		text.WriteByte(' ')
	}
	return text.String()
}

// BenchmarkLongLines measures the memory for lines that are almost as long as the limit and must be
// parsed.
func BenchmarkLongLines(b *testing.B) {
	const most, lines = 128, 12
	r := newTestReader(b)
	long := strings.Repeat("x", entry.MaxBytes-1000)
	entries := strings.Repeat(entrytest.Sample{Content: long}.String(), lines)
	r.putFile(b, "2026-11-20", entries+strings.Repeat(entrytest.Lines(strings.Repeat("y", 1<<20)), lines))
	var peak float64
	for b.Loop() {
		debug.FreeOSMemory()
		before := resident(b, true)
		for _, text := range []string{"", "xxxx", "xz"} {
			if _, err := r.Search(b.Context(), &Search{Tenant: "default", Query: text, PageSize: maxPageSize}); err != nil {
				b.Fatal(err)
			}
		}
		peak = max(peak, float64(resident(b, false)-before)/(1<<20))
	}
	b.ReportMetric(peak, "MiB")
	if peak > most {
		b.Errorf("process grew by %.1f MiB, want at most %d", peak, most)
	}
}
