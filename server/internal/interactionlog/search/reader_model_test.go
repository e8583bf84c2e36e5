package search

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
)

// TestReaderAgreesWithModel runs all queries over files with lines by the encoder, lines by hand and invalid
// lines, page by page, with and without indexes.
func TestReaderAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newTestReader(t)
		first := dayfile.DayOf(readNow) - 3
		var files [4]string
		for i := range files {
			files[i] = drawFile(rt)
			r.putFile(t, (first + dayfile.Day(i)).String(), files[i])
		}
		checkReading(t, rt, r, files[:])
		// Repeat this with the indexes. One is damaged, another one is out of date.
		if path := filepath.Join(r.dir, first.IndexName()); rapid.Bool().Draw(rt, "damage") {
			if index, err := os.ReadFile(path); err == nil {
				index[rapid.IntRange(0, len(index)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
				if err := os.WriteFile(path, index, 0o600); err != nil {
					rt.Fatal(err)
				}
			}
		}
		files[1] = drawFile(rt)
		r.putFile(t, (first + 1).String(), files[1])
		checkReading(t, rt, r, files[:])
	})
}

func checkReading(t *testing.T, rt *rapid.T, r *testReader, files []string) {
	t.Helper()
	size := rapid.IntRange(1, 7).Draw(rt, "page size")
	tenant := rapid.SampledFrom([]string{"default", "other"}).Draw(rt, "tenant")
	within := time.Duration(rapid.IntRange(1, 80).Draw(rt, "hours")) * time.Hour
	since := readNow.Add(-within)
	var parsed []modelFile
	for _, file := range files {
		parsed = append(parsed, parseModelFile(file))
	}
	recent := parsed[min(3, max(0, 3-int(dayfile.DayOf(readNow)-dayfile.DayOf(since)))):]
	days := rapid.IntRange(1, 5).Draw(rt, "days")
	text := hardText(2).Draw(rt, "text")
	same := func(what string, all, want []string, got, skipped int) {
		if diff := cmp.Diff(want, all); diff != "" {
			rt.Fatalf("%s (-want +got):\n%s", what, diff)
		}
		if got != skipped {
			rt.Fatalf("%s: skipped %d, want %d", what, got, skipped)
		}
	}
	for _, conversation := range []string{"", "s", "é"} {
		n := model{tenant: tenant, conversation: conversation}
		want, skipped := n.findIn(parsed[2])
		l := List{Tenant: tenant, ConversationID: conversation, PageSize: size, Date: (dayfile.DayOf(readNow) - 1).String()}
		all, got := r.listAll(t, l)
		same("day", texts(all), want, got, skipped)

		if l.Date = ""; conversation != "" {
			want, skipped = n.findIn(parsed...)
			all, got = r.listAll(t, l)
			same("conversation", texts(all), want, got, skipped)
		}

		n.backward, n.since, l.Within = true, since, within
		want, skipped = n.findIn(recent...)
		all, got = r.listAll(t, l)
		same(fmt.Sprintf("%s, conversation %q", within, conversation), texts(all), want, got, skipped)

		n.since, n.text = time.Time{}, text
		want, _ = n.findIn(parsed[max(0, 4-days):]...)
		all, _ = r.searchAll(t, Search{Tenant: tenant, Query: text, Days: days, ConversationID: conversation, PageSize: size})
		same(fmt.Sprintf("%d days, text %q, conversation %q", days, text, conversation), texts(all), want, 0, 0)
	}
}

// drawTime draws a timestamp from 90 hours ago until now.
func drawTime(t *rapid.T) string {
	hours := rapid.IntRange(0, 90).Draw(t, "hours ago")
	return readNow.Add(-time.Duration(hours) * time.Hour).Format(entry.TimestampLayout)
}

// drawFile draws the file of a day, which is often large enough for an index.
func drawFile(t *rapid.T) string {
	var b strings.Builder
	for range rapid.IntRange(0, 12).Draw(t, "lines") {
		e := entrytest.Sample{
			At:           drawTime(t),
			Conversation: rapid.SampledFrom([]string{"s", "é", "t"}).Draw(t, "conversation"),
			Tenant:       rapid.SampledFrom([]string{"default", "default", "other"}).Draw(t, "tenant"),
			Content:      hardText(6).Draw(t, "content"),
		}
		switch rapid.IntRange(0, 29).Draw(t, "kind") {
		case 0, 1, 2:
			line, err := json.Marshal(map[string]any{ // Sorted by key, so the spelling differs from the encoder's.
				"timestamp": e.At, "session_id": e.Conversation, "tenant": e.Tenant,
				"role": "tool", "content": e.Content, "more": 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			b.Write(line)
			b.WriteByte('\n')
		case 3, 4, 5:
			b.WriteString(rapid.SampledFrom([]string{"broken\n", "\n", "\r\n", `{"content":` + "\n"}).Draw(t, "fault"))
		case 6, 7, 8:
			b.WriteString(strings.TrimSuffix(e.String(), "\n") + "\r\n")
		case 9:
			e.Content = strings.Repeat("ſ", rapid.SampledFrom([]int{scan.TailBytes, scan.ChunkBytes}).Draw(t, "length")/2+5)
			b.WriteString(e.String())
		default:
			b.WriteString(e.String())
		}
	}
	if rapid.Bool().Draw(t, "large") {
		b.WriteString(entrytest.Sample{Tenant: "filler", Content: strings.Repeat("-", minIndexedBytes)}.String())
	}
	if file := b.String(); rapid.IntRange(0, 3).Draw(t, "partial") > 0 {
		return file
	}
	return strings.TrimRight(b.String(), "\r\n")
}

// FuzzRead runs all queries on a file of any bytes.
func FuzzRead(f *testing.F) {
	f.Add([]byte(entrytest.Lines("a", "b\n", "ÄPFEL")), "äp", uint32(0))
	f.Add([]byte("\xef\xbb\xbf{}\r\n\n"+entrytest.Lines("\"")), `"`, uint32(scan.ChunkBytes))
	f.Fuzz(func(t *testing.T, file []byte, text string, prefix uint32) {
		r := newTestReader(t)
		content := string(file)
		if prefix%4 == 0 { // large enough for an index, and near the end of a chunk
			content = strings.Repeat("x", int(prefix%(2*scan.ChunkBytes))) + "\n" + content
		}
		r.putFile(t, "2026-11-19", content)
		for range 2 { // The second time there is an index. A conversation's query does not notice errors in other lines.
			want, skipped := model{tenant: "default", conversation: "s"}.find(content)
			all, got := r.listAll(t, List{Tenant: "default", ConversationID: "s", PageSize: 2})
			if diff := cmp.Diff(want, texts(all)); diff != "" || got > skipped {
				t.Fatalf("conversation: skipped %d of %d, (-want +got):\n%s", got, skipped, diff)
			}
		}
		want, skipped := model{tenant: "default"}.find(content)
		all, got := r.listAll(t, List{Tenant: "default", Date: "2026-11-19", PageSize: 3})
		if diff := cmp.Diff(want, texts(all)); diff != "" || got > skipped {
			t.Fatalf("day: skipped %d of %d, (-want +got):\n%s", got, skipped, diff)
		}
		want, _ = model{tenant: "default", text: text, backward: true}.find(content)
		all, _ = r.searchAll(t, Search{Tenant: "default", Query: text, PageSize: 3})
		if diff := cmp.Diff(want, texts(all)); diff != "" {
			t.Fatalf("search (-want +got):\n%s", diff)
		}
	})
}

// FuzzIndex checks that a query finds a conversation whatever bytes are in place of an index.
func FuzzIndex(f *testing.F) {
	long := entrytest.Sample{Conversation: "t", Content: strings.Repeat("-", minIndexedBytes)}
	content := entrytest.Lines("a") + long.String() + entrytest.Lines("b")
	path := filepath.Join(f.TempDir(), "index")
	index, err := os.Create(path)
	if err != nil {
		f.Fatal(err)
	}
	of := dayfile.Fingerprint{Size: 1, Modified: 2, Changed: 3, Inode: 4}
	if err := writeIndex(index, of, []indexEntry{{1, 2}, {1, 3}}); err != nil {
		f.Fatal(err)
	}
	written, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(written)
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, index []byte) {
		r := newTestReader(t)
		r.putFile(t, "2026-11-19", content)
		if err := os.WriteFile(filepath.Join(r.dir, ".2026-11-19.sessions"), index, 0o600); err != nil {
			t.Fatal(err)
		}
		if all, _ := r.listAll(t, List{Tenant: "default", ConversationID: "s"}); strings.Join(texts(all), " ") != "a b" {
			t.Fatal(texts(all))
		}
	})
}
