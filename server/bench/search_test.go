package bench

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// BenchmarkSearchInteractions searches the entries of 7 days, 20 of which contain the text.
// PARLEY_BENCH_LOG_LINES sets another number of entries.
const (
	benchLines = 1_000_000
	benchDays  = 7
	benchRare  = 20
	benchText  = "quarterly goals"
)

// BenchmarkSearchInteractions measures calls of SearchInteractions for a rare text, to a server in a
// process of its own, alternately with grep -i on the same files.
func BenchmarkSearchInteractions(b *testing.B) {
	const maxMillis = 1000
	rounds, _ := benchRounds(b)
	lines := benchSetting(b, "LOG_LINES", positive, benchLines)
	dataDir := b.TempDir()
	files, err := writeInteractions(filepath.Join(dataDir, "interactions"), lines)
	must(b, err)
	client := startBenchServer(b, dataDir)
	var ours, greps, ratios []float64
	for round := range rounds + 1 { // The first warms up.
		start := time.Now()
		reply, err := client.SearchInteractions(b.Context(), &parleyv1.SearchInteractionsRequest{Query: benchText})
		call := time.Since(start)
		must(b, err)
		if n := len(reply.GetInteractions()); n != benchRare {
			b.Fatalf("SearchInteractions = %d interactions, want %d", n, benchRare)
		}
		start = time.Now()
		grep := exec.CommandContext(b.Context(), "grep", append([]string{"-ih", "--", benchText}, files...)...)
		_, err = grep.Output() // With output to /dev/null, grep would stop at the first match.
		must(b, err)
		if took := time.Since(start); round > 0 {
			ours, greps = append(ours, 1000*call.Seconds()), append(greps, 1000*took.Seconds())
			ratios = append(ratios, call.Seconds()/took.Seconds())
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%d lines of %d days; median of %d rounds, least to most; client and server share %d processors\n",
		lines, benchDays, rounds, runtime.GOMAXPROCS(0))
	middle := row(&table, "SearchInteractions for a rare text, ms", ours)
	reportBound(&table, middle, maxMillis)
	row(&table, "grep -i on the files, ms", greps)
	ratio := row(&table, "SearchInteractions / grep -i, time", ratios)
	reportBound(&table, ratio, 1)
	b.ReportMetric(middle, "search-ms")
	b.ReportMetric(ratio, "search/grep")
	b.ReportMetric(0, "ns/op") // The default value would be the length of the run.
	b.Log(table.String())
}

// startBenchServer starts parleyd on a data directory until the benchmark ends.
func startBenchServer(b *testing.B, dataDir string) parleyv1.InteractionLogServiceClient {
	b.Helper()
	program := filepath.Join(b.TempDir(), "parleyd")
	must(b, parleydtest.Build(b.Context(), program))
	process, err := parleydtest.Start(parleydtest.Command(b.Context(), program, dataDir))
	must(b, err)
	b.Cleanup(process.Kill)
	address, err := process.AwaitServing()
	must(b, err)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(b, err)
	b.Cleanup(func() { conn.Close() })
	return parleyv1.NewInteractionLogServiceClient(conn)
}

// writeInteractions writes entries of about 500 B, evenly into the files of the days up to today. It
// returns the paths of the files.
func writeInteractions(dir string, lines int) (files []string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	words := benchWords(random)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	for d := range benchDays {
		day := today.AddDate(0, 0, d+1-benchDays)
		path := filepath.Join(dir, day.Format(time.DateOnly)+".jsonl")
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		out := bufio.NewWriterSize(f, 1<<20)
		var id uuid.UUID
		for i, number := lines*d/benchDays, 0; i < lines*(d+1)/benchDays; i, number = i+1, number+1 {
			turn := number%20 + 1
			if turn == 1 {
				id = uuid.New()
			}
			content := benchProse(random, words)
			if i*benchRare%lines < benchRare {
				content += " About the Quarterly Goals of the team."
			}
			fmt.Fprintf(out, `{"timestamp":"%s","session_id":"%s","tenant":"default","agent":"User","role":"user","content":"%s","metadata":{"turn_number":%d,"exchange":%d,"turn_id":"%s","status":"complete"}}`+"\n",
				day.Add(time.Duration(number)*100*time.Millisecond).Format("2006-01-02T15:04:05.000000Z"), id, content, turn,
				(turn+1)/2, id)
		}
		if err := errors.Join(out.Flush(), f.Close()); err != nil {
			return nil, err
		}
		files = append(files, path)
	}
	return files, nil
}

// benchWords returns words whose letters are as frequent as in English.
func benchWords(random *rand.Rand) []string {
	const letters = "eeeeeeeeeeeetttttttttaaaaaaaaooooooooiiiiiiinnnnnnnsssssssrrrrrrhhhhhhddddlllluuucccmmmffwwggyyppbbvkxjqz"
	words := make([]string, 5000)
	for i := range words {
		word := make([]byte, 2+random.IntN(9))
		for j := range word {
			word[j] = letters[random.IntN(len(letters))]
		}
		words[i] = string(word)
	}
	return words
}

// benchProse returns a text of about 250 B and a few lines, encoded for JSON.
func benchProse(random *rand.Rand, words []string) string {
	var text strings.Builder
	for range 20 + random.IntN(40) {
		text.WriteString(words[min(random.IntN(len(words)), random.IntN(len(words)))])
		text.WriteString([]string{" ", " ", " ", " ", " ", " ", " ", ", ", `. \"`, `\n`}[random.IntN(10)])
	}
	return text.String()
}
