package storetest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const byUpdateTime = parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC

// law08Pages reads a list page by page while conversations are created, changed and deleted.
func (s Subject) law08Pages(t *testing.T) {
	for name, list := range map[string]store.List{
		"newest first": {}, "oldest first": {OldestFirst: true}, "by update time": {Order: byUpdateTime},
	} {
		t.Run(name, func(t *testing.T) {
			f := s.open(t, nil)
			stays := make(map[string]int)
			for i := range 60 {
				id := fmt.Sprint("c", i)
				f.create(id)
				if i%3 == 0 {
					stays[id] = 0
				}
			}
			f.append("c0", user("changed early"))
			n := 0
			list.PageSize = 7
			f.eachPage(list, func(page *store.Page) {
				for _, id := range ids(page) {
					if _, ok := stays[id]; ok {
						stays[id]++
					}
				}
				f.create(fmt.Sprint("new", n))
				f.append(fmt.Sprint("c", 3*n+1), user("changed"))
				f.append(fmt.Sprint("c", 58-3*n), user("changed and deleted"))
				f.do(&store.Delete{ConversationID: fmt.Sprint("c", 58-3*n)})
				n++
			})
			for id, n := range stays {
				if n != 1 {
					t.Errorf("%s was listed %d times, want 1", id, n)
				}
			}
		})
	}
}

// list tests List by create time, with filters.
func (s Subject) list(t *testing.T) {
	t.Run("empty store", func(t *testing.T) {
		f := s.open(t, nil)
		for _, order := range []parleyv1.ListOrder{0, byUpdateTime} {
			if page := f.list(store.List{PageSize: 10, Order: order}); len(page.Entries) != 0 || page.NextPageToken != "" ||
				page.Total != 0 {
				t.Errorf("List of an empty store = %+v", page)
			}
		}
	})
	t.Run("newest first, page by page", func(t *testing.T) {
		f := s.open(t, nil)
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
			f.create(id)
		}
		f.append("b", user("changed"))
		for size, want := range map[int][][]string{
			4: {{"f", "e", "d", "c"}, {"b", "a"}},
			3: {{"f", "e", "d"}, {"c", "b", "a"}},
			6: {{"f", "e", "d", "c", "b", "a"}},
			7: {{"f", "e", "d", "c", "b", "a"}},
		} {
			same(t, fmt.Sprint("pages of ", size), f.pages(store.List{PageSize: size}), want)
		}
		if total := f.list(store.List{PageSize: 2, Labels: map[string]string{"no": "such"}}).Total; total != 6 {
			t.Errorf("total = %d, want 6", total)
		}
	})
	t.Run("entry", func(t *testing.T) {
		f := s.open(t, nil)
		f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a", Title: "title", SystemPrompt: "be brief"}})
		long := strings.Repeat("ü", 130)
		f.append("a", user("question"), assistant(long))
		f.do(&store.Update{ConversationID: "a", Lease: &store.Lease{Agent: "writer", Duration: time.Minute}})
		want := f.header("a")
		want.SystemPrompt = ""
		entry := f.entry("a")
		same(t, "header", entry.GetConversation(), want)
		if entry.GetPreview() != long[:2*120] {
			t.Errorf("preview = %q, want the first 120 characters of the newest message", entry.GetPreview())
		}
		f.clock.Advance(time.Minute)
		if lease := f.entry("a").GetConversation().GetActiveAgent(); lease != nil {
			t.Errorf("List contains the ended lease %v", lease)
		}
	})
	t.Run("filters", s.listFilters)
	t.Run("tokens", s.listTokens)
}

func (s Subject) listFilters(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 2 })
	add := func(id string, labels map[string]string, messages ...*parleyv1.Message) {
		f.clock.Advance(time.Millisecond)
		f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: id, Title: "The " + id + " ONE", Labels: labels}})
		if len(messages) > 0 {
			f.append(id, messages...)
		}
	}
	add("plain", nil, user("hello"))
	add("blue", map[string]string{"team": "blue"}, assistant("one", "list", "table", "list"))
	add("both", map[string]string{"team": "blue", "tier": "gold"}, assistant("one", "list"), user("hello"))
	add("red", map[string]string{"team": "red"}, assistant("one", "table"))
	add("trimmed", map[string]string{"team": ""}, assistant("one", "list"), user("two"), user("three"))
	add("cleared", nil, user("one"), assistant("two", "list"))
	f.do(&store.Update{ConversationID: "cleared", KeepThrough: new(int32(1))})
	for _, test := range []struct {
		labels map[string]string
		text   string
		kind   string
		want   []string
	}{
		{map[string]string{"team": "blue"}, "", "", []string{"both", "blue"}},
		{map[string]string{"team": "blue", "tier": "gold"}, "", "", []string{"both"}},
		{map[string]string{"team": ""}, "", "", []string{"trimmed"}},
		{map[string]string{"team": "green"}, "", "", nil},
		{nil, "", "list", []string{"both", "blue"}},
		{nil, "", "table", []string{"red", "blue"}},
		{nil, "", "lis", nil},
		{map[string]string{"team": "blue"}, "", "table", []string{"blue"}},
		{nil, "B", "", []string{"both", "blue"}},
		{nil, "ED o", "", []string{"cleared", "trimmed", "red"}},
		{nil, "none", "", nil},
		{map[string]string{"team": "blue"}, "blue", "list", []string{"blue"}},
	} {
		for _, order := range []parleyv1.ListOrder{0, byUpdateTime} {
			for _, size := range []int{1, 10} {
				l := store.List{
					Labels: test.labels, Text: test.text, StructuredDataType: test.kind, Order: order, PageSize: size,
				}
				same(t, fmt.Sprintf("%v", l), slices.Concat(f.pages(l)...), test.want)
			}
		}
	}
}

// listTokens passes tokens to lists that did not return them.
func (s Subject) listTokens(t *testing.T) {
	f := s.open(t, nil)
	for i := range 5 {
		f.append(fmt.Sprint("c", i), assistant("hello", "list"))
		f.do(&store.Update{
			ConversationID: fmt.Sprint("c", i), Fields: []string{"labels"},
			Values: &parleyv1.Conversation{Labels: map[string]string{"a": "b", "c": "d"}},
		})
	}
	lists := []store.List{
		{},
		{Order: byUpdateTime},
		{OldestFirst: true},
		{Labels: map[string]string{"a": "b"}},
		{Labels: map[string]string{"a": "b", "c": "d"}},
		{Labels: map[string]string{"a": "b"}, Order: byUpdateTime},
		{StructuredDataType: "list"},
		{Text: "c"},
		{Text: "c", StructuredDataType: "list"},
		{Tenant: "another"},
		{Tenant: "another", Order: byUpdateTime},
	}
	for i, from := range lists {
		from.PageSize = 2
		rest := []string{"c2", "c1", "c0"}
		if from.OldestFirst {
			rest = []string{"c2", "c3", "c4"}
		}
		token := f.list(from).NextPageToken
		if token == "" {
			continue // The other tenant has no conversations.
		}
		for j, to := range lists {
			to.PageSize, to.PageToken, to.Tenant = 3, token, orTenant(to.Tenant)
			page, err := f.store.List(t.Context(), &to)
			switch {
			case i != j && !errors.Is(err, store.ErrPageToken):
				t.Errorf("List %[2]d with the token of list %[1]d = %[3]v, want ErrPageToken", i, j, err)
			case i == j && (err != nil || !slices.Equal(ids(page), rest)):
				t.Errorf("List %d with its own token = %v, %v", i, page, err)
			}
		}
		same(t, "the same list with an explicit order", ids(f.list(store.List{
			PageSize: 9, PageToken: f.list(store.List{PageSize: 2}).NextPageToken,
			Order: parleyv1.ListOrder_LIST_ORDER_CREATE_TIME_DESC,
		})), []string{"c2", "c1", "c0"})
		raw, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil {
			raw = []byte(token)
		}
		invalid := map[string]bool{
			"x": true, "====": true, token[1:]: true, token + token: true, token[:len(token)/2]: true, "\x00": true,
		}
		for bit := range 8 * len(raw) {
			flipped := slices.Clone(raw)
			flipped[bit/8] ^= 1 << (bit % 8)
			invalid[base64.RawURLEncoding.EncodeToString(flipped)] = true
		}
		for bad := range maps.Keys(invalid) {
			l := from
			l.PageToken, l.Tenant = bad, tenant
			if page, err := f.store.List(t.Context(), &l); !errors.Is(err, store.ErrPageToken) || page != nil {
				t.Errorf("List with the invalid token %q = %v, %v, want ErrPageToken", bad, page, err)
			}
		}
	}
}

// listByUpdateTime tests List by update time.
func (s Subject) listByUpdateTime(t *testing.T) {
	f := s.open(t, nil)
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		f.create(id)
	}
	f.append("b", user("hello"))
	f.clock.Advance(time.Millisecond)
	f.do(&store.Update{ConversationID: "d", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "title"}})
	f.read("a")
	for size, want := range map[int][][]string{
		4: {{"d", "b", "f", "e"}, {"c", "a"}},
		3: {{"d", "b", "f"}, {"e", "c", "a"}},
		9: {{"d", "b", "f", "e", "c", "a"}},
	} {
		same(t, fmt.Sprint("pages of ", size), f.pages(store.List{PageSize: size, Order: byUpdateTime}), want)
	}
	t.Run("at the same instant", func(t *testing.T) {
		f := s.open(t, nil)
		for i := range 9 {
			f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: fmt.Sprint("c", i)}})
		}
		onePage := f.pages(store.List{PageSize: 9, Order: byUpdateTime})[0]
		if got := slices.Concat(f.pages(store.List{PageSize: 2, Order: byUpdateTime})...); !slices.Equal(got, onePage) ||
			len(got) != 9 {
			t.Errorf("pages of 2 = %v, want %v as in one page", got, onePage)
		}
	})
	// A conversation that changes between pages moves to the front.
	token := f.list(store.List{PageSize: 2, Order: byUpdateTime}).NextPageToken
	f.append("a", user("moved"))
	f.append("d", user("moved again"))
	same(t, "rest", ids(f.list(store.List{PageSize: 9, Order: byUpdateTime, PageToken: token})), []string{"f", "e", "c"})
	same(t, "all", ids(f.list(store.List{PageSize: 9, Order: byUpdateTime})), []string{"d", "a", "b", "f", "e", "c"})
}

// listOldestFirst tests List by create time, oldest first.
func (s Subject) listOldestFirst(t *testing.T) {
	f := s.open(t, nil)
	if page := f.list(store.List{PageSize: 10, OldestFirst: true}); len(page.Entries) != 0 || page.NextPageToken != "" ||
		page.Total != 0 {
		t.Errorf("List of an empty store = %+v", page)
	}
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		f.create(id)
	}
	f.append("b", user("changed"))
	f.append("d", assistant("changed", "list"))
	for size, want := range map[int][][]string{
		4: {{"a", "b", "c", "d"}, {"e", "f"}},
		3: {{"a", "b", "c"}, {"d", "e", "f"}},
		6: {{"a", "b", "c", "d", "e", "f"}},
		7: {{"a", "b", "c", "d", "e", "f"}},
	} {
		same(t, fmt.Sprint("pages of ", size), f.pages(store.List{PageSize: size, OldestFirst: true}), want)
	}
	same(t, "filtered by type", f.pages(store.List{PageSize: 1, OldestFirst: true, StructuredDataType: "list"}),
		[][]string{{"d"}})
	same(t, "another tenant", f.pages(store.List{Tenant: "acme2", PageSize: 9, OldestFirst: true}), [][]string{nil})
	same(t, "by update time", f.pages(store.List{PageSize: 9, OldestFirst: true, Order: byUpdateTime}),
		[][]string{{"d", "b", "f", "e", "c", "a"}})

	// A conversation that is created between pages is at the end, an imported one need not be.
	l := store.List{PageSize: 2, OldestFirst: true}
	l.PageToken = f.list(l).NextPageToken
	f.do(&store.Delete{ConversationID: "b"}) // It is the last conversation of the first page.
	f.do(&store.Delete{ConversationID: "c"})
	f.create("g")
	f.do(f.newImport("old", 20*time.Minute))
	l.PageSize = 9
	same(t, "rest", ids(f.list(l)), []string{"d", "e", "f", "g"})
	f.clock.Advance(30 * time.Minute)
	f.append("e", user("postpones the expiry"))
	f.clock.Advance(40 * time.Minute)
	same(t, "conversations that have not expired", ids(f.list(l)), []string{"e"})

	f.clock.tick = 0
	for i := range 9 {
		f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: fmt.Sprint("c", i)}})
	}
	got := slices.Concat(f.pages(store.List{PageSize: 2, OldestFirst: true})...)
	if s.lanes() > 1 { // The conversations have no order of creation.
		slices.Sort(got[len(got)-9:])
	}
	same(t, "same create time", got[len(got)-9:], []string{"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"})
}
