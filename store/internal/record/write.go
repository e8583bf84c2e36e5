package record

import (
	"bytes"
	"cmp"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// Create decides a store.Create. old is the conversation with the id, if any. history is c.Messages
// as NewHistory decoded it. copied are the counts of the records that the store copies as c.RecordsOf requires.
// uid is the uid of the new conversation.
func Create(old *Record, c *store.Create, history *History, copied records.Counts, uid string, now time.Time,
	o *store.Options,
) (*Outcome, error) {
	if old != nil {
		return createExisting(old, c, now)
	}
	r := newRecord(c.Tenant, c.Conversation, uid, now, o)
	if err := r.checkHeader(); err != nil {
		return nil, err
	}
	r.setHistory(history)
	if err := r.checkCopy(o); err != nil {
		return nil, err
	}
	if copied.Records > store.MaxCopiedRecords || copied.RecordBytes > store.MaxCopiedRecordBytes {
		return nil, &store.CopyTooLargeError{Records: copied.Records, Bytes: copied.RecordBytes}
	}
	if err := records.CheckFull(0, copied.RecordBytes, o.MaxRecordBytes); err != nil {
		return nil, err
	}
	r.countRecords(&records.Edits{Conversation: copied})
	r.bumpVersion(now)
	r.renewExpiry(now)
	if err := r.rememberRequest(c.Request, requestEffect{created: true, time: now}); err != nil {
		return nil, err
	}
	trimmed, err := r.dropOldest(o)
	if err != nil {
		return nil, err
	}
	created := r.change(c.Tenant, parleyv1.ChangeKind_CHANGE_KIND_CREATED, now)
	created.Trimmed = trimmed
	result := proto.CloneOf(r.Conversation())
	result.SystemPrompt = string(r.Prompt)
	return &Outcome{
		Record:  r,
		Result:  &store.Result{Conversation: result, Created: true},
		Changes: []store.Change{created},
	}, nil
}

// createExisting decides a create whose id exists.
func createExisting(old *Record, c *store.Create, now time.Time) (*Outcome, error) {
	old.removeExpiredLease(now)
	first, err := old.findRequest(c.Request)
	switch {
	case err != nil:
		return nil, err
	case first != nil:
		return &Outcome{Result: &store.Result{
			Conversation: old.withPrompt(), Created: first.GetCreated(), Replayed: true,
		}}, nil
	case c.OrGet:
		return &Outcome{Result: &store.Result{Conversation: old.withPrompt()}}, nil
	}
	return nil, store.ErrConversationExists
}

// Append decides a store.Append. old is the conversation, or nil if there is none. drafts are
// a.Messages as NewDrafts encoded them. uid is the uid of a new conversation. Append decodes no
// message: it needs the header, the lists beside it, and the sizes of the messages; see [Record.Sizes].
// With a.ReplaceAfter it needs the messages, and reads those in chunks that it needs. in is what it needs for
// a.Records; it may be nil if there are none.
func Append(old *Record, a *store.Append, drafts []Draft, in *records.Input, uid string, now time.Time,
	o *store.Options,
) (*Outcome, error) {
	r, created, accepted := old, old == nil, now
	if old != nil {
		now = old.writeTime(now)
		old.removeExpiredLease(now)
		if first, err := old.findRequest(a.Request); err != nil || first != nil {
			return old.replay(first, drafts), err
		}
	}
	if err := checkAppend(old, a); err != nil {
		return nil, err
	}
	if created {
		var err error
		if r, err = newAppended(a, uid, now, o); err != nil {
			return nil, err
		}
	}
	edits, recordsErr := r.decideRecords(a, in, accepted, now, o)
	result := &store.Result{Conversation: r.Conversation(), Created: created}
	out := &Outcome{Record: r, Result: result, Records: edits, countBefore: r.Conversation().GetMessageCount()}
	replaced, err := r.replace(a.ReplaceAfter, drafts)
	if err != nil {
		return nil, err
	}
	if replaced.removed() == 0 && !edits.Any() && recordsErr == nil && !created && mayChangeNothing(a) {
		return &Outcome{Result: out.Result}, nil
	}
	effect := requestEffect{created: created, exchange: r.Header.GetExchange(), time: now, records: edits}
	r.bumpVersion(now)
	if revision, _ := edits.Revisions(); len(drafts) > 0 || a.End != nil || created || revision != 0 {
		r.renewExpiry(now)
	}
	if len(drafts) > 0 {
		effect.firstSequence = r.Conversation().GetLastSequence() + 1
		out.Result.Appended = numberMessages(drafts, effect)
	}
	frames := r.appendMessages(drafts, out.Result.Appended)
	out.Appended = r.newMessages
	if err := cmp.Or(r.checkAppended(a, o), recordsErr); err != nil {
		return nil, err
	}
	r.countRecords(edits)
	_, out.Result.TenantRevision = edits.Revisions()
	effect.turnID = a.Begin.GetId()
	turn, err := r.applyTurn(a, out.Result.Appended, now)
	if err != nil {
		return nil, err
	}
	out.Result.Turn = turn
	if err := r.rememberRequest(a.Request, effect); err != nil {
		return nil, err
	}
	if out.Changes, err = r.appendChanges(a.Tenant, created, replaced, frames, now, o); err != nil {
		return nil, err
	}
	out.Changes = append(out.Changes, r.recordChanges(a.Tenant, edits, now)...)
	return out, nil
}

// appendChanges drops the oldest messages that exceed the limits, and returns the changes of an append.
func (r *Record) appendChanges(
	tenant string, created bool, m *removal, frames []store.Frame, now time.Time, o *store.Options,
) (changes []store.Change, err error) {
	count := int(r.Conversation().GetMessageCount()) - len(frames)
	trimmed, err := r.dropOldest(o)
	if err != nil {
		return nil, err
	}
	if created {
		changes = append(changes, r.change(tenant, parleyv1.ChangeKind_CHANGE_KIND_CREATED, now))
	}
	if m.removed() > 0 {
		changes = append(changes, r.clearedChange(tenant, m, now))
	}
	for i, frame := range frames {
		change := r.change(tenant, parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, now)
		change.Message, change.Count = frame, count+i+1
		changes = append(changes, change)
	}
	if len(changes) == 0 {
		changes = append(changes, r.change(tenant, parleyv1.ChangeKind_CHANGE_KIND_UPDATED, now))
	}
	last := &changes[len(changes)-1]
	last.Trimmed = trimmed
	if last.Removal == nil {
		last.Count = int(r.Conversation().GetMessageCount())
	}
	return changes, nil
}

// mayChangeNothing reports whether an append changes nothing if it removes no message and edits no record.
func mayChangeNothing(a *store.Append) bool {
	return (a.ReplaceAfter != nil || len(a.Records) > 0) && len(a.Messages) == 0 && a.Request == nil &&
		a.Begin == nil && a.End == nil
}

// newAppended makes the record of a conversation that an append creates.
func newAppended(a *store.Append, uid string, now time.Time, o *store.Options) (*Record, error) {
	r := newRecord(a.Tenant, a.CreateWith, uid, now, o)
	r.Conversation().Id, r.Conversation().ForkedFrom = a.ConversationID, nil
	if err := r.checkHeader(); err != nil {
		return nil, err
	}
	return r, nil
}

// checkAppended is checkFull for an append. The end of a turn is stored whatever the size of its answer.
func (r *Record) checkAppended(a *store.Append, o *store.Options) error {
	if a.End != nil || a.Begin == nil && len(r.newMessages) == 0 {
		return nil
	}
	return r.checkFull(o.MaxConversationBytes)
}

// checkAppend makes the checks of store.Append that follow the check of the request, in order.
func checkAppend(r *Record, a *store.Append) error {
	current, running := int32(0), ""
	switch {
	case r != nil:
		current, running = r.Conversation().GetVersion(), r.Conversation().GetActiveTurnId()
	case a.MustExist || a.End != nil || a.UID != "":
		return store.ErrNotFound
	}
	if a.UID != "" && r.Conversation().GetUid() != a.UID {
		return store.ErrNotFound
	}
	if (a.Begin != nil || a.ReplaceAfter != nil) && running != "" {
		return &store.BusyError{TurnID: running}
	}
	if a.IfVersion != nil && *a.IfVersion != current {
		return &store.VersionError{Current: current, Required: *a.IfVersion}
	}
	if a.End != nil && (running == "" || running != a.End.GetId()) {
		return store.ErrTurnEnded
	}
	return nil
}

// replay returns the first result of a request that the conversation has already processed, or nil.
func (r *Record) replay(first *storedRequest, drafts []Draft) *Outcome {
	if first == nil {
		return nil
	}
	result := &store.Result{
		Conversation: r.Conversation(), Created: first.GetCreated(), Replayed: true,
		Turn: r.findTurn(first.GetTurnId()), TenantRevision: first.GetTenantRevision(),
	}
	if first.GetFirstSequence() != 0 {
		result.Appended = numberMessages(drafts, requestEffect{
			firstSequence: first.GetFirstSequence(), exchange: first.GetExchange(), time: first.GetTime().AsTime(),
		})
	}
	return &Outcome{Result: result, Records: &records.Edits{
		Revision: first.GetRevision(), TenantRevision: first.GetTenantRevision(),
	}}
}

// numberMessages numbers a batch of messages. A user message begins the next exchange.
func numberMessages(drafts []Draft, effect requestEffect) []*parleyv1.AppendedMessage {
	out := make([]*parleyv1.AppendedMessage, len(drafts))
	for i, d := range drafts {
		if d.message.GetRole() == parleyv1.Role_ROLE_USER {
			effect.exchange++
		}
		out[i] = &parleyv1.AppendedMessage{
			Id: d.message.GetId(), Sequence: effect.firstSequence + int32(i),
			Exchange: effect.exchange, CreateTime: timestamppb.New(effect.time),
		}
	}
	return out
}

// appendMessages appends messages and returns their frames.
func (r *Record) appendMessages(drafts []Draft, numbers []*parleyv1.AppendedMessage) []store.Frame {
	if len(drafts) == 0 {
		return nil
	}
	size := 0
	for _, d := range drafts {
		size += len(d.body) + len(d.frame) + maxSuffix
	}
	r.newMessages = make([]byte, 0, size)
	ends := make([]int, len(drafts))
	for i, d := range drafts {
		if d.frame != nil {
			r.newMessages = append(r.newMessages, d.frame...)
		} else {
			r.newMessages = store.AppendNumbered(r.newMessages, d.body, d.message.GetStatus(), numbers[i])
		}
		ends[i] = len(r.newMessages)
		r.indexMessage(d.message, d.types, numbers[i].GetSequence())
		r.Conversation().LastSequence, r.Header.Exchange = numbers[i].GetSequence(), numbers[i].GetExchange()
	}
	frames, start := make([]store.Frame, len(drafts)), 0
	for i, end := range ends {
		frames[i], start = store.Frame(r.newMessages[start:end:end]), end
	}
	c := r.Conversation()
	c.MessageCount, c.SizeBytes = c.GetMessageCount()+int32(len(drafts)), int32(r.MessageBytes())
	return frames
}

// Update decides a store.Update. r is the conversation, or nil if there is none. To remove messages, Update reads those
// in chunks that it needs.
func Update(r *Record, u *store.Update, now time.Time, o *store.Options) (*Outcome, error) {
	if r == nil {
		return nil, store.ErrNotFound
	}
	c := r.Conversation()
	now = r.writeTime(now)
	r.removeExpiredLease(now)
	if first, err := r.findRequest(u.Request); err != nil || first != nil {
		return r.replay(first, nil), err
	}
	if (u.KeepThrough != nil || len(u.Sequences) > 0) && r.Running() {
		return nil, &store.BusyError{TurnID: c.GetActiveTurnId()}
	}
	if u.IfVersion != nil && *u.IfVersion != c.GetVersion() {
		return nil, &store.VersionError{Current: c.GetVersion(), Required: *u.IfVersion}
	}
	m, err := r.removalOf(u)
	if err != nil {
		return nil, err
	}
	before, prompt := proto.CloneOf(c), r.Prompt
	for _, field := range u.Fields {
		r.set(field, u.Values, o)
	}
	if u.Lease != nil {
		c.ActiveAgent = activeAgent(u.Lease, now)
	}
	if err := r.checkHeader(); err != nil {
		return nil, err
	}
	r.setExpireTime()
	if err := r.remove(m); err != nil {
		return nil, err
	}
	trimmed, err := r.dropOldest(o)
	if err != nil {
		return nil, err
	}
	result := &store.Result{Conversation: c}
	if u.Request == nil && proto.Equal(before, c) && bytes.Equal(prompt, r.Prompt) {
		return &Outcome{Result: result}, nil
	}
	r.bumpVersion(now)
	if err := r.rememberRequest(u.Request, requestEffect{time: now}); err != nil {
		return nil, err
	}
	change := r.change(u.Tenant, parleyv1.ChangeKind_CHANGE_KIND_UPDATED, now)
	if m.removed() > 0 {
		change = r.clearedChange(u.Tenant, m, now)
	}
	change.Trimmed = trimmed
	return &Outcome{Record: r, Result: result, Changes: []store.Change{change}}, nil
}

// set copies one field from values. field is a path of an update mask.
func (r *Record) set(field string, values *parleyv1.Conversation, o *store.Options) {
	c := r.Conversation()
	switch field {
	case "title":
		c.Title = values.GetTitle()
	case "labels":
		c.Labels = proto.CloneOf(values).GetLabels()
	case "agent":
		c.Agent = values.GetAgent()
	case "system_prompt":
		r.Prompt = []byte(values.GetSystemPrompt())
	case "retention.max_messages":
		c.Retention.MaxMessages = withDefaults(values.GetRetention(), o).GetMaxMessages()
	case "retention.ttl":
		c.Retention.Ttl = proto.CloneOf(withDefaults(values.GetRetention(), o).GetTtl())
	case "retention.keep_all":
		c.Retention.KeepAll = values.GetRetention().GetKeepAll()
	case "retention.no_expiry":
		c.Retention.NoExpiry = values.GetRetention().GetNoExpiry()
	case "retention.no_eviction":
		c.Retention.NoEviction = values.GetRetention().GetNoEviction()
	case "retention.max_turns":
		c.Retention.MaxTurns = values.GetRetention().GetMaxTurns()
		r.dropTurns()
	}
}

// activeAgent returns the header's form of a lease.
func activeAgent(l *store.Lease, now time.Time) *parleyv1.ActiveAgent {
	if l.Agent == "" {
		return nil
	}
	a := &parleyv1.ActiveAgent{Agent: l.Agent, Reason: l.Reason, StartTime: timestamppb.New(now)}
	if l.Duration > 0 {
		a.LeaseExpireTime = timestamppb.New(now.Add(l.Duration))
	}
	return a
}

// Delete decides a store.Delete. r is the conversation, or nil if there is none.
func Delete(r *Record, d *store.Delete, now time.Time) (*Outcome, error) {
	if r == nil {
		return nil, store.ErrNotFound
	}
	if v := r.Conversation().GetVersion(); d.IfVersion != nil && *d.IfVersion != v {
		return nil, &store.VersionError{Current: v, Required: *d.IfVersion}
	}
	deleted := r.RemovalChange(d.Tenant, parleyv1.ChangeKind_CHANGE_KIND_DELETED, r.writeTime(now))
	return &Outcome{Changes: []store.Change{deleted}}, nil
}
