package storetest

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// frames encodes messages without changing them.
func frames(t tester, messages ...*parleyv1.Message) store.Frames {
	t.Helper()
	var all store.Frames
	for _, m := range messages {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		all = store.AppendFrame(all, body)
	}
	return all
}

// newImport returns the import of a conversation of that age. It has two exchanges whose sequences
// have gaps; newer messages were cleared.
func (f *fixture) newImport(id string, age time.Duration) *store.Import {
	f.t.Helper()
	created := f.clock.Now().Add(-age)
	c := &parleyv1.Conversation{
		Id: id, Uid: "uid of " + id, Title: "title", Labels: map[string]string{"team": "blue"}, Agent: "writer",
		SystemPrompt: "be brief",
		Retention:    &parleyv1.Retention{MaxMessages: 7, Ttl: durationpb.New(2 * time.Hour)},
		Version:      41, LastSequence: 23,
		ActiveAgent: &parleyv1.ActiveAgent{Agent: "holder", Reason: "asked for", StartTime: timestamppb.New(created)},
		CreateTime:  timestamppb.New(created), UpdateTime: timestamppb.New(created.Add(3 * time.Second)),
		LastAppendTime: timestamppb.New(created.Add(2 * time.Second)),
		ForkedFrom:     &parleyv1.ForkOrigin{ConversationId: "source", Sequence: 3},
	}
	messages := []*parleyv1.Message{user("q1"), assistant("a1", "list", "table"), user("q2"), assistant("a2", "list")}
	for i, m := range messages {
		m.Sequence, m.Exchange = []int32{3, 4, 9, 20}[i], int32(6+i/2)
		m.CreateTime, m.Status, m.TurnId = timestamppb.New(created.Add(time.Duration(i)*time.Second/2)),
			parleyv1.MessageStatus(1+i%2), fmt.Sprint("turn ", i/2)
	}
	return &store.Import{Conversation: c, Messages: frames(f.t, messages...)}
}

// importedHeader returns the header that Import stores for i. The uid, which the store chooses, is
// taken from result.
func importedHeader(i *store.Import, result *store.Result) *parleyv1.Conversation {
	c := proto.CloneOf(i.Conversation)
	c.Uid = result.Conversation.GetUid()
	c.MessageCount, c.SizeBytes = int32(i.Messages.Count()), int32(len(i.Messages))
	c.ExpireTime = timestamppb.New(c.GetLastAppendTime().AsTime().Add(c.GetRetention().GetTtl().AsDuration()))
	return c
}

// uid returns the uid of the conversation, empty if c is nil.
func (c *oracleConversation) uid() string {
	if c == nil {
		return ""
	}
	return c.header.GetUid()
}

// importConversation imports into the oracle.
func (o *oracle) importConversation(w *store.Import, now time.Time) (*store.Result, error) {
	id := w.Conversation.GetId()
	old := o.conversations[id]
	switch {
	case old != nil && !w.Overwrite:
		return nil, store.ErrConversationExists
	case old != nil && old.header.GetActiveTurnId() != "":
		return nil, &store.BusyError{TurnID: old.header.GetActiveTurnId()}
	}
	messages, err := w.Messages.Messages()
	if err != nil {
		return nil, err
	}
	c := &oracleConversation{header: proto.CloneOf(w.Conversation), messages: messages}
	for _, m := range messages {
		c.exchange = m.GetExchange()
	}
	trimmed := c.trim()
	c.updateDerived()
	at := now
	if old != nil && now.Before(old.header.GetUpdateTime().AsTime()) {
		at = old.header.GetUpdateTime().AsTime()
	}
	c.setRecords(copyRecords(w.Records, id, c.header.GetVersion(), at))
	switch {
	case !o.held(id) && c.header.GetExpireTime() != nil && !now.Before(c.header.GetExpireTime().AsTime()):
		return nil, store.ErrExpired
	case old != nil:
		o.remove(id)
		o.report("DELETED", id, old, len(old.messages), 0)
	case o.excess(1) > 0:
		return nil, store.ErrFull
	}
	o.conversations[id] = c
	o.report("CREATED", id, c, len(c.messages), trimmed)
	return &store.Result{Conversation: proto.CloneOf(c.header), Created: true}, nil
}

// importConversation imports an older conversation with the uid of another one or of the one that
// it replaces.
func (m *machine) importConversation(r *rapid.T) {
	age := time.Duration(rapid.IntRange(0, 100).Draw(r, "age")) * time.Minute
	m.nextInstant() // No other conversation has this create time.
	i := m.newImport(drawID(r), age)
	i.Overwrite = rapid.Bool().Draw(r, "overwrite")
	i.Conversation.Uid, i.Conversation.SystemPrompt = m.oracle.conversations[drawID(r)].uid(), ""
	i.Conversation.Retention = drawRetention(r)
	m.writeBoth(i)
}
