package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// step is a write of a long conversation, and reads after it. Numbers are parts of 10,000 of what there is.
type step struct {
	Kind     int
	Count    int // of messages
	From, To int
	Types    int
	Request  bool
}

// The kinds of steps.
const (
	appendStep = iota
	replaceStep
	removeStep
	keepStep
	limitStep
	turnStep
	kinds
)

func steps() *rapid.Generator[[]step] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			Kind:  rapid.IntRange(0, kinds-1).Draw(t, "kind"),
			Count: rapid.SampledFrom([]int{1, 2, 60, 70, 130, 260, 300, 600}).Draw(t, "count"),
			From:  rapid.IntRange(0, 10_000).Draw(t, "from"), To: rapid.IntRange(0, 10_000).Draw(t, "to"),
			Types: rapid.IntRange(0, 3).Draw(t, "types"), Request: rapid.Bool().Draw(t, "request"),
		}
	}), 40, 40)
}

// pair is a store and a store in memory that get the same calls at the same time.
type pair struct {
	t         *testing.T
	got, want store.Store
	counter   int
}

// TestLongConversations makes the same random writes of conversations with thousands of messages in two stores, and
// compares what they return and what can be read.
func TestLongConversations(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	seeds := []int{1, 2, rand.Int()}
	if testing.Short() {
		seeds = seeds[2:]
	}
	for n, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			now := time.Unix(1_800_000_000, 0)
			o := store.Options{Now: func() time.Time { return now }, MaxConversationBytes: 20_000_000, TTL: time.Hour}
			p := &pair{t: t, want: memstore.New(o), got: openWith(t, Options{
				Options: o, Buckets: 1, Prefix: fmt.Sprint("p", n),
			}, engine.Addr())}
			t.Cleanup(func() { p.want.Close() })
			p.append(&store.Append{Messages: p.messages(3000, 0), CreateWith: &parleyv1.Conversation{
				Title: "long", Retention: &parleyv1.Retention{KeepAll: true},
			}})
			for _, st := range steps().Example(seed) {
				now = now.Add(time.Second)
				p.step(st)
				p.compare(st)
				if t.Failed() {
					t.Fatalf("after %+v", st)
				}
			}
		})
	}
}

// messages returns n new messages. Some have structured data of one of so many types, and some call tools.
func (p *pair) messages(n, types int) (all []*parleyv1.Message) {
	for range n {
		p.counter++
		m := &parleyv1.Message{
			Id: fmt.Sprint("m", p.counter), Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", p.counter%50),
		}
		if types > 0 && p.counter%7 == 0 {
			m.StructuredData = []*parleyv1.StructuredData{{
				Type: fmt.Sprint("t", p.counter%types), Value: structpb.NewStringValue("v"),
			}}
		}
		all = append(all, m)
	}
	return all
}

// sequences returns the sequences of the conversation.
func (p *pair) sequences() (all []int32) {
	snapshot, err := p.want.Read(p.t.Context(), &store.Read{Tenant: "acme", ConversationID: "c", Newest: -1})
	if err != nil {
		p.t.Fatal(err)
	}
	for frame := range snapshot.Messages.All() {
		all = append(all, frame.Sequence())
	}
	return all
}

// step makes a write in both stores.
func (p *pair) step(st step) {
	all := p.sequences()
	at := func(part int) int32 { // a sequence, or one of a removed message
		if len(all) == 0 {
			return 0
		}
		first, last := all[0]-1, all[len(all)-1]
		return first + int32(int64(last-first)*int64(part)/10_000)
	}
	var request *store.Request
	if st.Request {
		request = requestOf(fmt.Sprint("r", p.counter))
	}
	u := &store.Update{Tenant: "acme", ConversationID: "c", Request: request}
	switch st.Kind {
	case appendStep:
		p.append(&store.Append{Messages: p.messages(st.Count, st.Types), Request: request})
	case replaceStep:
		after := at(9_000 + st.From/10)
		if st.From%5 == 0 {
			after = at(st.From)
		}
		p.append(&store.Append{Messages: p.messages(st.Count, st.Types), ReplaceAfter: &after, Request: request})
	case removeStep:
		from, to := at(st.From), at(min(10_000, st.From+st.To%500))
		for s := from; s <= to; s += int32(st.Types + 1) {
			u.Sequences = append(u.Sequences, s)
		}
		if len(u.Sequences) > 0 {
			p.update(u)
		}
	case keepStep:
		through := at(8_000 + st.From/5)
		u.KeepThrough = &through
		p.update(u)
	case limitStep: // It is not kept for long, or little would be left.
		u.Values = &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: int32(1000 + 2*st.From/10)}}
		u.Fields = []string{"retention.keep_all", "retention.max_messages"}
		p.update(u)
		p.append(&store.Append{Messages: p.messages(1, st.Types)})
		if all = p.sequences(); len(all) > 4 {
			p.append(&store.Append{Messages: p.messages(st.Count, st.Types), ReplaceAfter: &all[len(all)-4]})
		}
		p.update(&store.Update{
			Tenant: "acme", ConversationID: "c", Fields: []string{"retention.keep_all"},
			Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{KeepAll: true}},
		})
	case turnStep:
		turn := &parleyv1.Turn{Id: fmt.Sprint("turn ", p.counter)}
		p.append(&store.Append{Messages: p.messages(1, 0), Begin: turn, Request: request})
		p.append(&store.Append{Messages: p.messages(st.Count, st.Types), End: turn})
	}
}

func (p *pair) append(a *store.Append) {
	a.Tenant, a.ConversationID = "acme", "c"
	p.both(fmt.Sprintf("Append of %d", len(a.Messages)), func(s store.Store) (*store.Result, error) {
		return s.Append(p.t.Context(), a)
	})
}

func (p *pair) update(u *store.Update) {
	p.both("Update", func(s store.Store) (*store.Result, error) { return s.Update(p.t.Context(), u) })
}

// both makes a write in both stores and compares the results.
func (p *pair) both(what string, write func(store.Store) (*store.Result, error)) {
	p.t.Helper()
	want, wantErr := write(p.want)
	got, err := write(p.got)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) {
		p.t.Fatalf("%s = %v, want %v", what, err, wantErr)
	}
	if err != nil {
		return
	}
	want.Conversation, got.Conversation = withoutUID(want.Conversation), withoutUID(got.Conversation)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		p.t.Fatalf("result of %s (-want +got):\n%s", what, diff)
	}
}

func withoutUID(c *parleyv1.Conversation) *parleyv1.Conversation {
	c = proto.CloneOf(c)
	c.Uid = ""
	return c
}

// compare compares all that can be read of the conversation.
func (p *pair) compare(st step) {
	p.t.Helper()
	all := p.sequences()
	last := int32(1)
	if len(all) > 0 {
		last = all[len(all)-1]
	}
	part := func(n int) int32 { return int32(int64(last) * int64(n) / 10_000) }
	for _, q := range []store.Read{
		{Newest: -1, Turns: true},
		{Newest: 3},
		{Newest: 200, MaxBytes: 3000},
		{Newest: -1, MaxBytes: 1 + 10*st.To},
		{Newest: -1, After: part(st.From), Before: part(st.To)},
		{Newest: 300, Before: part(st.To)},
		{Newest: 7, After: part(st.From), Oldest: true},
		{Newest: -1, Oldest: true, MaxBytes: 1 + 3*st.To},
	} {
		q.Tenant, q.ConversationID, q.WithOldestSequence = "acme", "c", st.Types != 0
		want, err := p.want.Read(p.t.Context(), &q)
		if err != nil {
			p.t.Fatal(err)
		}
		got, err := p.got.Read(p.t.Context(), &q)
		if err != nil {
			p.t.Errorf("Read %+v = %v", q, err)
			return
		}
		want.Conversation, got.Conversation = withoutUID(want.Conversation), withoutUID(got.Conversation)
		if diff := cmp.Diff(want, got, protocmp.Transform(), cmp.Comparer(sameFrames)); diff != "" {
			p.t.Errorf("Read %+v of %d messages (-want +got):\n%.2000s", q, len(all), diff)
			return
		}
	}
	p.compareLists(p.t.Context())
}

func sameFrames(a, b store.Frames) bool { return slices.Equal(a, b) }

// compareLists compares lists by the types of structured data, and counts.
func (p *pair) compareLists(ctx context.Context) {
	p.t.Helper()
	for _, kind := range []string{"", "t0", "t1", "t2"} {
		l := &store.List{Tenant: "acme", PageSize: 5, StructuredDataType: kind}
		want, err := p.want.List(ctx, l)
		got, err2 := p.got.List(ctx, l)
		if err := errors.Join(err, err2); err != nil || len(got.Entries) != len(want.Entries) || got.Damaged != 0 {
			p.t.Errorf("List of %q = %d entries, %v; want %d", kind, len(got.Entries), err, len(want.Entries))
		}
	}
	want, err := p.want.TenantStats(ctx, "acme")
	got, err2 := p.got.TenantStats(ctx, "acme")
	if err := errors.Join(err, err2); err != nil || got.Messages != want.Messages || got.Conversations != want.Conversations {
		p.t.Errorf("TenantStats = %+v, %v; want %+v", got, err, want)
	}
}

// TestBytesOfAppend measures what an append sends: the message, title and labels, and at most 2 KB, however many
// messages the conversation keeps.
func TestBytesOfAppend(t *testing.T) {
	p := newProxy(t, redistest.Start(t).Addr())
	s := openAt(t, store.Options{}, p.addr)
	ctx := t.Context()
	title, label := strings.Repeat("t", 200), strings.Repeat("l", 1000)
	for _, kept := range []int{20, 3000} {
		id := fmt.Sprint("c", kept)
		a := &store.Append{Tenant: "acme", ConversationID: id, CreateWith: &parleyv1.Conversation{
			Title: title, Labels: map[string]string{"k": label}, Retention: &parleyv1.Retention{MaxMessages: int32(kept)},
			SystemPrompt: strings.Repeat("p", 5000),
		}}
		for i := range kept {
			a.Messages = append(a.Messages, message(fmt.Sprint(i))...)
		}
		if _, err := s.Append(ctx, a); err != nil {
			t.Fatal(err)
		}
		most := 0
		for i := range 150 {
			a := &store.Append{
				Tenant: "acme", ConversationID: id, Messages: message(strings.Repeat("m", 500)), Request: requestOf(fmt.Sprint(i)),
			}
			before := p.sentBytes("EVALSHA", "HMGET", "HGET", "LRANGE")
			if _, err := s.Append(ctx, a); err != nil {
				t.Fatal(err)
			}
			if sent := p.sentBytes("EVALSHA", "HMGET", "HGET", "LRANGE") - before; i > 32 {
				most = max(most, sent)
			}
		}
		frame := proto.Size(message(strings.Repeat("m", 500))[0])
		limit := frame + len(title) + len(label) + 2048
		t.Logf("%d messages: at most %d bytes, %d more than message, title and labels", kept, most, most-limit+2048)
		if most > limit {
			t.Errorf("an append to %d messages sends %d bytes, want at most %d", kept, most, limit)
		}
		if n := readAll(t, s, id).Conversation.GetMessageCount(); int(n) != kept {
			t.Errorf("%d messages, want %d", n, kept)
		}
	}
}
