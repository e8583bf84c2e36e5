package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law01Concurrency calls every method from many goroutines and checks that the remaining data is
// consistent.
func (s Subject) law01Concurrency(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 5 })
	f.clock.tick = time.Millisecond
	var group sync.WaitGroup
	for worker := range 16 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for range 40 {
				id, turn := fmt.Sprint("c", random.IntN(7)), fmt.Sprint("turn", random.IntN(3))
				calls := f.calls(id, turn)
				call := calls[random.IntN(len(calls))]
				if err := call.run(t.Context()); !expected(err) {
					t.Errorf("%s: %v", call.name, err)
				}
			}
		})
	}
	group.Wait()
	f.consistent()
}

// expected reports whether a call may return err while other calls run.
func expected(err error) bool {
	var busy *store.BusyError
	var version *store.VersionError
	return err == nil || errors.As(err, &busy) || errors.As(err, &version) ||
		errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrTurnEnded) ||
		errors.Is(err, store.ErrConversationExists) || errors.Is(err, store.ErrFull)
}

// consistent checks that the parts of each conversation match each other, and that the counts match
// the conversations. No conversation may have been cleared or have expired.
func (f *fixture) consistent() {
	f.t.Helper()
	var messages int64
	all := f.all()
	for id, snapshot := range all {
		c := snapshot.Conversation
		if n := snapshot.Messages.Count(); int(c.GetMessageCount()) != n || int(c.GetSizeBytes()) != len(snapshot.Messages) {
			f.t.Errorf("%s: header has %d messages and %d bytes, want %d and %d",
				id, c.GetMessageCount(), c.GetSizeBytes(), n, len(snapshot.Messages))
		}
		sequence := c.GetLastSequence() - c.GetMessageCount()
		for frame := range snapshot.Messages.All() {
			sequence++
			if frame.Sequence() != sequence {
				f.t.Errorf("%s: sequence = %d, want %d", id, frame.Sequence(), sequence)
			}
		}
		messages += int64(c.GetMessageCount())
	}
	f.consistentRecords(all)
	if stats := f.stats(); stats.Conversations != int64(len(all)) || stats.Messages != messages {
		f.t.Errorf("Stats() = %d conversations and %d messages, want %d and %d",
			stats.Conversations, stats.Messages, len(all), messages)
	}
}

// consistentRecords checks that the counts match the records of conversations and of the tenant.
func (f *fixture) consistentRecords(all map[string]*store.Snapshot) {
	f.t.Helper()
	total, totalBytes := 0, int64(0)
	count := func(id string) (n int, size int64) {
		for _, r := range f.records(id) {
			n, size = n+1, size+store.RecordBytes(r)
		}
		total, totalBytes = total+n, totalBytes+size
		return n, size
	}
	for id, snapshot := range all {
		c := snapshot.Conversation
		if n, size := count(id); int(c.GetRecordCount()) != n || c.GetRecordBytes() != size {
			f.t.Errorf("%s: header has %d records and %d bytes of them, want %d and %d", id, c.GetRecordCount(),
				c.GetRecordBytes(), n, size)
		}
	}
	count("")
	if stats := f.stats(); stats.Records != int64(total) || stats.RecordBytes != totalBytes {
		f.t.Errorf("Stats() = %d records with %d bytes, want %d and %d", stats.Records, stats.RecordBytes, total, totalBytes)
	}
}

// law06Order writes to one conversation from many goroutines.
func (s Subject) law06Order(t *testing.T) {
	const writers, writes, batch = 8, 20, 3
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 1000 })
	results := make([]*store.Result, writers*writes)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range writes {
				n := w*writes + i
				results[n] = s.appendAndRead(f, fmt.Sprint("batch", n), batch)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	slices.SortFunc(results, func(a, b *store.Result) int {
		return int(a.Conversation.GetVersion() - b.Conversation.GetVersion())
	})
	sequence := int32(0)
	for i, result := range results {
		if v := result.Conversation.GetVersion(); v != int32(i)+1 {
			t.Fatalf("write %d: version = %d, want the same number", i+1, v)
		}
		if result.Created != (i == 0) {
			t.Errorf("write %d: Created = %t", i+1, result.Created)
		}
		for _, a := range result.Appended {
			sequence++
			if a.GetSequence() != sequence {
				t.Errorf("version %d: sequence = %d, want %d", i+1, a.GetSequence(), sequence)
			}
		}
	}
	messages := f.messages("one")
	if len(messages) != writers*writes*batch {
		t.Fatalf("Read returned %d messages, want %d", len(messages), writers*writes*batch)
	}
	for i := range results {
		text := messages[i*batch].GetContent()
		for _, m := range messages[i*batch : (i+1)*batch] {
			if m.GetContent() != text {
				t.Errorf("a message of batch %s is within batch %s", m.GetContent(), text)
			}
		}
	}
}

// appendAndRead appends a batch and checks that a read returns it. It may be called from any
// goroutine.
func (s Subject) appendAndRead(f *fixture, text string, batch int) *store.Result {
	messages := slices.Repeat([]*parleyv1.Message{user(text)}, batch)
	result, err := f.store.Append(f.t.Context(), &store.Append{Tenant: tenant, ConversationID: "one", Messages: messages})
	if err != nil {
		f.t.Errorf("Append: %v", err)
		return nil
	}
	snapshot, err := f.store.Read(f.t.Context(), &store.Read{Tenant: tenant, ConversationID: "one", Newest: -1})
	if err != nil {
		f.t.Errorf("Read: %v", err)
		return nil
	}
	c := snapshot.Conversation
	if c.GetVersion() < result.Conversation.GetVersion() {
		f.t.Errorf("Read returned version %d after version %d was written", c.GetVersion(), result.Conversation.GetVersion())
	}
	if n := snapshot.Messages.Count(); n != int(c.GetMessageCount()) || n != int(c.GetVersion())*batch {
		f.t.Errorf("version %d has %d messages, its header says %d", c.GetVersion(), n, c.GetMessageCount())
	}
	return result
}

// law09Requests sends the same request from 64 goroutines at the same time.
func (s Subject) law09Requests(t *testing.T) {
	question := func(int) any {
		return &store.Append{
			Tenant: tenant, ConversationID: "appended", Messages: []*parleyv1.Message{user("question"), user("more")},
			Request: request("same", "question"), Begin: &parleyv1.Turn{Id: "turn", RequestId: "same"},
		}
	}
	for _, test := range []struct {
		name, id string
		write    func(caller int) any
	}{
		{"Append", "appended", question},
		{"Create", "created", func(int) any {
			return &store.Create{
				Tenant: tenant, Conversation: &parleyv1.Conversation{Id: "created"}, Request: request("same", ""),
			}
		}},
		{"OrGet", "got", func(int) any {
			return &store.Create{
				Tenant: tenant, Conversation: &parleyv1.Conversation{Id: "got"}, Request: request("same", ""), OrGet: true,
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := s.open(t, nil)
			f.clock.tick = time.Millisecond
			results := f.concurrently(64, test.write)
			first := slices.IndexFunc(results, func(r *store.Result) bool { return !r.Replayed })
			if first < 0 {
				t.Fatal("all callers got a replayed result, want one that wrote")
			}
			for i, r := range results {
				if i != first && !r.Replayed {
					t.Errorf("callers %d and %d both wrote", first, i)
				}
				r.Replayed = results[first].Replayed
				same(t, "result of a retry", r, results[first])
			}
			if v := f.header(test.id).GetVersion(); v != 1 {
				t.Errorf("version = %d, want 1", v)
			}
			if created := slices.DeleteFunc(f.observer.drain(),
				func(c store.Change) bool { return c.Kind != parleyv1.ChangeKind_CHANGE_KIND_CREATED }); len(created) != 1 {
				t.Errorf("%d CREATED changes, want 1", len(created))
			}
		})
	}
}

// concurrently makes n writes at the same time.
func (f *fixture) concurrently(n int, write func(caller int) any) []*store.Result {
	f.t.Helper()
	results := make([]*store.Result, n)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			<-start
			var err error
			if results[i], err = f.try(write(i)); err != nil {
				f.t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	close(start)
	group.Wait()
	if f.t.Failed() {
		f.t.FailNow()
	}
	return results
}
