package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func (s Subject) law21Processes(t *testing.T) {
	if !s.Together {
		t.Skip("only one process may have this store open")
	}
	t.Run("writes are seen at once", s.processesSee)
	t.Run("one request at the same time", s.processesRequest)
	t.Run("appends at the same time", s.processesAppend)
	t.Run("creates at the capacity", s.processesCapacity)
	t.Run("changes of others", s.processesObserve)
	t.Run("turns", s.processesTurns)
	t.Run("holds", s.processesHolds)
	t.Run("records of the tenant", s.processesRecords)
}

// processes opens the same new store n times. They share the clock; each has an observer.
func (s Subject) processes(t *testing.T, n int, edit func(*store.Options)) []*fixture {
	t.Helper()
	all := []*fixture{s.open(t, edit)}
	for range n - 1 {
		f := *all[0]
		f.observer, f.known = &observer{t: t}, map[string]store.Known{}
		f.options.Observe = f.observer.observe
		f.store = s.Open(t, f.dir, f.options)
		t.Cleanup(func() {
			if err := f.store.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
		all = append(all, &f)
	}
	return all
}

// processesSee checks that each process sees what the others have written.
func (s Subject) processesSee(t *testing.T) {
	all := s.processes(t, 3, nil)
	for i := range 30 {
		writer, reader := all[i%3], all[(i+1)%3]
		writer.append("a", user(fmt.Sprint(i)))
		if m := reader.messages("a"); m[len(m)-1].GetContent() != fmt.Sprint(i) {
			t.Fatalf("after message %d another process reads %q", i, m[len(m)-1].GetContent())
		}
		same(t, "list", reader.pages(store.List{PageSize: 10}), [][]string{{"a"}})
		same(t, "counts", reader.tenantStats(tenant), writer.tenantStats(tenant))
	}
	all[1].do(&store.Delete{ConversationID: "a"})
	all[2].missing("a")
	all[0].expectError(&store.Append{ConversationID: "a", MustExist: true, Messages: []*parleyv1.Message{user("late")}},
		store.ErrNotFound)
}

// together calls do for each of n numbers at the same time, and waits.
func together(n int, do func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { do(i) })
	}
	group.Wait()
}

// processesRequest sends the same requests to two processes at the same time.
func (s Subject) processesRequest(t *testing.T) {
	all := s.processes(t, 2, nil)
	const requests = 20
	together(requests, func(i int) {
		results := make([]*store.Result, len(all))
		together(len(all), func(process int) {
			result, err := all[process].store.Append(t.Context(), &store.Append{
				Tenant: tenant, ConversationID: fmt.Sprint("c", i%4), Messages: []*parleyv1.Message{user(fmt.Sprint(i))},
				Request: request(fmt.Sprint("r", i), ""),
			})
			if err != nil {
				t.Errorf("append %d: %v", i, err)
				return
			}
			results[process] = result
		})
		if t.Failed() {
			return
		}
		if results[0].Replayed == results[1].Replayed {
			t.Errorf("request %d: Replayed is %t in both processes", i, results[0].Replayed)
		}
		if a, b := results[0].Appended[0].GetSequence(), results[1].Appended[0].GetSequence(); a != b {
			t.Errorf("request %d has the sequences %d and %d", i, a, b)
		}
	})
	if n := all[0].stats().Messages; n != requests {
		t.Errorf("%d messages of %d requests", n, requests)
	}
	all[1].consistent()
}

// processesAppend appends to few conversations from three processes at the same time.
func (s Subject) processesAppend(t *testing.T) {
	all := s.processes(t, 3, func(o *store.Options) { o.MaxMessages = 1000 })
	const callers, each = 12, 20
	together(callers, func(caller int) {
		f, last := all[caller%3], int32(0)
		for i := range each {
			id := fmt.Sprint("c", (caller+i)%3)
			result, err := f.store.Append(t.Context(), &store.Append{
				Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{user("q"), assistant("a")},
			})
			if err != nil {
				t.Error(err)
				return
			}
			if first := result.Appended[0].GetSequence(); result.Appended[1].GetSequence() != first+1 {
				t.Errorf("%s: the sequences of a batch are %v", id, result.Appended)
			} else {
				last = max(last, first)
			}
		}
	})
	total := 0
	for _, snapshot := range all[0].all() {
		messages, err := snapshot.Messages.Messages()
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range messages {
			if m.GetSequence() != int32(i+1) {
				t.Fatalf("message %d has sequence %d", i, m.GetSequence())
			}
		}
		total += len(messages)
	}
	if total != 2*callers*each {
		t.Errorf("%d messages, want %d", total, 2*callers*each)
	}
	all[2].consistent()
}

// processesCapacity creates conversations in two processes at the same time while the tenant is at its capacity.
func (s Subject) processesCapacity(t *testing.T) {
	const capacity = 10
	all := s.processes(t, 2, func(o *store.Options) { o.MaxConversations = capacity })
	together(60, func(i int) {
		f := all[i%2]
		if _, err := f.store.Create(t.Context(), &store.Create{
			Tenant: tenant, Conversation: &parleyv1.Conversation{Id: fmt.Sprint("c", i)},
		}); err != nil {
			t.Error(err)
		}
		most := int64(s.lanes() * s.share(capacity))
		if stats, err := f.store.TenantStats(t.Context(), tenant); err != nil || stats.Conversations > most {
			t.Errorf("%d conversations, %v, want at most %d", stats.Conversations, err, most)
		}
	})
	all[0].settle()
	if n := all[0].stats().Conversations; n != capacity {
		t.Errorf("%d conversations, want %d", n, capacity)
	}
	if a, b := all[0].stats(), all[1].stats(); a.Evicted+b.Evicted != 50 {
		t.Errorf("the processes count %d and %d evictions, want 50 together", a.Evicted, b.Evicted)
	}
}

// await waits until the observer has n changes, and returns them.
func (o *observer) await(t *testing.T, n int) []store.Change {
	t.Helper()
	arrived := make(chan struct{}, 1)
	o.setCallback(func([]store.Change) {
		select {
		case arrived <- struct{}{}:
		default:
		}
	})
	defer o.setCallback(nil)
	var changes []store.Change
	for {
		changes = append(changes, o.drain()...)
		if len(changes) >= n {
			return changes
		}
		select {
		case <-arrived:
		case <-time.After(time.Minute):
			t.Fatalf("%d changes after a minute, want %d: %v", len(changes), n, summaries(changes))
		}
	}
}

// processesObserve checks that each process observes the changes of all, its own without Elsewhere.
func (s Subject) processesObserve(t *testing.T) {
	all := s.processes(t, 2, func(o *store.Options) { o.MaxConversations = 3 })
	f, other := all[0], all[1]
	f.create("a")
	f.append("a", user("one"), assistant("two", "list"))
	f.append("long", slices.Repeat([]*parleyv1.Message{user("many")}, 25)...) // 5 are dropped at once.
	f.do(&store.Update{ConversationID: "a", Values: &parleyv1.Conversation{Title: "title"}, Fields: []string{"title"}})
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(1))})
	f.do(&store.Append{ConversationID: "a", ReplaceAfter: new(int32), Messages: []*parleyv1.Message{user("new")}})
	f.writeRecords("a", &parleyv1.RecordWrite{Key: "k", Value: []byte("v")})
	f.do(f.newImport("imported", time.Minute))
	f.create("evicts a")
	f.hold("evicts a")
	f.release(0, "evicts a")
	f.do(&store.Delete{ConversationID: "long"})
	f.clock.Advance(24 * time.Hour)
	f.sweep()
	own := f.observer.drain()
	heard := other.observer.await(t, len(own))
	for i := range heard {
		if !heard[i].Elsewhere || i < len(own) && own[i].Elsewhere {
			t.Errorf("Elsewhere of %s is %t, and %t in the process that wrote", summaries(heard[i:i+1]), heard[i].Elsewhere,
				own[i].Elsewhere)
		}
		heard[i].Elsewhere = false
	}
	byLane := func(a, b store.Change) int { return s.lane(a.ConversationID) - s.lane(b.ConversationID) }
	slices.SortStableFunc(heard, byLane)
	slices.SortStableFunc(own, byLane)
	same(t, "changes in another process", heard, own)
	if kinds := len(own); kinds < 30 {
		t.Errorf("only %d changes", kinds)
	}
}

// processesTurns ends turns of another process.
func (s Subject) processesTurns(t *testing.T) {
	all := s.processes(t, 3, nil)
	f, other := all[0], all[1]
	f.beginTurn("a", "turn of a")
	f.beginTurn("b", "turn of b")
	other.beginTurn("c", "turn of c")
	f.abandoned(nil) // All processes have leases.
	other.abandoned(nil)
	if err := f.save("a", "turn of a", nil, "so far"); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	want := []store.Progress{
		{ConversationID: "a", TurnID: "turn of a", Messages: []*parleyv1.Message{assistant("so far", "partial")}},
		{ConversationID: "b", TurnID: "turn of b"},
	}
	other.abandoned(want)
	all[2].abandoned(want)
	other.interrupt(&want[0])
	all[2].abandoned(want[1:])

	// What the first process would still write of its turn is refused.
	late := all[2]
	late.expectError(&store.Append{
		ConversationID: "a", Messages: []*parleyv1.Message{assistant("late")},
		End: &parleyv1.Turn{Id: "turn of a", State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	}, store.ErrTurnEnded)
	if err := late.save("a", "turn of a", nil, "late"); !errorIs(err, store.ErrTurnEnded) {
		t.Errorf("SaveProgress of a turn that another process has ended = %v, want ErrTurnEnded", err)
	}
	late.beginTurn("a", "next turn")
	other.abandoned(want[1:])
}

// processesHolds holds ids in two processes and ends one of them.
func (s Subject) processesHolds(t *testing.T) {
	all := s.processes(t, 2, nil)
	f, other := all[0], all[1]
	for _, id := range []string{"both", "first", "second"} {
		f.create(id)
	}
	f.holdFor(time.Hour, "both", "first")
	other.holdFor(time.Hour, "both", "second")
	other.release(0, "first") // It does not hold it, so this call has no effect.
	f.clock.Advance(30 * time.Hour)
	other.sweep()
	for _, id := range []string{"both", "first", "second"} {
		other.visible(id)
	}
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	other.sweep()
	other.visible("first")
	other.clock.Advance(time.Hour)
	other.invisible("first")
	other.visible("both")
	other.visible("second")
	other.sweep()
	other.release(0, "both")
	other.invisible("both")
}

// processesRecords writes records of the tenant in three processes at the same time.
func (s Subject) processesRecords(t *testing.T) {
	all := s.processes(t, 3, nil)
	const callers, each = 9, 15
	revisions := make([][]int64, callers)
	together(callers, func(caller int) {
		for i := range each {
			written, err := all[caller%3].store.WriteRecords(t.Context(), &store.WriteRecords{
				Tenant: tenant, Writes: []*parleyv1.RecordWrite{{Key: fmt.Sprint("k", (caller+i)%5), Value: []byte("v")}},
			})
			if err != nil {
				t.Error(err)
				return
			}
			revisions[caller] = append(revisions[caller], written.TenantRevision)
		}
	})
	got := slices.Concat(revisions...)
	slices.Sort(got)
	for i, revision := range got {
		if revision != int64(i+1) {
			t.Fatalf("revision %d of %d is %d: each is used once", i, len(got), revision)
		}
	}
	if n := all[0].tenantStats(tenant).Records; n != 5 {
		t.Errorf("%d records, want 5", n)
	}
}
