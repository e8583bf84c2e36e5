package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// crowd is more conversations than one call of List reads, which change at random between its
// pages.
type crowd struct {
	*fixture
	random *rand.Rand
	since  time.Time                         // first create time
	there  map[string]*parleyv1.Conversation // by id, including expired ones
	ids    []string                          // ids of all conversations, deleted ones included
}

// walkBesideImports pages through lists of all conversations, in every order. In the meantime
// others are imported with old create and update times, and some change, are overwritten, are
// deleted or expire.
func (f *fixture) walkBesideImports() {
	f.t.Helper()
	c := &crowd{fixture: f, random: rand.New(rand.NewPCG(6, 6)), there: make(map[string]*parleyv1.Conversation)}
	f.follow(store.List{PageSize: store.MaxListHeaders, OldestFirst: true}, func(page *store.Page) {
		for _, e := range page.Entries {
			if c.since.IsZero() {
				c.since = e.GetConversation().GetCreateTime().AsTime()
			}
			c.is(e.GetConversation())
		}
	})
	for _, l := range []store.List{{OldestFirst: true}, {}, {Order: byUpdateTime}, {Order: byUpdateTime}} {
		for range 20 {
			c.shorten()
		}
		c.changeEndOfBlock()
		l.PageSize = 2500 + c.random.IntN(2500)
		w := newWalk(l, c.members())
		for w.take(f.t, f.list(w.list), c.members()) {
			for range 1 + c.random.IntN(8) {
				c.step()
			}
		}
	}
}

// changeEndOfBlock changes the oldest conversations of the newest block, so that they come first
// in the order of update time: imports into the block must not move them into the next one.
func (c *crowd) changeEndOfBlock() {
	const some = 100
	newest := slices.SortedFunc(maps.Values(c.there), func(a, b *parleyv1.Conversation) int {
		return b.GetCreateTime().AsTime().Compare(a.GetCreateTime().AsTime())
	})
	members := c.members()
	for _, h := range newest[store.MaxListHeaders-some : store.MaxListHeaders] {
		if _, lives := members[h.GetUid()]; lives {
			c.is(c.append(h.GetId(), user("changed")).Conversation)
		}
	}
}

// step makes one change, most often an import.
func (c *crowd) step() {
	id := c.ids[c.random.IntN(len(c.ids))]
	switch c.random.IntN(8) {
	case 0:
		if _, err := c.try(&store.Delete{ConversationID: id}); err == nil {
			delete(c.there, id)
		}
	case 1:
		c.is(c.append(id, user("changed")).Conversation)
	case 2:
		c.clock.Advance(time.Millisecond) // some expire
	case 3:
		c.imports(id)
	default:
		c.imports(fmt.Sprint("imported", len(c.ids)))
	}
}

// imports adds a conversation with the create time and update time of others.
func (c *crowd) imports(id string) {
	created := c.random.Int64N(int64(c.clock.Now().Sub(c.since)))
	updated := created + c.random.Int64N(int64(c.clock.Now().Sub(c.since))-created)
	i := c.importing(id, 0)
	i.Overwrite, i.Messages = true, nil
	h := i.Conversation
	h.CreateTime = timestamppb.New(c.since.Add(time.Duration(created)))
	h.UpdateTime = timestamppb.New(c.since.Add(time.Duration(updated)))
	h.LastAppendTime = h.UpdateTime
	c.is(c.do(i).Conversation)
}

// shorten makes a conversation expire after a few changes.
func (c *crowd) shorten() {
	id := c.ids[c.random.IntN(len(c.ids))]
	ttl := c.clock.Now().Add(time.Duration(1 + c.random.IntN(5e6))).Sub(c.there[id].GetLastAppendTime().AsTime())
	result, err := c.try(&store.Update{
		ConversationID: id, Fields: []string{"retention.ttl"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(ttl)}},
	})
	if err == nil { // On an error it was deleted or has expired.
		c.is(result.Conversation)
	}
}

// is records the present state of a conversation.
func (c *crowd) is(h *parleyv1.Conversation) {
	if _, ok := c.there[h.GetId()]; !ok {
		c.ids = append(c.ids, h.GetId())
	}
	c.there[h.GetId()] = h
}

// members returns the conversations that have not expired, by uid.
func (c *crowd) members() map[string]member {
	now, members := c.clock.Now(), make(map[string]member)
	for id, h := range c.there {
		if h.GetExpireTime().AsTime().After(now) {
			members[h.GetUid()] = member{id, h.GetVersion()}
		}
	}
	return members
}
