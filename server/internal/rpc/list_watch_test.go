package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestListThenWatch checks that a watch from the watch_cursor of a list has all messages that the list
// does not have, while other goroutines append.
func TestListThenWatch(t *testing.T) {
	f := open(t, func(s *setup) { s.storeOptions.MaxMessages = 1000 })
	const writers, appends, readers = 4, 100, 8
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for j := range appends {
				if _, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
					ConversationId: fmt.Sprint("c", (i+j)%10), Messages: []*parleyv1.Message{user("hello"), assistant("hello")},
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range readers {
		all.Go(func() {
			if err := f.listAndWatch(t.Context(), 2*writers*appends); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestAppendAfterList checks that a watch from the watch_cursor of a list has a message that is appended
// just after the list.
func TestAppendAfterList(t *testing.T) {
	hook := new(listHookStore)
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			hook.Store = inner
			return hook
		}
	})
	f.append(t, "c1", user("before"))
	hook.afterList = func() { f.append(t, "c1", user("just after")) }
	list, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || list.GetConversations()[0].GetConversation().GetVersion() != 1 {
		t.Fatalf("ListConversations = %v, %v, want version 1", list, err)
	}
	w := f.watch(t, withTimeout(t, testTimeout), &parleyv1.WatchConversationsRequest{Cursor: list.GetWatchCursor()})
	w.want(t, "HEARTBEAT", "MESSAGE_APPENDED c1 2")
}

// listHookStore calls a function after each list.
type listHookStore struct {
	store.Store
	afterList func()
}

func (s *listHookStore) List(ctx context.Context, l *store.List) (*store.Page, error) {
	page, err := s.Store.List(ctx, l)
	s.afterList()
	return page, err
}

// listAndWatch counts messages, first those of a list, then those of a watch from its watch_cursor. It
// returns when it has counted total messages.
func (f *fixture) listAndWatch(ctx context.Context, total int) error {
	list, err := f.ListConversations(ctx, &parleyv1.ListConversationsRequest{})
	if err != nil {
		return err
	}
	known, count := make(map[string]int32), 0
	for _, entry := range list.GetConversations() {
		c := entry.GetConversation()
		known[c.GetId()] = c.GetLastSequence()
		count += int(c.GetLastSequence())
	}
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	w, err := f.tryWatch(ctx, &parleyv1.WatchConversationsRequest{Cursor: list.GetWatchCursor()})
	if err != nil {
		return err
	}
	defer w.disconnect()
	for count < total {
		if err := w.next(); err != nil {
			return errors.Join(fmt.Errorf("after %d messages of %d", count, total), err)
		}
		c := w.changes[len(w.changes)-1]
		sequence, last := c.GetMessage().GetSequence(), known[c.GetConversationId()]
		switch {
		case c.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_GAP || sequence > last+1:
			return fmt.Errorf("change %v follows sequence %d", c, last)
		case sequence == last+1: // Otherwise the list had the message.
			known[c.GetConversationId()] = sequence
			count++
		}
	}
	return nil
}
