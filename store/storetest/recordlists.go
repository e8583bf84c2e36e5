package storetest

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// unorderedKeys are keys of which no other order than that of their bytes is rising. Two begin with a key of the list.
func unorderedKeys() []string {
	return []string{
		"Z", "a", "a b", "a!", "a/1", "a/10", "a/2", "ab", "é", "b", "aé", "😀", "\ufffd", "\ufffda", "\uffff", " ", "~",
	}
}

// recordOrder: a list has the order of the bytes of the keys, in both directions, with a prefix and after any key.
func recordOrder(f *fixture) {
	f.create("c")
	for _, id := range []string{"c", ""} {
		for i, key := range unorderedKeys() {
			f.writeRecords(id, put(key, fmt.Sprint(i)))
		}
		f.writeRecords(id, remove("b"))
		for _, prefix := range []string{"", "a", "a/", "a/1", "a!", "b", "é", "\ufffd", "\xf0", "zz", " "} {
			for _, after := range []string{"", " ", "a", "a ", "a/", "a/1", "a/9", "b", "é", "😀", "\xff"} {
				for _, descending := range []bool{false, true} {
					f.compareOrder(store.ListRecords{ConversationID: id, Prefix: prefix, After: after, Descending: descending})
				}
			}
		}
	}
}

// listed reports whether a list, in pages of any size, contains a key of its scope.
func listed(l store.ListRecords, key string) bool {
	follows := l.After == "" || key > l.After && !l.Descending || key < l.After && l.Descending
	return follows && strings.HasPrefix(key, l.Prefix)
}

// compareOrder compares lists, in pages of all sizes, with the sorted keys of the scope.
func (f *fixture) compareOrder(l store.ListRecords) {
	f.t.Helper()
	var want []string
	for _, key := range slices.Sorted(slices.Values(unorderedKeys())) {
		if key != "b" && listed(l, key) {
			want = append(want, key)
		}
	}
	if l.Descending {
		slices.Reverse(want)
	}
	found, _ := f.listRecords(l)
	same(f.t, fmt.Sprintf("%+v", l), keysOf(found), want)
	for _, limit := range []int{1, 2, 5, max(1, len(want)), len(want) + 1} {
		l.Limit = limit
		var pages []string
		for page, more := l, true; more; {
			found, more = f.listRecords(page)
			pages = append(pages, keysOf(found)...)
			page.After = f.nextAfter(page, found, more)
		}
		same(f.t, fmt.Sprintf("pages of %+v", l), pages, want)
	}
}

// nextAfter returns After for the page after found, which must be a page that the list l continues.
func (f *fixture) nextAfter(l store.ListRecords, found []*parleyv1.Record, more bool) string {
	f.t.Helper()
	if !more {
		return ""
	}
	if len(found) == 0 || slices.Contains(keysOf(found), l.After) {
		f.t.Fatalf("ListRecords(%+v) = %v and more, want keys after %q", l, keysOf(found), l.After)
	}
	return found[len(found)-1].GetKey()
}

// recordPages: a record that exists during all calls of a list is returned once, whatever is written in the meantime.
func recordPages(f *fixture) {
	f.create("c")
	for _, id := range []string{"c", ""} {
		for i := range 20 {
			f.writeRecords(id, put(fmt.Sprintf("k%02d", i), "v"))
		}
		var got []string
		l := store.ListRecords{ConversationID: id, Limit: 3}
		for more := true; more; {
			var found []*parleyv1.Record
			found, more = f.listRecords(l)
			l.After = f.nextAfter(l, found, more)
			for _, key := range keysOf(found) {
				if !strings.Contains(key, "new") && key != "k07" {
					got = append(got, key)
				}
			}
			f.writeRecords(id, put(l.After+" new", "v"), put("a new", "v"), put("k01", "w"), put("k15", "w"), remove("k07"))
		}
		want := make([]string, 0, 20)
		for i := range 20 {
			if i != 7 {
				want = append(want, fmt.Sprintf("k%02d", i))
			}
		}
		same(f.t, fmt.Sprintf("pages of %q", id), got, want)
	}
}

// recordBounds: MaxBytes bounds the encoded size of a result, except for the first record. Lists of keys have no
// values.
func recordBounds(f *fixture) {
	f.create("c")
	for _, id := range []string{"c", ""} {
		large := strings.Repeat("x", 1000)
		f.writeRecords(id, put("a", large), put("b", "small"), put("c", large), put("d", ""))
		keys, more := f.listRecords(store.ListRecords{ConversationID: id, KeysOnly: true, MaxBytes: 500})
		if more || len(keys) != 4 {
			f.t.Errorf("ListRecords(KeysOnly) = %v, %v, want all keys", keys, more)
		}
		full := f.records(id)
		for i, r := range keys {
			want := proto.CloneOf(full[i])
			want.Value = nil
			same(f.t, "record without value", r, want)
		}
		first, more := f.listRecords(store.ListRecords{ConversationID: id, MaxBytes: 1})
		if !more || !slices.Equal(keysOf(first), []string{"a"}) {
			f.t.Errorf("ListRecords(MaxBytes: 1) = %v, %v, want only the first", keysOf(first), more)
		}
		for limit := 1; limit < 3000; limit += 199 {
			f.checkBounds(id, full, limit)
		}
	}
}

// checkBounds checks the results of one limit in bytes. full are all records.
func (f *fixture) checkBounds(id string, full []*parleyv1.Record, limit int) {
	f.t.Helper()
	size := func(records []*parleyv1.Record) int {
		return proto.Size(&parleyv1.GetRecordsResponse{Records: records})
	}
	found, more := f.listRecords(store.ListRecords{ConversationID: id, MaxBytes: limit})
	if len(found) > 1 && size(found) > limit || more != (len(found) < len(full)) ||
		more && size(full[:len(found)+1]) <= limit {
		f.t.Errorf("ListRecords(MaxBytes: %d) = %v with %d bytes, %v", limit, keysOf(found), size(found), more)
	}
	keys := []string{"d", "missing", "c", "b", "a"}
	found, omitted, err := getRecords(f.t.Context(), f.store, &store.GetRecords{
		Tenant: tenant, ConversationID: id, Keys: keys, MaxBytes: limit,
	})
	if err != nil || len(found) == 0 || len(found) > 1 && size(found) > limit || len(found)+len(omitted) != 4 {
		f.t.Errorf("GetRecords(MaxBytes: %d) = %v with %d bytes, %v, %v", limit, keysOf(found), size(found), omitted, err)
	}
	both := slices.Concat(keysOf(found), omitted)
	slices.Sort(both)
	same(f.t, "found and omitted keys", both, []string{"a", "b", "c", "d"})
	at := -1
	for _, r := range found {
		next := slices.Index(keys, r.GetKey())
		if next <= at {
			f.t.Errorf("GetRecords(%v) = %v, want the order of the keys", keys, keysOf(found))
		}
		at = next
	}
}

// readPrefixes: Read returns the records that its prefixes select, once, in the order of their keys.
func readPrefixes(f *fixture) {
	f.append("c", user("one"))
	f.writeRecords("c", put("a", "1"), put("ab", "1"), put("b/1", "1"), put("b/2", "1"), put("c", "1"))
	f.writeRecords("", put("a of the tenant", "1"))
	for _, test := range []struct{ prefixes, want []string }{
		{nil, nil},
		{[]string{""}, []string{"a", "ab", "b/1", "b/2", "c"}},
		{[]string{"b/", "a"}, []string{"a", "ab", "b/1", "b/2"}},
		{[]string{"c", "b/2", "b/", "b"}, []string{"b/1", "b/2", "c"}},
		{[]string{"ab", "", "a"}, []string{"a", "ab", "b/1", "b/2", "c"}},
		{[]string{"ab", "ab", "zz"}, []string{"ab"}},
	} {
		got, err := f.store.Read(f.t.Context(), &store.Read{
			Tenant: tenant, ConversationID: "c", Newest: -1, RecordPrefixes: test.prefixes,
		})
		if err != nil {
			f.t.Fatal(err)
		}
		same(f.t, fmt.Sprintf("records of Read(%q)", test.prefixes), keysOf(got.Records), test.want)
		if got.MoreRecords || got.Messages.Count() != 1 {
			f.t.Errorf("Read(%q) has more records, or not its message", test.prefixes)
		}
	}
	got, err := f.store.Read(f.t.Context(), &store.Read{
		Tenant: tenant, ConversationID: "c", RecordPrefixes: []string{""},
		Known: store.Known{Version: 2},
	})
	if err != nil || !got.Unchanged || len(got.Records) > 0 {
		f.t.Errorf("Read of the known version = %+v, %v, want no records", got, err)
	}
	_, err = f.store.Read(f.t.Context(), &store.Read{Tenant: tenant, ConversationID: "d", RecordPrefixes: []string{""}})
	if !errorIs(err, store.ErrNotFound) {
		f.t.Errorf("Read of a missing conversation = %v, want ErrNotFound", err)
	}
	f.readLarge()
}

// readLarge checks the limit of the records of one Read.
func (f *fixture) readLarge() {
	f.t.Helper()
	f.create("large")
	half := strings.Repeat("x", store.MaxReadRecordBytes/2)
	f.writeRecords("large", put("a", half+half), put("b", half), put("c", "x"), put("d", half))
	for _, test := range []struct {
		prefixes, want []string
		more           bool
	}{
		{[]string{""}, []string{"a"}, true},
		{[]string{"b", "c", "d"}, []string{"b", "c"}, true},
		{[]string{"b", "c"}, []string{"b", "c"}, false},
		{[]string{"d", "e"}, []string{"d"}, false},
	} {
		got, err := f.store.Read(f.t.Context(), &store.Read{
			Tenant: tenant, ConversationID: "large", RecordPrefixes: test.prefixes,
		})
		if err != nil || !slices.Equal(keysOf(got.Records), test.want) || got.MoreRecords != test.more {
			f.t.Errorf("Read(%q) = %v, %v, %v, want %v, %v", test.prefixes, keysOf(got.Records), got.MoreRecords, err,
				test.want, test.more)
		}
	}
}
