package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// watching is a stream of changes as they come.
type watching struct {
	stream  grpc.ServerStreamingClient[parleyv1.WatchConversationsResponse]
	leave   context.CancelFunc
	changes []*parleyv1.ConversationChange
	silent  int // how many of the newest are heartbeats
}

// watch begins a watch that must not be refused, and takes its first heartbeat.
func (f *fixture) watch(t *testing.T, ctx context.Context, r *parleyv1.WatchConversationsRequest) *watching {
	t.Helper()
	w, err := f.tryWatch(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.leave)
	return w
}

// tryWatch is watch, or the error that comes instead.
func (f *fixture) tryWatch(ctx context.Context, r *parleyv1.WatchConversationsRequest) (*watching, error) {
	w := new(watching)
	ctx, w.leave = context.WithCancel(ctx)
	var err error
	if w.stream, err = f.WatchConversations(ctx, r); err == nil {
		err = w.next()
	}
	if err != nil {
		w.leave()
		return nil, err
	}
	return w, nil
}

// next takes the next change.
func (w *watching) next() error {
	response, err := w.stream.Recv()
	if err != nil {
		return err
	}
	w.changes = append(w.changes, response.GetChange())
	w.silent++
	if response.GetChange().GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
		w.silent = 0
	}
	if w.silent > 240 { // An hour, which is no time on the clock of testing/synctest.
		return errors.New("nothing but heartbeats comes")
	}
	return nil
}

// cursor is that of the last change.
func (w *watching) cursor() string { return w.changes[len(w.changes)-1].GetCursor() }

// want takes so many changes and compares them all with what is wanted.
func (w *watching) want(t *testing.T, want ...string) {
	t.Helper()
	for len(w.changes) < len(want) {
		if err := w.next(); err != nil {
			t.Fatalf("after %q: %v", brief(w.changes), err)
		}
	}
	if d := cmp.Diff(want, brief(w.changes)); d != "" {
		t.Fatalf("changes (-want +got):\n%s", d)
	}
}

// brief says of each change its kind, its conversation and its version.
func brief(changes []*parleyv1.ConversationChange) []string {
	var lines []string
	for _, c := range changes {
		line := strings.TrimPrefix(c.GetKind().String(), "CHANGE_KIND_")
		if c.GetConversationId() != "" {
			line += fmt.Sprint(" ", c.GetConversationId(), " ", c.GetVersion())
		}
		lines = append(lines, line)
	}
	return lines
}

func TestWatchRefusals(t *testing.T) {
	f := open(t, nil)
	many := make([]string, 1001)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	future := []byte(f.hub.Cursor())
	future[len(future)-3]++
	tests := []struct {
		name    string
		request *parleyv1.WatchConversationsRequest
		fields  []string
	}{
		{"session memory of all", &parleyv1.WatchConversationsRequest{DeleteAfterDisconnect: durationpb.New(0)}, []string{"conversation_ids"}},
		{"bad ids", &parleyv1.WatchConversationsRequest{ConversationIds: []string{"a", "", "b/c"}}, []string{"conversation_ids[1]", "conversation_ids[2]"}},
		{"too many ids", &parleyv1.WatchConversationsRequest{ConversationIds: many}, []string{"conversation_ids"}},
		{"too long", &parleyv1.WatchConversationsRequest{ConversationIds: many[:1], DeleteAfterDisconnect: durationpb.New(366*24*time.Hour + 1)}, []string{"delete_after_disconnect"}},
		{"negative", &parleyv1.WatchConversationsRequest{ConversationIds: many[:1], DeleteAfterDisconnect: durationpb.New(-1)}, []string{"delete_after_disconnect"}},
		{"no duration", &parleyv1.WatchConversationsRequest{ConversationIds: many[:1], DeleteAfterDisconnect: &durationpb.Duration{Seconds: 1, Nanos: -1}}, []string{"delete_after_disconnect"}},
		{"long cursor", &parleyv1.WatchConversationsRequest{Cursor: strings.Repeat("A", 129)}, []string{"cursor"}},
		{"odd cursor", &parleyv1.WatchConversationsRequest{Cursor: "?"}, []string{"cursor"}},
		{"cut cursor", &parleyv1.WatchConversationsRequest{Cursor: f.hub.Cursor()[1:]}, []string{"cursor"}},
		{"cursor that is still to come", &parleyv1.WatchConversationsRequest{Cursor: string(future)}, []string{"cursor"}},
		{"cursor of session memory", &parleyv1.WatchConversationsRequest{Cursor: "?", ConversationIds: many[:1], DeleteAfterDisconnect: durationpb.New(0)}, []string{"cursor"}},
		{"all at once", &parleyv1.WatchConversationsRequest{Cursor: strings.Repeat("A", 129), DeleteAfterDisconnect: durationpb.New(-1)}, []string{"conversation_ids", "cursor", "delete_after_disconnect"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := f.tryWatch(t.Context(), test.request)
			got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
			slices.Sort(got.fields)
			if d := cmp.Diff(test.fields, got.fields); d != "" {
				t.Errorf("fields of %q (-want +got):\n%s", got.text, d)
			}
		})
	}
	if n := f.hub.Watchers(); n != 0 {
		t.Errorf("%d watchers are left", n)
	}
	for _, request := range []*parleyv1.WatchConversationsRequest{
		{ConversationIds: many[:1000]}, {ConversationIds: []string{"a", "a"}}, {Cursor: f.hub.Cursor()},
	} {
		f.watch(t, t.Context(), request).want(t, "HEARTBEAT")
	}
}

func TestTooManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, func(s *setup) { s.Hub = watch.New(watch.Options{MaxWatchers: 2}) })
		f.append(t, "c1", user("hello"))
		first := f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
		f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{ConversationIds: []string{"c1"}})
		_, err := f.tryWatch(t.Context(), &parleyv1.WatchConversationsRequest{})
		if got := wantError(t, err, codes.ResourceExhausted, "TOO_MANY_WATCHERS"); got.retry == 0 {
			t.Error("nothing says that a retry helps")
		}
		// Those who wait for a summary count as well.
		_, err = f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c1", KnownVersion: proto.Int32(1), WaitTimeout: durationpb.New(time.Second),
		})
		wantError(t, err, codes.ResourceExhausted, "TOO_MANY_WATCHERS")
		stats, err := f.admin.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil || stats.GetWatcherCount() != 2 {
			t.Errorf("%v, %v; want 2 watchers", stats, err)
		}
		first.leave()
		synctest.Wait()
		f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{})
	})
}

func TestIsolationOfWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, words := openScripted(t, func(s *setup) { s.Authenticate = signIn })
		a, b := as(t, "tenant", "a"), as(t, "tenant", "b")
		_, err := f.tryWatch(t.Context(), &parleyv1.WatchConversationsRequest{})
		wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
		var of []*watching
		for _, ctx := range []context.Context{a, b} {
			for _, ids := range [][]string{nil, {"both", "secret"}} {
				of = append(of, f.watch(t, ctx, &parleyv1.WatchConversationsRequest{ConversationIds: ids, IncludeTurnEvents: true}))
			}
		}
		// A cursor of one tenant says nothing to another, nor about it.
		before := of[0].cursor()
		answered := f.begin(t, a, asks("secret", "of a", reject))
		words.say(t, "secret", "a secret", end)
		answered.drain(t)
		if _, err := f.AppendMessages(b, &parleyv1.AppendMessagesRequest{ConversationId: "both", Messages: []*parleyv1.Message{user("of b")}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		of = append(of, f.watch(t, b, &parleyv1.WatchConversationsRequest{Cursor: before}))
		for _, w := range of[2:] {
			w.want(t, "HEARTBEAT", "CREATED both 1", "MESSAGE_APPENDED both 1")
			if got := w.changes[2].GetMessage().GetContent(); got != "of b" {
				t.Errorf("b is told %q", got)
			}
		}
		for _, w := range of[:2] {
			for len(w.changes) == 1 || w.changes[len(w.changes)-1].GetTurnEvent().GetFinished() == nil {
				if err := w.next(); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range w.changes[1:] {
				if c.GetConversationId() != "secret" {
					t.Errorf("a is told %v", c)
				}
			}
		}
		<-time.After(time.Minute) // Nothing else has come.
		for _, w := range of {
			n := len(w.changes)
			if err := w.next(); err != nil || w.changes[n].GetKind() != parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT {
				t.Errorf("%v, %v, want a heartbeat", w.changes[n:], err)
			}
		}
	})
}

func TestWatchesEndWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		all := []*watching{
			f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{}),
			f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{ConversationIds: []string{"c1"}, IncludeTurnEvents: true}),
		}
		f.append(t, "c1", user("hello"))
		synctest.Wait()
		f.server.Stop()
		for _, w := range all {
			w.want(t, "HEARTBEAT", "CREATED c1 1", "MESSAGE_APPENDED c1 1")
			if got := wantError(t, w.next(), codes.Unavailable, "SHUTTING_DOWN"); got.retry == 0 {
				t.Error("nothing says that a retry helps")
			}
		}
		late, err := f.tryWatch(t.Context(), &parleyv1.WatchConversationsRequest{})
		if err == nil {
			err = late.next()
		}
		wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")
		synctest.Wait()
		if n := f.hub.Watchers(); n != 0 {
			t.Errorf("%d watchers are left", n)
		}
	})
}

func TestAWatchEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		f.watch(t, t.Context(), &parleyv1.WatchConversationsRequest{}).leave()
		_, err := f.tryWatch(withTimeout(t, time.Minute), &parleyv1.WatchConversationsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if n := f.hub.Watchers(); n != 0 {
			t.Errorf("%d watchers are left", n)
		}
	})
}

// TestAListAndAWatchOfTheSame: what a list does not have yet comes behind its watch_cursor,
// whatever is appended meanwhile.
func TestAListAndAWatchOfTheSame(t *testing.T) {
	f := open(t, func(s *setup) { s.stored.MaxMessages = 1000 })
	const writers, each, readers = 4, 100, 8
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for j := range each {
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
			if err := f.listAndWatch(t.Context(), 2*writers*each); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestAnAppendBehindTheList: one that the list just misses is behind its watch_cursor.
func TestAnAppendBehindTheList(t *testing.T) {
	behind := new(behindLists)
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			behind.Store = inner
			return behind
		}
	})
	f.append(t, "c1", user("before"))
	behind.do = func() { f.append(t, "c1", user("just behind")) }
	list, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || list.GetConversations()[0].GetConversation().GetVersion() != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	w := f.watch(t, withTimeout(t, patience), &parleyv1.WatchConversationsRequest{Cursor: list.GetWatchCursor()})
	w.want(t, "HEARTBEAT", "MESSAGE_APPENDED c1 2")
}

// behindLists does something between a list and its reply.
type behindLists struct {
	store.Store
	do func()
}

func (s *behindLists) List(ctx context.Context, l *store.List) (*store.Page, error) {
	page, err := s.Store.List(ctx, l)
	s.do()
	return page, err
}

// listAndWatch counts messages, first in a list, then in the watch that joins it, and returns
// when it has all.
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
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := f.tryWatch(ctx, &parleyv1.WatchConversationsRequest{Cursor: list.GetWatchCursor()})
	if err != nil {
		return err
	}
	defer w.leave()
	for count < total {
		if err := w.next(); err != nil {
			return errors.Join(fmt.Errorf("after %d messages of %d", count, total), err)
		}
		c := w.changes[len(w.changes)-1]
		sequence, last := c.GetMessage().GetSequence(), known[c.GetConversationId()]
		switch {
		case c.GetKind() == parleyv1.ChangeKind_CHANGE_KIND_GAP || sequence > last+1:
			return fmt.Errorf("%v comes after %d", c, last)
		case sequence == last+1: // Else it was in the list.
			known[c.GetConversationId()] = sequence
			count++
		}
	}
	return nil
}
