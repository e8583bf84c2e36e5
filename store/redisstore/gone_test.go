package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// call is a call of a method of a store about conversation "c".
type call struct {
	name string
	do   func(ctx context.Context, s store.Store) error
}

// lastError returns the last of the results of a call.
func lastError(results ...any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

// readCalls are the calls that change nothing.
func readCalls() []call {
	return []call{
		{"Read", func(ctx context.Context, s store.Store) error {
			return lastError(s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: "c", Newest: -1}))
		}},
		{"Read of a known version", func(ctx context.Context, s store.Store) error {
			return lastError(s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: "c", Known: store.Known{Version: 1}}))
		}},
		{"List", func(ctx context.Context, s store.Store) error {
			return lastError(s.List(ctx, &store.List{Tenant: "acme", PageSize: 10}))
		}},
		{"GetRecords", func(ctx context.Context, s store.Store) error {
			return lastError(s.GetRecords(ctx, &store.GetRecords{Tenant: "acme", Keys: []string{"k"}, MaxBytes: 1 << 20}))
		}},
		{"ListRecords", func(ctx context.Context, s store.Store) error {
			return lastError(s.ListRecords(ctx, &store.ListRecords{
				Tenant: "acme", ConversationID: "c", Limit: 10, MaxBytes: 1 << 20,
			}))
		}},
		{"ListTurns", func(ctx context.Context, s store.Store) error {
			return lastError(s.ListTurns(ctx, &store.ListTurns{Tenant: "acme", Limit: 10}))
		}},
		{"ListTurns of a conversation", func(ctx context.Context, s store.Store) error {
			return lastError(s.ListTurns(ctx, &store.ListTurns{Tenant: "acme", ConversationID: "c", Limit: 10}))
		}},
		{"FindTurn", func(ctx context.Context, s store.Store) error {
			err := lastError(s.FindTurn(ctx, &store.FindTurn{
				Tenant: "acme", TurnID: "0198c0de-0000-7000-8000-000000000000",
			}))
			if errors.Is(err, store.ErrTurnNotFound) {
				return nil
			}
			return err
		}},
		{"Abandoned", func(ctx context.Context, s store.Store) error { return lastError(s.Abandoned(ctx, "")) }},
		{"Tenants", func(ctx context.Context, s store.Store) error { return lastError(s.Tenants(ctx, "", 10)) }},
		{"Stats", func(ctx context.Context, s store.Store) error { return lastError(s.Stats(ctx)) }},
		{"TenantStats", func(ctx context.Context, s store.Store) error { return lastError(s.TenantStats(ctx, "acme")) }},
		{"Purge that only counts", func(ctx context.Context, s store.Store) error {
			return lastError(s.Purge(ctx, &store.Purge{Tenant: "acme", DryRun: true}))
		}},
	}
}

// writeCalls are calls that change something. The conversation exists afterwards if it did before.
func writeCalls() []call {
	hold := &store.Hold{Tenant: "acme", ConversationIDs: []string{"held"}}
	return []call{
		{"Append", func(ctx context.Context, s store.Store) error {
			return lastError(s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: "c", Messages: message("more")}))
		}},
		{"Create", func(ctx context.Context, s store.Store) error {
			return lastError(s.Create(ctx, &store.Create{
				Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "new"}, OrGet: true,
			}))
		}},
		{"Update", func(ctx context.Context, s store.Store) error {
			return lastError(s.Update(ctx, &store.Update{Tenant: "acme", ConversationID: "c", Sequences: []int32{2}}))
		}},
		{"WriteRecords", func(ctx context.Context, s store.Store) error {
			return lastError(s.WriteRecords(ctx, &store.WriteRecords{
				Tenant: "acme", Writes: []*parleyv1.RecordWrite{putRecord("k", "v")},
			}))
		}},
		{"WriteRecords of a conversation", func(ctx context.Context, s store.Store) error {
			return lastError(s.WriteRecords(ctx, &store.WriteRecords{
				Tenant: "acme", ConversationID: "c", Writes: []*parleyv1.RecordWrite{putRecord("k", "v")},
			}))
		}},
		{"Delete", func(ctx context.Context, s store.Store) error {
			return s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "new"})
		}},
		{"Sweep", func(ctx context.Context, s store.Store) error { return lastError(s.Sweep(ctx, 10)) }},
		{"Hold", func(ctx context.Context, s store.Store) error { return s.Hold(ctx, hold) }},
		{"Release", func(ctx context.Context, s store.Store) error { return s.Release(ctx, hold) }},
		{"begin of a turn", func(ctx context.Context, s store.Store) error {
			return lastError(s.Append(ctx, &store.Append{
				Tenant: "acme", ConversationID: "c", Messages: message("ask"), Begin: &parleyv1.Turn{Id: "turn"},
			}))
		}},
		{"SaveProgress", func(ctx context.Context, s store.Store) error {
			return s.SaveProgress(ctx, &store.Progress{
				Tenant: "acme", ConversationID: "c", TurnID: "turn", Messages: message("so far"),
			})
		}},
		{"end of a turn", func(ctx context.Context, s store.Store) error {
			return lastError(s.Append(ctx, &store.Append{
				Tenant: "acme", ConversationID: "c", End: &parleyv1.Turn{Id: "turn"},
			}))
		}},
	}
}

// TestLostScripts makes the engine forget all scripts before each call: by a command, and by a restart.
func TestLostScripts(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Setting("appendfsync", "always"))
	s := openAt(t, store.Options{}, engine.Addr())
	appendTo(t, s, "c", "hello")
	for name, forget := range map[string]func(){
		"flush": func() {
			if _, err := engine.Do("SCRIPT", "FLUSH"); err != nil {
				t.Error(err)
			}
		},
		"restart": func() {
			engine.Restart()
			readAll(t, s, "c") // It connects again.
		},
	} {
		for _, c := range slices.Concat(writeCalls(), readCalls()) {
			forget()
			if err := c.do(t.Context(), s); err != nil {
				t.Errorf("%s after %s = %v", c.name, name, err)
			}
		}
		if err := s.renew(t.Context()); err != nil {
			t.Errorf("renewal of leases after %s = %v", name, err)
		}
	}
}

// TestEngineGone kills and pauses the engine. All calls fail in time, and succeed when it is there again.
func TestEngineGone(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct{ take, back func(*redistest.Server) }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"paused": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := redistest.Start(t, redistest.Setting("appendfsync", "always"))
			s := openAt(t, store.Options{}, engine.Addr())
			closing := openAt(t, store.Options{}, engine.Addr())
			appendTo(t, s, "c", "hello")
			of.take(engine)
			wantUnavailable(t, s, closing)
			of.back(engine)
			wantTexts(t, s, "c", "hello")
			for _, c := range slices.Concat(writeCalls(), readCalls()) {
				if err := c.do(t.Context(), s); err != nil {
					t.Errorf("%s afterwards = %v", c.name, err)
				}
			}
		})
	}
}

// wantUnavailable makes all calls while the engine is gone, at once, and closes another store.
func wantUnavailable(t *testing.T, s, closing *Store) {
	t.Helper()
	var wg sync.WaitGroup
	patient := make(chan error, 1)
	go func() {
		patient <- lastError(s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "c"}))
	}()
	for _, c := range readCalls() {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			wantError(t, c.name+" with a deadline", c.do(ctx, s), store.ErrUnavailable)
		})
	}
	wg.Wait()
	for _, c := range slices.Concat(writeCalls(), readCalls()) {
		if slices.Contains([]string{"Update", "WriteRecords of a conversation", "begin of a turn", "end of a turn", "Delete"}, c.name) {
			continue // They wait for the other writes of their conversation.
		}
		wg.Go(func() { wantError(t, c.name, c.do(t.Context(), s), store.ErrUnavailable) })
	}
	wg.Go(func() {
		// It waits for the write before it.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		<-ctx.Done()
		_, err := s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: "c", Messages: message("late")})
		wantError(t, "Append after its deadline", err, context.DeadlineExceeded)
	})
	wg.Go(func() {
		if err := closing.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	all := make(chan struct{})
	go func() {
		wg.Wait()
		wantError(t, "Read without a deadline", <-patient, store.ErrUnavailable)
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(10 * defaultTimeout):
		t.Fatal("calls hang while the engine is gone")
	}
}

// TestWaitingWriteEnds has a write wait for another one that takes long. It must not wait longer than its context.
func TestWaitingWriteEnds(t *testing.T) {
	l := newTurnstile()
	if err := l.enter(t.Context(), "k", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := l.enter(ctx, "k", cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("enter = %v, want Canceled", err)
	}
	entered := make(chan error)
	queued := make(chan struct{})
	go func() { entered <- l.enter(t.Context(), "k", func() { close(queued) }) }()
	<-queued
	l.leave("k")
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	l.leave("k")
	if n := len(l.lines); n != 0 {
		t.Errorf("%d lines are left", n)
	}
}

// TestFullMemory fills the memory of the engine. What takes memory is refused as a whole, and what frees some is not.
func TestFullMemory(t *testing.T) {
	engine := redistest.Start(t)
	now := time.Now()
	o := store.Options{Now: func() time.Time { return now }, TTL: time.Minute}
	s := openAt(t, o, engine.Addr())
	ctx := t.Context()
	turn := &parleyv1.Turn{Id: "0198c0de-0000-7000-8000-000000000000"}
	for _, id := range []string{"c", "new", "expiring", "held", "purged"} {
		appendTo(t, s, id, "hello")
	}
	hold := &store.Hold{Tenant: "acme", ConversationIDs: []string{"held"}}
	err := errors.Join(
		lastError(s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: "turning", Messages: message("ask"), Begin: turn})),
		lastError(s.WriteRecords(ctx, &store.WriteRecords{Tenant: "acme", Writes: []*parleyv1.RecordWrite{putRecord("k", "v")}})),
		s.Hold(ctx, hold))
	if err != nil {
		t.Fatal(err)
	}
	engine.Config("maxmemory", "1")
	before := dump(t, engine)
	for _, c := range writeCalls() {
		if slices.Contains([]string{"Create", "Update", "Delete", "Sweep", "Release", "end of a turn", "SaveProgress"}, c.name) {
			continue // They write nothing here, or free memory.
		}
		wantError(t, c.name, c.do(ctx, s), store.ErrNoSpace)
	}
	_, err = s.Create(ctx, &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "other"}})
	wantError(t, "Create", err, store.ErrNoSpace)
	wantError(t, "SaveProgress", s.SaveProgress(ctx, &store.Progress{
		Tenant: "acme", ConversationID: "turning", TurnID: turn.GetId(), Messages: message("so far"),
	}), store.ErrNoSpace)
	if after := dump(t, engine); !slices.Equal(before, after) {
		t.Errorf("refused writes have changed the data from\n%q to\n%q", before, after)
	}
	for _, c := range readCalls() {
		if err := c.do(ctx, s); err != nil {
			t.Errorf("%s = %v", c.name, err)
		}
	}
	for name, do := range map[string]func() error{
		"Delete": func() error { return s.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "new"}) },
		"Update that removes messages": func() error {
			return lastError(s.Update(ctx, &store.Update{Tenant: "acme", ConversationID: "c", KeepThrough: new(int32)}))
		},
		"deletion of a record": func() error {
			return lastError(s.WriteRecords(ctx, &store.WriteRecords{
				Tenant: "acme", Writes: []*parleyv1.RecordWrite{{Key: "k", Delete: true}},
			}))
		},
		"Release": func() error { return s.Release(ctx, hold) },
		"end of a turn": func() error {
			return lastError(s.Append(ctx, &store.Append{Tenant: "acme", ConversationID: "turning", End: turn}))
		},
		"renewal of leases": func() error { return s.renew(ctx) },
	} {
		if err := do(); err != nil {
			t.Errorf("%s = %v", name, err)
		}
	}
	now = now.Add(time.Hour)
	if _, err := s.Sweep(ctx, 100); err != nil {
		t.Errorf("Sweep = %v", err)
	}
	if stats, err := s.Stats(ctx); err != nil || stats.Conversations != 0 {
		t.Errorf("Stats after the sweep = %+v, %v; want no conversations", stats, err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if n, err := engine.Do("ZCARD", s.buckets[0].prefix+"ls"); err != nil || n != "0" {
		t.Errorf("%s leases are left after Close, %v", n, err)
	}
	again := openAt(t, o, engine.Addr())
	_, err = again.Append(ctx, &store.Append{Tenant: "acme", ConversationID: "c", Messages: message("hello")})
	wantError(t, "Append after a restart", err, store.ErrNoSpace)
	engine.Config("maxmemory", "0")
	appendTo(t, again, "c", "hello")
}

// dump returns all keys of an engine, each with a checksum of its value.
func dump(t *testing.T, engine *redistest.Server) []string {
	t.Helper()
	const script = `
local read = {
  string = function(key) return { redis.call('GET', key) } end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
  hash = function(key)
    local all, pairs = redis.call('HGETALL', key), {}
    for i = 1, #all, 2 do pairs[#pairs + 1] = all[i] .. '=' .. all[i + 1] end
    return pairs
  end,
}
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local type = redis.call('TYPE', key).ok
  local value = read[type](key)
  if type == 'hash' or type == 'set' then table.sort(value) end -- The order of the engine changes without a write.
  all[#all + 1] = key .. ' ' .. redis.sha1hex(table.concat(value, ' '))
end
table.sort(all)
return all`
	text, err := engine.Do("EVAL", script, "0")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(text, "\n")
}
