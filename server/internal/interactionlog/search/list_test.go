package search

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
)

func TestList(t *testing.T) {
	r := newTestReader(t)
	at := func(date, clock string) string { return date + "T" + clock + ".000000Z" }
	r.putFile(t, "2026-11-18", entrytest.Lines("old")+
		entrytest.Sample{At: at("2026-11-18", "23:50:00"), Conversation: "c", Content: "before"}.String())
	r.putFile(t, "2026-11-19", entrytest.Sample{At: at("2026-11-19", "11:00:00"), Content: "25 h"}.String()+
		entrytest.Sample{At: at("2026-11-19", "12:00:00"), Conversation: "c", Content: "24 h"}.String()+
		entrytest.Sample{At: at("2026-11-19", "13:00:00"), Tenant: "other", Conversation: "c", Content: "theirs"}.String())
	r.putFile(t, "2026-11-20", entrytest.Sample{
		At: at("2026-11-20", "00:10:00"), Conversation: "c", Agent: "planner", Role: "assistant", Content: "midnight",
	}.String()+
		entrytest.Sample{At: at("2026-11-20", "11:59:59"), Content: "now"}.String())
	r.putFile(t, "2026-11-21", entrytest.Lines("tomorrow"))
	for _, tt := range []struct {
		name string
		list List
		want string
	}{
		{"last 24 h, newest first", List{}, "now midnight 24 h"},
		{"last hour", List{Within: time.Hour}, "now"},
		{"longer than there are files", List{Within: 1 << 62}, "now midnight 24 h 25 h before old"},
		{"a day, oldest first", List{Date: "2026-11-19"}, "25 h 24 h"},
		{"a day without a file", List{Date: "2026-11-17"}, ""},
		{"a day to come", List{Date: "2026-11-21"}, "tomorrow"},
		{"a conversation over all days, oldest first", List{ConversationID: "c"}, "before 24 h midnight"},
		{"a conversation on a day", List{ConversationID: "c", Date: "2026-11-20"}, "midnight"},
		{"a conversation lately, newest first", List{ConversationID: "c", Within: 12 * time.Hour}, "midnight"},
		{"a conversation over midnight", List{ConversationID: "c", Within: 48 * time.Hour}, "midnight 24 h before"},
		{"an unknown conversation", List{ConversationID: "d"}, ""},
		{"another tenant's", List{Tenant: "other", Date: "2026-11-19"}, "theirs"},
		{"a day takes precedence over a span", List{Date: "2026-11-18", Within: time.Hour}, "old before"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.list.Tenant == "" {
				tt.list.Tenant = "default"
			}
			page, err := r.List(t.Context(), &tt.list)
			if err != nil {
				t.Fatal(err)
			}
			if got := contents(page); got != tt.want || page.NextPageToken != "" || page.Skipped != 0 {
				t.Errorf("%q, token %q, skipped %d; want %q", got, page.NextPageToken, page.Skipped, tt.want)
			}
		})
	}
	if _, err := r.List(t.Context(), &List{Tenant: "default", Date: "2026-02-30"}); !errors.Is(err, ErrDate) {
		t.Errorf("list of an invalid date: %v, want ErrDate", err)
	}
}

func TestListWithoutDirectory(t *testing.T) {
	r := newTestReader(t)
	r.dir = filepath.Join(r.dir, "missing")
	page, err := r.List(t.Context(), &List{Tenant: "default"})
	if err != nil || len(page.Interactions) != 0 {
		t.Errorf("list = %d interactions, %v, want none", len(page.Interactions), err)
	}
}

// TestListSkipsOtherFiles checks that List skips what is not a file of a day and does not follow links.
func TestListSkipsOtherFiles(t *testing.T) {
	r := newTestReader(t)
	elsewhere := filepath.Join(t.TempDir(), "2026-11-20.jsonl")
	if err := errors.Join(
		os.WriteFile(elsewhere, []byte(entrytest.Lines("linked")), 0o600),
		os.Symlink(elsewhere, filepath.Join(r.dir, "2026-11-20.jsonl")),
		os.Mkdir(filepath.Join(r.dir, "2026-11-19.jsonl"), 0o700),
		syscall.Mkfifo(filepath.Join(r.dir, "2026-11-18.jsonl"), 0o600),
		os.Symlink("2026-11-17.jsonl", filepath.Join(r.dir, "2026-11-17.jsonl")),
	); err != nil {
		t.Fatal(err)
	}
	r.putFile(t, "2026-13-01", entrytest.Lines("no month"))
	r.putFile(t, "2026-11-16~", entrytest.Lines("backup"))
	r.putFile(t, "notes", entrytest.Lines("notes"))
	r.putFile(t, "2026-11-16", entrytest.Lines("file"))
	page, err := r.List(t.Context(), &List{Tenant: "default", Within: 1000 * time.Hour})
	page2, err2 := r.List(t.Context(), &List{Tenant: "default", ConversationID: "s"})
	if err != nil || err2 != nil || contents(page) != "file" || contents(page2) != "file" {
		t.Errorf("%v, %v, %v, %v", page, err, page2, err2)
	}
}

func TestListReadsEditedLines(t *testing.T) {
	const lines = "\ufeff" +
		`{"timestamp":"2026-11-20T09:00:00Z","session_id":"s","role":"user","content":"a"}` + "\r\n\r\n \t\r\n" +
		`  { "content" : "\u0062", "role":"assistant", "session_id":"\u0073", ` +
		`"timestamp":"2026-11-20T09:00:00+01:00", "more": [1] }  ` + "\r\n" +
		`{"timestamp":"2026-11-20T09:00:00.5Z","session_id":"s","tenant":"default","role":"tool","content":"c"}`
	r := newTestReader(t)
	r.putFile(t, "2026-11-20", lines)
	for _, l := range []List{{Date: "2026-11-20"}, {ConversationID: "s"}} {
		l.Tenant = "default"
		page, err := r.List(t.Context(), &l)
		if err != nil || contents(page) != "a b c" || page.Skipped != 0 {
			t.Errorf("%+v: %v, %v", l, page, err)
		}
	}
	if page, err := r.Search(t.Context(), &Search{Tenant: "default", Query: "B"}); err != nil || contents(page) != "b" {
		t.Errorf("%v, %v", page, err)
	}
}

// TestLinesOutOfOrder checks how many consecutive older entries end a span.
func TestLinesOutOfOrder(t *testing.T) {
	older := entrytest.Sample{At: "2026-11-20T01:00:00.000000Z", Content: "older"}.String()
	for count, want := range map[int]string{maxOlderInRow - 1: "new later late", maxOlderInRow: "new"} {
		r := newTestReader(t)
		block := strings.Repeat(older, count)
		r.putFile(t, "2026-11-20", entrytest.Lines("late")+block+entrytest.Lines("later")+block+entrytest.Lines("new"))
		page, err := r.List(t.Context(), &List{Tenant: "default", Within: 4 * time.Hour})
		if err != nil || contents(page) != want {
			t.Errorf("%d older lines: %q, %v; want %q", count, contents(page), err, want)
		}
	}
}

func TestSkippedLines(t *testing.T) {
	head := strings.TrimSuffix(entrytest.Lines("x"), "}}\n")
	lines := entrytest.Lines("a") + "broken\n\n" + head + "\n" + entrytest.Lines("b") +
		`{"timestamp":"2026-11-20T09:00:00Z","session_id":"s","role":"user"}` + "\n" +
		entrytest.Lines("c") + strings.Repeat("x", entry.MaxBytes+1) + "\n" +
		entrytest.Lines(strings.Repeat("x", maxInteractionBytes), "d")
	r := newTestReader(t)
	r.putFile(t, "2026-11-20", lines)
	for _, tt := range []struct {
		name    string
		query   func() (*Page, error)
		want    string
		skipped int
	}{
		{"day", func() (*Page, error) {
			return r.List(t.Context(), &List{Tenant: "default", Date: "2026-11-20"})
		}, "a b c d", 5},
		{"recent", func() (*Page, error) { return r.List(t.Context(), &List{Tenant: "default"}) }, "d c b a", 5},
		{"conversation", func() (*Page, error) {
			return r.List(t.Context(), &List{Tenant: "default", ConversationID: "s"})
		}, "a b c d", 5},
		// Two invalid lines have braces and do not contain the text.
		{"search", func() (*Page, error) { return r.Search(t.Context(), &Search{Tenant: "default", Query: "B"}) }, "b", 3},
	} {
		page, err := tt.query()
		if err != nil || contents(page) != tt.want || page.Skipped != tt.skipped || page.NextPageToken != "" {
			t.Errorf("%s: %q, skipped %d, %v; want %q, %d", tt.name, contents(page), page.Skipped, err, tt.want, tt.skipped)
		}
	}
	r.putFile(t, "2026-11-19", strings.TrimSuffix(entrytest.Lines("text"), `","metadata":{"turn_number":1}}`+"\n")+"}\n")
	page, err := r.Search(t.Context(), &Search{Tenant: "default", Query: "TEXT"})
	if err != nil || len(page.Interactions) != 0 || page.Skipped != 4 {
		t.Errorf("search of a text in a partial line = %v, %v", page, err)
	}
	// Each line is logged once, in the order of reading.
	got, want := r.warnings(t), []string{
		"2026-11-20.jsonl:2", "2026-11-20.jsonl:4", "2026-11-20.jsonl:6", "2026-11-20.jsonl:8", "2026-11-20.jsonl:9",
		"2026-11-19.jsonl:1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if strings.Contains(r.output.String(), "xxx") {
		t.Error("a warning contains the text of a line")
	}
}

// TestSkippedLinesByPage checks that each skipped line is counted on one page.
func TestSkippedLinesByPage(t *testing.T) {
	r := newTestReader(t)
	r.putFile(t, "2026-11-20", "x\n"+entrytest.Lines("a")+"x\ny\n"+entrytest.Lines("b")+"x\n"+entrytest.Lines("c")+"x\n")
	for _, l := range []List{{Date: "2026-11-20", PageSize: 1}, {PageSize: 1}, {ConversationID: "s", PageSize: 2}} {
		l.Tenant = "default"
		if all, skipped := r.listAll(t, l); len(all) != 3 || skipped != 5 {
			t.Errorf("%+v: %d lines, skipped %d; want 3, 5", l, len(all), skipped)
		}
	}
}

func TestWarningLimit(t *testing.T) {
	r := newTestReader(t)
	r.putFile(t, "2026-11-20", strings.Repeat("broken\n", maxWarned+10))
	for range 2 {
		if page, err := r.List(t.Context(), &List{Tenant: "default"}); err != nil || page.Skipped != maxWarned+10 {
			t.Fatalf("%+v, %v", page, err)
		}
	}
	if got := len(r.warnings(t)); got != maxWarned+1 {
		t.Errorf("%d warnings, want %d and one for the rest", got, maxWarned)
	}
	for _, want := range []bool{true, false} {
		if got := r.warned.add(dayfile.DayOf(readNow)+1, 0); got != want {
			t.Errorf("add = %t, want %t", got, want)
		}
	}
	for d := range dayfile.Day(2 * maxWarnedDays) {
		r.warned.add(d, 1)
	}
	if n := len(r.warned.days); n > maxWarnedDays {
		t.Errorf("lines of %d days are recorded", n)
	}
}

// TestLastLine checks that a partial last line is not counted as skipped while the file is being written.
func TestLastLine(t *testing.T) {
	lines := entrytest.Lines("a", "b")
	for cut := len(entrytest.Lines("a")) + 1; cut < len(lines); cut++ {
		r := newTestReader(t)
		r.putFile(t, "2026-11-20", lines[:cut])
		path := filepath.Join(r.dir, "2026-11-20.jsonl")
		for _, age := range []time.Duration{0, incompleteFor} {
			if err := os.Chtimes(path, readNow, readNow.Add(-age)); err != nil {
				t.Fatal(err)
			}
			want, skipped := "a", int(age/incompleteFor)
			if cut == len(lines)-1 {
				want, skipped = "a b", 0 // Only the line break is missing.
			}
			page, err := r.List(t.Context(), &List{Tenant: "default", Date: "2026-11-20"})
			if err != nil || contents(page) != want || page.Skipped != skipped {
				t.Fatalf("cut at %d, %s ago: list = %v, %v, want %q, skipped %d", cut, age, page, err, want, skipped)
			}
		}
	}
}

func TestPageSizes(t *testing.T) {
	r := newTestReader(t)
	var lines strings.Builder
	for i := range maxPageSize + 1 {
		lines.WriteString(entrytest.Lines(fmt.Sprint(i)))
	}
	r.putFile(t, "2026-11-20", lines.String())
	for size, want := range map[int]int{-1: 50, 0: 50, 1: 1, 50: 50, 1000: 1000, 1001: 1000, 1 << 40: 1000} {
		page, err := r.List(t.Context(), &List{Tenant: "default", PageSize: size})
		if err != nil || len(page.Interactions) != want || page.NextPageToken == "" {
			t.Errorf("page size %d: %d interactions, %v; want %d", size, len(page.Interactions), err, want)
		}
	}
	r.putFile(t, "2026-11-20", strings.Repeat(entrytest.Lines(strings.Repeat("x", 1<<20-200)), 4))
	page, err := r.List(t.Context(), &List{Tenant: "default"})
	if err != nil || len(page.Interactions) != 3 || page.NextPageToken == "" {
		t.Errorf("%d interactions of 1 MiB, %v; want 3", len(page.Interactions), err)
	}
	if all, skipped := r.listAll(t, List{Tenant: "default"}); len(all) != 4 || skipped != 0 {
		t.Errorf("%d interactions of 1 MiB, skipped %d; want 4", len(all), skipped)
	}
}

func TestNoTokenOnLastPage(t *testing.T) {
	r := newTestReader(t)
	r.putFile(t, "2026-11-19", entrytest.Lines("a"))
	r.putFile(t, "2026-11-20", entrytest.Lines("b"))
	for _, l := range []List{{ConversationID: "s"}, {Within: 48 * time.Hour}} {
		l.Tenant, l.PageSize = "default", 2
		page, err := r.List(t.Context(), &l)
		if err != nil || len(page.Interactions) != 2 || page.NextPageToken != "" {
			t.Errorf("%+v: %v, %v", l, page, err)
		}
	}
}

func TestDefaultTenant(t *testing.T) {
	r := newTestReader(t)
	r.putFile(t, "2026-11-20", strings.Replace(entrytest.Lines("a"), `"tenant":"default",`, "", 1))
	for tenant, want := range map[string]string{"default": "a", "other": "", "": ""} {
		page, err := r.List(t.Context(), &List{Tenant: tenant})
		if err != nil || contents(page) != want {
			t.Errorf("tenant %q: %v, %v", tenant, page, err)
		}
	}
	if !slices.Equal(r.warnings(t), nil) {
		t.Error(r.warnings(t))
	}
}

// TestReadDuringWrites checks that readers return only complete entries, from the first one on, and count
// none as skipped, whatever part of the last one is written.
func TestReadDuringWrites(t *testing.T) {
	r := newTestReader(t)
	r.now = time.Now
	today := dayfile.DayOf(time.Now())
	f, err := os.Create(filepath.Join(r.dir, today.FileName()))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		defer f.Close()
		for i := range 500 {
			line := entrytest.Sample{Content: fmt.Sprint(i)}.String()
			for cut := i % 100; line != ""; cut = len(line) {
				if _, err := f.WriteString(line[:cut]); err != nil {
					t.Error(err)
					return
				}
				line = line[cut:]
			}
		}
	})
	for read := 0; read < 500; {
		page, err := r.List(t.Context(), &List{Tenant: "default", Date: today.String(), PageSize: 1000})
		if err != nil || page.Skipped > 0 || len(page.Interactions) < read {
			t.Fatalf("%d lines after %d, skipped %d, %v", len(page.Interactions), read, page.Skipped, err)
		}
		read = len(page.Interactions)
		for i, in := range page.Interactions {
			if in.Content != fmt.Sprint(i) {
				t.Fatalf("line %d is %q", i, in.Content)
			}
		}
	}
}
