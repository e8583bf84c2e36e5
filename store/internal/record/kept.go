package record

import (
	"bytes"
	"fmt"
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxKept is how many requests and how many turns a conversation remembers.
const maxKept = 32

// keptField is the field of storev1.Requests and of storev1.Turns that holds the items,
// and also the field that holds the id in both kinds of items.
const keptField protowire.Number = 1

type seenRequest = storev1.Request

// find returns the request if it was seen; ErrRequestReused if its id was used otherwise.
func (r *Record) find(q *store.Request) (*seenRequest, error) {
	if q == nil {
		return nil, nil //nolint:nilnil // no request, nothing seen
	}
	for item := range items(r.Requests) {
		if itemID(item) != q.ID {
			continue
		}
		first := new(seenRequest)
		if err := proto.Unmarshal(item, first); err != nil {
			return nil, store.ErrCorrupt
		}
		if first.GetMethod() != q.Method {
			continue
		}
		if !bytes.Equal(first.GetDigest(), q.Digest[:]) {
			return nil, store.ErrRequestReused
		}
		return first, nil
	}
	return nil, nil //nolint:nilnil // not seen
}

// Seen answers store.Read.Request.
func (r *Record) Seen(q *store.Request) (*store.Seen, error) {
	first, err := r.find(q)
	if first == nil {
		return nil, err
	}
	return &store.Seen{Created: first.GetCreated(), TurnID: first.GetTurnId()}, nil
}

// remember notes a request, if there is one.
func (r *Record) remember(q *store.Request, s seen) (err error) {
	if q != nil {
		r.Requests, err = keep(r.Requests, &seenRequest{
			Id: q.ID, Method: q.Method, Digest: q.Digest[:], FirstSequence: s.firstSequence,
			Exchange: s.exchange, Time: timestamppb.New(s.time), Created: s.created, TurnId: s.turnID,
		})
	}
	return err
}

// turn begins or ends a turn as the append says, and returns it as it is then.
func (r *Record) turn(a *store.Append, answer []*parleyv1.AppendedMessage, now time.Time) (t *parleyv1.Turn, err error) {
	c := r.Conversation()
	switch {
	case a.Begin != nil:
		t = &parleyv1.Turn{
			Id: a.Begin.GetId(), ConversationId: c.GetId(), RequestId: a.Begin.GetRequestId(), Agent: a.Begin.GetAgent(),
			State: parleyv1.TurnState_TURN_STATE_RUNNING, InputSequence: a.Begin.GetInputSequence(), CreateTime: timestamppb.New(now),
		}
		if len(answer) > 0 {
			t.InputSequence = answer[len(answer)-1].GetSequence()
		}
		c.ActiveTurnId = t.GetId()
		r.Turns, err = keep(r.Turns, t)
	case a.End != nil:
		t = r.findTurn(a.End.GetId())
		if t == nil {
			t = &parleyv1.Turn{Id: a.End.GetId(), ConversationId: c.GetId()}
		}
		t.State, t.Error, t.FinishTime = a.End.GetState(), proto.CloneOf(a.End.GetError()), timestamppb.New(now)
		if len(answer) > 0 {
			t.FirstAnswerSequence, t.LastAnswerSequence = answer[0].GetSequence(), answer[len(answer)-1].GetSequence()
		}
		c.ActiveTurnId = ""
		r.Turns, err = keep(without(r.Turns, t.GetId()), t)
	}
	return t, err
}

// findTurn returns a kept turn, nil when there is none of that id.
func (r *Record) findTurn(id string) *parleyv1.Turn {
	for item := range items(r.Turns) {
		if id != "" && itemID(item) == id {
			t := new(parleyv1.Turn)
			if proto.Unmarshal(item, t) == nil {
				return t
			}
		}
	}
	return nil
}

// AllTurns decodes the kept turns, oldest first.
func (r *Record) AllTurns() ([]*parleyv1.Turn, error) {
	var turns storev1.Turns
	if err := proto.Unmarshal(r.Turns, &turns); err != nil {
		return nil, store.ErrCorrupt
	}
	return turns.GetTurns(), nil
}

// items yields the items of a list in wire form.
func items(list []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(list) > 0 {
			_, _, n := protowire.ConsumeTag(list)
			if n < 0 {
				return
			}
			item, m := protowire.ConsumeBytes(list[n:])
			if m < 0 || !yield(item) {
				return
			}
			list = list[n+m:]
		}
	}
}

// itemID reads the id of an item, which is its first field.
func itemID(item []byte) string {
	number, kind, n := protowire.ConsumeTag(item)
	if n < 0 || number != keptField || kind != protowire.BytesType {
		return ""
	}
	id, m := protowire.ConsumeBytes(item[n:])
	if m < 0 {
		return ""
	}
	return string(id)
}

// keep adds an item behind a list, into new memory, and drops the oldest beyond maxKept.
func keep(list []byte, item proto.Message) ([]byte, error) {
	encoded, err := proto.Marshal(item)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", item.ProtoReflect().Descriptor().Name(), err)
	}
	count := 1
	for range items(list) {
		count++
	}
	for ; count > maxKept; count-- {
		_, _, n := protowire.ConsumeField(list)
		list = list[max(n, 0):]
	}
	out := append(make([]byte, 0, len(list)+len(encoded)+4), list...)
	return protowire.AppendBytes(protowire.AppendTag(out, keptField, protowire.BytesType), encoded), nil
}

// without returns the list without the item of that id.
func without(list []byte, id string) []byte {
	out := make([]byte, 0, len(list))
	for item := range items(list) {
		if itemID(item) != id {
			out = protowire.AppendBytes(protowire.AppendTag(out, keptField, protowire.BytesType), item)
		}
	}
	return out
}
