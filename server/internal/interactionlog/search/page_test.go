package search

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/store"
)

func TestPageTokenQuery(t *testing.T) {
	r := newTestReader(t)
	r.putFile(t, "2026-11-20", entrytest.Lines("a", "b", "c"))
	list := func(l List) func(token string) (*Page, error) {
		return func(token string) (*Page, error) {
			l.PageSize, l.PageToken = 1, token
			return r.List(t.Context(), &l)
		}
	}
	search := func(s Search) func(token string) (*Page, error) {
		return func(token string) (*Page, error) {
			s.PageSize, s.PageToken = 1, token
			return r.Search(t.Context(), &s)
		}
	}
	queries := []func(token string) (*Page, error){
		list(List{Tenant: "default"}),
		list(List{Tenant: "default", Within: time.Hour * 23}),
		list(List{Tenant: "default", Date: "2026-11-20"}),
		list(List{Tenant: "default", ConversationID: "s"}),
		list(List{Tenant: "default", ConversationID: "s", Date: "2026-11-20"}),
		search(Search{Tenant: "default", Query: ""}),
		search(Search{Tenant: "default", Query: "", Days: 8}),
		search(Search{Tenant: "default", Query: "", ConversationID: "s"}),
		list(List{Tenant: "other"}),
		search(Search{Tenant: "default", Query: "x"}),
	}
	for i, query := range queries {
		page, err := query("")
		if err != nil {
			t.Fatal(err)
		}
		if page.NextPageToken == "" {
			continue
		}
		for j, other := range queries {
			next, err := other(page.NextPageToken)
			if i == j && (err != nil || contents(next) != "b") {
				t.Errorf("query %d: second page = %v, %v", i, next, err)
			}
			if i != j && !errors.Is(err, ErrPageToken) {
				t.Errorf("query %d with the token of query %d = %v, %v, want ErrPageToken", j, i, next, err)
			}
		}
	}
	q := &query{scope: []string{"list", "default", "", "0s", ""}}
	wrong := []string{
		"x", q.sealToken(position{1, 0}), q.sealToken(position{0, -1}),
		store.SealToken(nil, q.scope...), store.SealToken(make([]byte, 7), q.scope...),
	}
	for _, token := range wrong {
		if page, err := list(List{Tenant: "default"})(token); !errors.Is(err, ErrPageToken) {
			t.Errorf("list with token %q = %v, %v, want ErrPageToken", token, page, err)
		}
	}
	if page, err := list(List{Tenant: "default"})(q.sealToken(position{})); err != nil || len(page.Interactions) != 0 {
		t.Errorf("list of a span in 1970 = %v, %v, want an empty page", page, err)
	}
}

// TestLargeLines checks that an entry that is larger than a page has a page of its own.
func TestLargeLines(t *testing.T) {
	r := newTestReader(t)
	large := strings.Repeat("x", maxPageBytes+1)
	r.putFile(t, "2026-11-20", entrytest.Lines("a")+entrytest.Sample{Content: large}.String()+entrytest.Lines("b", "c"))
	list := &List{Tenant: "default", Date: "2026-11-20"}
	for _, want := range []string{"a", large, "b c"} {
		page, err := r.List(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		if got := contents(page); got != want {
			t.Errorf("page = %.10q… (%d bytes), want %.10q… (%d)", got, len(got), want, len(want))
		}
		list.PageToken = page.NextPageToken
	}
	if list.PageToken != "" {
		t.Error("the last page has a token")
	}
}

// TestPagesDuringWrites checks that entries written after the first page are on no page of a query that
// goes backward, and on the last pages of one that goes forward.
func TestPagesDuringWrites(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		list       List
	}{
		{"recent", "b a", List{}},
		{"day", "a b later", List{Date: "2026-11-20"}},
		{"conversation", "a b later", List{ConversationID: "s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newTestReader(t)
			r.putFile(t, "2026-11-20", entrytest.Lines("a", "b"))
			tt.list.Tenant, tt.list.PageSize = "default", 1
			page, err := r.List(t.Context(), &tt.list)
			if err != nil {
				t.Fatal(err)
			}
			r.putFile(t, "2026-11-20", entrytest.Lines("a", "b", "later"))
			tt.list.PageToken, tt.list.PageSize = page.NextPageToken, 10
			rest, err := r.List(t.Context(), &tt.list)
			if got := contents(page) + " " + contents(rest); err != nil || got != tt.want {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

// TestPageTokenKeepsSpan checks that later pages have the span of the first one.
func TestPageTokenKeepsSpan(t *testing.T) {
	r := newTestReader(t)
	now := readNow
	r.now = func() time.Time { return now }
	r.putFile(t, "2026-11-19", entrytest.Lines("a"))
	r.putFile(t, "2026-11-20", entrytest.Lines("b", "c"))
	for _, get := range []func(token string) (*Page, error){
		func(token string) (*Page, error) {
			return r.Search(t.Context(), &Search{Tenant: "default", Days: 2, PageSize: 1, PageToken: token})
		},
		func(token string) (*Page, error) {
			return r.List(t.Context(), &List{Tenant: "default", Within: 36 * time.Hour, PageSize: 1, PageToken: token})
		},
	} {
		now = readNow
		page, err := get("")
		if err != nil {
			t.Fatal(err)
		}
		now = readNow.Add(72 * time.Hour)
		all, _ := allPages(t, func(token string) (*Page, error) {
			if token == "" {
				token = page.NextPageToken
			}
			return get(token)
		})
		if got := contents(page) + " " + strings.Join(texts(all), " "); got != "c b a" {
			t.Errorf("pages = %q, want the span of the first page", got)
		}
	}
}

// TestPagesDuringEdits checks that pages have only entries that are in the file, and that they end.
func TestPagesDuringEdits(t *testing.T) {
	before := entrytest.Lines("a", "b", "c", "d")
	for name, after := range map[string]string{
		"added before":   entrytest.Lines("first") + before,
		"removed before": entrytest.Lines("b", "c", "d"),
		"changed":        entrytest.Lines("a", "changed", "c", "d"),
		"cut off":        before[:len(before)/3],
		"empty":          "",
		"removed":        "-",
		"without breaks": strings.ReplaceAll(before, "\n", " "),
	} {
		there := map[string]bool{}
		for text := range strings.Lines(after) {
			if l, err := entry.Parse([]byte(text)); err == nil {
				there[l.Interaction.Content] = true
			}
		}
		for _, l := range []List{{}, {Date: "2026-11-20"}, {ConversationID: "s"}} {
			l.Tenant, l.PageSize = "default", 2
			r := newTestReader(t)
			r.putFile(t, "2026-11-20", before)
			page, err := r.List(t.Context(), &l)
			if err != nil {
				t.Fatal(err)
			}
			r.putFile(t, "2026-11-20", after)
			if after == "-" {
				if err := os.Remove(filepath.Join(r.dir, "2026-11-20.jsonl")); err != nil {
					t.Fatal(err)
				}
			}
			rest, _ := allPages(t, func(token string) (*Page, error) {
				if l.PageToken = token; token == "" {
					l.PageToken = page.NextPageToken
				}
				return r.List(t.Context(), &l)
			})
			for _, content := range texts(rest) {
				if !there[content] {
					t.Errorf("%s, %+v: entry %q is not in the file", name, l, content)
				}
			}
		}
	}
}
