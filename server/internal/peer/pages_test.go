package peer

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/interactionlog/search"
	"github.com/parleyhq/parley/store"
)

// now returns the time of all queries.
func now() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

// logServer is a server with the files of an interaction log.
type logServer struct {
	address string
	reader  *search.Reader
	entries []string // oldest first
}

// newLogServers returns servers with random entries of one conversation. It returns all entries, oldest first.
func newLogServers(t *testing.T, random *rand.Rand) (servers []*logServer, all []string) {
	t.Helper()
	var dirs []string
	files := map[string]string{} // contents by path
	for n := range 1 + random.IntN(4) {
		dir := t.TempDir()
		servers = append(servers, &logServer{
			address: fmt.Sprintf("server-%d:1", n), reader: search.NewReader(dir, slog.New(slog.DiscardHandler), now),
		})
		dirs = append(dirs, dir)
	}
	at := now().Add(-60 * time.Hour)
	for sequence := range 40 {
		if random.IntN(3) > 0 { // Messages of one commit have one time.
			at = at.Add(time.Duration(random.IntN(180)) * time.Minute / 2)
		}
		n := random.IntN(len(servers))
		file, content := filepath.Join(dirs[n], at.Format(time.DateOnly)+".jsonl"), fmt.Sprint("text ", sequence)
		if at.After(now()) {
			break
		}
		files[file] += fmt.Sprintf(`{"timestamp":%q,"session_id":"c","tenant":"acme","role":"user","content":%q,"metadata":`+
			`{"turn_number":%d}}`+"\n", at.Format("2006-01-02T15:04:05.000000Z"), content, sequence)
		if random.IntN(4) == 0 {
			files[file] += "broken\n"
		}
		servers[n].entries, all = append(servers[n].entries, content), append(all, content)
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return servers, all
}

// ask returns the page of a server as another one receives it.
func (s *logServer) ask(t *testing.T, size int, l search.List, known places) *part {
	t.Helper()
	p := &part{address: s.address}
	token, hasMore := known.of(s.address)
	if !hasMore {
		return p
	}
	l.PageToken, l.PageSize = token, size
	page, err := s.reader.List(t.Context(), &l)
	if err != nil {
		t.Fatal(err)
	}
	reply := &parleyv1.ListInteractionsResponse{
		Interactions: page.Interactions, NextPageToken: page.NextPageToken, SkippedCount: int32(page.Skipped),
	}
	cuts, err := openCuts(reply, sealCuts(page))
	if err != nil {
		t.Fatal(err)
	}
	p.interactions, p.cut = page.Interactions, func(n int) search.Cut { return cuts[n] }
	return p
}

func lists() map[string]search.List {
	return map[string]search.List{
		"conversation": {Tenant: "acme", ConversationID: "c"},
		"span":         {Tenant: "acme", Within: 72 * time.Hour},
	}
}

// pageOf returns the page of servers, of which some are unreachable, and which are asked for size entries.
func pageOf(
	t *testing.T, q *logQuery, size int, l search.List, servers []*logServer, unreachable func(*logServer) bool,
) *interactionlog.Page {
	t.Helper()
	known, err := openPlaces(q)
	if err != nil {
		t.Fatal(err)
	}
	var parts []*part
	for _, s := range servers {
		if unreachable(s) {
			parts = append(parts, &part{address: s.address, err: ErrUnreachable})
		} else {
			parts = append(parts, s.ask(t, size, l, known))
		}
	}
	page, err := joinParts(t.Context(), q, known, parts)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// TestPagesOfServers: pages of any size have the entries of all servers once and in order, and count each unreadable
// entry once. Pages of a server with large entries may be short.
func TestPagesOfServers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		servers, all := newLogServers(t, random)
		for name, l := range lists() {
			want := slices.Clone(all)
			if l.NewestFirst() {
				slices.Reverse(want)
			}
			skipped := 0
			for _, s := range servers {
				l.PageSize = 1000
				page, err := s.reader.List(t.Context(), &l)
				if err != nil {
					t.Fatal(err)
				}
				skipped += page.Skipped
			}
			var got []string
			q := &logQuery{scope: []string{name}, newestFirst: l.NewestFirst()}
			for more := true; more; more = q.token != "" {
				q.size = 1 + random.IntN(7)
				size := q.size
				if seed%2 == 1 {
					size = 1 + random.IntN(q.size)
				}
				page := pageOf(t, q, size, l, servers, func(*logServer) bool { return false })
				if left := len(want) - len(got); size == q.size && len(page.Interactions) != min(size, left) {
					t.Errorf("seed %d: page has %d entries, want %d of %d", seed, len(page.Interactions), q.size, left)
				}
				got, skipped = append(got, contents(page)...), skipped-page.Skipped
				q.token = page.NextPageToken
			}
			if d := cmp.Diff(want, got); d != "" || skipped != 0 {
				t.Errorf("seed %d: pages of a %s have %d unreadable entries too few (-want +got):\n%s", seed, name, skipped, d)
			}
		}
	}
}

func contents(page *interactionlog.Page) (all []string) {
	for _, i := range page.Interactions {
		all = append(all, i.GetContent())
	}
	return all
}

// TestPagesNameMissingServers: if servers start and stop between pages, entries are missing only if their server never
// answered or the last page names it, and no entry is returned twice.
func TestPagesNameMissingServers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 2))
		servers, all := newLogServers(t, random)
		l := lists()["conversation"]
		q := &logQuery{scope: []string{"c"}, size: 1 + random.IntN(5)}
		got, asked := map[string]int{}, map[string]bool{}
		var last *interactionlog.Page
		for more := true; more; more = q.token != "" {
			live := slices.Clone(servers)
			live = slices.DeleteFunc(live, func(*logServer) bool { return random.IntN(5) == 0 })
			if len(live) == 0 {
				continue
			}
			last = pageOf(t, q, q.size, l, live, func(s *logServer) bool {
				asked[s.address] = true
				return random.IntN(4) == 0
			})
			for _, content := range contents(last) {
				got[content]++
			}
			q.token = last.NextPageToken
		}
		if last == nil {
			continue
		}
		want := map[string]int{}
		for _, s := range servers {
			for _, content := range s.entries {
				if asked[s.address] && !slices.Contains(last.Unreachable, s.address) || got[content] > 0 {
					want[content] = 1
				}
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("seed %d: entries of %d (-want +got):\n%s", seed, len(all), d)
		}
	}
}

// TestPlaces: a page token has the places of servers, is bound to its query, and does not grow with servers that have
// ended.
func TestPlaces(t *testing.T) {
	t.Parallel()
	q := &logQuery{scope: []string{"list", "acme"}, size: 1}
	want := places{"a:1": "token", "b:2": "", "[::1]:3": "other"}
	q.token = want.seal(q)
	if got, err := openPlaces(q); err != nil || !maps.Equal(got, want) {
		t.Errorf("places = %v, %v, want %v", got, err, want)
	}
	for _, token := range []string{
		q.token[1:], "x", store.SealToken([]byte{200}, "servers", "list", "acme"),
		store.SealToken([]byte{1, 'a'}, "servers", "list", "acme"), store.SealToken(nil, "list", "acme"),
		want.seal(&logQuery{scope: []string{"list", "globex"}}),
	} {
		if _, err := openPlaces(&logQuery{scope: q.scope, token: token}); !errors.Is(err, store.ErrPageToken) {
			t.Errorf("places of %q: error = %v, want %v", token, err, store.ErrPageToken)
		}
	}
	old := places{}
	for n := range 10 * maxPlaces {
		old[fmt.Sprintf("server-%d:1", n)] = "token"
	}
	live := &part{address: "live:1", cut: func(int) search.Cut { return search.Cut{PageToken: "more"} }}
	page, err := joinParts(t.Context(), q, old, []*part{live})
	if err != nil || len(page.Unreachable) != len(old) {
		t.Fatalf("page = %v, %v, want %d unreachable servers", page, err, len(old))
	}
	q.token = page.NextPageToken
	if got, err := openPlaces(q); err != nil || len(got) != maxPlaces || got["live:1"] != "more" {
		t.Errorf("places of a page = %d, %v, want %d", len(got), err, maxPlaces)
	}
}
