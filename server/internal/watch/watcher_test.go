package watch_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// heartbeatInterval is the interval that the API guarantees.
const heartbeatInterval = 15 * time.Second

func TestHeartbeatComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		commit(h, "t", "a", 1, 2)
		c := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		want := []*parleyv1.ConversationChange{{
			Cursor: h.Cursor("t"), Kind: parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT, Time: timestamppb.Now(),
		}}
		if d := cmp.Diff(want, c.received(), protocmp.Transform()); d != "" {
			t.Errorf("changes (-want +got):\n%s", d)
		}
		// A change between Watch and All is not missed.
		w := startWatch(t, h, watch.Watch{Tenant: "t"})
		defer w.Stop()
		commit(h, "t", "a", 3)
		for response, err := range w.All(t.Context(), nil) {
			change, failed := decode(response)
			if d := cmp.Diff(want, []*parleyv1.ConversationChange{change}, protocmp.Transform()); err != nil ||
				failed != nil || d != "" {
				t.Errorf("first response: %v, %v (-want +got):\n%s", err, failed, d)
			}
			break
		}
		c.want(t, "MESSAGE_APPENDED a 3")
		if err := c.disconnect(); !errors.Is(err, errDisconnected) {
			t.Errorf("watcher ended with %v, want errDisconnected", err)
		}
	})
}

// TestResponseOfEachKind: each kind of change has the fields that the API documents.
func TestResponseOfEachKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		c := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		c.want(t, "HEARTBEAT")
		at := time.Unix(5, 7)
		header := &parleyv1.Conversation{Id: "a", Version: 3, Title: "tïtle", Labels: map[string]string{"k": "v"}}
		message := appendedChange("t", "a", 4, strings.Repeat("ä", 1000))
		message.Time = at
		empty := store.Change{
			Tenant: "t", ConversationID: "a", Version: 9, Time: at, Kind: message.Kind,
			Message: store.Frame{2<<3 | 2, 0},
		}
		committed := []store.Change{message, empty}
		for _, kind := range []parleyv1.ChangeKind{
			parleyv1.ChangeKind_CHANGE_KIND_CREATED, parleyv1.ChangeKind_CHANGE_KIND_UPDATED,
			parleyv1.ChangeKind_CHANGE_KIND_CLEARED,
		} {
			committed = append(committed, store.Change{
				Tenant: "t", ConversationID: "a", Version: 3, Time: at, Kind: kind,
				Conversation: header,
			})
		}
		for _, kind := range []parleyv1.ChangeKind{
			parleyv1.ChangeKind_CHANGE_KIND_DELETED, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED,
			parleyv1.ChangeKind_CHANGE_KIND_EVICTED,
		} {
			committed = append(committed, store.Change{Tenant: "t", ConversationID: "a", Version: 3, Time: at, Kind: kind})
		}
		var want []*parleyv1.ConversationChange
		for _, change := range committed {
			h.Committed([]store.Change{change})
			one := &parleyv1.ConversationChange{
				Cursor: h.Cursor("t"), Kind: change.Kind, ConversationId: "a", Version: change.Version, Time: timestamppb.New(at),
			}
			switch {
			case change.Message != nil:
				m, err := change.Message.Message()
				if err != nil {
					t.Fatal(err)
				}
				one.Payload = &parleyv1.ConversationChange_Message{Message: m}
			case change.Conversation != nil:
				one.Payload = &parleyv1.ConversationChange_Conversation{Conversation: header}
			}
			want = append(want, one)
		}
		if d := cmp.Diff(want, c.received(), protocmp.Transform()); d != "" {
			t.Errorf("changes (-want +got):\n%s", d)
		}
	})
}

func TestWatcherSelectsConversations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		many := make([]string, 1000)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		all := startClient(t, h, watch.Watch{Tenant: "t"}, nil)
		other := startClient(t, h, watch.Watch{Tenant: "u"}, nil)
		one := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"a"}}, nil)
		some := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: append([]string{"b", "a"}, many...)}, nil)
		twice := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"c", "c"}}, nil)
		none := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"nobody"}}, nil)
		h.Committed([]store.Change{
			appendedChange("t", "a", 1, ""), appendedChange("u", "a", 2, ""), appendedChange("t", "b", 3, ""),
			appendedChange("t", "c", 4, ""), appendedChange("t", "a", 5, ""), appendedChange("", "a", 6, ""),
		})
		const first, a1, b3, c4, a5 = "HEARTBEAT", "MESSAGE_APPENDED a 1", "MESSAGE_APPENDED b 3", "MESSAGE_APPENDED c 4",
			"MESSAGE_APPENDED a 5"
		all.want(t, first, a1, b3, c4, a5)
		other.want(t, first, "MESSAGE_APPENDED a 2")
		one.want(t, first, a1, a5)
		some.want(t, first, a1, b3, a5)
		twice.want(t, first, c4)
		none.want(t, first)
		for _, c := range []*client{all, other, one, some, twice, none} {
			if err := c.disconnect(); !errors.Is(err, errDisconnected) {
				t.Errorf("watcher ended with %v, want errDisconnected", err)
			}
		}
		if keys, _ := h.Readers(); keys != 0 || h.Watchers() != 0 {
			t.Errorf("%d keys and %d watchers after the end, want none", keys, h.Watchers())
		}
	})
}

// TestResumeFromEveryCursor: a watcher that resumes from a cursor receives the changes after it.
func TestResumeFromEveryCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		const total = 100
		cursors := []string{h.Cursor("t")}
		var of []string
		for i := range int32(total) {
			id := []string{"a", "b", "c"}[i%3]
			commit(h, "t", id, i)
			commit(h, "u", id, i)
			of = append(of, fmt.Sprint("MESSAGE_APPENDED ", id, " ", i))
			cursors = append(cursors, h.Cursor("t"))
		}
		for i, cursor := range cursors {
			rest := startClient(t, h, watch.Watch{Tenant: "t", Cursor: cursor}, nil)
			got := rest.received()
			if got[0].GetCursor() != cursor {
				t.Errorf("cursor of the first heartbeat = %s, want %s", got[0].GetCursor(), cursor)
			}
			if d := cmp.Diff(append([]string{"HEARTBEAT"}, of[i:]...), describe(got)); d != "" {
				t.Errorf("changes from cursor %d (-want +got):\n%s", i, d)
			}
			one := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"b"}, Cursor: cursor}, nil)
			ofOne := slices.DeleteFunc(slices.Clone(of[i:]),
				func(description string) bool { return !strings.Contains(description, " b ") })
			if d := cmp.Diff(append([]string{"HEARTBEAT"}, ofOne...), describe(one.received())); d != "" {
				t.Errorf("changes of b from cursor %d (-want +got):\n%s", i, d)
			}
			for _, c := range []*client{rest, one} {
				_ = c.disconnect()
			}
		}
	})
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		quiet := startClient(t, h, watch.Watch{Tenant: "t", ConversationIDs: []string{"quiet"}}, nil)
		all := startClient(t, h, watch.Watch{Tenant: "t", TurnEvents: true}, nil)
		last := quiet.want(t, "HEARTBEAT")
		all.want(t, "HEARTBEAT")
		pass := func(d time.Duration) { <-time.After(d) }
		pass(heartbeatInterval - 1)
		quiet.want(t)
		all.want(t)
		commit(h, "t", "a", 1)
		all.want(t, "MESSAGE_APPENDED a 1")
		pass(1)
		// The cursor has advanced, although no change was for this watcher.
		next := quiet.want(t, "HEARTBEAT")
		if next == last || next != h.Cursor("t") {
			t.Errorf("cursor moved from %s to %s, want %s", last, next, h.Cursor("t"))
		}
		pass(heartbeatInterval - 2)
		all.want(t) // The last change was less than heartbeatInterval ago.
		h.TurnEvent("t", "a", textEvent(1))
		all.want(t, "TURN a 1")
		pass(2)
		all.want(t)
		quiet.want(t, "HEARTBEAT")
		pass(heartbeatInterval - 2)
		all.want(t, "HEARTBEAT")
		for range 3 {
			pass(heartbeatInterval)
			all.want(t, "HEARTBEAT")
			quiet.want(t, "HEARTBEAT")
		}
		// A client that did not read for an hour receives the changes and no unnecessary
		// heartbeats.
		all.pauseReading()
		commit(h, "t", "a", 2, 3)
		pass(time.Hour)
		all.resumeReading()
		all.want(t, "MESSAGE_APPENDED a 2", "MESSAGE_APPENDED a 3")
		pass(heartbeatInterval)
		all.want(t, "HEARTBEAT")
	})
}

func TestCursors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		commit(h, "t", "a", 1)
		now := h.Cursor("t")
		raw, err := base64.RawURLEncoding.DecodeString(now)
		if err != nil {
			t.Fatal(err)
		}
		future := slices.Clone(raw)
		future[len(future)-1]++
		for _, cursor := range []string{
			"x", "not base64", now[:len(now)-1], now + "A", now + "==", now + now,
			base64.RawURLEncoding.EncodeToString(raw[:8]), base64.RawURLEncoding.EncodeToString(future),
			base64.RawURLEncoding.EncodeToString(slices.Concat(raw[:8], slices.Repeat([]byte{255}, 8))),
		} {
			if w, err := h.Watch(watch.Watch{Tenant: "t", Cursor: cursor}); !errors.Is(err, watch.ErrCursor) {
				t.Errorf("cursor %q: error = %v", cursor, err)
				w.Stop()
			}
		}
		if n := h.Watchers(); n != 0 {
			t.Errorf("Watchers() = %d after refused watches, want 0", n)
		}
		// A cursor of another server start is too old, whatever its position.
		other := watch.New(watch.Options{})
		commit(other, "t", "a", 1, 2, 3)
		for _, cursor := range []string{other.Cursor("t"), watch.New(watch.Options{}).Cursor("t")} {
			c := startClient(t, h, watch.Watch{Tenant: "t", Cursor: cursor}, nil)
			got := c.received()
			if d := cmp.Diff([]string{"GAP", "HEARTBEAT"}, describe(got)); d != "" {
				t.Errorf("changes (-want +got):\n%s", d)
			}
			for _, change := range got {
				if change.GetCursor() != h.Cursor("t") || !change.GetTime().AsTime().Equal(time.Now()) {
					t.Errorf("change = %v, want cursor %s and the current time", change, h.Cursor("t"))
				}
			}
			_ = c.disconnect()
		}
	})
}

func TestWatcherEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := watch.New(watch.Options{})
		stop := make(chan struct{})
		idle, busy := startClient(t, h, watch.Watch{Tenant: "t"}, stop), startClient(t, h, watch.Watch{Tenant: "t"}, stop)
		left := startClient(t, h, watch.Watch{Tenant: "t"}, stop)
		if err := left.disconnect(); !errors.Is(err, errDisconnected) {
			t.Errorf("watcher of a disconnected client ended with %v, want errDisconnected", err)
		}
		idle.want(t, "HEARTBEAT")
		busy.want(t, "HEARTBEAT")
		busy.pauseReading()
		commit(h, "t", "a", 1)
		synctest.Wait()
		close(stop)
		<-idle.ended
		busy.resumeReading()
		<-busy.ended
		late := startClient(t, h, watch.Watch{Tenant: "t"}, stop)
		<-late.ended
		for _, c := range []*client{idle, busy, late} {
			if c.err != nil {
				t.Errorf("watcher ended with %v after stop, want nil", c.err)
			}
			c.w.Stop() // A second call has no effect.
		}
		if n := h.Watchers(); n != 0 {
			t.Errorf("Watchers() = %d, want 0", n)
		}
	})
}
