package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// damaged is a store with conversations "bad", "old" and "new" of tenant "acme", created in this order. Each has two
// messages, a request, a turn, a system prompt and a record.
type damaged struct {
	*Store
	space

	t    *testing.T
	now  time.Time
	seen watcher
}

func newDamaged(t *testing.T, engine *redistest.Server, name string, capacity int, ephemeral bool) *damaged {
	t.Helper()
	d := &damaged{t: t, now: time.Unix(1_800_000_000, 0)}
	d.Store = openWith(t, Options{
		Options: store.Options{
			Now: func() time.Time { return d.now }, TTL: time.Hour, MaxConversations: capacity, Observe: d.seen.observe,
		},
		Buckets: 1, Prefix: name,
	}, engine.Addr())
	d.space = d.Store.space("acme")
	ctx := t.Context()
	for _, id := range []string{"bad", "old", "new"} {
		hold := &store.Hold{Tenant: "acme", ConversationIDs: []string{id}, DeleteAfter: time.Hour}
		turn := &parleyv1.Turn{Id: "turn of " + id}
		err := errors.Join(
			lastError(d.Append(ctx, &store.Append{
				Tenant: "acme", ConversationID: id, Messages: message("one"), Request: requestOf("r"), Begin: turn,
				CreateWith: &parleyv1.Conversation{SystemPrompt: "be kind"},
			})),
			lastError(d.Append(ctx, &store.Append{
				Tenant: "acme", ConversationID: id, Messages: message("two"), End: turn,
				Records: []*parleyv1.RecordWrite{putRecord("k", "v")},
			})))
		if ephemeral && id == "bad" {
			err = errors.Join(err, d.Hold(ctx, hold), d.Release(ctx, hold))
		}
		if err != nil {
			t.Fatal(err)
		}
		d.now = d.now.Add(time.Second)
	}
	d.seen.take()
	return d
}

// flip changes a bit of a field of a hash. at is a place in the value, from its end if it is negative.
func (d *damaged) flip(key, field string, at int) {
	d.t.Helper()
	value, err := d.client.Do(d.t.Context(), d.client.B().Hget().Key(key).Field(field).Build()).AsBytes()
	if err != nil {
		d.t.Fatalf("HGET %s = %v", field, err)
	}
	value[(at+len(value))%len(value)] ^= 0x40
	d.do("HSET", key, field, string(value))
}

// do sends a command that changes data without the store.
func (d *damaged) do(words ...string) {
	d.t.Helper()
	if err := d.client.Do(d.t.Context(), d.client.B().Arbitrary(words...).Build()).Error(); err != nil {
		d.t.Fatalf("%v = %v", words[:2], err)
	}
}

// damages are ways to damage conversation "bad".
var damages = []struct {
	name      string
	do        func(d *damaged)
	unread    bool // whether no call reads it
	unlisted  bool // whether lists must skip the conversation
	miscounts bool // whether messages and bytes may stay counted
}{
	{name: "v", do: func(d *damaged) { d.flip(d.of("c", "bad"), "v", 3) }},
	{name: "h begin", do: func(d *damaged) { d.flip(d.of("c", "bad"), "h", 0) }, unlisted: true},
	{name: "h middle", do: func(d *damaged) { d.flip(d.of("c", "bad"), "h", 40) }, unlisted: true},
	{name: "h empty", do: func(d *damaged) { d.do("HSET", d.of("c", "bad"), "h", "") }, unlisted: true},
	{name: "x begin", do: func(d *damaged) { d.flip(d.of("c", "bad"), "x", 0) }},
	{name: "x end", do: func(d *damaged) { d.flip(d.of("c", "bad"), "x", -1) }},
	{name: "x empty", do: func(d *damaged) { d.do("HSET", d.of("c", "bad"), "x", "") }},
	{name: "x of another", do: func(d *damaged) {
		d.do("EVAL", "redis.call('HSET', KEYS[1], 'x', redis.call('HGET', KEYS[2], 'x')) return 1", "2", d.of("c", "bad"),
			d.of("c", "old"))
	}},
	{name: "q", do: func(d *damaged) { d.flip(d.of("c", "bad"), "q", -3) }},
	{name: "t", do: func(d *damaged) { d.flip(d.of("c", "bad"), "t", 5) }},
	{name: "p", do: func(d *damaged) { d.flip(d.of("c", "bad"), "p", 0) }},
	{name: "p missing", do: func(d *damaged) { d.do("HDEL", d.of("c", "bad"), "p") }},
	{name: "k", do: func(d *damaged) { d.flip(d.of("c", "bad"), "k", 2) }},
	{name: "k missing", do: func(d *damaged) { d.do("HDEL", d.of("c", "bad"), "k") }},
	{name: "v missing", do: func(d *damaged) { d.do("HDEL", d.of("c", "bad"), "v") }},
	{name: "e", do: func(d *damaged) { d.flip(d.of("c", "bad"), "e", 4) }},
	{name: "e begin", do: func(d *damaged) { d.flip(d.of("c", "bad"), "e", 0) }},
	{
		name: "s", unread: true, miscounts: true,
		do: func(d *damaged) { d.flip(d.of("c", "bad"), "s", -1) },
	},
	{
		name: "s begin", unread: true, miscounts: true,
		do: func(d *damaged) { d.do("HSET", d.of("c", "bad"), "s", "\x00") },
	},
	{name: "message", do: func(d *damaged) {
		d.do("LSET", d.of("m", "bad"), "1", "\x0a\x03abcdefghi")
	}},
	{name: "message empty", do: func(d *damaged) { d.do("LSET", d.of("m", "bad"), "0", "") }},
	{name: "message missing", do: func(d *damaged) { d.do("LTRIM", d.of("m", "bad"), "1", "-1") }},
	{name: "messages missing", do: func(d *damaged) { d.do("DEL", d.of("m", "bad")) }},
	{name: "messages of another type", do: func(d *damaged) {
		d.do("SET", d.of("m", "bad"), "text")
	}},
}

// remedies remove conversation "bad". They return what is observed.
var remedies = []struct {
	name     string
	do       func(d *damaged) error
	observed string
}{
	{"delete", func(d *damaged) error {
		return d.Delete(d.t.Context(), &store.Delete{Tenant: "acme", ConversationID: "bad"})
	}, "DELETED bad"},
	{"import", func(d *damaged) error {
		now := timestamppb.New(d.now)
		return lastError(d.Import(d.t.Context(), &store.Import{
			Tenant: "acme", Overwrite: true, Conversation: &parleyv1.Conversation{
				Id: "bad", Version: 7, CreateTime: now, UpdateTime: now, LastAppendTime: now,
			},
		}))
	}, "DELETED bad"},
	{"eviction", func(d *damaged) error {
		appendTo(d.t, d, "newest", "hello")
		return nil
	}, "EVICTED bad"},
	{"sweep", func(d *damaged) error {
		d.now = d.now.Add(time.Hour - 2500*time.Millisecond) // The others expire later.
		return lastError(d.Sweep(d.t.Context(), 10))
	}, ""},
}

// TestChangedBytes damages a conversation in many ways. It alone must be concerned, and each way to remove it must do
// that.
func TestChangedBytes(t *testing.T) {
	engine := redistest.Start(t)
	for i, damage := range damages {
		for j, remedy := range remedies {
			t.Run(damage.name+", "+remedy.name, func(t *testing.T) {
				ephemeral := strings.HasPrefix(damage.name, "e")
				d := newDamaged(t, engine, fmt.Sprintf("p%d.%d", i, j), 3, ephemeral)
				damage.do(d)
				d.wantDamaged(t, damage.unread, damage.unlisted)
				d.seen.take()
				if err := remedy.do(d); err != nil {
					t.Fatalf("%s = %v", remedy.name, err)
				}
				if seen := d.seen.take(); len(seen) == 0 || !strings.HasPrefix(seen[0], remedy.observed) {
					t.Errorf("changes = %v, want %s first", seen, remedy.observed)
				}
				d.wantRepaired(t, damage.miscounts)
			})
		}
	}
}

// readBad makes the calls that read each part of "bad", and returns their errors.
func (d *damaged) readBad(ctx context.Context) error {
	return errors.Join(
		lastError(d.Read(ctx, &store.Read{
			Tenant: "acme", ConversationID: "bad", Newest: -1, Turns: true, Request: requestOf("r"),
		})),
		lastError(d.Update(ctx, &store.Update{
			Tenant: "acme", ConversationID: "bad", KeepThrough: new(int32), Values: &parleyv1.Conversation{Title: "new"},
			Fields: []string{"title"},
		})))
}

func (d *damaged) wantDamaged(t *testing.T, unread, unlisted bool) {
	t.Helper()
	ctx := t.Context()
	before, err := d.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !unread {
		wantError(t, "Read and Update of the damaged conversation", d.readBad(ctx), store.ErrCorrupt)
		if stats, err := d.Stats(ctx); err != nil || stats.Corrupt != before.Corrupt+2 {
			t.Errorf("Stats.Corrupt = %d, want %d; %v", stats.Corrupt, before.Corrupt+2, err)
		}
	}
	d.wantOthers(t)
	ids, page := listedIDs(t, d)
	want, n := []string{"bad", "old", "new"}, 0
	if unlisted {
		want, n = want[1:], 1
	}
	if !slices.Equal(ids, want) || page.Damaged != n {
		t.Errorf("List = %v, %d damaged, want %v, %d", ids, page.Damaged, want, n)
	}
}

// wantOthers checks that the other conversations can be read and written.
func (d *damaged) wantOthers(t *testing.T) {
	t.Helper()
	for _, id := range []string{"old", "new"} {
		snapshot, err := d.Read(t.Context(), &store.Read{
			Tenant: "acme", ConversationID: id, Newest: -1, Turns: true, Request: requestOf("r"), RecordPrefixes: []string{""},
		})
		if err != nil || snapshot.Conversation.GetMessageCount() != 2 || len(snapshot.Turns) != 1 || snapshot.Seen == nil ||
			len(snapshot.Records) != 1 {
			t.Errorf("Read(%q) = %+v, %v", id, snapshot, err)
		}
	}
}

// wantRepaired checks that nothing is left of "bad" unless it was created again.
func (d *damaged) wantRepaired(t *testing.T, miscounts bool) {
	t.Helper()
	ctx := t.Context()
	d.wantOthers(t)
	ids, page := listedIDs(t, d)
	if page.Damaged != 0 || page.Total != int64(len(ids)) {
		t.Errorf("List = %v of %d, %d damaged, want none", ids, page.Total, page.Damaged)
	}
	messages := int64(0)
	for _, e := range page.Entries {
		messages += int64(e.GetConversation().GetMessageCount())
	}
	if stats, err := d.TenantStats(ctx, "acme"); err != nil || stats.Conversations != int64(len(ids)) ||
		!miscounts && stats.Messages != messages {
		t.Errorf("TenantStats = %+v, %v; want %d conversations with %d messages", stats, err, len(ids), messages)
	}
	appendTo(t, d, "bad", "again") // It may evict another one.
	if !slices.Contains(ids, "bad") {
		wantTexts(t, d, "bad", "again")
	}
	d.now = d.now.Add(24 * time.Hour)
	if more, err := d.Sweep(ctx, 100); more || err != nil {
		t.Errorf("Sweep = %v, %v", more, err)
	}
	stats, err := d.Stats(ctx)
	if err != nil || stats.Conversations != 0 || stats.Messages != 0 || stats.Bytes != 0 || stats.Records != 0 {
		t.Errorf("Stats of nothing = %+v, %v", stats, err)
	}
	keys, err := d.client.Do(ctx, d.client.B().Keys().Pattern(d.space.prefix+"*").Build()).AsStrSlice()
	slices.Sort(keys)
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == d.space.prefix+"hc:"+d.server })
	if want := keysOfNothing(d.space.prefix); err != nil || !slices.Equal(keys, want) {
		t.Errorf("keys of nothing = %q, %v; want %q", keys, err, want)
	}
}

// keysOfNothing returns the keys of a bucket without data.
func keysOfNothing(prefix string) []string {
	return []string{prefix + "cr", prefix + "la", prefix + "ls", prefix + "st"}
}

// TestLostKey deletes the key of a conversation and leaves all others.
func TestLostKey(t *testing.T) {
	engine := redistest.Start(t)
	for i, capacity := range []int{0, 3} {
		for j, again := range []bool{false, true} {
			d := newDamaged(t, engine, fmt.Sprintf("p%d.%d", i, j), capacity, false)
			d.do("DEL", d.of("c", "bad"))
			_, err := d.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "bad", Newest: -1})
			wantError(t, "Read", err, store.ErrNotFound)
			if ids, page := listedIDs(t, d); !slices.Equal(ids, []string{"old", "new"}) || page.Damaged != 1 {
				t.Errorf("List = %v, %d damaged, want old and new, 1", ids, page.Damaged)
			}
			d.wantOthers(t)
			switch {
			case again:
				appendTo(t, d, "bad", "again")
				wantTexts(t, d, "bad", "again")
			case capacity > 0:
				appendTo(t, d, "newest", "hello") // It takes the place of the lost one.
			default:
				d.now = d.now.Add(time.Hour - 2500*time.Millisecond) // Only the lost one expires.
				if _, err := d.Sweep(t.Context(), 10); err != nil {
					t.Fatal(err)
				}
			}
			d.wantRepaired(t, true)
		}
	}
}

// TestDamageWhileATurnRuns deletes a damaged conversation with a running turn.
func TestDamageWhileATurnRuns(t *testing.T) {
	d := newDamaged(t, redistest.Start(t), "p", 0, false)
	ctx := t.Context()
	turn := &parleyv1.Turn{Id: "0198c0de-0000-7000-8000-000000000000"}
	if _, err := d.Append(ctx, &store.Append{
		Tenant: "acme", ConversationID: "bad", Messages: message("ask"), Begin: turn,
	}); err != nil {
		t.Fatal(err)
	}
	if err := d.SaveProgress(ctx, &store.Progress{Tenant: "acme", ConversationID: "bad", TurnID: turn.GetId()}); err != nil {
		t.Fatal(err)
	}
	d.flip(d.of("c", "bad"), "h", 0)
	if err := d.Delete(ctx, &store.Delete{Tenant: "acme", ConversationID: "bad"}); err != nil {
		t.Errorf("Delete = %v", err)
	}
	_, err := d.FindTurn(ctx, &store.FindTurn{Tenant: "acme", TurnID: turn.GetId()})
	wantError(t, "FindTurn after Delete", err, store.ErrTurnNotFound)
	d.wantRepaired(t, false)
}

// TestEarlierHead gives a conversation the head of an earlier version. Calls that read no messages must see it, too.
func TestEarlierHead(t *testing.T) {
	d := newDamaged(t, redistest.Start(t), "p", 0, false)
	key := d.of("c", "bad")
	head, err := d.client.Do(t.Context(), d.client.B().Hget().Key(key).Field("h").Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, d, "bad", "three")
	d.do("HSET", key, "h", head)
	_, err = d.Append(t.Context(), &store.Append{Tenant: "acme", ConversationID: "bad", Messages: message("four")})
	wantError(t, "Append", err, store.ErrCorrupt)
	_, err = d.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "bad"})
	wantError(t, "Read", err, store.ErrCorrupt)
	d.wantOthers(t)
}

// TestChangedBytesOfRecords damages values and states of records.
func TestChangedBytesOfRecords(t *testing.T) {
	engine := redistest.Start(t)
	for i, id := range []string{"bad", ""} {
		d := newDamaged(t, engine, fmt.Sprint("p", i), 0, false)
		ctx := t.Context()
		write := func(key, value string) error {
			return lastError(d.WriteRecords(ctx, &store.WriteRecords{
				Tenant: "acme", ConversationID: id, Writes: []*parleyv1.RecordWrite{putRecord(key, value)},
			}))
		}
		read := func(key string) error {
			return lastError(d.GetRecords(ctx, &store.GetRecords{
				Tenant: "acme", ConversationID: id, Keys: []string{key}, MaxBytes: 1 << 20,
			}))
		}
		for _, key := range []string{"k", "good", "state"} {
			if err := write(key, "value"); err != nil {
				t.Fatal(err)
			}
		}
		before, err := d.TenantStats(ctx, "acme")
		if err != nil {
			t.Fatal(err)
		}
		d.flip(d.space.scope("k", id), "k", -1)
		d.flip(d.space.scope("ks", id), "state", 0)
		wantError(t, "GetRecords of a damaged value", read("k"), store.ErrCorrupt)
		_, _, err = d.ListRecords(ctx, &store.ListRecords{Tenant: "acme", ConversationID: id, Limit: 9, MaxBytes: 1 << 20})
		wantError(t, "ListRecords with a damaged value", err, store.ErrCorrupt)
		for _, key := range []string{"good", "state"} {
			if err := read(key); err != nil {
				t.Errorf("GetRecords of %q = %v", key, err)
			}
		}
		for _, key := range []string{"k", "state"} {
			if err := errors.Join(write(key, "other"), read(key)); err != nil {
				t.Errorf("repair of %q = %v", key, err)
			}
		}
		if after, err := d.TenantStats(ctx, "acme"); err != nil || after.Records != before.Records ||
			after.RecordBytes != before.RecordBytes {
			t.Errorf("TenantStats after repair = %+v, %v; before %+v", after, err, before)
		}
		d.flip(d.space.scope("k", id), "good", 0)
		d.flip(d.space.scope("ks", id), "good", 0)
		wantError(t, "WriteRecords of what is damaged twice", write("good", "other"), store.ErrCorrupt)
		d.wantOthers(t)
	}
}
