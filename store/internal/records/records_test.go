package records_test

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// values are the stored values of a scope, by key.
type values map[string][]byte

// counts returns the counts of all values.
func (v values) counts(t rapid.TB) records.Counts {
	t.Helper()
	var sum records.Counts
	for key, b := range v {
		state, err := records.StateOf(key, b)
		if err != nil {
			t.Fatal(err)
		}
		sum = sum.Plus(state.Counts)
	}
	return sum
}

func (v values) sorted(keep func(string) bool, keys iter.Seq[string]) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for key := range keys {
			if keep(key) && !yield(key, v[key]) {
				return
			}
		}
	}
}

func (v values) ascend(from string) iter.Seq2[string, []byte] {
	return v.sorted(func(key string) bool { return key >= from }, slices.Values(slices.Sorted(maps.Keys(v))))
}

func (v values) descend(before string) iter.Seq2[string, []byte] {
	keys := slices.Sorted(maps.Keys(v))
	slices.Reverse(keys)
	return v.sorted(func(key string) bool { return before == "" || key < before }, slices.Values(keys))
}

// TestEdits makes random batches. The edits of each change the values so that the counts of both scopes are those that
// the edits say, the states before and after are those of the values, and the revisions rise. Expired records are
// written over and never found.
func TestEdits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scopes := map[bool]values{true: {}, false: {}}
		sums, counter, now := map[bool]records.Counts{}, int64(0), time.Unix(1_800_000_000, 0)
		for version := range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "seconds")) * time.Second)
			edits := decide(t, scopes, counter, int64(version)+1, now)
			for _, e := range edits.All {
				scope := scopes[e.TenantScope]
				if state := stateOf(t, scope, e.Key); state != e.Before {
					t.Fatalf("edit %+v, want the state %+v before", e, state)
				}
				delete(scope, e.Key)
				if e.Value != nil {
					scope[e.Key] = e.Value
				}
				if state := stateOf(t, scope, e.Key); state != e.After {
					t.Fatalf("edit %+v, want the state %+v after", e, state)
				}
			}
			sums[false], sums[true] = sums[false].Plus(edits.Conversation), sums[true].Plus(edits.Tenant)
			if revision := edits.TenantRevision; revision != 0 && revision != counter+1 {
				t.Fatalf("revision of the tenant = %d after %d", revision, counter)
			}
			counter = max(counter, edits.TenantRevision)
			for tenantScope, scope := range scopes {
				if sum := scope.counts(t); sum != sums[tenantScope] {
					t.Fatalf("counts = %+v, want %+v", sums[tenantScope], sum)
				}
			}
		}
	})
}

// decide draws a batch and decides it. A batch of a tenant alone has a request.
func decide(t *rapid.T, scopes map[bool]values, counter, version int64, now time.Time) *records.Edits {
	tenantOnly := rapid.Bool().Draw(t, "tenant only")
	keys := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3, rapid.ID).Draw(t, "keys")
	var writes []*parleyv1.RecordWrite
	for _, key := range keys {
		w := &parleyv1.RecordWrite{Key: key, TenantScope: rapid.Bool().Draw(t, "tenant_scope")}
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			w.Delete = true
		case 1:
			w.Labels = map[string]string{"l": "v"}
		case 2:
			w.Ttl = durationpb.New(time.Minute)
		}
		if !w.GetDelete() {
			w.Value = []byte(rapid.SampledFrom([]string{"", "x", "longer"}).Draw(t, "value"))
		}
		writes = append(writes, w)
	}
	in, err := records.NewInput(writes, tenantOnly, records.Tenant{Revision: counter}, func(tenantScope bool, key string) (records.State, error) {
		return stateOf(t, scopes[tenantScope], key), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !tenantOnly {
		edits, err := records.Decide(writes, in, &records.Conversation{Revision: version, Time: now, Limit: 1 << 20}, now)
		if err != nil {
			t.Fatal(err)
		}
		return edits
	}
	request := &store.Request{ID: fmt.Sprint(version), Method: "WriteRecords"}
	_, edits, err := records.WriteTenant(&store.WriteRecords{Writes: writes, Request: request}, in, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	if !edits.Any() || !records.IsHidden(edits.All[len(edits.All)-1].Key) {
		t.Fatalf("edits %+v do not contain the request", edits)
	}
	return edits
}

func stateOf(t *rapid.T, v values, key string) records.State {
	if v[key] == nil {
		return records.State{}
	}
	state, err := records.StateOf(key, v[key])
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func TestCheckFull(t *testing.T) {
	for _, test := range []struct {
		present, delta, limit int64
		full                  bool
	}{
		{0, 10, 10, false}, {4, 6, 10, false}, {5, 6, 10, true}, {20, 1, 10, true}, {20, 0, 10, false}, {20, -1, 10, false},
	} {
		var full *store.RecordsFullError
		err := records.CheckFull(test.present, test.delta, test.limit)
		if errors.As(err, &full) != test.full || test.full && full.Bytes != test.present+test.delta {
			t.Errorf("CheckFull(%d, %d, %d) = %v, want an error: %v", test.present, test.delta, test.limit, err, test.full)
		}
	}
}

// TestHiddenKeys checks that neither lists nor reads return the requests of a tenant.
func TestHiddenKeys(t *testing.T) {
	request := &store.Request{ID: "r", Method: "WriteRecords"}
	hidden := records.RequestKey(request)
	_, edits, err := records.WriteTenant(&store.WriteRecords{
		Writes: []*parleyv1.RecordWrite{{Key: " first", Value: []byte("v")}}, Request: request,
	}, &records.Input{Before: make([]records.State, 1)}, nil, time.Unix(1_800_000_000, 0))
	if err != nil {
		t.Fatal(err)
	}
	stored := values{}
	for _, e := range edits.All {
		stored[e.Key] = e.Value
	}
	if stored[hidden] == nil || len(stored) != 2 {
		t.Fatalf("edits = %+v, want a record and a request", edits)
	}
	now := time.Unix(1_800_000_001, 0)
	for _, descending := range []bool{false, true} {
		for _, prefix := range []string{"", hidden[:1]} {
			found, more, err := records.List(&store.ListRecords{
				Prefix: prefix, Descending: descending, Limit: 10, MaxBytes: 1 << 20,
			}, now, stored.ascend, stored.descend)
			if err != nil || more || len(found) > 1 || len(found) == 1 && found[0].GetKey() != " first" {
				t.Errorf("List(%q, %v) = %v, %v, %v, want no request", prefix, descending, found, more, err)
			}
		}
	}
	frames, omitted, err := records.Get(&store.GetRecords{Keys: []string{hidden, " first"}, MaxBytes: 1 << 20}, now,
		func(key string) ([]byte, error) { return stored[key], nil })
	if err != nil {
		t.Fatal(err)
	}
	if found, err := frames.Records(); err != nil || len(found) != 1 || len(omitted) > 0 {
		t.Errorf("Get = %v, %v, %v, want only the record", found, omitted, err)
	}
}

// TestDamagedList checks that a damaged record makes a read fail, and that a list of keys needs no values.
func TestDamagedList(t *testing.T) {
	b := marshal(t, &parleyv1.Record{Key: "k", Revision: 1, Value: []byte("value")})
	b[len(b)-1]++
	stored := values{"k": b}
	l := &store.ListRecords{Limit: 10, MaxBytes: 1 << 20}
	if found, _, err := records.List(l, time.Now(), stored.ascend, stored.descend); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("List = %v, %v, want ErrCorrupt", found, err)
	}
	if found, _, err := records.WithPrefixes([]string{""}, "c", stored.ascend); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("WithPrefixes = %v, %v, want ErrCorrupt", found, err)
	}
	l.KeysOnly = true
	if found, _, err := records.List(l, time.Now(), stored.ascend, stored.descend); err != nil || len(found) != 1 {
		t.Errorf("List of keys = %v, %v, want the key", found, err)
	}
	find := func(string) ([]byte, error) { return b, nil }
	if found, _, err := records.Get(&store.GetRecords{Keys: []string{"k"}}, time.Now(), find); err == nil {
		t.Errorf("Get = %v, want an error", found)
	}
}
