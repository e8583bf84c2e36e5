package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// hold makes ids session memory.
func (f *fixture) hold(ids ...string) {
	f.t.Helper()
	f.holdFor(time.Second, ids...)
}

// holdFor says how long they live when the process has ended.
func (f *fixture) holdFor(after time.Duration, ids ...string) {
	f.t.Helper()
	if err := f.store.Hold(f.t.Context(), &store.Hold{Tenant: tenant, ConversationIDs: ids, DeleteAfter: after}); err != nil {
		f.t.Fatalf("Hold %v: %v", ids, err)
	}
}

// release takes a hold back.
func (f *fixture) release(after time.Duration, ids ...string) {
	f.t.Helper()
	if err := f.store.Release(f.t.Context(), &store.Hold{Tenant: tenant, ConversationIDs: ids, DeleteAfter: after}); err != nil {
		f.t.Fatalf("Release %v: %v", ids, err)
	}
}

// lives checks that a conversation is to be found by all that looks for it.
func (f *fixture) lives(id string) {
	f.t.Helper()
	f.header(id)
	for _, l := range []store.List{{}, {OldestFirst: true}, {Order: byUpdateTime}} {
		l.PageSize = 10
		if got := slices.Concat(f.pages(l)...); !slices.Contains(got, id) {
			f.t.Errorf("%+v has %v, not %s", l, got, id)
		}
	}
	purged, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant, DryRun: true})
	if err != nil || !slices.Contains(purged.SampleIDs, id) {
		f.t.Errorf("a purge would remove %v, %v; want %s too", purged.SampleIDs, err, id)
	}
	f.do(&store.Update{ConversationID: id, Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: f.clock.Now().String()}})
	if result := f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: id}, OrGet: true}); result.Created {
		f.t.Errorf("%s was made anew", id)
	}
}

// sessions are ways to treat conversation "a", whose ttl is an hour, and how long it lives
// then.
func sessions() map[string]sessionCase {
	const never = 0
	anew := func(f *fixture) { f.do(&store.Delete{ConversationID: "a"}) }
	return map[string]sessionCase{
		"held": {func(f *fixture) { f.hold("a") }, never, ""},
		"held while a turn runs": {func(f *fixture) {
			f.begin("a", "turn")
			f.hold("a")
			f.clock.Advance(2 * time.Hour)
			f.end("a", "turn")
		}, never, ""},
		"held, with a new ttl": {func(f *fixture) {
			f.hold("a")
			f.do(&store.Update{ConversationID: "a", Fields: []string{"retention.ttl"}, Values: &parleyv1.Conversation{
				Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)},
			}})
		}, never, ""},
		"released":               {func(f *fixture) { f.hold("a"); f.release(time.Minute, "a") }, time.Minute, sessionEnded},
		"released for long":      {func(f *fixture) { f.hold("a"); f.release(30*time.Hour, "a") }, 30 * time.Hour, sessionEnded},
		"a turn runs on it":      {func(f *fixture) { f.hold("a"); f.begin("a", "turn"); f.release(2*time.Hour, "a") }, 2 * time.Hour, sessionEnded},
		"appended to":            {func(f *fixture) { f.hold("a"); f.release(time.Minute, "a"); f.append("a", user("hello")) }, time.Minute - time.Millisecond, sessionEnded},
		"held twice":             {func(f *fixture) { f.hold("a"); f.hold("a"); f.release(time.Minute, "a") }, never, ""},
		"released twice":         {func(f *fixture) { f.hold("a"); f.hold("a"); f.release(time.Hour, "a"); f.release(time.Minute, "a") }, time.Minute, sessionEnded},
		"named twice in a hold":  {func(f *fixture) { f.hold("a", "a"); f.release(time.Minute, "a") }, time.Minute, sessionEnded},
		"named twice in release": {func(f *fixture) { f.hold("a"); f.hold("a"); f.release(time.Minute, "a", "b", "a") }, never, ""},
		"held again": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			f.clock.Advance(time.Minute - 1)
			f.hold("a")
		}, never, ""},
		"released again": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			f.hold("a")
			f.release(2*time.Hour, "a")
		}, 2 * time.Hour, sessionEnded},
		"released too often":     {func(f *fixture) { f.hold("a"); f.release(time.Hour, "a"); f.release(time.Minute, "a") }, time.Hour, sessionEnded},
		"never held":             {func(f *fixture) { f.release(time.Minute, "a"); f.release(0, "a") }, time.Hour, "EXPIRED"},
		"held after a release":   {func(f *fixture) { f.release(time.Minute, "a"); f.hold("a") }, never, ""},
		"another one is held":    {func(f *fixture) { f.hold("b"); f.release(0, "b") }, time.Hour, "EXPIRED"},
		"made anew":              {func(f *fixture) { f.hold("a"); anew(f); f.create("a") }, never, ""},
		"made anew and released": {func(f *fixture) { f.hold("a"); anew(f); f.create("a"); f.release(time.Minute, "a") }, time.Minute, sessionEnded},
		"made anew in its time":  {func(f *fixture) { f.hold("a"); f.release(time.Minute, "a"); anew(f); f.create("a") }, time.Hour, "EXPIRED"},
		"made when released":     {func(f *fixture) { anew(f); f.hold("a"); f.release(time.Minute, "a"); f.create("a") }, time.Hour, "EXPIRED"},
		"made between releases": {func(f *fixture) {
			anew(f)
			f.hold("a")
			f.hold("a")
			f.release(0, "a")
			f.create("a")
			f.release(time.Minute, "a")
		}, time.Minute, sessionEnded},
		"held before it was made": {func(f *fixture) { anew(f); f.hold("a"); f.clock.Advance(2 * time.Hour); f.create("a") }, never, ""},
		"made after its time": {func(f *fixture) {
			anew(f)
			f.hold("a")
			f.release(time.Minute, "a")
			f.clock.Advance(time.Minute)
			f.create("a")
		}, time.Hour, "EXPIRED"},
		"made after a release at once": {func(f *fixture) { f.hold("a"); f.release(0, "a"); f.create("a") }, time.Hour, "EXPIRED"},
		"purged and made anew": {func(f *fixture) {
			f.hold("a")
			if purged, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant}); err != nil || purged.Count != 1 {
				f.t.Fatalf("Purge: %v, %v", purged, err)
			}
			f.create("a")
		}, never, ""},
		"overwritten": {func(f *fixture) {
			f.hold("a")
			over := f.importing("a", time.Minute)
			over.Overwrite = true
			f.do(over)
		}, never, ""},
		"imported, too old for others": {func(f *fixture) { anew(f); f.hold("a"); f.do(f.importing("a", 9*time.Hour)) }, never, ""},
		"imported when released": {func(f *fixture) {
			anew(f)
			f.hold("a")
			f.release(time.Minute, "a")
			f.refuse(f.importing("a", 9*time.Hour), store.ErrExpired)
			f.do(f.importing("a", time.Hour))
		}, time.Hour + 2*time.Second, "EXPIRED"},
		"overwritten in its time": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			over := f.importing("a", 9*time.Hour)
			over.Overwrite = true
			f.refuse(over, store.ErrExpired)
			over = f.importing("a", time.Hour)
			over.Overwrite = true
			f.do(over)
		}, time.Hour + 2*time.Second, "EXPIRED"},
		"purged and made anew in its time": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			if purged, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant}); err != nil || purged.Count != 1 {
				f.t.Fatalf("Purge: %v, %v", purged, err)
			}
			f.create("a")
		}, time.Hour, "EXPIRED"},
		"imported after its time": {func(f *fixture) {
			f.hold("a")
			f.release(time.Minute, "a")
			f.clock.Advance(time.Minute)
			f.refuse(f.importing("a", 9*time.Hour), store.ErrExpired)
			f.do(f.importing("a", time.Hour))
		}, time.Hour + 2*time.Second, "EXPIRED"},
	}
}

// sessionCase is how a conversation is treated, how long it lives then, 0 is for ever, and
// what is told of its end.
type sessionCase struct {
	do    func(*fixture)
	lives time.Duration
	told  string
}

// law13Sessions puts conversations to each way to treat them, and to each way to find out
// that they are no more.
func (s Subject) law13Sessions(t *testing.T) {
	for name, way := range sessions() {
		if way.lives == 0 {
			t.Run(name, func(t *testing.T) { s.livesOn(t, way) })
			continue
		}
		for how, find := range map[string]func(*fixture){
			"swept": func(f *fixture) {
				f.clock.Advance(sweepSlack)
				f.sweep()
			},
			"taken again": func(f *fixture) { f.create("a") },
			"held again":  func(f *fixture) { f.hold("a") },
			"imported":    func(f *fixture) { f.do(f.importing("a", time.Minute)) },
			"makes room": func(f *fixture) {
				f.create("c")
				f.create("d")
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) { s.livesFor(t, way, find) })
		}
	}
}

// livesOn checks that conversation "a" neither expires nor is evicted.
func (s Subject) livesOn(t *testing.T, way sessionCase) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 2 })
	f.create("a")
	way.do(f)
	f.clock.Advance(72 * time.Hour)
	f.sweep()
	f.lives("a")
	f.create("c")
	f.create("d")
	f.lives("a")
	f.missing("c")
}

// livesFor checks that conversation "a" lives as long as it ought to, to the instant.
func (s Subject) livesFor(t *testing.T, way sessionCase, find func(*fixture)) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 2 })
	f.create("a")
	way.do(f)
	f.clock.Advance(way.lives - 1)
	f.sweep()
	f.lives("a")
	version, count := f.header("a").GetVersion(), f.header("a").GetMessageCount()
	f.clock.Advance(1)
	f.nowhere("a")
	before := f.stats()
	find(f)
	want := fmt.Sprintf("DELETED a version %d count %d trimmed 0%s", version, count, way.told)
	expired := int64(0)
	if way.told == "EXPIRED" {
		want, expired = fmt.Sprintf("EXPIRED a version %d count %d trimmed 0", version, count), 1
	}
	told := f.seen.take()
	if got := brief(told); len(got) == 0 || !slices.Contains(got, want) {
		t.Errorf("told of %v, want %s", got, want)
	}
	if after := f.stats(); after.Expired != before.Expired+expired || after.Evicted != 0 {
		t.Errorf("stats %+v, before %+v", after, before)
	}
	if s.Durable {
		f.reopen(nil)
		f.abandoned(nil)
	}
}
