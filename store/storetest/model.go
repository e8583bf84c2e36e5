package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// model makes the same random calls of a store and an oracle and compares the results.
func (s Subject) model(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := s.openFor(t, r, func(o *store.Options) { o.MaxMessages, o.MaxConversations = 3, s.modelCapacity(3) })
		m := &machine{fixture: f, oracle: newOracle(f.options), uids: make(map[string]string)}
		actions := map[string]func(*rapid.T){
			"":       m.check,
			"create": m.create, "append": m.append, "append again": m.append, "replace": m.replace, "turn": m.turn,
			"turns": m.runTurns, "update": m.update,
			"import": m.importConversation, "fork": m.fork, "hold": m.hold, "release": m.release, "delete": m.delete,
			"purge": m.purge,
			"sweep": m.sweepBoth, "advance clock": m.advanceClock, "save progress": m.saveProgress,
			"read request": m.readRequest, "page": m.page, "next page": m.page,
		}
		if s.Durable {
			actions["reopen"] = m.reopenBoth
		}
		r.Repeat(actions)
		m.deleteAll()
	})
}

// machine is a store under test with its oracle.
type machine struct {
	*fixture
	oracle  *oracle
	uids    map[string]string // id of every conversation that ever existed, by uid
	ran     map[string]string // running turns by conversation id, when the store was opened
	walk    *walk             // list that is being read; nil: none
	unswept bool              // the capacity was lowered, and the tenant may still exceed it
	counter int
	begun   []string // ids of all turns
}

// writeBoth makes a write in the store and the oracle, at the same time of the clock, and compares
// the results.
func (m *machine) writeBoth(write any) {
	now := m.nextInstant()
	want, wantErr := m.oracle.write(write, now)
	got, err := m.try(write)
	if wantErr != nil || err != nil {
		if wantErr == nil || !errorIs(err, wantErr) || got != nil {
			m.t.Fatalf("%T %+v = %v, %v, want error %v", write, write, got, err, wantErr)
		}
		return
	}
	if want == nil {
		return
	}
	if want.Created && !want.Replayed {
		uid := got.Conversation.GetUid()
		if of, ok := m.uids[uid]; ok || uid == "" {
			m.t.Fatalf("new conversation %s has the uid %q of an earlier %q", got.Conversation.GetId(), uid, of)
		}
		m.uids[uid] = got.Conversation.GetId()
		m.oracle.conversations[got.Conversation.GetId()].header.Uid = uid
	}
	if got.Replayed && got.Turn == nil && !m.oracle.conversations[got.Conversation.GetId()].isNewest(want.Turn) {
		want.Turn = nil
	}
	c := m.oracle.conversations[got.Conversation.GetId()].header
	c.SizeBytes = got.Conversation.GetSizeBytes() // check compares it with the messages.
	want.Conversation.Uid, want.Conversation.SizeBytes = c.GetUid(), c.GetSizeBytes()
	same(m.t, fmt.Sprintf("%T %+v", write, write), got, want)
}

// nextInstant gives each action a time of its own. All other steps of the clock are whole
// milliseconds.
func (m *machine) nextInstant() time.Time {
	m.clock.Advance(1)
	m.oracle.expire(m.clock.Now())
	return m.clock.Now()
}

func drawID(r *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(r, "id")
}

func drawRequest(r *rapid.T) *store.Request {
	n := rapid.IntRange(0, 5).Draw(r, "request")
	if n == 0 || n > 3 {
		return nil
	}
	return request(fmt.Sprint("r", n), rapid.SampledFrom([]string{"", "other"}).Draw(r, "content"))
}

// drawVersion draws no version, the present version, or a random one.
func (m *machine) drawVersion(r *rapid.T, id string) *int32 {
	switch rapid.IntRange(0, 3).Draw(r, "version") {
	case 0:
		return new(int32(rapid.IntRange(0, 4).Draw(r, "wrong version")))
	case 1:
		if c := m.oracle.conversations[id]; c != nil {
			return new(c.header.GetVersion())
		}
	}
	return nil
}

// drawRetention draws a retention without unset fields. Most keep few messages and turns, expire and can be evicted.
func drawRetention(r *rapid.T) *parleyv1.Retention {
	rarely := func(label string) bool { return rapid.IntRange(0, 3).Draw(r, label) == 0 }
	return &parleyv1.Retention{
		MaxMessages: int32(rapid.IntRange(1, 4).Draw(r, "max_messages")),
		Ttl:         durationpb.New(time.Duration(rapid.IntRange(1, 90).Draw(r, "ttl")) * time.Minute),
		KeepAll:     rarely("keep_all"), NoExpiry: rarely("no_expiry"), NoEviction: rarely("no_eviction"),
		MaxTurns: drawMaxTurns(r, !rarely("many turns")),
	}
}

// drawNew draws the header of a new conversation. Its retention is often unset.
func drawNew(r *rapid.T, id string) *parleyv1.Conversation {
	c := &parleyv1.Conversation{Id: id, Title: rapid.SampledFrom([]string{"", "title"}).Draw(r, "title")}
	if rapid.IntRange(0, 2).Draw(r, "retention") == 0 {
		c.Retention = drawRetention(r)
	}
	return c
}

func (m *machine) create(r *rapid.T) {
	m.writeBoth(&store.Create{
		Conversation: drawNew(r, drawID(r)), Request: drawRequest(r), OrGet: rapid.Bool().Draw(r, "or get"),
	})
}

func (m *machine) append(r *rapid.T) { m.writeBoth(m.drawAppend(r)) }

// replace replaces the end of a history, mostly one or two messages.
func (m *machine) replace(r *rapid.T) {
	w := m.drawAppend(r)
	w.ReplaceAfter = new(m.drawSequence(r, w.ConversationID))
	if w.Request == nil && rapid.IntRange(0, 2).Draw(r, "empty") == 0 {
		w.Messages = nil
	}
	m.writeBoth(w)
}

// drawSequence draws 0, or a sequence near the newest.
func (m *machine) drawSequence(r *rapid.T, id string) int32 {
	last := int32(0)
	if c := m.oracle.conversations[id]; c != nil {
		last = c.header.GetLastSequence()
	}
	return max(0, last+1-int32(rapid.IntRange(0, 5).Draw(r, "from the end")))
}

// drawAppend draws an append of questions, answers, calls and results.
func (m *machine) drawAppend(r *rapid.T) *store.Append {
	id := drawID(r)
	w := &store.Append{
		ConversationID: id, Request: drawRequest(r), IfVersion: m.drawVersion(r, id), MustExist: rapid.IntRange(0, 3).Draw(r,
			"must exist") == 0,
	}
	if rapid.IntRange(0, 3).Draw(r, "create with") == 0 {
		w.CreateWith = drawNew(r, "ignored")
	}
	n := rapid.IntRange(1, 5).Draw(r, "messages")
	if w.Request != nil {
		n = len(w.Request.ID) // A retry must have the same messages, because the digest of the request stands for them.
	}
	m.counter++
	for i := range n {
		text := fmt.Sprint("message ", i, " of ", m.counter)
		if w.Request != nil {
			text = fmt.Sprint("message ", i, " of ", w.Request.ID)
		}
		message := user(text)
		switch i % 5 {
		case 1, 4:
			message = assistant(text, "list")
		case 2:
			message.Role, message.ToolCalls = parleyv1.Role_ROLE_ASSISTANT, calling("c", "d").GetToolCalls()
		case 3:
			message = result("c")
		}
		w.Messages = append(w.Messages, message)
	}
	return w
}

// turn starts a turn or ends one, mostly the running one.
func (m *machine) turn(r *rapid.T) {
	id := drawID(r)
	w := &store.Append{ConversationID: id}
	turn := &parleyv1.Turn{
		Id: m.nextTurn(), Agent: "writer", InputSequence: 1, State: parleyv1.TurnState_TURN_STATE_COMPLETED,
	}
	running := m.oracle.conversations[id] != nil && m.oracle.conversations[id].header.GetActiveTurnId() != ""
	if rapid.IntRange(0, 3).Draw(r, "valid") > 0 == running {
		if running {
			turn.Id = m.oracle.conversations[id].header.GetActiveTurnId()
		}
		w.End = turn
	} else {
		w.Begin = turn
	}
	if w.Request = drawRequest(r); w.Request != nil {
		w.Request.Method = "Chat"
		turn.RequestId = w.Request.ID
	}
	if rapid.Bool().Draw(r, "events") {
		w.Events = turnEvents(int32(m.counter))
	}
	n := rapid.IntRange(0, 2).Draw(r, "messages")
	if w.Request != nil {
		n = len(w.Request.ID)
	}
	for i := range n {
		w.Messages = append(w.Messages, assistant(fmt.Sprint("answer ", i)))
	}
	m.writeBoth(w)
}

func (m *machine) update(r *rapid.T) {
	id := drawID(r)
	w := &store.Update{
		ConversationID: id, IfVersion: m.drawVersion(r, id),
		Fields: rapid.SliceOfDistinct(rapid.SampledFrom([]string{
			"title", "retention.max_messages", "retention.ttl", "retention.keep_all", "retention.no_expiry",
			"retention.no_eviction", "retention.max_turns",
		}), rapid.ID).Draw(r, "fields"),
		Values: &parleyv1.Conversation{
			Title: rapid.SampledFrom([]string{"", "title", "other"}).Draw(r, "title"), Retention: drawRetention(r),
		},
	}
	switch rapid.IntRange(0, 5).Draw(r, "remove") {
	case 0:
		w.KeepThrough = new(m.drawSequence(r, id))
	case 1:
		w.KeepThrough = new(int32) // It is ignored.
		for range rapid.IntRange(1, 3).Draw(r, "sequences") {
			w.Sequences = append(w.Sequences, m.drawSequence(r, id))
		}
	}
	if w.Request = drawRequest(r); w.Request != nil {
		w.Request.Method = "ClearConversation"
	}
	m.writeBoth(w)
}

func (m *machine) delete(r *rapid.T) {
	id := drawID(r)
	m.writeBoth(&store.Delete{ConversationID: id, IfVersion: m.drawVersion(r, id)})
}

func (m *machine) purge(r *rapid.T) {
	inactive := time.Duration(rapid.IntRange(1, 60).Draw(r, "minutes")) * time.Minute
	dry := rapid.Bool().Draw(r, "dry run")
	cut := m.nextInstant().Add(-inactive)
	var want []string
	for id, c := range m.oracle.conversations {
		if !c.header.GetLastAppendTime().AsTime().After(cut) {
			want = append(want, id)
		}
	}
	slices.Sort(want)
	if !dry {
		for _, id := range want {
			if _, err := m.oracle.write(&store.Delete{ConversationID: id}, cut); err != nil {
				m.t.Fatal(err)
			}
		}
	}
	purged, err := m.store.Purge(m.t.Context(), &store.Purge{Tenant: tenant, InactiveFor: inactive, DryRun: dry})
	slices.Sort(purged.SampleIDs)
	if err != nil || !slices.Equal(purged.SampleIDs, want) || purged.Count != int64(len(want)) {
		m.t.Fatalf("Purge = %+v, %v, want %v", purged, err, want)
	}
}

// advanceClock moves the clock forward or back. It never goes back to a time at which an expired
// conversation would be visible again, because that would depend on what the store has swept.
func (m *machine) advanceClock(r *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{
		time.Millisecond, 10 * time.Minute, 31 * time.Minute, 2 * time.Hour, -10 * time.Minute,
	}).Draw(r, "time")
	if m.clock.Now().Add(d).After(m.oracle.lastExpiry) {
		m.clock.Advance(d)
	}
	m.nextInstant()
}
