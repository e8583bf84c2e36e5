package boltstore

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestRandom makes random calls and checks the file after each of them.
func TestRandom(t *testing.T) {
	dir := t.TempDir()
	rounds := 0
	rapid.Check(t, func(r *rapid.T) {
		rounds++
		w := &randomRun{T: r, t: t, clock: newClock(), path: filepath.Join(dir, fmt.Sprint(rounds), "parley.db")}
		w.options = store.Options{
			Now: w.clock.Now, MaxMessages: 3, TTL: 10 * time.Minute, MaxRecordBytes: 100 + 2*store.RecordOverhead,
		}
		w.records, w.revisions = map[string]map[string]modelRecord{}, map[string]int64{}
		w.open(r)
		defer func() { w.store.Close() }()
		r.Repeat(map[string]func(*rapid.T){
			"":         func(*rapid.T) { w.wantConsistent(); w.wantRecords() },
			"create":   w.create,
			"import":   w.importAny,
			"append":   w.append,
			"update":   w.update,
			"delete":   w.delete,
			"hold":     w.hold,
			"release":  w.release,
			"progress": w.progress,
			"purge":    w.purge,
			"sweep":    w.sweep,
			"advance":  w.advance,
			"reopen":   w.reopen,
			"kill":     w.kill,
			"fold":     w.fold,
			"records":  w.writeRecords, "records again": w.writeRecords, "more records": w.writeRecords,
			"read": w.read, "read again": w.read,
		})
		w.end()
	})
}

// randomRun is one run of TestRandom.
type randomRun struct {
	*rapid.T
	t       *testing.T
	clock   *clock
	path    string
	options store.Options
	store   *Store
	running []store.Progress
	// records has the records that each scope should have. A scope is "tenant " and a tenant, or the uid of a
	// conversation.
	records   map[string]map[string]modelRecord
	revisions map[string]int64 // newest of each tenant
}

func tenants() []string { return []string{"a", "ab"} }

func conversationIDs() []string { return []string{"", "b", "bc", "d", "e", "f"} }

func (w *randomRun) name(r *rapid.T) (tenant, id string) {
	tenant = rapid.SampledFrom(tenants()).Draw(r, "tenant")
	return tenant, rapid.SampledFrom(conversationIDs()).Draw(r, "id")
}

// logRefused logs an error. Refused calls are valid here, since package storetest tests the law.
func (w *randomRun) logRefused(r *rapid.T, err error) {
	if err != nil {
		r.Log(err)
	}
}

func (w *randomRun) wantConsistent() {
	if err := consistent(w.store); err != nil {
		w.Fatalf("the file is not consistent:\n%v", err)
	}
}

func ttl(r *rapid.T) *durationpb.Duration {
	return durationpb.New(rapid.SampledFrom([]time.Duration{
		100 * time.Millisecond, time.Second, 30 * time.Second, time.Minute, 10 * time.Minute, 366 * 24 * time.Hour,
	}).Draw(r, "ttl"))
}

// retention draws a ttl and whether the conversation keeps everything.
func retention(r *rapid.T) *parleyv1.Retention {
	rarely := func(label string) bool { return rapid.IntRange(0, 3).Draw(r, label) == 0 }
	return &parleyv1.Retention{
		Ttl: ttl(r), KeepAll: rarely("keep_all"), NoExpiry: rarely("no_expiry"), NoEviction: rarely("no_eviction"),
	}
}

func (w *randomRun) create(r *rapid.T) {
	tenant, id := w.name(r)
	c := &store.Create{
		Tenant: tenant, OrGet: rapid.Bool().Draw(r, "or get"),
		Conversation: &parleyv1.Conversation{Id: id, Retention: retention(r)},
	}
	_, c.RecordsOf = w.name(r)
	copied := w.recordsOf(tenant, c.RecordsOf)
	result, err := w.store.Create(w.t.Context(), c)
	w.logRefused(r, err)
	if err == nil && result.Created {
		for key, m := range copied {
			w.set(result.Conversation.GetUid(), key, modelRecord{value: m.value, revision: 1})
		}
	}
}

func (w *randomRun) append(r *rapid.T) {
	tenant, id := w.name(r)
	a := &store.Append{Tenant: tenant, ConversationID: id, Messages: text(rapid.StringN(0, 9, -1).Draw(r, "content"))}
	switch rapid.SampledFrom([]string{"add", "begin", "end", "replace"}).Draw(r, "kind") {
	case "replace":
		a.ReplaceAfter = new(int32(rapid.IntRange(0, 9).Draw(r, "after")))
	case "begin":
		a.Begin = &parleyv1.Turn{Id: fmt.Sprint("turn ", len(w.running))}
		w.running = append(w.running, store.Progress{Tenant: tenant, ConversationID: id, TurnID: a.Begin.GetId()})
	case "end":
		a.End = &parleyv1.Turn{Id: w.turn(r, tenant, id), State: parleyv1.TurnState_TURN_STATE_COMPLETED}
	}
	if rapid.Bool().Draw(r, "events") {
		a.Events = &storev1.TurnEvents{Started: 1}
	}
	if rapid.Bool().Draw(r, "with records") {
		a.Records = drawWrites(r)
	}
	result, err := w.store.Append(w.t.Context(), a)
	w.logRefused(r, err)
	if err == nil {
		w.wrote(tenant, result.Conversation.GetUid(), int64(result.Conversation.GetVersion()), result.TenantRevision, a.Records)
	}
}

// turn returns the running turn of a conversation in most cases, and another id otherwise.
func (w *randomRun) turn(r *rapid.T, tenant, id string) string {
	s, err := w.store.Read(w.t.Context(), &store.Read{Tenant: tenant, ConversationID: id})
	if err != nil || rapid.IntRange(0, 9).Draw(r, "wrong turn") == 9 {
		return "another"
	}
	return s.Conversation.GetActiveTurnId()
}

func (w *randomRun) update(r *rapid.T) {
	tenant, id := w.name(r)
	u := &store.Update{Tenant: tenant, ConversationID: id}
	switch rapid.SampledFrom([]string{"clear", "remove", "change"}).Draw(r, "kind") {
	case "clear":
		u.KeepThrough = new(int32)
	case "remove":
		u.Sequences = []int32{int32(rapid.IntRange(1, 9).Draw(r, "sequence"))}
		u.Request = &store.Request{ID: fmt.Sprint("r", u.Sequences[0]), Method: "ClearConversation"}
	default:
		u.Fields = []string{rapid.SampledFrom([]string{
			"retention.ttl", "retention.keep_all", "retention.no_expiry", "retention.no_eviction",
		}).Draw(r, "field")}
		u.Values = &parleyv1.Conversation{Retention: retention(r)}
	}
	_, err := w.store.Update(w.t.Context(), u)
	w.logRefused(r, err)
}

func (w *randomRun) delete(r *rapid.T) {
	tenant, id := w.name(r)
	w.logRefused(r, w.store.Delete(w.t.Context(), &store.Delete{Tenant: tenant, ConversationID: id}))
}

func (w *randomRun) drawHold(r *rapid.T) *store.Hold {
	tenant, id := w.name(r)
	_, other := w.name(r)
	times := []time.Duration{0, time.Second, 5 * time.Minute, 366 * 24 * time.Hour}
	after := rapid.SampledFrom(times).Draw(r, "delete after")
	return &store.Hold{Tenant: tenant, ConversationIDs: []string{id, other}, DeleteAfter: after}
}

func (w *randomRun) hold(r *rapid.T) { w.logRefused(r, w.store.Hold(w.t.Context(), w.drawHold(r))) }

func (w *randomRun) release(r *rapid.T) {
	w.logRefused(r, w.store.Release(w.t.Context(), w.drawHold(r)))
}

func (w *randomRun) progress(r *rapid.T) {
	tenant, id := w.name(r)
	w.logRefused(r, w.store.SaveProgress(w.t.Context(), &store.Progress{
		Tenant: tenant, ConversationID: id, TurnID: w.turn(r, tenant, id), Messages: text("so far"),
	}))
}

func (w *randomRun) purge(r *rapid.T) {
	tenant, _ := w.name(r)
	_, err := w.store.Purge(w.t.Context(), &store.Purge{
		Tenant: tenant, InactiveFor: 5 * time.Minute, DryRun: rapid.Bool().Draw(r, "dry"),
	})
	w.logRefused(r, err)
}

func (w *randomRun) sweep(r *rapid.T) {
	_, err := w.store.Sweep(w.t.Context(), rapid.IntRange(0, 3).Draw(r, "limit"))
	w.logRefused(r, err)
}

func (w *randomRun) advance(r *rapid.T) {
	w.clock.advance(rapid.SampledFrom([]time.Duration{
		-time.Minute, time.Millisecond, time.Second, 20 * time.Second, time.Minute, 9 * time.Minute, time.Hour,
	}).Draw(r, "by"))
}

func (w *randomRun) reopen(r *rapid.T) {
	w.logRefused(r, w.store.Close())
	w.open(r)
}

// open opens the store with or without a journal, whatever it had before.
func (w *randomRun) open(r *rapid.T) {
	w.options.MaxConversations = rapid.IntRange(0, 4).Draw(r, "capacity")
	budget := rapid.SampledFrom([]int64{0, 1 << 20}).Draw(r, "journal")
	w.store = openDivided(w.t, w.path, w.options, budget, rapid.SampledFrom([]int{0, 1, 30}).Draw(r, "chunks"))
}

// kill opens the store as after the end of its process.
func (w *randomRun) kill(r *rapid.T) {
	kill(w.t, w.store)
	w.open(r)
}

// read reads a conversation into the cache.
func (w *randomRun) read(r *rapid.T) {
	tenant, id := w.name(r)
	_, err := w.store.Read(w.t.Context(), &store.Read{Tenant: tenant, ConversationID: id, Newest: -1, Shared: true})
	w.logRefused(r, err)
}

// fold folds the journal. The goroutine of the store does not: the budget is large, and the time short.
func (w *randomRun) fold(*rapid.T) {
	if w.store.folder != nil {
		w.store.folder.fold()
	}
}

// end lets all conversations expire and sweeps them. The store must be empty then.
func (w *randomRun) end() {
	for _, p := range w.running {
		_, err := w.store.Append(w.t.Context(), &store.Append{
			Tenant: p.Tenant, ConversationID: p.ConversationID,
			End: &parleyv1.Turn{Id: p.TurnID, State: parleyv1.TurnState_TURN_STATE_CANCELLED},
		})
		w.logRefused(w.T, err)
	}
	w.reopen(w.T) // Releases all holds.
	for _, tenant := range tenants() {
		for _, id := range conversationIDs() {
			_, err := w.store.Update(w.t.Context(), &store.Update{
				Tenant: tenant, ConversationID: id, Fields: []string{"retention.no_expiry"},
			})
			w.logRefused(w.T, err)
		}
	}
	w.clock.advance(400 * 24 * time.Hour)
	sweep(w.t, w.store)
	w.wantConsistent()
	if n := w.store.tally.ephemeralCounts; len(n) > 0 {
		w.Fatalf("ephemeral ids are left: %v", n)
	}
	if stats, err := w.store.Stats(w.t.Context()); err != nil || stats.Conversations != 0 {
		w.Fatalf("Stats = %+v, %v; want an empty store", stats, err)
	}
}
