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

// churn changes a large list at random between its pages. It has more conversations than one call
// of List reads.
type churn struct {
	*fixture
	random  *rand.Rand
	oldest  time.Time                         // first create time
	headers map[string]*parleyv1.Conversation // by id, including expired ones
	ids     []string                          // ids of all conversations, deleted ones included
}

// listDuringImports reads lists of all conversations page by page, in every order. Between pages
// other conversations are imported with old create and update times, and some are changed,
// overwritten, deleted or expire.
func (f *fixture) listDuringImports() {
	f.t.Helper()
	c := &churn{fixture: f, random: rand.New(rand.NewPCG(6, 6)), headers: make(map[string]*parleyv1.Conversation)}
	f.eachPage(store.List{PageSize: store.MaxListHeaders, OldestFirst: true}, func(page *store.Page) {
		for _, e := range page.Entries {
			if c.oldest.IsZero() {
				c.oldest = e.GetConversation().GetCreateTime().AsTime()
			}
			c.put(e.GetConversation())
		}
	})
	for _, l := range []store.List{{OldestFirst: true}, {}, {Order: byUpdateTime}, {Order: byUpdateTime}} {
		for range 20 {
			c.shortenTTL()
		}
		c.changeEndOfBlock()
		l.PageSize = 2500 + c.random.IntN(2500)
		w := newWalk(l, c.members())
		for w.checkPage(f.t, f.list(w.list), c.members()) {
			for range 1 + c.random.IntN(8) {
				c.step()
			}
		}
	}
}

// changeEndOfBlock changes the oldest conversations of the newest block, so that they come first
// in the order of update time: imports into the block must not move them into the next one.
func (c *churn) changeEndOfBlock() {
	const some = 100
	newest := slices.SortedFunc(maps.Values(c.headers), func(a, b *parleyv1.Conversation) int {
		return b.GetCreateTime().AsTime().Compare(a.GetCreateTime().AsTime())
	})
	members := c.members()
	for _, h := range newest[store.MaxListHeaders-some : store.MaxListHeaders] {
		if _, lives := members[h.GetUid()]; lives {
			c.put(c.append(h.GetId(), user("changed")).Conversation)
		}
	}
}

// step makes one random change, most often an import.
func (c *churn) step() {
	id := c.ids[c.random.IntN(len(c.ids))]
	switch c.random.IntN(8) {
	case 0:
		if _, err := c.try(&store.Delete{ConversationID: id}); err == nil {
			delete(c.headers, id)
		}
	case 1:
		c.put(c.append(id, user("changed")).Conversation)
	case 2:
		c.clock.Advance(time.Millisecond) // some conversations expire
	case 3:
		c.importConversation(id)
	default:
		c.importConversation(fmt.Sprint("imported", len(c.ids)))
	}
}

// importConversation imports a conversation with create and update times between those of the
// others.
func (c *churn) importConversation(id string) {
	created := c.random.Int64N(int64(c.clock.Now().Sub(c.oldest)))
	updated := created + c.random.Int64N(int64(c.clock.Now().Sub(c.oldest))-created)
	i := c.newImport(id, 0)
	i.Overwrite, i.Messages = true, nil
	h := i.Conversation
	h.CreateTime = timestamppb.New(c.oldest.Add(time.Duration(created)))
	h.UpdateTime = timestamppb.New(c.oldest.Add(time.Duration(updated)))
	h.LastAppendTime = h.UpdateTime
	c.put(c.do(i).Conversation)
}

// shortenTTL makes a random conversation expire after a few more changes.
func (c *churn) shortenTTL() {
	id := c.ids[c.random.IntN(len(c.ids))]
	ttl := c.clock.Now().Add(time.Duration(1 + c.random.IntN(5e6))).Sub(c.headers[id].GetLastAppendTime().AsTime())
	result, err := c.try(&store.Update{
		ConversationID: id, Fields: []string{"retention.ttl"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(ttl)}},
	})
	if err == nil { // After an error the conversation has been deleted or has expired.
		c.put(result.Conversation)
	}
}

// put stores the present header of a conversation.
func (c *churn) put(h *parleyv1.Conversation) {
	if _, ok := c.headers[h.GetId()]; !ok {
		c.ids = append(c.ids, h.GetId())
	}
	c.headers[h.GetId()] = h
}

// members returns the conversations that have not expired, by uid.
func (c *churn) members() map[string]member {
	now, members := c.clock.Now(), make(map[string]member)
	for id, h := range c.headers {
		if h.GetExpireTime().AsTime().After(now) {
			members[h.GetUid()] = member{id, h.GetVersion()}
		}
	}
	return members
}
