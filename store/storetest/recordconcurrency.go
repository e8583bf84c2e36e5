package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law19Counters increments counters in records from many goroutines, with if_revision. No increment may be lost.
func (s Subject) law19Counters(t *testing.T) {
	const workers, increments = 8, 10
	f := s.open(t, nil)
	f.create("c")
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range increments {
				increment(f, "c")
				increment(f, "")
			}
		})
	}
	group.Wait()
	for _, id := range []string{"c", ""} {
		if got := string(f.get(id, "n")[0].GetValue()); got != strconv.Itoa(workers*increments) {
			t.Errorf("counter of %q = %s, want %d", id, got, workers*increments)
		}
	}
}

// increment increments the counter of a scope. It may be called from any goroutine.
func increment(f *fixture, id string) {
	for {
		found, _, err := getRecords(f.t.Context(), f.store, &store.GetRecords{
			Tenant: tenant, ConversationID: id, Keys: []string{"n"}, MaxBytes: allBytes,
		})
		if err != nil {
			f.t.Errorf("GetRecords: %v", err)
			return
		}
		n, revision := 0, int64(0)
		if len(found) > 0 {
			n, _ = strconv.Atoi(string(found[0].GetValue()))
			revision = found[0].GetRevision()
		}
		_, err = f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
			Tenant: tenant, ConversationID: id, Writes: []*parleyv1.RecordWrite{
				ifRevision(put("n", strconv.Itoa(n+1)), revision),
			},
		})
		var refused *store.RevisionError
		if err == nil || !errors.As(err, &refused) {
			if err != nil {
				f.t.Errorf("WriteRecords: %v", err)
			}
			return
		}
	}
}

// law19TogetherRead appends messages with a record of the same number in both scopes, while readers compare them. A
// reader must see a message exactly if it sees its record, and the version of the read must be that of the record.
func (s Subject) law19TogetherRead(t *testing.T) {
	const appends = 300
	f := s.open(t, nil)
	f.create("c")
	done := make(chan struct{})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for {
				compareTogether(f)
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range appends {
		number := fmt.Sprint(i + 1)
		_, err := f.store.Append(t.Context(), &store.Append{
			Tenant: tenant, ConversationID: "c", Messages: []*parleyv1.Message{user(number)},
			Records: []*parleyv1.RecordWrite{put("n", number), ofTenant(put("n", number)), ofTenant(put("m", number))},
		})
		if err != nil {
			t.Errorf("Append: %v", err)
		}
	}
	close(done)
	group.Wait()
	f.wantRecords("c", fmt.Sprintf("n=%d@%d", appends, appends+1))
	f.wantRecords("", fmt.Sprintf("m=%d@%d", appends, appends), fmt.Sprintf("n=%d@%d", appends, appends))
}

// compareTogether makes the comparisons of one reader of law19TogetherRead.
func compareTogether(f *fixture) {
	read := func(g store.GetRecords) []*parleyv1.Record {
		g.Tenant, g.MaxBytes = tenant, allBytes
		found, _, err := getRecords(f.t.Context(), f.store, &g)
		if err != nil {
			f.t.Errorf("GetRecords: %v", err)
		}
		return found
	}
	number := func(r []*parleyv1.Record) int {
		n := 0
		if len(r) > 0 {
			n, _ = strconv.Atoi(string(r[0].GetValue()))
		}
		return n
	}
	before := number(read(store.GetRecords{Keys: []string{"m"}}))
	snapshot, err := f.store.Read(f.t.Context(), &store.Read{
		Tenant: tenant, ConversationID: "c", Newest: 1, RecordPrefixes: []string{"n"},
	})
	if err != nil {
		f.t.Errorf("Read: %v", err)
		return
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		f.t.Errorf("Read: %v", err)
		return
	}
	n, version := number(snapshot.Records), int64(snapshot.Conversation.GetVersion())
	if n > 0 && (len(messages) != 1 || messages[0].GetContent() != strconv.Itoa(n) ||
		snapshot.Records[0].GetRevision() != version) || n == 0 && len(messages) > 0 {
		f.t.Errorf("Read at version %d = %v and %v, want a message and its record", version, messages, snapshot.Records)
	}
	common := read(store.GetRecords{Keys: []string{"m", "n"}})
	if after := number(common); n < before || after < n || len(common) == 2 && number(common[1:]) != after {
		f.t.Errorf("records of the tenant = %d, then record of the conversation = %d, then %v", before, n, shown(common))
	}
}

// law19TenantRevisions writes records of the tenant from many goroutines, alone and together with messages and records
// of different conversations. Each write must have a revision of its own, and together they are 1, 2, 3 and so on.
func (s Subject) law19TenantRevisions(t *testing.T) {
	const workers, writes = 8, 50
	f := s.open(t, nil)
	revisions := make([][]int64, workers)
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			id := fmt.Sprint("c", worker)
			for i := range writes {
				batch := []*parleyv1.RecordWrite{ofTenant(put(fmt.Sprint(id, "/", i), "v")), ofTenant(put("shared", id))}
				got, err := s.writeTogether(f, id, i, batch)
				if err != nil {
					t.Errorf("write %d of %s: %v", i, id, err)
					return
				}
				revisions[worker] = append(revisions[worker], got)
			}
		})
	}
	group.Wait()
	all := slices.Concat(revisions...)
	slices.Sort(all)
	for i, revision := range all {
		if revision != int64(i)+1 {
			t.Fatalf("revisions = %v, want each number once", all)
		}
	}
	for worker := range workers {
		for i := range writes {
			key := fmt.Sprint("c", worker, "/", i)
			if r := f.get("", key)[0]; r.GetRevision() != revisions[worker][i] {
				t.Errorf("record %s = %v, want revision %d", key, r, revisions[worker][i])
			}
		}
	}
	if r := f.get("", "shared")[0]; r.GetRevision() != workers*writes {
		t.Errorf("record of all = %v, want the last revision", r)
	}
	f.consistent()
}

// writeTogether writes a batch with a message, with a record of a conversation, or alone, as i says. It returns the
// revision of the tenant.
func (s Subject) writeTogether(f *fixture, id string, i int, batch []*parleyv1.RecordWrite) (int64, error) {
	if i%3 == 0 {
		result, err := f.store.Append(f.t.Context(), &store.Append{
			Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{user("hello")}, Records: batch,
		})
		if err != nil {
			return 0, err
		}
		return result.TenantRevision, nil
	}
	w := &store.WriteRecords{Tenant: tenant, Writes: batch}
	if i%3 == 1 {
		w.ConversationID, w.Writes = id, append(w.Writes, put("own", fmt.Sprint(i)))
	}
	written, err := f.store.WriteRecords(f.t.Context(), w)
	if err != nil {
		return 0, err
	}
	return written.TenantRevision, nil
}

// law19SameRequest sends the same request from many goroutines. It must be applied once.
func (s Subject) law19SameRequest(t *testing.T) {
	f := s.open(t, nil)
	f.create("c")
	for i := range int64(50) {
		for n, id := range []string{"c", ""} {
			written := sendTogether(f, id, request(fmt.Sprint("r", i), "content"))
			first := 0
			for _, w := range written {
				if w == nil || w.TenantRevision != 2*i+int64(n)+1 || id != "" && w.Revision != i+2 {
					t.Fatalf("WriteRecords %d of %q = %+v, want the revisions of the first", i, id, w)
				}
				if !w.Replayed {
					first++
				}
			}
			if first != 1 {
				t.Errorf("%d calls %d of %q were not replayed, want 1", first, i, id)
			}
		}
	}
}

// sendTogether sends the same request from many goroutines and returns the results.
func sendTogether(f *fixture, id string, q *store.Request) []*store.WrittenRecords {
	written, start := make([]*store.WrittenRecords, 8), make(chan struct{})
	var group sync.WaitGroup
	for i := range written {
		group.Go(func() {
			<-start
			var err error
			written[i], err = f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
				Tenant: tenant, ConversationID: id, Request: q,
				Writes: []*parleyv1.RecordWrite{put("a", "1"), ofTenant(put("b", "1"))},
			})
			if err != nil {
				f.t.Errorf("WriteRecords: %v", err)
			}
		})
	}
	close(start)
	group.Wait()
	return written
}
