package storetest

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// oracle is a simple reference implementation of a store for one tenant and one caller, with all
// data in a map. It knows neither uids nor sizes.
type oracle struct {
	options       store.Options // with defaults
	conversations map[string]*oracleConversation
	ephemeral     map[string]*oracleEphemeral
	expired       map[string]int // number of expiries that the store has not reported yet, by conversation id
	ended         map[string]int // the same for the end of ephemeral conversations, by summary of the change
	lastExpiry    time.Time
	changes       []string // summaries of the changes since the last comparison
}

// oracleConversation is a conversation in the oracle.
type oracleConversation struct {
	header   *parleyv1.Conversation
	exchange int32
	messages []*parleyv1.Message
	turns    []*parleyv1.Turn
	events   []*storev1.TurnEvents
	requests []oracleRequest
	saved    *store.Progress // of the newest turn; nil: nothing
}

// oracleRequest is a stored request with its result.
type oracleRequest struct {
	store.Request
	result *store.Result
	turn   string
}

func newOracle(o store.Options) *oracle {
	return &oracle{
		options: o.WithDefaults(), conversations: make(map[string]*oracleConversation),
		ephemeral: make(map[string]*oracleEphemeral),
		expired:   make(map[string]int), ended: make(map[string]int),
	}
}

// expire removes conversations that have expired.
func (o *oracle) expire(now time.Time) {
	o.expireEphemeral(now)
	for id, c := range o.conversations {
		end := c.header.GetExpireTime().AsTime()
		if c.header.GetActiveTurnId() == "" && o.ephemeral[id] == nil && !now.Before(end) {
			delete(o.conversations, id)
			o.expired[id]++
			if end.After(o.lastExpiry) {
				o.lastExpiry = end
			}
		}
	}
}

func (o *oracle) report(kind, id string, c *oracleConversation, count, trimmed int) {
	o.changes = append(o.changes, c.summary(kind, id, count, trimmed))
}

// summary returns the summary of a change, as summaries does.
func (c *oracleConversation) summary(kind, id string, count, trimmed int) string {
	return fmt.Sprintf("%s %s version %d count %d trimmed %d", kind, id, c.header.GetVersion(), count, trimmed)
}

// write makes a write and returns the result that a store must return.
func (o *oracle) write(write any, now time.Time) (*store.Result, error) {
	switch w := write.(type) {
	case *store.Create:
		return o.create(w, now)
	case *store.Append:
		return o.append(w, now)
	case *store.Update:
		return o.update(w, now)
	case *store.Import:
		return o.importConversation(w, now)
	case *store.Delete:
		c := o.conversations[w.ConversationID]
		if c == nil {
			return nil, store.ErrNotFound
		}
		if w.IfVersion != nil && *w.IfVersion != c.header.GetVersion() {
			return nil, &store.VersionError{Current: c.header.GetVersion()}
		}
		o.remove(w.ConversationID)
		o.report("DELETED", w.ConversationID, c, len(c.messages), 0)
		return nil, nil
	}
	return nil, fmt.Errorf("%T is not a write", write)
}

func (o *oracle) create(w *store.Create, now time.Time) (*store.Result, error) {
	id := w.Conversation.GetId()
	if c := o.conversations[id]; c != nil {
		switch first, err := c.findRequest(w.Request); {
		case err != nil:
			return nil, err
		case first != nil:
			return &store.Result{Conversation: proto.CloneOf(c.header), Created: first.result.Created, Replayed: true}, nil
		case w.OrGet:
			return &store.Result{Conversation: proto.CloneOf(c.header)}, nil
		}
		return nil, store.ErrConversationExists
	}
	if err := o.evictForNew(); err != nil {
		return nil, err
	}
	c := o.newConversation(id, now)
	c.header.Title, c.header.ForkedFrom, c.header.Version = w.Conversation.GetTitle(), w.Conversation.GetForkedFrom(), 1
	if limit := w.Conversation.GetRetention().GetMaxMessages(); limit != 0 {
		c.header.Retention.MaxMessages = limit
	}
	messages, err := w.Messages.Messages()
	if err != nil {
		return nil, err
	}
	for c.messages = messages; len(messages) > 0; messages = messages[1:] {
		c.header.LastSequence, c.exchange = messages[0].GetSequence(), messages[0].GetExchange()
	}
	trimmed := c.trim()
	c.updateDerived()
	o.report("CREATED", id, c, len(c.messages), trimmed)
	result := &store.Result{Conversation: proto.CloneOf(c.header), Created: true}
	c.remember(w.Request, "", result)
	return result, nil
}

func (o *oracle) newConversation(id string, now time.Time) *oracleConversation {
	at := timestamppb.New(now)
	c := &oracleConversation{header: &parleyv1.Conversation{
		Id: id, Retention: &parleyv1.Retention{MaxMessages: int32(o.options.MaxMessages), Ttl: durationpb.New(o.options.TTL)},
		CreateTime: at, UpdateTime: at, LastAppendTime: at, ExpireTime: timestamppb.New(now.Add(o.options.TTL)),
	}}
	o.conversations[id] = c
	return c
}

// evictForNew evicts the oldest conversations without a running turn or a holder if the tenant is
// at its capacity. Expired conversations have already been removed.
func (o *oracle) evictForNew() error {
	n := len(o.conversations) + 1 - o.options.MaxConversations
	oldest := o.evictable()
	if n > len(oldest) {
		return store.ErrFull
	}
	o.evict(oldest[:max(0, n)])
	return nil
}

// evictExcess evicts conversations that exceed the capacity, as far as they can be evicted.
func (o *oracle) evictExcess() {
	oldest := o.evictable()
	o.evict(oldest[:max(0, min(len(oldest), len(o.conversations)-o.options.MaxConversations))])
}

// evictable returns the conversations without a running turn or a holder, oldest first.
func (o *oracle) evictable() []*oracleConversation {
	var all []*oracleConversation
	for id, c := range o.conversations {
		if c.header.GetActiveTurnId() == "" && !o.held(id) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *oracleConversation) int {
		return a.header.GetCreateTime().AsTime().Compare(b.header.GetCreateTime().AsTime())
	})
	return all
}

func (o *oracle) evict(all []*oracleConversation) {
	for _, c := range all {
		o.remove(c.header.GetId())
		o.report("EVICTED", c.header.GetId(), c, len(c.messages), 0)
	}
}

func (o *oracle) append(w *store.Append, now time.Time) (*store.Result, error) {
	c := o.conversations[w.ConversationID]
	if c != nil {
		if first, err := c.findRequest(w.Request); err != nil || first != nil {
			return c.replay(first), err
		}
	}
	if err := c.check(w); err != nil {
		return nil, err
	}
	created := c == nil
	if created {
		if err := o.evictForNew(); err != nil {
			return nil, err
		}
		c = o.newConversation(w.ConversationID, now)
	}
	now = c.touch(now)
	if len(w.Messages) > 0 || w.End != nil {
		c.header.LastAppendTime = timestamppb.New(now)
	}
	result := &store.Result{Created: created, Appended: c.add(w.Messages, now)}
	result.Turn = c.turn(w, result.Appended, now)
	c.keepEvents(w.Events, result.Turn.GetId())
	before := len(c.messages) - len(w.Messages)
	trimmed := c.trim()
	if created {
		o.report("CREATED", w.ConversationID, c, len(c.messages), 0)
	}
	for i := range w.Messages {
		if i == len(w.Messages)-1 {
			o.report("MESSAGE_APPENDED", w.ConversationID, c, len(c.messages), trimmed)
		} else {
			o.report("MESSAGE_APPENDED", w.ConversationID, c, before+i+1, 0)
		}
	}
	if len(w.Messages) == 0 && !created {
		o.report("UPDATED", w.ConversationID, c, len(c.messages), 0)
	}
	c.updateDerived()
	result.Conversation = proto.CloneOf(c.header)
	c.remember(w.Request, w.Begin.GetId(), result)
	return result, nil
}

func (o *oracle) update(w *store.Update, now time.Time) (*store.Result, error) {
	c := o.conversations[w.ConversationID]
	if c == nil {
		return nil, store.ErrNotFound
	}
	if w.KeepThrough != nil && c.header.GetActiveTurnId() != "" {
		return nil, &store.BusyError{TurnID: c.header.GetActiveTurnId()}
	}
	if w.IfVersion != nil && *w.IfVersion != c.header.GetVersion() {
		return nil, &store.VersionError{Current: c.header.GetVersion()}
	}
	before := proto.CloneOf(c.header)
	for _, field := range w.Fields {
		switch field {
		case "title":
			c.header.Title = w.Values.GetTitle()
		case "retention.max_messages":
			c.header.Retention.MaxMessages = w.Values.GetRetention().GetMaxMessages()
		case "retention.ttl":
			c.header.Retention.Ttl = w.Values.GetRetention().GetTtl()
		}
	}
	kept := len(c.messages)
	if w.KeepThrough != nil {
		c.messages = slices.DeleteFunc(c.messages, func(m *parleyv1.Message) bool { return m.GetSequence() > *w.KeepThrough })
	}
	removed, trimmed := kept-len(c.messages), c.trim()
	c.updateDerived()
	if !proto.Equal(before, c.header) {
		c.touch(now)
		switch {
		case removed > 0:
			o.report("CLEARED", w.ConversationID, c, removed, trimmed)
		default:
			o.report("UPDATED", w.ConversationID, c, len(c.messages), trimmed)
		}
	}
	return &store.Result{Conversation: proto.CloneOf(c.header)}, nil
}
