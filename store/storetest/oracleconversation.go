package storetest

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// check makes the checks of Append that follow the check of the request.
func (c *oracleConversation) check(w *store.Append) error {
	version, running := int32(0), ""
	if c != nil {
		version, running = c.header.GetVersion(), c.header.GetActiveTurnId()
	}
	switch {
	case c == nil && (w.MustExist || w.End != nil):
		return store.ErrNotFound
	case (w.Begin != nil || w.ReplaceAfter != nil) && running != "":
		return &store.BusyError{TurnID: running}
	case w.IfVersion != nil && *w.IfVersion != version:
		return &store.VersionError{Current: version, Required: *w.IfVersion}
	case w.End != nil && w.End.GetId() != running:
		return store.ErrTurnEnded
	}
	return c.checkReplacement(w)
}

// touch increases the version. It returns the time of the write, which is not before that of the
// previous write.
func (c *oracleConversation) touch(now time.Time) time.Time {
	if last := c.header.GetUpdateTime().AsTime(); now.Before(last) {
		now = last
	}
	c.header.Version++
	c.header.UpdateTime = timestamppb.New(now)
	return now
}

// updateDerived sets the fields that follow from other fields.
func (c *oracleConversation) updateDerived() {
	c.header.MessageCount = int32(len(c.messages))
	if c.header.ExpireTime = nil; c.header.GetRetention().GetNoExpiry() {
		return
	}
	ttl := c.header.GetRetention().GetTtl().AsDuration()
	c.header.ExpireTime = timestamppb.New(c.header.GetLastAppendTime().AsTime().Add(ttl))
}

// add numbers messages and stores them.
func (c *oracleConversation) add(messages []*parleyv1.Message, now time.Time) []*parleyv1.AppendedMessage {
	var appended []*parleyv1.AppendedMessage
	for _, m := range messages {
		m = proto.CloneOf(m)
		c.header.LastSequence++
		if m.GetRole() == parleyv1.Role_ROLE_USER {
			c.exchange++
		}
		m.Sequence, m.Exchange, m.CreateTime = c.header.GetLastSequence(), c.exchange, timestamppb.New(now)
		m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
		c.messages = append(c.messages, m)
		appended = append(appended, &parleyv1.AppendedMessage{
			Id: m.GetId(), Sequence: m.GetSequence(), Exchange: m.GetExchange(), CreateTime: m.GetCreateTime(),
		})
	}
	return appended
}

// trim drops the oldest messages that exceed the limit and returns their number.
func (c *oracleConversation) trim() int {
	if c.header.GetRetention().GetKeepAll() {
		return 0
	}
	n := max(0, len(c.messages)-int(c.header.GetRetention().GetMaxMessages()))
	c.messages = slices.Clone(c.messages[n:])
	return n
}

// turn starts or ends a turn.
func (c *oracleConversation) turn(w *store.Append, appended []*parleyv1.AppendedMessage, now time.Time) *parleyv1.Turn {
	first, last := int32(0), w.Begin.GetInputSequence()
	if len(appended) > 0 {
		first, last = appended[0].GetSequence(), appended[len(appended)-1].GetSequence()
	}
	switch {
	case w.Begin != nil:
		c.header.ActiveTurnId = w.Begin.GetId()
		c.turns = append(c.turns, &parleyv1.Turn{
			Id: w.Begin.GetId(), ConversationId: w.ConversationID, Agent: w.Begin.GetAgent(), RequestId: w.Begin.GetRequestId(),
			State: parleyv1.TurnState_TURN_STATE_RUNNING, InputSequence: last, CreateTime: timestamppb.New(now),
		})
		c.leastTurns++
		c.dropTurns()
	case w.End != nil:
		turn := c.turns[len(c.turns)-1]
		turn.State, turn.FinishTime = w.End.GetState(), timestamppb.New(now)
		if first > 0 {
			turn.FirstAnswerSequence, turn.LastAnswerSequence = first, last
		}
		c.header.ActiveTurnId = ""
	default:
		return nil
	}
	return proto.CloneOf(c.turns[len(c.turns)-1])
}

// keepEvents stores the events of the turn that was started or ended, and removes events of turns
// that are no longer stored.
func (c *oracleConversation) keepEvents(events *storev1.TurnEvents, turn string) {
	c.events = slices.DeleteFunc(c.events, func(e *storev1.TurnEvents) bool {
		replaced := events != nil && e.GetTurnId() == turn
		return replaced || !slices.ContainsFunc(c.turns, func(t *parleyv1.Turn) bool { return t.GetId() == e.GetTurnId() })
	})
	if events != nil && turn != "" {
		events = proto.CloneOf(events)
		events.TurnId, events.ConversationVersion = turn, c.header.GetVersion()
		c.events = append(c.events, events)
	}
}

// findRequest returns a stored request, nil if there is none.
func (c *oracleConversation) findRequest(r *store.Request) (*oracleRequest, error) {
	if r == nil {
		return nil, nil
	}
	i := slices.IndexFunc(c.requests, func(q oracleRequest) bool { return q.ID == r.ID && q.Method == r.Method })
	if i < 0 {
		return nil, nil
	}
	if c.requests[i].Digest != r.Digest {
		return nil, store.ErrRequestReused
	}
	return &c.requests[i], nil
}

// remember stores a request. It forgets the oldest of more than 32 of its kind: writes of records alone, or others.
func (c *oracleConversation) remember(r *store.Request, turn string, result *store.Result) {
	if r == nil {
		return
	}
	c.requests = append(c.requests, oracleRequest{Request: *r, result: result, turn: turn})
	ofKind := func(q oracleRequest) bool { return (q.Method == "WriteRecords") == (r.Method == "WriteRecords") }
	count := 0
	for _, q := range c.requests {
		if ofKind(q) {
			count++
		}
	}
	if count > 32 {
		oldest := slices.IndexFunc(c.requests, ofKind)
		c.requests = slices.Delete(c.requests, oldest, oldest+1)
	}
}

// replay returns the result of a retry.
func (c *oracleConversation) replay(first *oracleRequest) *store.Result {
	if first == nil {
		return nil
	}
	result := &store.Result{
		Conversation: proto.CloneOf(c.header), Appended: first.result.Appended, Created: first.result.Created, Replayed: true,
		TenantRevision: first.result.TenantRevision,
	}
	for _, turn := range c.turns {
		if first.turn != "" && turn.GetId() == first.turn {
			result.Turn = proto.CloneOf(turn)
		}
	}
	return result
}
