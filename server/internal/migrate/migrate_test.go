package migrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/redisstore"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// filler fills a store.
type filler struct {
	*testing.T

	store store.Store
}

func (f filler) try(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f filler) append(a *store.Append, contents ...string) *store.Result {
	f.Helper()
	for _, content := range contents {
		m := &parleyv1.Message{Id: uuid.NewString(), Role: parleyv1.Role_ROLE_USER, Content: content}
		a.Messages = append(a.Messages, m)
	}
	result, err := f.store.Append(f.Context(), a)
	f.try(err)
	return result
}

// request is a request that is stored with some writes and repeated after the migration.
func request(id, method string) *store.Request {
	return &store.Request{ID: id, Method: method, Digest: [32]byte{1}}
}

// turn begins a turn, and ends it if end is set.
func (f filler) turn(id string, end bool) string {
	f.Helper()
	turn, err := uuid.NewV7()
	f.try(err)
	f.append(&store.Append{
		Tenant: "acme", ConversationID: id, Begin: &parleyv1.Turn{Id: turn.String(), Agent: "echo"},
		Events: &storev1.TurnEvents{Started: 1},
	}, "question")
	if end {
		f.append(&store.Append{
			Tenant: "acme", ConversationID: id,
			End:    &parleyv1.Turn{Id: turn.String(), State: parleyv1.TurnState_TURN_STATE_COMPLETED},
			Events: &storev1.TurnEvents{Started: 1, Finished: 7},
		}, "answer")
	}
	return turn.String()
}

// fill stores what a migration must copy.
func (f filler) fill() {
	f.Helper()
	create := func(tenant, id string, r *parleyv1.Retention) {
		f.Helper()
		_, err := f.store.Create(f.Context(), &store.Create{
			Tenant: tenant, Request: request("create", "CreateConversation"), Conversation: &parleyv1.Conversation{
				Id: id, Title: "Title of " + id, Labels: map[string]string{"a": "b"}, SystemPrompt: "Be brief.", Retention: r,
			},
		})
		f.try(err)
	}
	for i := range 300 { // more than a page, with the same create time
		f.append(&store.Append{
			Tenant: "acme", ConversationID: fmt.Sprint("c", i*7919%300), Request: request("append", "AppendMessages"),
		}, "one", "two")
	}
	create("acme", "long", &parleyv1.Retention{MaxMessages: 500})
	for range 30 {
		f.append(&store.Append{Tenant: "acme", ConversationID: "long"}, slices.Repeat([]string{strings.Repeat("x", 900)}, 20)...)
	}
	_, err := f.store.Update(f.Context(), &store.Update{
		Tenant: "acme", ConversationID: "long", Lease: &store.Lease{Agent: "sales", Reason: "asked"},
	})
	f.try(err)
	create("acme", "turns", &parleyv1.Retention{MaxTurns: 200, MaxMessages: 10, NoExpiry: true})
	for range 120 {
		f.turn("turns", true)
	}
	for _, scope := range []string{"records", ""} {
		if scope != "" {
			create("acme", scope, nil)
		}
		for i := range 6 {
			w := &store.WriteRecords{Tenant: "acme", ConversationID: scope, Request: request(fmt.Sprint(i), "WriteRecords")}
			for j := range 100 {
				w.Writes = append(w.Writes, &parleyv1.RecordWrite{
					Key: fmt.Sprintf("key%d", i*100+j), Value: []byte(strings.Repeat("v", 3000)), Labels: map[string]string{"k": "v"},
				})
			}
			_, err := f.store.WriteRecords(f.Context(), w)
			f.try(err)
		}
	}
	f.writeTenant("acme", "expiring", durationpb.New(time.Hour))
	f.writeTenant("acme", "expired", durationpb.New(time.Millisecond))
	f.writeTenant("globex:6:x", "key", nil)
	create("globex:6:x", "c", nil)
	f.writeTenant("deleted", "key", nil) // The tenant keeps its revision, and the request.
	_, err = f.store.WriteRecords(f.Context(), &store.WriteRecords{
		Tenant: "deleted", Writes: []*parleyv1.RecordWrite{{Key: "key", Delete: true}},
	})
	f.try(err)
	for _, remove := range []bool{false, true} { // This one keeps only its revision.
		_, err := f.store.WriteRecords(f.Context(), &store.WriteRecords{
			Tenant: "bare", Writes: []*parleyv1.RecordWrite{{Key: "key", Delete: remove}},
		})
		f.try(err)
	}
	create("acme", "expired", &parleyv1.Retention{Ttl: durationpb.New(time.Millisecond)})
	f.ephemeral("released", true)
	f.ephemeral("held", false)
	running := f.turn("running", false)
	f.try(f.store.SaveProgress(f.Context(), &store.Progress{
		Tenant: "acme", ConversationID: "running", TurnID: running,
		Messages: []*parleyv1.Message{{Id: "m", Role: parleyv1.Role_ROLE_ASSISTANT, Content: "half an"}},
		Events:   &storev1.TurnEvents{TurnId: running, Started: 1, LostAfter: 3},
	}))
	f.turn("running turn, no progress", false)
}

func (f filler) ephemeral(id string, release bool) {
	f.Helper()
	h := &store.Hold{Tenant: "acme", ConversationIDs: []string{id}, DeleteAfter: time.Hour}
	f.try(f.store.Hold(f.Context(), h))
	f.append(&store.Append{
		Tenant: "acme", ConversationID: id, CreateWith: &parleyv1.Conversation{
			Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Millisecond)}, // Only its delete time counts.
		},
	}, "hello")
	if release {
		f.try(f.store.Release(f.Context(), h))
	}
}

func (f filler) writeTenant(tenant, key string, ttl *durationpb.Duration) {
	f.Helper()
	_, err := f.store.WriteRecords(f.Context(), &store.WriteRecords{
		Tenant: tenant, Request: request(key, "WriteRecords"),
		Writes: []*parleyv1.RecordWrite{{Key: key, Value: []byte("v"), Ttl: ttl}},
	})
	f.try(err)
}

// dump returns all that callers can see of a store, also by repeated requests.
func dump(t *testing.T, s store.Store) []string {
	t.Helper()
	f := filler{t, s}
	var lines, running []string
	add := func(what string, messages ...proto.Message) {
		for _, m := range messages {
			b, err := prototext.MarshalOptions{}.Marshal(m)
			f.try(err)
			lines = append(lines, strings.ReplaceAll(what+": "+string(b), "  ", " "))
		}
	}
	records := func(tenant, id string) {
		l := &store.ListRecords{Tenant: tenant, ConversationID: id, Limit: 100, MaxBytes: 1 << 20}
		for more := true; more; {
			var page []*parleyv1.Record
			var err error
			page, more, err = s.ListRecords(t.Context(), l)
			f.try(err)
			for _, r := range page {
				add(tenant+" record of "+id, r)
				l.After = r.GetKey()
			}
		}
	}
	for _, tenant := range []string{"acme", "globex:6:x", "deleted"} {
		stats, err := s.TenantStats(t.Context(), tenant)
		f.try(err)
		lines = append(lines, fmt.Sprint(tenant, stats.Messages, stats.Records, stats.RecordBytes))
		for _, order := range []store.List{
			{OldestFirst: true}, {Order: parleyv1.ListOrder_LIST_ORDER_UPDATE_TIME_DESC}, {Labels: map[string]string{"a": "b"}},
		} {
			l := &order
			l.Tenant, l.PageSize = tenant, 100
			for {
				page, err := s.List(t.Context(), l)
				f.try(err)
				for _, e := range page.Entries {
					add(tenant, e)
				}
				if l.PageToken = page.NextPageToken; l.PageToken == "" {
					break
				}
			}
		}
		all, err := s.List(t.Context(), &store.List{Tenant: tenant, PageSize: 1000})
		f.try(err)
		for _, e := range all.Entries {
			id := e.GetConversation().GetId()
			read := &store.Read{Tenant: tenant, ConversationID: id, Newest: -1, Request: request("append", "AppendMessages")}
			c, err := s.Read(t.Context(), read)
			f.try(err)
			messages, err := c.Messages.Messages()
			f.try(err)
			lines = append(lines, fmt.Sprint(id, c.DroppedBytes, c.Seen))
			add(id, c.Conversation)
			for _, m := range messages {
				add(id, m)
			}
			records(tenant, id)
			turns := &store.ListTurns{Tenant: tenant, ConversationID: id, Limit: 1000}
			for more := true; more; more = turns.Before != "" {
				page, err := s.ListTurns(t.Context(), turns)
				f.try(err)
				turns.Before = page.Next
				for _, turn := range page.Turns {
					found, err := s.FindTurn(t.Context(), &store.FindTurn{Tenant: tenant, TurnID: turn.GetId()})
					f.try(err)
					add(id, turn, found.Turn, found.Events)
				}
			}
		}
		records(tenant, "")
	}
	for after := ""; ; {
		turns, next, err := s.Abandoned(t.Context(), after)
		f.try(err)
		for _, p := range turns {
			running = append(running, fmt.Sprint(p.Tenant, p.ConversationID, p.TurnID, len(p.Messages), p.Events.GetLostAfter()))
			for _, m := range p.Messages {
				running = append(running, m.GetContent())
			}
		}
		if after = next; next == "" {
			break
		}
	}
	slices.Sort(running) // Their order is the store's own.
	return append(lines, running...)
}

// wantRepeats checks that a store recognizes requests of records, and continues the revisions of tenants.
func wantRepeats(t *testing.T, s store.Store) {
	t.Helper()
	f := filler{t, s}
	for _, tenant := range []string{"acme", "deleted"} {
		key := map[string]string{"acme": "expiring", "deleted": "key"}[tenant]
		w := &store.WriteRecords{
			Tenant: tenant, Request: request(key, "WriteRecords"), Writes: []*parleyv1.RecordWrite{{Key: key}},
		}
		if result, err := s.WriteRecords(t.Context(), w); err != nil || !result.Replayed {
			t.Errorf("repeated write of tenant %s = %+v, %v, want a replay", tenant, result, err)
		}
	}
	for _, tenant := range []string{"deleted", "bare"} {
		w := &store.WriteRecords{Tenant: tenant, Writes: []*parleyv1.RecordWrite{{Key: "new"}}}
		result, err := s.WriteRecords(t.Context(), w)
		f.try(err)
		if result.TenantRevision != 3 {
			t.Errorf("next revision of tenant %s = %d, want 3", tenant, result.TenantRevision)
		}
	}
}

// run migrates and finishes the target.
func run(t *testing.T, source store.CopySource, err1 error, target store.CopyTarget, err2 error) Counts {
	t.Helper()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	var last, total Counts
	done, err := Run(t.Context(), Options{
		Source: source, Target: target, Progress: func(all, done Counts) { total, last = all, done },
	})
	if err := errors.Join(err, target.Finish(t.Context()), source.Close()); err != nil {
		t.Fatal(err)
	}
	last.Tenants = total.Tenants
	if last != total || done != total || total.Conversations < 300 {
		t.Errorf("Run = %+v after progress %+v of %+v, want the same", done, last, total)
	}
	return done
}

// TestRun: a store is the same after a migration to Redis, and after one back. The first source is the file of a server
// that was killed, with its journal.
func TestRun(t *testing.T) {
	for _, spread := range []int{1, 4} {
		t.Run(fmt.Sprint("spread ", spread), func(t *testing.T) { testRun(t, spread) })
	}
}

func testRun(t *testing.T, spread int) {
	t.Helper()
	t.Parallel()
	now := time.Now()
	clock := func() time.Time { return now }
	open := func(path string) *boltstore.Store {
		t.Helper()
		s, err := boltstore.Open(path, boltstore.Options{
			Options: store.Options{Now: clock, MaxConversationBytes: 1 << 30}, JournalBudget: 64 << 20, JournalAge: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	dump := func(t *testing.T, s store.Store) []string {
		t.Helper()
		lines := dump(t, s)
		if spread > 1 { // Conversations that were created at the same instant have no order.
			slices.Sort(lines)
		}
		return lines
	}
	begin := t.TempDir()
	s := open(filepath.Join(begin, "parley.db"))
	filler{t, s}.fill()
	now = now.Add(5 * time.Millisecond)
	killed, same := t.TempDir(), t.TempDir()
	for _, dir := range []string{killed, same} {
		if err := os.CopyFS(dir, os.DirFS(begin)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "parley.db"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = open(filepath.Join(same, "parley.db"))
	if more, err := s.Sweep(t.Context(), 100); err != nil || more { // A migration does not copy what has expired.
		t.Fatalf("Sweep = %t, %v", more, err)
	}
	want := dump(t, s)
	s.Close()

	engine := redistest.Start(t)
	client, err := redisstore.ParseURL(engine.URL(), redisstore.Access{})
	if err != nil {
		t.Fatal(err)
	}
	o := redisstore.Options{Client: client, Spread: spread, Options: store.Options{Now: clock, MaxConversationBytes: 1 << 30}}
	source, err1 := boltstore.OpenSource(filepath.Join(killed, "parley.db"))
	target, err2 := redisstore.OpenTarget(t.Context(), o)
	first := run(t, source, err1, target, err2)

	o.Exclusive = true
	r, err := redisstore.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, dump(t, r)); diff != "" {
		t.Errorf("Redis (-want +got):\n%.4000s", diff)
	}
	r.Close()

	again := filepath.Join(t.TempDir(), "new", "parley.db")
	back, err1 := redisstore.OpenSource(t.Context(), o)
	file, err2 := boltstore.OpenTarget(again)
	if second := run(t, back, err1, file, err2); second != first {
		t.Errorf("second migration = %+v, want %+v as the first", second, first)
	}
	if done, err := boltstore.Check(again, func(fault string) { t.Error(fault) }); err != nil {
		t.Errorf("Check = %+v, %v", done, err)
	}
	s = open(again)
	if diff := cmp.Diff(want, dump(t, s)); diff != "" {
		t.Errorf("bolt (-want +got):\n%.4000s", diff)
	}
	wantRepeats(t, s)
	r, err = redisstore.Open(t.Context(), o) // The source is unchanged.
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if diff := cmp.Diff(want, dump(t, r)); diff != "" {
		t.Errorf("Redis after it was the source (-want +got):\n%.4000s", diff)
	}
	wantRepeats(t, r)
}
