package e2e

import (
	"fmt"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestServersWatchFromCursor: a watch at one server continues at another one from its cursor, also from that of a list,
// with exactly the changes after it. At a server that has started later it begins with a GAP.
func TestServersWatchFromCursor(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	servers := startServers(t, engine, 2)
	a, b := servers[0], servers[1]
	list, err := a.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	watch := func(s *server, cursor string) *changes {
		t.Helper()
		c, err := watchFrom(timeLimited(t), s, cursor)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	version := int32(0)
	write := func(s *server) {
		t.Helper()
		version++
		if _, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: "c", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprint(version)}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(c *changes, from, through int32) {
		t.Helper()
		for v := from; v <= through; v++ {
			change, err := c.next()
			if err == nil && v == 1 && change.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_CREATED {
				change, err = c.next()
			}
			if err != nil || change.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED || change.GetVersion() != v {
				t.Fatalf("change = %v, %v, want the message of version %d", change, err, v)
			}
		}
	}

	first := watch(a, "")
	first.start(t)
	write(a)
	write(b)
	want(first, 1, 2)
	for range 5 { // The watch of the first server has ended here.
		write(b)
		write(a)
	}
	resumed := watch(b, first.cursor)
	resumed.start(t)
	want(resumed, 3, 12)
	fromList := watch(b, list.GetWatchCursor())
	fromList.start(t)
	want(fromList, 1, 12)
	// The last change is known to one server as soon as to the other.
	write(a)
	want(resumed, 13, 13)
	back := watch(a, resumed.cursor)
	back.start(t)
	write(b)
	want(back, 14, 14)

	late := startServers(t, engine, 1)[0]
	missed := watch(late, resumed.cursor)
	change, err := missed.next()
	if err != nil || change.GetKind() != parleyv1.ChangeKind_CHANGE_KIND_GAP {
		t.Fatalf("first change at a server that has started later = %v, %v, want a GAP", change, err)
	}
	write(a)
	want(missed, 15, 15)
	again := watch(late, back.cursor)
	if change, err = again.next(); err != nil || change.GetVersion() != 15 {
		t.Errorf("change after the cursor of the last one before the start = %v, %v, want version 15", change, err)
	}
	write(late)
	want(back, 15, 16)
}
