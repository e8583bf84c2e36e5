package search

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
)

// putYesterday writes a file with enough lines for an index: 100 conversations of ten entries, and
// invalid lines.
func putYesterday(t *testing.T, r *testReader) string {
	t.Helper()
	var b strings.Builder
	for i := range 1000 {
		b.WriteString(entrytest.Sample{Conversation: fmt.Sprint("s", i%100), Content: fmt.Sprint("content-", i)}.String())
		if i%250 == 0 {
			b.WriteString("broken\n")
		}
	}
	r.putFile(t, "2026-11-19", b.String())
	return b.String()
}

func listConversation(t *testing.T, r *testReader, id string) []string {
	t.Helper()
	all, _ := r.listAll(t, List{Tenant: "default", ConversationID: id, PageSize: 3})
	return texts(all)
}

func (r *testReader) indexInfo(t *testing.T) os.FileInfo {
	t.Helper()
	info, err := os.Lstat(filepath.Join(r.dir, ".2026-11-19.sessions"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestIndex(t *testing.T) {
	r := newTestReader(t)
	file := putYesterday(t, r)
	want, skipped := model{tenant: "default", conversation: "s7"}.find(file)
	if r.indexInfo(t) != nil {
		t.Fatal("an index exists before the first query")
	}
	for range 2 {
		all, got := r.listAll(t, List{Tenant: "default", ConversationID: "s7", PageSize: 3})
		if diff := cmp.Diff(want, texts(all)); diff != "" || got != skipped {
			t.Errorf("skipped %d, want %d, (-want +got):\n%s", got, skipped, diff)
		}
	}
	made := r.indexInfo(t)
	if made == nil || made.Mode() != 0o600 {
		t.Fatalf("index = %v, want mode 0600", made)
	}
	// The query must use the index: it must not find an entry that the index does not list.
	f, err := dayfile.OpenRead(r.dir, "2026-11-19.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out, err := os.Create(filepath.Join(r.dir, ".2026-11-19.sessions"))
	if err == nil {
		err = errors.Join(writeIndex(out, f.Fingerprint, []indexEntry{}), out.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := listConversation(t, r, "s7"); len(got) != 0 {
		t.Errorf("list = %v, want nothing from an empty index", got)
	}
}

// changeTime returns the time of a file's last change, which no program can set.
func changeTime(path string) int64 {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0
	}
	return stat.Ctim.Nano()
}

// TestIndexIsRebuilt checks that an index is rebuilt if its file has changed.
func TestIndexIsRebuilt(t *testing.T) {
	for name, change := range map[string]func(path string, content []byte) error{
		"line added": func(path string, content []byte) error {
			return os.WriteFile(path, append(content, entrytest.Sample{Conversation: "s7", Content: "added"}.String()...), 0o600)
		},
		"same size, other time": func(path string, content []byte) error {
			changed := []byte(strings.Replace(string(content), `"session_id":"s7"`, `"session_id":"s8"`, 1))
			return errors.Join(os.WriteFile(path, changed, 0o600),
				os.Chtimes(path, readNow, readNow.Add(-time.Minute)))
		},
		"same size and time": func(path string, content []byte) error {
			changed := []byte(strings.Replace(string(content), `"session_id":"s7"`, `"session_id":"s8"`, 1))
			info, err := os.Stat(path)
			for first := changeTime(path); err == nil && changeTime(path) == first; { // until the kernel's clock has advanced
				err = errors.Join(os.WriteFile(path, changed, 0o600), os.Chtimes(path, readNow, info.ModTime()))
			}
			return err
		},
		"same size and time, other file": func(path string, content []byte) error {
			info, err := os.Stat(path)
			changed := []byte(strings.Replace(string(content), `"session_id":"s7"`, `"session_id":"s8"`, 1))
			return errors.Join(err, os.WriteFile(path+"~", changed, 0o600),
				os.Rename(path+"~", path), os.Chtimes(path, readNow, info.ModTime()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestReader(t)
			putYesterday(t, r)
			listConversation(t, r, "s7")
			path := filepath.Join(r.dir, "2026-11-19.jsonl")
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := change(path, content); err != nil {
				t.Fatal(err)
			}
			if content, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"s7", "s8"} {
				want, _ := model{tenant: "default", conversation: id}.find(string(content))
				if diff := cmp.Diff(want, listConversation(t, r, id)); diff != "" {
					t.Errorf("conversation %s (-want +got):\n%s", id, diff)
				}
			}
		})
	}
}

// TestDamagedIndex flips bits of an index and checks that a query still finds everything.
func TestDamagedIndex(t *testing.T) {
	r := newTestReader(t)
	file := putYesterday(t, r)
	want := listConversation(t, r, "s7")
	if n, _ := (model{tenant: "default", conversation: "s7"}).find(file); !slices.Equal(n, want) {
		t.Fatal(want)
	}
	path := filepath.Join(r.dir, ".2026-11-19.sessions")
	intact, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damages := [][]byte{nil, intact[:headerBytes], intact[:len(intact)-1], intact[:headerBytes+pageBytes]}
	for at := 0; at < len(intact); at += 97 {
		damaged := slices.Clone(intact)
		damaged[at] ^= 4
		damages = append(damages, damaged)
	}
	for _, damaged := range damages {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, listConversation(t, r, "s7")); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

// TestIndexIsNotTrusted checks queries with an index whose offsets are wrong.
func TestIndexIsNotTrusted(t *testing.T) {
	r := newTestReader(t)
	inner := strings.TrimSuffix(entrytest.Sample{Conversation: "s7", Content: "inner"}.String(), "\n")
	long := entrytest.Sample{Conversation: "s7", Content: strings.Repeat("x", minIndexedBytes)}
	r.putFile(t, "2026-11-19", entrytest.Lines(inner)+long.String())
	f, err := dayfile.OpenRead(r.dir, "2026-11-19.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, offset := range []int64{0, 1, 100, f.Size - 1, f.Size, f.Size + 5} {
		out, err := os.Create(filepath.Join(r.dir, ".2026-11-19.sessions"))
		if err == nil {
			entries := []indexEntry{{hashConversation([]byte("s7")), offset}}
			err = errors.Join(writeIndex(out, f.Fingerprint, entries), out.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, content := range listConversation(t, r, "s7") {
			if content != strings.Repeat("x", minIndexedBytes) {
				t.Errorf("offset %d: found %q", offset, content)
			}
		}
	}
}

func TestNoIndex(t *testing.T) {
	t.Run("today", func(t *testing.T) {
		r := newTestReader(t)
		putYesterday(t, r)
		if err := os.Rename(filepath.Join(r.dir, "2026-11-19.jsonl"), filepath.Join(r.dir, "2026-11-20.jsonl")); err != nil {
			t.Fatal(err)
		}
		if got := listConversation(t, r, "s7"); len(got) != 10 {
			t.Errorf("%v", got)
		}
		if found, err := filepath.Glob(filepath.Join(r.dir, ".*")); len(found) > 0 || err != nil {
			t.Errorf("%v, %v", found, err)
		}
	})
	t.Run("just written", func(t *testing.T) {
		r := newTestReader(t)
		putYesterday(t, r)
		if err := os.Chtimes(filepath.Join(r.dir, "2026-11-19.jsonl"), readNow, readNow.Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		if got := listConversation(t, r, "s7"); len(got) != 10 || r.indexInfo(t) != nil {
			t.Errorf("%v, index %v", got, r.indexInfo(t))
		}
	})
	t.Run("too many lines", func(t *testing.T) {
		r := newTestReader(t)
		putYesterday(t, r)
		f, err := dayfile.OpenRead(r.dir, "2026-11-19.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		out, err := os.Create(filepath.Join(r.dir, ".2026-11-19.sessions"))
		if err == nil {
			err = errors.Join(writeIndex(out, f.Fingerprint, nil), out.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := listConversation(t, r, "s7"); len(got) != 10 || r.indexInfo(t).Size() != int64(headerBytes) {
			t.Errorf("%v, index %v", got, r.indexInfo(t))
		}
	})
	t.Run("cannot be written", func(t *testing.T) {
		r := newTestReader(t)
		putYesterday(t, r)
		// Not even root can remove this directory, which has the name of the temporary file.
		if err := os.MkdirAll(filepath.Join(r.dir, ".2026-11-19.sessions.unfinished", "full"), 0o700); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := listConversation(t, r, "s7"); len(got) != 10 {
				t.Errorf("%v", got)
			}
		}
		if n := strings.Count(r.output.String(), "index of the interaction log not written"); n != 1 {
			t.Errorf("%d warnings, want 1 a minute\n%s", n, r.output.String())
		}
	})
	t.Run("link", func(t *testing.T) {
		r := newTestReader(t)
		putYesterday(t, r)
		elsewhere := filepath.Join(t.TempDir(), "file")
		if err := errors.Join(os.WriteFile(elsewhere, []byte("kept"), 0o600),
			os.Symlink(elsewhere, filepath.Join(r.dir, ".2026-11-19.sessions")),
			os.Symlink(elsewhere, filepath.Join(r.dir, ".2026-11-19.sessions.unfinished"))); err != nil {
			t.Fatal(err)
		}
		if got := listConversation(t, r, "s7"); len(got) != 10 || !r.indexInfo(t).Mode().IsRegular() {
			t.Errorf("%v, index %v", got, r.indexInfo(t))
		}
		if kept, err := os.ReadFile(elsewhere); string(kept) != "kept" {
			t.Errorf("target of the link = %q, %v, want it unchanged", kept, err)
		}
	})
}

// TestIndexIsBuiltOnce checks that concurrent queries build an index once.
func TestIndexIsBuiltOnce(t *testing.T) {
	r := newTestReader(t)
	putYesterday(t, r)
	// Building it again replaces the file with another one.
	var first os.FileInfo
	var once sync.Once
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			page, err := r.List(t.Context(), &List{Tenant: "default", ConversationID: "s7"})
			if err != nil || len(page.Interactions) != 10 {
				t.Errorf("%v, %v", page, err)
			}
			once.Do(func() { first = r.indexInfo(t) })
		})
	}
	running.Wait()
	if last := r.indexInfo(t); first == nil || !os.SameFile(first, last) || !first.ModTime().Equal(last.ModTime()) {
		t.Error("index was built more than once")
	}
}

func TestIndexBuildCanceled(t *testing.T) {
	r := newTestReader(t)
	putYesterday(t, r)
	f, err := dayfile.OpenRead(r.dir, "2026-11-19.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	r.indexes.building <- struct{}{}
	if x := r.indexOf(ctx, f, dayfile.DayOf(readNow)-1); x != nil {
		t.Error("indexOf with a canceled context returned an index")
	}
	<-r.indexes.building
	if x := r.indexOf(ctx, f, dayfile.DayOf(readNow)-1); x != nil || r.indexInfo(t) != nil || r.output.Len() > 0 {
		t.Errorf("index = %v, log output = %s", x, r.output.String())
	}
	if left, err := filepath.Glob(filepath.Join(r.dir, ".*")); len(left) > 0 || err != nil {
		t.Errorf("files left: %v, %v", left, err)
	}
}

// TestIndexOfLongConversation reads an index in several parts, in both directions.
func TestIndexOfLongConversation(t *testing.T) {
	r := newTestReader(t)
	const lines = 2*maxIndexFound + 10
	var b strings.Builder
	for i := range lines {
		b.WriteString(entrytest.Sample{At: "2026-11-19T13:00:00.000000Z", Content: fmt.Sprint(i)}.String())
		if i%3 == 0 {
			b.WriteString("broken\n")
		}
	}
	r.putFile(t, "2026-11-19", b.String())
	want, skipped := model{tenant: "default", conversation: "s"}.find(b.String())
	for _, l := range []List{{}, {Within: 24 * time.Hour}} {
		l.Tenant, l.ConversationID, l.PageSize = "default", "s", 1000
		all, got := r.listAll(t, l)
		found := texts(all)
		if l.Within > 0 {
			slices.Reverse(found)
		}
		if diff := cmp.Diff(want, found); diff != "" || got != skipped {
			t.Errorf("%+v: skipped %d, want %d, (-want +got):\n%s", l, got, skipped, diff)
		}
	}
}

// TestIndexOfOtherTenant checks that queries skip entries of another tenant's conversation with the same
// id, more than the index returns at a time, in both directions.
func TestIndexOfOtherTenant(t *testing.T) {
	r := newTestReader(t)
	// The entry after theirs begins a new part of the index.
	theirs := strings.Repeat(entrytest.Sample{Tenant: "other"}.String(), maxIndexFound-2)
	file := entrytest.Lines("first") + theirs + entrytest.Lines("middle") + theirs + theirs + entrytest.Lines("last")
	r.putFile(t, "2026-11-19", file)
	if got := listConversation(t, r, "s"); !slices.Equal(got, []string{"first", "middle", "last"}) {
		t.Error(got)
	}
	all, _ := r.searchAll(t, Search{Tenant: "default", ConversationID: "s", PageSize: 1})
	if got := texts(all); !slices.Equal(got, []string{"last", "middle", "first"}) {
		t.Error(got)
	}
}
