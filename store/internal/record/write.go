package record

import (
	"bytes"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Create decides a store.Create. old is the conversation with the id, if any. history is c.Messages
// as NewHistory decoded it. uid is the uid of the new conversation.
func Create(old *Record, c *store.Create, history *History, uid string, now time.Time,
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
	r.bumpVersion(now)
	r.renewExpiry(now)
	if err := r.rememberRequest(c.Request, requestEffect{created: true, time: now}); err != nil {
		return nil, err
	}
	trimmed := r.dropOldest(o)
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
func Append(old *Record, a *store.Append, drafts []Draft, uid string, now time.Time,
	o *store.Options,
) (*Outcome, error) {
	r, created := old, old == nil
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
		r = newRecord(a.Tenant, &parleyv1.Conversation{Id: a.ConversationID}, uid, now, o)
	}
	out := &Outcome{Record: r, Result: &store.Result{Conversation: r.Conversation(), Created: created}}
	effect := requestEffect{created: created, exchange: r.Header.GetExchange(), time: now}
	r.bumpVersion(now)
	if len(drafts) > 0 || a.End != nil || created {
		r.renewExpiry(now)
	}
	if len(drafts) > 0 {
		effect.firstSequence = r.Conversation().GetLastSequence() + 1
		out.Result.Appended = numberMessages(drafts, effect)
	}
	out.countBefore = r.Conversation().GetMessageCount()
	frames := r.appendMessages(drafts, out.Result.Appended)
	out.Appended = r.newMessages
	effect.turnID = a.Begin.GetId()
	turn, err := r.applyTurn(a, out.Result.Appended, now)
	if err != nil {
		return nil, err
	}
	out.Result.Turn = turn
	if err := r.rememberRequest(a.Request, effect); err != nil {
		return nil, err
	}
	count := int(r.Conversation().GetMessageCount()) - len(frames)
	trimmed := r.dropOldest(o)
	if created {
		out.Changes = append(out.Changes, r.change(a.Tenant, parleyv1.ChangeKind_CHANGE_KIND_CREATED, now))
	}
	for i, frame := range frames {
		change := r.change(a.Tenant, parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, now)
		change.Message, change.Count = frame, count+i+1
		out.Changes = append(out.Changes, change)
	}
	if len(out.Changes) == 0 {
		out.Changes = append(out.Changes, r.change(a.Tenant, parleyv1.ChangeKind_CHANGE_KIND_UPDATED, now))
	}
	last := &out.Changes[len(out.Changes)-1]
	last.Trimmed, last.Count = trimmed, int(r.Conversation().GetMessageCount())
	return out, nil
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
	if a.Begin != nil && running != "" {
		return &store.BusyError{TurnID: running}
	}
	if a.IfVersion != nil && *a.IfVersion != current {
		return &store.VersionError{Current: current}
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
		Turn: r.findTurn(first.GetTurnId()),
	}
	if first.GetFirstSequence() != 0 {
		result.Appended = numberMessages(drafts, requestEffect{
			firstSequence: first.GetFirstSequence(), exchange: first.GetExchange(), time: first.GetTime().AsTime(),
		})
	}
	return &Outcome{Result: result}
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

// Update decides a store.Update. r is the conversation, or nil if there is none.
func Update(r *Record, u *store.Update, now time.Time, o *store.Options) (*Outcome, error) {
	if r == nil {
		return nil, store.ErrNotFound
	}
	c := r.Conversation()
	if u.KeepThrough != nil && r.Running() {
		return nil, &store.BusyError{TurnID: c.GetActiveTurnId()}
	}
	if u.IfVersion != nil && *u.IfVersion != c.GetVersion() {
		return nil, &store.VersionError{Current: c.GetVersion()}
	}
	now = r.writeTime(now)
	r.removeExpiredLease(now)
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
	removed, trimmed := r.truncate(u.KeepThrough), r.dropOldest(o)
	result := &store.Result{Conversation: c}
	if proto.Equal(before, c) && bytes.Equal(prompt, r.Prompt) {
		return &Outcome{Result: result}, nil
	}
	r.bumpVersion(now)
	kind := parleyv1.ChangeKind_CHANGE_KIND_UPDATED
	if removed > 0 {
		kind = parleyv1.ChangeKind_CHANGE_KIND_CLEARED
	}
	change := r.change(u.Tenant, kind, now)
	change.Trimmed = trimmed
	if removed > 0 {
		change.Count = removed
	}
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

// truncate removes the messages after a sequence, and returns how many.
func (r *Record) truncate(through *int32) int {
	if through == nil {
		return 0
	}
	kept, size := 0, 0
	var newest store.Frame
	for frame := range r.Messages.All() {
		if frame.Sequence() > *through {
			break
		}
		kept, size, newest = kept+1, size+len(frame), frame
	}
	removed := int(r.Conversation().GetMessageCount()) - kept
	if removed == 0 {
		return 0
	}
	r.Messages = r.Messages[:size]
	r.Data = r.Data[:dataBefore(r.Data, *through+1)]
	r.setMessageCount(kept)
	r.Header.Preview = ""
	if m, err := newest.Message(); err == nil {
		r.Header.Preview = preview(m.GetContent())
	}
	return removed
}

// Delete decides a store.Delete. r is the conversation, or nil if there is none.
func Delete(r *Record, d *store.Delete, now time.Time) (*Outcome, error) {
	if r == nil {
		return nil, store.ErrNotFound
	}
	if v := r.Conversation().GetVersion(); d.IfVersion != nil && *d.IfVersion != v {
		return nil, &store.VersionError{Current: v}
	}
	deleted := r.RemovalChange(d.Tenant, parleyv1.ChangeKind_CHANGE_KIND_DELETED, r.writeTime(now))
	return &Outcome{Changes: []store.Change{deleted}}, nil
}
