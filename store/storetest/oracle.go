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
	tenant        oracleTenant
	newest        int64    // revision of the records that the last append wrote
	changes       []string // summaries of the changes since the last comparison
}

// oracleConversation is a conversation in the oracle.
type oracleConversation struct {
	header   *parleyv1.Conversation
	exchange int32
	messages []*parleyv1.Message
	turns    []*parleyv1.Turn // those that the store may keep
	// leastTurns is the number of the newest turns that the store must keep.
	leastTurns int
	events     []*storev1.TurnEvents
	requests   []oracleRequest
	records    oracleRecords
	saved      *store.Progress // of the newest turn; nil: nothing
}

// oracleRequest is a stored request with its result.
type oracleRequest struct {
	store.Request
	result   *store.Result
	turn     string
	revision int64 // of the records that it wrote
}

func newOracle(o store.Options) *oracle {
	return &oracle{
		options: o.WithDefaults(), conversations: make(map[string]*oracleConversation),
		ephemeral: make(map[string]*oracleEphemeral),
		expired:   make(map[string]int), ended: make(map[string]int),
		tenant: oracleTenant{records: oracleRecords{}, requests: make(map[string]oracleTenantRequest)},
	}
}

// expire removes conversations that have expired.
func (o *oracle) expire(now time.Time) {
	o.expireEphemeral(now)
	o.expireRecords(now)
	for id, c := range o.conversations {
		end := c.header.GetExpireTime().AsTime()
		expires := !c.header.GetRetention().GetNoExpiry()
		if expires && c.header.GetActiveTurnId() == "" && o.ephemeral[id] == nil && !now.Before(end) {
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
			return nil, &store.VersionError{Current: c.header.GetVersion(), Required: *w.IfVersion}
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
	copied := o.conversations[w.RecordsOf].recordsOf().sorted()
	if err := o.evictForNew(); err != nil {
		return nil, err
	}
	c := o.newConversation(id, w.Conversation, now)
	c.header.ForkedFrom, c.header.Version = w.Conversation.GetForkedFrom(), 1
	c.setRecords(copyRecords(copied, id, 1, now))
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

// newConversation creates a conversation with the title and retention of with, which may be nil.
func (o *oracle) newConversation(id string, with *parleyv1.Conversation, now time.Time) *oracleConversation {
	at, retention := timestamppb.New(now), proto.CloneOf(with.GetRetention())
	if retention == nil {
		retention = new(parleyv1.Retention)
	}
	if retention.GetMaxMessages() == 0 {
		retention.MaxMessages = int32(o.options.MaxMessages)
	}
	if retention.GetTtl() == nil {
		retention.Ttl = durationpb.New(o.options.TTL)
	}
	c := &oracleConversation{header: &parleyv1.Conversation{
		Id: id, Title: with.GetTitle(), Retention: retention, CreateTime: at, UpdateTime: at, LastAppendTime: at,
	}}
	o.conversations[id] = c
	return c
}

// evictForNew evicts the oldest conversations without a running turn or a holder if the tenant is
// at its capacity. Expired conversations have already been removed.
func (o *oracle) evictForNew() error {
	n := o.excess(1)
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
	o.evict(oldest[:max(0, min(len(oldest), o.excess(0)))])
}

// excess returns the number of conversations above the capacity if some new ones were added.
func (o *oracle) excess(added int) int {
	if o.options.MaxConversations == 0 {
		return 0
	}
	return len(o.conversations) + added - o.options.MaxConversations
}

// evictable returns the conversations without a running turn, a holder or no_eviction, oldest first.
func (o *oracle) evictable() []*oracleConversation {
	var all []*oracleConversation
	for id, c := range o.conversations {
		if c.header.GetActiveTurnId() == "" && !o.held(id) && !c.header.GetRetention().GetNoEviction() {
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
	step, err := o.stepOfAppend(c, w, now)
	if err != nil {
		return nil, err
	}
	created := c == nil
	if created {
		if err := o.evictForNew(); err != nil {
			return nil, err
		}
		c = o.newConversation(w.ConversationID, w.CreateWith, now)
	}
	removed := c.removeAfter(w.ReplaceAfter)
	if isNoChange := w.ReplaceAfter != nil || len(w.Records) > 0; isNoChange && len(w.Messages) == 0 &&
		w.Request == nil && w.Begin == nil && w.End == nil && removed == 0 && !created && !step.changes() {
		o.newest = 0
		return &store.Result{Conversation: proto.CloneOf(c.header)}, nil
	}
	now = c.touch(now)
	if len(w.Messages) > 0 || w.End != nil || len(step.edited) > 0 {
		c.header.LastAppendTime = timestamppb.New(now)
	}
	result := &store.Result{Created: created, Appended: c.add(w.Messages, now)}
	o.newest, result.TenantRevision = o.commitRecords(step, c)
	result.Turn = c.turn(w, result.Appended, now)
	c.keepEvents(w.Events, result.Turn.GetId())
	before := len(c.messages) - len(w.Messages)
	trimmed := c.trim()
	if created {
		o.report("CREATED", w.ConversationID, c, len(c.messages), 0)
	}
	if removed > 0 {
		o.reportRemoval(w.ConversationID, c, &store.Removal{After: *w.ReplaceAfter}, removed, 0)
	}
	for i := range w.Messages {
		if i == len(w.Messages)-1 {
			o.report("MESSAGE_APPENDED", w.ConversationID, c, len(c.messages), trimmed)
		} else {
			o.report("MESSAGE_APPENDED", w.ConversationID, c, before+i+1, 0)
		}
	}
	if len(w.Messages) == 0 && !created && removed == 0 {
		o.report("UPDATED", w.ConversationID, c, len(c.messages), 0)
	}
	o.reportRecords(step, w.ConversationID, c)
	c.updateDerived()
	result.Conversation = proto.CloneOf(c.header)
	c.remember(w.Request, w.Begin.GetId(), result)
	if w.Request != nil {
		c.requests[len(c.requests)-1].revision = o.newest
	}
	return result, nil
}

func (o *oracle) update(w *store.Update, now time.Time) (*store.Result, error) {
	c := o.conversations[w.ConversationID]
	if c == nil {
		return nil, store.ErrNotFound
	}
	if first, err := c.findRequest(w.Request); err != nil || first != nil {
		return c.replay(first), err
	}
	if (w.KeepThrough != nil || len(w.Sequences) > 0) && c.header.GetActiveTurnId() != "" {
		return nil, &store.BusyError{TurnID: c.header.GetActiveTurnId()}
	}
	if w.IfVersion != nil && *w.IfVersion != c.header.GetVersion() {
		return nil, &store.VersionError{Current: c.header.GetVersion(), Required: *w.IfVersion}
	}
	if err := c.checkRemoval(w); err != nil {
		return nil, err
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
		case "retention.keep_all":
			c.header.Retention.KeepAll = w.Values.GetRetention().GetKeepAll()
		case "retention.no_expiry":
			c.header.Retention.NoExpiry = w.Values.GetRetention().GetNoExpiry()
		case "retention.no_eviction":
			c.header.Retention.NoEviction = w.Values.GetRetention().GetNoEviction()
		case "retention.max_turns":
			c.header.Retention.MaxTurns = w.Values.GetRetention().GetMaxTurns()
			c.dropTurns()
		}
	}
	removal := &store.Removal{}
	var removed int
	if len(w.Sequences) == 0 && w.KeepThrough != nil {
		removed, removal.After = c.removeAfter(w.KeepThrough), *w.KeepThrough
	} else {
		removed = c.remove(func(m *parleyv1.Message) bool {
			if !slices.Contains(w.Sequences, m.GetSequence()) {
				return false
			}
			removal.Sequences = append(removal.Sequences, m.GetSequence())
			return true
		})
	}
	trimmed := c.trim()
	c.updateDerived()
	if w.Request != nil || !proto.Equal(before, c.header) {
		c.touch(now)
		if removed > 0 {
			o.reportRemoval(w.ConversationID, c, removal, removed, trimmed)
		} else {
			o.report("UPDATED", w.ConversationID, c, len(c.messages), trimmed)
		}
	}
	c.remember(w.Request, "", &store.Result{})
	return &store.Result{Conversation: proto.CloneOf(c.header)}, nil
}
