package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// record returns the piece of a record.
func record(w *parleyv1.RecordWrite) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Record{Record: w}}
}

func putRecord(key, value string) *parleyv1.RespondResponse {
	return record(&parleyv1.RecordWrite{Key: key, Value: []byte(value)})
}

func atRevision(revision int64, w *parleyv1.RecordWrite) *parleyv1.RecordWrite {
	w.IfRevision = &revision
	return w
}

// records returns the records of conversation c, or of the tenant if id is empty, as "key@revision value".
func (f *fixture) records(t *testing.T, id string) []string {
	t.Helper()
	records, _, err := f.store.ListRecords(t.Context(), &store.ListRecords{
		Tenant: tenant, ConversationID: id, Limit: 1000, MaxBytes: 1 << 20,
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	var all []string
	for _, r := range records {
		all = append(all, fmt.Sprintf("%s@%d %s", r.GetKey(), r.GetRevision(), r.GetValue()))
	}
	return all
}

// newRecordsFixture returns a manager whose agent answers with these pieces, on a store with limits.
func newRecordsFixture(t *testing.T, o store.Options, pieces ...*parleyv1.RespondResponse) *fixture {
	t.Helper()
	s := memstore.New(o)
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(pieces...)}, func(o *Options) { o.Store = s })
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	f.store = s
	return f
}

// TestAnswerRecords: the records of an answer are written in its commit, the last write of each. Readers receive their
// keys.
func TestAnswerRecords(t *testing.T) {
	f := newRecordsFixture(t, store.Options{},
		putRecord("a", "old"), text("hel"), putRecord("b", "1"),
		record(&parleyv1.RecordWrite{Key: "a", Value: []byte("tenant"), TenantScope: true}), text("lo"),
		record(&parleyv1.RecordWrite{Key: "gone", Delete: true}), putRecord("a", "new"))
	all := collect(t, f.chat(t, &parleyv1.ChatRequest{
		ConversationId: "c", Content: "q", Records: []*parleyv1.RecordWrite{{Key: "gone", Value: []byte("1")}},
	}))
	var got []string
	for _, e := range all {
		if r := e.GetRecord(); r != nil {
			got = append(got, fmt.Sprintf("%s deleted=%t tenant=%t", r.GetKey(), r.GetDeleted(), r.GetTenantScope()))
		}
	}
	if diff := cmp.Diff([]string{
		"a deleted=false tenant=false", "b deleted=false tenant=false", "a deleted=false tenant=true",
		"gone deleted=true tenant=false", "a deleted=false tenant=false",
	}, got); diff != "" {
		t.Errorf("record events (-want +got):\n%s", diff)
	}
	end := all[len(all)-1].GetFinished()
	if state := stateName(end.GetTurn().GetState()); state != "COMPLETED" || end.GetConversationVersion() != 2 ||
		end.GetMessages()[0].GetContent() != "hello" {
		t.Errorf("finished = %v, want COMPLETED with hello at version 2", end)
	}
	if diff := cmp.Diff([]string{"a@2 new", "b@2 1"}, f.records(t, "c")); diff != "" {
		t.Errorf("records of the conversation (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a@1 tenant"}, f.records(t, "")); diff != "" {
		t.Errorf("records of the tenant (-want +got):\n%s", diff)
	}
	// A replay from the store has no events of records. A reader may resume after any of them that is not within the text.
	f.releaseAll()
	for _, after := range []*parleyv1.TurnEvent{{}, all[0], all[1], all[len(all)-3], all[len(all)-2]} {
		var last *parleyv1.TurnEvent
		for e, err := range f.Resume(t.Context(), tenant, "c", "", after.GetIndex()) {
			if last = e; err != nil || e.GetRecord() != nil || e.GetIndex() <= after.GetIndex() {
				t.Errorf("Resume after %d = %v, %v, want no record", after.GetIndex(), e, err)
			}
		}
		if last.GetFinished() == nil {
			t.Errorf("Resume after %d ends with %v, want finished", after.GetIndex(), last)
		}
	}
}

// TestAnswerOfRecordsOnly: an answer may consist of records, also for a call that waits for its result.
func TestAnswerOfRecordsOnly(t *testing.T) {
	f := newRecordsFixture(t, store.Options{}, putRecord("a", "1"))
	if end := readFinished(t, f.chat(t, chatRequest("q", 0))); stateName(end.GetTurn().GetState()) != "COMPLETED" {
		t.Errorf("finished = %v, want COMPLETED", end)
	}
	if diff := cmp.Diff([]string{"a@2 1"}, f.records(t, "c")); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	f = newRecordsFixture(t, store.Options{}, putRecord("a", "1"), call("1"))
	if end := readFinished(t, f.chat(t, chatRequest("q", 0))); stateName(end.GetTurn().GetState()) != "INPUT_REQUIRED" {
		t.Errorf("finished = %v, want INPUT_REQUIRED", end)
	}
	if diff := cmp.Diff([]string{"a@2 1"}, f.records(t, "c")); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// TestRefusedRecords: if the store refuses the records of an answer, the turn fails, and its answer is stored as
// incomplete without any of them.
func TestRefusedRecords(t *testing.T) {
	tooLarge := putRecord("large", strings.Repeat("x", 100))
	tests := []struct {
		name   string
		o      store.Options
		pieces []*parleyv1.RespondResponse
		reason string
	}{
		{
			"revision",
			store.Options{},
			[]*parleyv1.RespondResponse{putRecord("a", "1"), record(atRevision(7, &parleyv1.RecordWrite{Key: "b"}))},
			"REVISION_MISMATCH",
		},
		{
			"limit of the conversation",
			store.Options{MaxRecordBytes: 50 + 2*store.RecordOverhead},
			[]*parleyv1.RespondResponse{putRecord("a", "1"), tooLarge},
			"RECORDS_FULL",
		},
		{
			"limit of the tenant",
			store.Options{Limits: func(string) store.Limits { return store.Limits{MaxBytes: 1000} }},
			[]*parleyv1.RespondResponse{putRecord("a", "1"), putRecord("b", strings.Repeat("x", 2000))},
			"TENANT_BYTES",
		},
	}
	for _, test := range tests {
		f := newRecordsFixture(t, test.o, slices.Insert(slices.Clone(test.pieces), 1, text("answer"))...)
		end := readFinished(t, f.chat(t, chatRequest("q", 0)))
		turn := end.GetTurn()
		if stateName(turn.GetState()) != "FAILED" || turn.GetError().GetReason() != test.reason ||
			turn.GetError().GetMessage() == "" {
			t.Errorf("%s: turn = %v, want FAILED, %s", test.name, turn, test.reason)
		}
		want := []string{"user: q", "assistant: answer …"}
		if diff := cmp.Diff(want, f.stored(t)); diff != "" {
			t.Errorf("%s: stored messages (-want +got):\n%s", test.name, diff)
		}
		if diff := cmp.Diff(want[1:], describeMessages(end.GetMessages())); diff != "" {
			t.Errorf("%s: messages of the finished event (-want +got):\n%s", test.name, diff)
		}
		if got := f.records(t, "c"); len(got) > 0 {
			t.Errorf("%s: records = %v, want none", test.name, got)
		}
		if _, err := f.tryChat(t, chatRequest("again", 0), nil); err != nil {
			t.Errorf("%s: next Chat = %v, want the conversation free", test.name, err)
		}
	}
}

// TestRecordsOnAFullDisk: if the disk is full, the answer is stored without its records. The store has a reserve
// for answers, but not for records.
func TestRecordsOnAFullDisk(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("answer"), putRecord("a", "1"))},
		func(o *Options) { o.Store = &reserveStore{o.Store} })
	end := readFinished(t, f.chat(t, chatRequest("q", 0)))
	if turn := end.GetTurn(); stateName(turn.GetState()) != "FAILED" || turn.GetError().GetReason() != "STORE_FULL" {
		t.Errorf("turn = %v, want FAILED, STORE_FULL", turn)
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: answer …"}, f.stored(t)); diff != "" {
		t.Errorf("stored messages (-want +got):\n%s", diff)
	}
	if got := f.records(t, "c"); len(got) > 0 {
		t.Errorf("records = %v, want none", got)
	}
}

// reserveStore is a store whose disk has space for the ends of turns only, without records.
type reserveStore struct{ store.Store }

func (r *reserveStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.End != nil && len(a.Records) > 0 {
		return nil, store.ErrNoSpace
	}
	return r.Store.Append(ctx, a)
}

// TestRecordsOfOtherEnds: a turn that fails writes no records.
func TestRecordsOfOtherEnds(t *testing.T) {
	manyRecords := []*parleyv1.RespondResponse{}
	for i := range 101 {
		manyRecords = append(manyRecords, putRecord(fmt.Sprint("k", i), ""))
	}
	for want, pieces := range map[string][]*parleyv1.RespondResponse{
		"an answer has at most 100 different records": manyRecords,
		"record.key: must have":                       {putRecord("a", "1"), putRecord("", "1")},
		"record.ttl: must not be set": {
			putRecord("a", "1"), record(&parleyv1.RecordWrite{Key: "b", Ttl: durationpb.New(1e9)}),
		},
		"record.delete: must not be set": {
			putRecord("a", "1"), record(&parleyv1.RecordWrite{Key: "b", Delete: true, Value: []byte("x")}),
		},
		"is larger than 1048576 bytes": {
			putRecord("a", strings.Repeat("x", 600<<10)), putRecord("b", strings.Repeat("x", 600<<10)),
		},
	} {
		f := newRecordsFixture(t, store.Options{}, slices.Insert(pieces, 0, text("answer"))...)
		turn := readFinished(t, f.chat(t, chatRequest("q", 0))).GetTurn()
		if message := turn.GetError().GetMessage(); stateName(turn.GetState()) != "FAILED" || !strings.Contains(message, want) {
			t.Errorf("turn = %v, want FAILED: %s", turn, want)
		}
		if diff := cmp.Diff([]string{"user: q", "assistant: answer …"}, f.stored(t)); diff != "" {
			t.Errorf("%s: stored messages (-want +got):\n%s", want, diff)
		}
		if got := f.records(t, "c"); len(got) > 0 {
			t.Errorf("%s: records = %.200v, want none", want, got)
		}
	}
	// Writes of one record count once, and only the last one counts towards the limit.
	var same []*parleyv1.RespondResponse
	for range 101 {
		same = append(same, putRecord("a", strings.Repeat("x", 600<<10)))
	}
	f := newRecordsFixture(t, store.Options{}, same...)
	if end := readFinished(t, f.chat(t, chatRequest("q", 0))); stateName(end.GetTurn().GetState()) != "COMPLETED" {
		t.Errorf("turn with one record = %v, want COMPLETED", end.GetTurn())
	}
}

// TestInterruptWithTooManyRecords: a request whose records would be too large does not interrupt the running turn. What
// it replaces and deletes counts.
func TestInterruptWithTooManyRecords(t *testing.T) {
	sent := make(chan struct{})
	limited := memstore.New(store.Options{MaxRecordBytes: 1500})
	f := newFixture(t, map[string]agent.Agent{"main": hangAfter("half", sent)}, func(o *Options) {
		o.Store, o.MaxRecordBytes = limited, 1500
	})
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	f.store = limited
	value := func(size int) []byte { return make([]byte, size) }
	running := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", Records: []*parleyv1.RecordWrite{
		{Key: "a", Value: value(400)}, {Key: "b", Value: value(400)},
	}})
	<-sent
	interrupt := func(writes ...*parleyv1.RecordWrite) error {
		_, err := f.tryChat(t, &parleyv1.ChatRequest{
			ConversationId: "c", Content: "now", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT, Records: writes,
		}, nil)
		return err
	}
	var full *store.RecordsFullError
	if err := interrupt(&parleyv1.RecordWrite{Key: "c", Value: value(400)}); !errors.As(err, &full) || full.Bytes != 1587 {
		t.Errorf("Chat with too many records = %v, want RecordsFullError with 1587 bytes", err)
	}
	if f.Running() != 1 || f.Waiting() != 0 {
		t.Fatalf("%d turns run, %d wait, want the first one only", f.Running(), f.Waiting())
	}
	queued := make(chan error, 1)
	go func() {
		queued <- interrupt(
			&parleyv1.RecordWrite{Key: "c", Value: value(400)}, &parleyv1.RecordWrite{Key: "a", Delete: true},
			&parleyv1.RecordWrite{Key: "b", Value: value(500)},
			&parleyv1.RecordWrite{Key: "large", Value: value(2000), TenantScope: true},
		)
	}()
	if end := readFinished(t, running); stateName(end.GetTurn().GetState()) != "INTERRUPTED" {
		t.Errorf("first turn = %v, want INTERRUPTED", end.GetTurn())
	}
	<-sent
	if err := <-queued; err != nil {
		t.Fatal(err)
	}
}

// recordReads is a store that counts the reads of records.
type recordReads struct {
	store.Store
	count int
}

func (r *recordReads) GetRecords(ctx context.Context, g *store.GetRecords) (store.RecordFrames, []string, error) {
	r.count++
	return r.Store.GetRecords(ctx, g)
}

func (r *recordReads) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	r.count++
	return r.Store.ListRecords(ctx, l)
}

// TestInterruptReadsRecordsOnce: the revisions of all records are checked with one read of each scope, unless the
// records are large.
func TestInterruptReadsRecordsOnce(t *testing.T) {
	for size, want := range map[int]int{1: 2, 1 << 20: 4} {
		sent := make(chan struct{})
		var reads *recordReads
		f := newFixture(t, map[string]agent.Agent{"main": hangAfter("half", sent)}, func(o *Options) {
			reads = &recordReads{Store: o.Store}
			o.Store = reads
		})
		var first, next []*parleyv1.RecordWrite
		for i := range 6 {
			first = append(first, &parleyv1.RecordWrite{Key: fmt.Sprint("k", i), Value: make([]byte, size)})
			next = append(next, atRevision(1, &parleyv1.RecordWrite{Key: fmt.Sprint("k", i)}))
		}
		next = append(next, atRevision(7, &parleyv1.RecordWrite{Key: "t", TenantScope: true}))
		f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", Records: first})
		<-sent
		_, err := f.tryChat(t, &parleyv1.ChatRequest{
			ConversationId: "c", Content: "now", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT, Records: next,
		}, nil)
		var mismatch *store.RevisionError
		if !errors.As(err, &mismatch) || mismatch.Key != "t" {
			t.Errorf("Chat = %v, want the RevisionError of t", err)
		}
		if reads.count > want {
			t.Errorf("6 records of %d bytes took %d reads, want at most %d", size, reads.count, want)
		}
	}
}

// TestInterruptWaitsForRecords: a request that requires a revision is checked after the start of a turn that waits to
// interrupt, since that one may change the record. It does not interrupt that turn in vain.
func TestInterruptWaitsForRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		stubborn := chatRequest("first", 0)
		stubborn.Metadata = ignoreCancel
		stubborn.Records = []*parleyv1.RecordWrite{{Key: "a"}}
		f.startChat(t, stubborn)
		writes := chatRequest("second", onBusyInterrupt)
		writes.Records = []*parleyv1.RecordWrite{{Key: "a", Value: []byte("2")}}
		second := f.startChat(t, writes)
		depends := chatRequest("third", onBusyInterrupt)
		depends.Records = []*parleyv1.RecordWrite{atRevision(1, &parleyv1.RecordWrite{Key: "a"})}
		third := f.startChat(t, depends)
		p.lastRun().complete()
		p.lastRun().sendText("second answers")
		var mismatch *store.RevisionError
		if !errors.As(third.err, &mismatch) || len(third.events) != 0 {
			t.Errorf("third Chat = %q, %v, want a RevisionError", third.received(), third.err)
		}
		if second.ended || second.err != nil {
			t.Errorf("second Chat = %q, %v, want it running", second.received(), second.err)
		}
	})
}

// TestInterruptWithRecords: a request whose records have other revisions does not interrupt the running turn.
func TestInterruptWithRecords(t *testing.T) {
	sent := make(chan struct{})
	f := newFixture(t, map[string]agent.Agent{"main": hangAfter("half", sent)}, nil)
	running := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", Records: []*parleyv1.RecordWrite{
		{Key: "a", Value: []byte("1")}, {Key: "ab", Value: []byte("1")}, {Key: "b", TenantScope: true},
	}})
	<-sent
	interrupt := func(w *parleyv1.RecordWrite) error {
		_, err := f.tryChat(t, &parleyv1.ChatRequest{
			ConversationId: "c", Content: "now", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT,
			Records: []*parleyv1.RecordWrite{w},
		}, nil)
		return err
	}
	for _, w := range []*parleyv1.RecordWrite{
		{Key: "a"}, {Key: "b", TenantScope: true}, {Key: "missing"}, {Key: "missing", TenantScope: true},
	} {
		var mismatch *store.RevisionError
		if err := interrupt(atRevision(7, w)); !errors.As(err, &mismatch) || mismatch.Key != w.GetKey() ||
			mismatch.TenantScope != w.GetTenantScope() {
			t.Errorf("Chat with %v = %v, want its RevisionError", w, err)
		}
	}
	if f.Running() != 1 || f.Waiting() != 0 {
		t.Fatalf("%d turns run, %d wait, want the first one only", f.Running(), f.Waiting())
	}
	queued := make(chan error, 1)
	go func() { queued <- interrupt(atRevision(1, &parleyv1.RecordWrite{Key: "a", Value: []byte("2")})) }()
	if end := readFinished(t, running); stateName(end.GetTurn().GetState()) != "INTERRUPTED" {
		t.Errorf("first turn = %v, want INTERRUPTED", end.GetTurn())
	}
	<-sent
	if err := <-queued; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a@3 2", "ab@1 1"}, f.records(t, "c")); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}
