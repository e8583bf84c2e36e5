package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// item is a key and its value.
type item struct{ key, value []byte }

// newest is the source of a list, newest first. It counts the items that are read.
func newest(items []item, scanned *int) record.Newest {
	return func(before []byte) iter.Seq2[[]byte, []byte] {
		return func(yield func(key, value []byte) bool) {
			for _, at := range slices.Backward(items) {
				if before != nil && bytes.Compare(at.key, before) >= 0 {
					continue
				}
				*scanned++
				if !yield(at.key, at.value) {
					return
				}
			}
		}
	}
}

// oldest is the source of a list, oldest first. It counts the items that are read.
func oldest(items []item, scanned *int) record.Oldest {
	return func(after []byte) iter.Seq2[[]byte, []byte] {
		return func(yield func(key, value []byte) bool) {
			for _, at := range items {
				if bytes.Compare(at.key, after) <= 0 {
					continue
				}
				*scanned++
				if !yield(at.key, at.value) {
					return
				}
			}
		}
	}
}

// items returns n conversations, oldest first, one created per second.
func items(tb testing.TB, n int) []item {
	tb.Helper()
	r := sample(tb)
	r.Messages = nil
	r.Conversation().ActiveTurnId = ""
	out := make([]item, n)
	for i := range out {
		at := time.Unix(1_800_000_000+int64(i), 0)
		c := r.Conversation()
		c.Id, c.UpdateTime, c.ExpireTime = fmt.Sprint("c", i), timestamppb.New(at), timestamppb.New(at.Add(24*time.Hour))
		c.CreateTime = timestamppb.New(at)
		r.SetNumber(uint32(i))
		out[i] = item{key: r.Key(), value: marshal(tb, r)}
	}
	return out
}

func TestKeyOrder(t *testing.T) {
	at := time.Unix(1_800_000_000, 5)
	keys := [][]byte{
		record.Key(at, 7), record.Key(at, 8), record.Key(at.Add(1), 0), record.Key(at.Add(300), 0),
		record.Key(at.Add(time.Hour), 0),
	}
	if !slices.IsSortedFunc(keys, bytes.Compare) {
		t.Errorf("keys are not in the order of create time: %x", keys)
	}
	for _, key := range keys {
		if len(key) != record.KeySize {
			t.Errorf("length of key %x, want %d bytes", key, record.KeySize)
		}
	}
}

// TestPageReadsNoMore checks how many items of the source a page reads.
func TestPageReadsNoMore(t *testing.T) {
	all := items(t, store.MaxListHeaders+100)
	now := time.Unix(1_800_000_000, 0)
	for _, test := range []struct {
		list store.List
		want int
	}{
		{store.List{Tenant: "acme", PageSize: 10}, 11},
		{store.List{Tenant: "acme", PageSize: 10, OldestFirst: true}, 11},
		{store.List{Tenant: "acme", PageSize: 10, OldestFirst: true, StructuredDataType: "none"}, store.MaxListHeaders + 1},
		{store.List{Tenant: "acme", PageSize: 10, StructuredDataType: "none"}, store.MaxListHeaders + 1},
		{
			store.List{Tenant: "acme", PageSize: 10, Order: parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC},
			store.MaxListHeaders + 1,
		},
	} {
		scanned := 0
		page, err := record.BuildPage(t.Context(), &test.list, 0, 1, now, newest(all, &scanned), oldest(all, &scanned), nil)
		if err != nil || page.NextPageToken == "" || scanned != test.want {
			t.Errorf("BuildPage(%+v) read %d items, want %d; token %q, %v", test.list, scanned, test.want, page.NextPageToken,
				err)
		}
	}
}

// TestPageReadsNoMoreBytes lists conversations with much structured data by type. A page must end
// when it has read its limit of bytes, and the next page must continue there.
func TestPageReadsNoMoreBytes(t *testing.T) {
	const conversations = 40
	all := items(t, conversations)
	kind := strings.Repeat("long ", 200)
	for i := range all {
		r, err := record.Unmarshal(all[i].value)
		if err != nil {
			t.Fatal(err)
		}
		r.Data = bytes.Repeat(r.Data, store.MaxListHeaderBytes/len(r.Data)/10)
		if i == 0 {
			r.Conversation().Labels = map[string]string{"oldest": "yes"}
		}
		all[i].value = marshal(t, r)
	}
	now := time.Unix(1_800_000_000, 0)
	for _, l := range []store.List{
		{StructuredDataType: kind},
		{StructuredDataType: kind, OldestFirst: true},
		{StructuredDataType: kind, Order: parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC},
		{
			StructuredDataType: "table", Labels: map[string]string{"oldest": "yes"},
			Order: parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC,
		},
	} {
		l.Tenant, l.PageSize = "acme", conversations
		rows := 0
		for pages := 1; ; pages++ {
			scanned := 0
			page, err := record.BuildPage(t.Context(), &l, 0, 1, now, newest(all, &scanned), oldest(all, &scanned), nil)
			if err != nil || scanned > 12 {
				t.Fatalf("page %d of %.40v: %d conversations read, %v", pages, l, scanned, err)
			}
			rows += len(page.Entries)
			if l.PageToken = page.NextPageToken; l.PageToken == "" {
				if pages != 4 {
					t.Errorf("List %.40v took %d pages, want 4", l, pages)
				}
				break
			}
		}
		if found := rows == 1; found != (l.Labels != nil) {
			t.Errorf("List %.40v = %d rows", l, rows)
		}
	}
}

func TestPageWithoutDamage(t *testing.T) {
	all := items(t, 5)
	all[2].value[40] ^= 1
	all[4].value = nil
	scanned := 0
	page, err := record.BuildPage(t.Context(), &store.List{
		Tenant: "acme", PageSize: 10,
	}, 5, 1, time.Unix(1_800_000_000, 0), newest(all, &scanned), oldest(all, &scanned), nil)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range page.Entries {
		ids = append(ids, e.GetConversation().GetId())
	}
	if want := []string{"c3", "c1", "c0"}; !slices.Equal(ids, want) || page.NextPageToken != "" || page.Total != 5 ||
		page.Damaged != 2 {
		t.Errorf("BuildPage = %v of %d, %d damaged, token %q; want %v", ids, page.Total, page.Damaged, page.NextPageToken,
			want)
	}
}

// FuzzPosition lists from valid tokens with arbitrary positions.
func FuzzPosition(f *testing.F) {
	all := items(f, 20)
	f.Add([]byte(nil), false, false)
	f.Add(all[3].key, false, false)
	f.Add(all[3].key, false, true)
	f.Add(all[3].key, true, false)
	f.Add(slices.Concat(all[9].key, all[2].key, make([]byte, 12), all[5].key), true, true)
	f.Add(slices.Concat(all[9].key, all[2].key, []byte{0, 0, 0, 7}, make([]byte, 8), all[5].key), true, true)
	f.Fuzz(func(t *testing.T, position []byte, byUpdateTime, oldestFirst bool) {
		l := &store.List{Tenant: "acme", PageSize: 3, OldestFirst: oldestFirst}
		if byUpdateTime {
			l.Order = parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC
		}
		scanned := 0
		l.PageToken = store.SealToken(position, record.Scope(l)...)
		for range 1000 {
			page, err := record.BuildPage(t.Context(), l, 0, 1, time.Unix(1_800_000_000, 0), newest(all, &scanned),
				oldest(all, &scanned), nil)
			if err != nil {
				if !errors.Is(err, store.ErrPageToken) {
					t.Errorf("BuildPage = %v, want ErrPageToken", err)
				}
				return
			}
			if l.PageToken = page.NextPageToken; l.PageToken == "" {
				return
			}
		}
		t.Error("the list has more than 1000 pages")
	})
}

// TestBlockIsWhatItBeganWith imports into a block after its first page. The list must not read the
// imported conversations, nor move any into the next block. It must skip none, even if the numbers
// have started again at 0 in the meantime.
func TestBlockIsWhatItBeganWith(t *testing.T) {
	const more = 50
	for name, imported := range map[string]func(n int) item{
		"later numbers": func(n int) item {
			at := time.Unix(1_800_000_000+int64(more+n), 500)
			return item{key: record.Key(at, uint32(2*store.MaxListHeaders+n)), value: []byte("not to be read")}
		},
		"numbers from 0": func(n int) item {
			at := time.Unix(1_800_000_000+int64(more+n), 500)
			return item{key: record.Key(at, uint32(n)), value: []byte("damaged")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := items(t, store.MaxListHeaders+more)
			l := &store.List{Tenant: "acme", PageSize: 4000, Order: parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC}
			seen, damaged, scanned := make(map[string]int), 0, 0
			for pages := 0; pages == 0 || l.PageToken != ""; pages++ {
				page, err := record.BuildPage(t.Context(), l, 0, 1, time.Unix(1_800_000_000, 0), newest(all, &scanned),
					oldest(all, &scanned), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range page.Entries {
					seen[e.GetConversation().GetId()]++
				}
				l.PageToken, damaged = page.NextPageToken, damaged+page.Damaged
				if pages == 0 {
					for n := range 2000 {
						all = append(all, imported(n))
					}
					slices.SortFunc(all, func(a, b item) int { return bytes.Compare(a.key, b.key) })
				}
			}
			twice := 0
			for _, n := range seen {
				twice += n - 1
			}
			if len(seen) != store.MaxListHeaders+more {
				t.Errorf("%d conversations were listed, want %d", len(seen), store.MaxListHeaders+more)
			}
			if name == "later numbers" && (twice > 0 || damaged > 0) {
				t.Errorf("%d rows came twice and %d imported ones were read, want none", twice, damaged)
			}
		})
	}
}
