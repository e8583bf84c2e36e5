package adk_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/adk/v2/platform"
	"google.golang.org/adk/v2/session"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/adk"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestOddIDs uses ids that no other store would like, each together with all others.
func TestOddIDs(t *testing.T) {
	t.Parallel()
	address := startServer(t).address
	s := newService(t, address)
	odd := []string{
		"user@example.com", "app/1", "app%2F1", " a ", "a", "a\nb", ".", "..", "~", "日本語", "\U0001f469\u200d\U0001f52c",
		strings.Repeat("é", 700), strings.Repeat("é", 700) + "x",
	}
	for i, id := range odd {
		app, user := odd[(i+1)%len(odd)], odd[(i+2)%len(odd)]
		of := create(t, s, app, user, id, map[string]any{"n": i, "app:n": i, "user:n": i})
		if err := s.AppendEvent(t.Context(), of, says(t, "user", id, nil)); err != nil {
			t.Fatalf("AppendEvent to %q, %q, %q = %v", app, user, id, err)
		}
	}
	s = newService(t, address)
	for i, id := range odd {
		app, user := odd[(i+1)%len(odd)], odd[(i+2)%len(odd)]
		reply, err := s.List(t.Context(), &session.ListRequest{AppName: app, UserID: user})
		if err != nil || len(reply.Sessions) != 1 || reply.Sessions[0].ID() != id {
			t.Fatalf("List(%q, %q) = %v, %v, want the session %q", app, user, reply, err, id)
		}
		n := float64(i)
		want := map[string]any{"n": n, "app:n": n, "user:n": n}
		if diff := cmp.Diff(want, stateOf(reply.Sessions[0])); diff != "" {
			t.Errorf("state of %q in a list (-want +got):\n%s", id, diff)
		}
		read := get(t, s, reply.Sessions[0])
		if got := textsOf(read); !slices.Equal(got, []string{id}) || read.AppName() != app || read.UserID() != user {
			t.Errorf("Get(%q) = %q of %q, %q", id, got, read.AppName(), read.UserID())
		}
	}
	_, err := s.Create(t.Context(), &session.CreateRequest{AppName: "a", UserID: "u", SessionID: "\xff"})
	if err == nil {
		t.Error("Create of an id that is not UTF-8 = nil, want an error")
	}
}

// TestRefusals checks what the framework's database service refuses.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newService(t, shared)
	ctx := t.Context()
	of := create(t, s, "refusals", "anna", "1", nil)
	_, err := s.Create(ctx, &session.CreateRequest{AppName: "refusals", UserID: "anna", SessionID: "1"})
	if !errors.Is(err, adk.ErrSessionExists) {
		t.Errorf("Create of a session that exists = %v, want ErrSessionExists", err)
	}
	_, err = s.Get(ctx, &session.GetRequest{AppName: "refusals", UserID: "anna", SessionID: "2"})
	if !errors.Is(err, adk.ErrSessionNotFound) || status.Code(err) != codes.NotFound {
		t.Errorf("Get of a missing session = %v, want ErrSessionNotFound and NOT_FOUND", err)
	}
	for _, err := range []error{
		func() error { _, err := s.Create(ctx, &session.CreateRequest{AppName: "a"}); return err }(),
		func() error { _, err := s.Get(ctx, &session.GetRequest{AppName: "a", UserID: "u"}); return err }(),
		func() error { _, err := s.List(ctx, &session.ListRequest{}); return err }(),
		s.Delete(ctx, &session.DeleteRequest{AppName: "a", UserID: "u"}),
		s.AppendEvent(ctx, nil, says(t, "user", "x", nil)),
		s.AppendEvent(ctx, of, nil),
		s.AppendEvent(ctx, of, says(t, "user", "x", map[string]any{"f": func() {}})),
	} {
		if err == nil {
			t.Error("a wrong call = nil, want an error")
		}
	}
	if of.Events().Len() != 0 || len(stateOf(of)) != 0 {
		t.Errorf("after refused appends the session has %d events and the state %v", of.Events().Len(), stateOf(of))
	}
	if err := s.Delete(ctx, &session.DeleteRequest{AppName: "refusals", UserID: "anna", SessionID: "1"}); err != nil {
		t.Fatal(err)
	}
	if err := s.AppendEvent(ctx, of, says(t, "user", "x", nil)); !errors.Is(err, adk.ErrSessionNotFound) {
		t.Errorf("AppendEvent to a deleted session = %v, want ErrSessionNotFound", err)
	}
	// A conversation that is no session stays as it is.
	c := dial(t, shared)
	_, err = c.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
		ConversationId: "refusals/anna/chat",
		Messages:       []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, &session.GetRequest{AppName: "refusals", UserID: "anna", SessionID: "chat"}); err == nil {
		t.Error("Get of a conversation that is no session = nil, want an error")
	}
}

// TestStaleSessionIsRefused appends to two copies of a session. The second is refused until it is read again. A change
// of the title is no event, and makes no copy stale.
func TestStaleSessionIsRefused(t *testing.T) {
	t.Parallel()
	one, two := newService(t, shared), newService(t, shared)
	ctx := t.Context()
	first := create(t, one, "stale", "anna", "1", map[string]any{"n": 0})
	second := get(t, two, first)
	if err := one.AppendEvent(ctx, first, says(t, "user", "first", map[string]any{"n": 1, "app:a": 1})); err != nil {
		t.Fatal(err)
	}
	event := says(t, "user", "second", map[string]any{"n": 2, "app:b": 2, "temp:t": 3})
	if err := two.AppendEvent(ctx, second, event); !errors.Is(err, adk.ErrStaleSession) {
		t.Fatalf("AppendEvent to a stale session = %v, want ErrStaleSession", err)
	}
	if second.Events().Len() != 0 || stateOf(second)["n"] != 0.0 {
		t.Errorf("the refused append changed the session: %v", stateOf(second))
	}
	_, err := dial(t, shared).UpdateConversation(ctx, &parleyv1.UpdateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "stale/anna/1", Title: "Stale"},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"title"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.AppendEvent(ctx, first, says(t, "user", "third", nil)); err != nil {
		t.Errorf("AppendEvent after a new title = %v, want no error", err)
	}
	second = get(t, two, first)
	if err := two.AppendEvent(ctx, second, event); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(second)["temp:t"]; got != 3 {
		t.Errorf("temporary state of the session = %v, want 3", got)
	}
	read := get(t, one, first)
	if got := textsOf(read); !slices.Equal(got, []string{"first", "third", "second"}) {
		t.Errorf("events = %q", got)
	}
	want := map[string]any{"n": 2.0, "app:a": 1.0, "app:b": 2.0}
	if diff := cmp.Diff(want, stateOf(read)); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if !read.LastUpdateTime().Equal(event.Timestamp) {
		t.Errorf("LastUpdateTime = %v, want %v", read.LastUpdateTime(), event.Timestamp)
	}
}

// TestConcurrentClientsLoseNothing lets clients append to sessions of their own, all with keys of the same app and user,
// and to one common session, which each reads again when it is refused.
func TestConcurrentClientsLoseNothing(t *testing.T) {
	t.Parallel()
	const clients, rounds = 4, 15
	common := create(t, newService(t, shared), "contended", "anna", "common", nil)
	var wait sync.WaitGroup
	for c := range clients {
		s := newService(t, shared)
		wait.Go(func() {
			own := create(t, s, "contended", "anna", fmt.Sprint(c), nil)
			copied := get(t, s, common)
			for i := range rounds {
				name := fmt.Sprintf("%d-%d", c, i)
				delta := map[string]any{[]string{"app:", "user:"}[i%2] + name: i, name: i} // One of them, never both.
				if err := s.AppendEvent(t.Context(), own, says(t, "user", name, delta)); err != nil {
					t.Errorf("AppendEvent %s = %v", name, err)
				}
				event := says(t, "user", name, map[string]any{name: i})
				err := s.AppendEvent(t.Context(), copied, event)
				for ; errors.Is(err, adk.ErrStaleSession); err = s.AppendEvent(t.Context(), copied, event) {
					copied = get(t, s, common)
				}
				if err != nil {
					t.Errorf("AppendEvent %s to the common session = %v", name, err)
				}
			}
		})
	}
	wait.Wait()
	read := get(t, newService(t, shared), common)
	if got := stateOf(read); len(got) != 2*clients*rounds {
		t.Errorf("the state of the common session has %d keys, want %d", len(got), 2*clients*rounds)
	}
	texts := textsOf(read)
	for c := range clients {
		prefix := fmt.Sprintf("%d-", c)
		own := slices.DeleteFunc(slices.Clone(texts), func(s string) bool { return !strings.HasPrefix(s, prefix) })
		for i, text := range own {
			if text != fmt.Sprintf("%d-%d", c, i) {
				t.Errorf("events of client %d = %q, want all in order", c, own)
				break
			}
		}
		if len(own) != rounds {
			t.Errorf("client %d has %d events, want %d", c, len(own), rounds)
		}
	}
}

// TestStateAndEventsAreOfOneInstant reads a session while it is written. The state is always that of the last event.
func TestStateAndEventsAreOfOneInstant(t *testing.T) {
	t.Parallel()
	const appends = 60
	one, two := newService(t, shared), newService(t, shared)
	of := create(t, one, "instant", "anna", "1", nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range appends {
			event := says(t, "user", fmt.Sprint(i+1), map[string]any{"n": i + 1})
			if err := one.AppendEvent(t.Context(), of, event); err != nil {
				t.Errorf("AppendEvent = %v", err)
			}
		}
	}()
	for reads := 0; ; reads++ {
		read := get(t, two, of)
		n, _ := stateOf(read)["n"].(float64)
		if int(n) != read.Events().Len() {
			t.Fatalf("the state is that of event %v, but there are %d", n, read.Events().Len())
		}
		select {
		case <-done:
			t.Logf("%d reads", reads)
			return
		default:
		}
	}
}

// TestValuesStayAsTheyWere keeps numbers that another language wrote, which a float64 would change.
func TestValuesStayAsTheyWere(t *testing.T) {
	t.Parallel()
	c := dial(t, shared)
	s := adk.NewSessionService(c)
	of := create(t, s, "values", "anna", "1", nil)
	text := []byte(`{"float":1.0,"large":12345678901234567890}`)
	if _, err := c.TenantRecords().Put(t.Context(), &parleyv1.RecordWrite{Key: "adk/app/values", Value: text}); err != nil {
		t.Fatal(err)
	}
	event := says(t, "user", "<b>", map[string]any{"app:html": "<b>"})
	if err := s.AppendEvent(t.Context(), of, event); err != nil {
		t.Fatal(err)
	}
	record, err := c.TenantRecords().Get(t.Context(), "adk/app/values")
	want := `{"float":1.0,"html":"<b>","large":12345678901234567890}`
	if got := string(record.GetValue()); got != want || err != nil {
		t.Errorf("state of the app = %s, %v, want %s", got, err, want)
	}
}

// TestLargeEvents stores events that are too large for a message, one of them too large for a record.
func TestLargeEvents(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--max-message-bytes=64KiB")
	c := dial(t, server.address)
	s := adk.NewSessionService(c)
	of := create(t, s, "large", "anna", "1", nil)
	var want []string
	for _, size := range []int{10, 40 << 10, 200 << 10, 1 << 20, 7 << 20, 20} {
		want = append(want, strings.Repeat("é", size/2))
		event := says(t, "model", want[len(want)-1], map[string]any{"size": size})
		if err := s.AppendEvent(t.Context(), of, event); err != nil {
			t.Fatalf("AppendEvent of %d bytes = %v", size, err)
		}
	}
	read := get(t, newService(t, server.address), of)
	if got := textsOf(read); !slices.Equal(got, want) {
		t.Errorf("the texts of large events differ: %d events, want %d", len(got), len(want))
	}
	page, err := c.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "large/anna/1", Ascending: true})
	if err != nil || len(page.GetMessages()) != len(want) {
		t.Fatalf("ListMessages = %d messages, %v, want %d", len(page.GetMessages()), err, len(want))
	}
	for i, message := range page.GetMessages() {
		inRecord := strings.Contains(message.GetContent(), "in the record adk/event/")
		if large := i > 0 && i < 5; large != inRecord {
			t.Errorf("content of message %d = %.300q, want a hint of the record: %t", i, message.GetContent(), large)
		}
	}
}

// TestFullConversationIsRefused fills a session. Nothing is dropped.
func TestFullConversationIsRefused(t *testing.T) {
	t.Parallel()
	server := startServer(t, "--max-conversation-bytes=256KiB", "--max-answer-bytes=64KiB", "--max-message-bytes=64KiB", "--max-conversations=2")
	s := newService(t, server.address)
	of := create(t, s, "full", "anna", "1", nil)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		err = s.AppendEvent(t.Context(), of, says(t, "user", strings.Repeat("x", 4000), map[string]any{"n": n + 1}))
	}
	if client.Reason(err) != "CONVERSATION_FULL" {
		t.Fatalf("append %d = %v, want CONVERSATION_FULL", n, err)
	}
	read := get(t, s, of)
	if read.Events().Len() != n-1 || stateOf(read)["n"] != float64(n-1) {
		t.Errorf("%d events, state %v, want %d", read.Events().Len(), stateOf(read), n-1)
	}
	create(t, s, "full", "anna", "2", nil)
	_, err = s.Create(t.Context(), &session.CreateRequest{AppName: "full", UserID: "anna"})
	if client.Reason(err) != "STORE_FULL" {
		t.Errorf("Create at the limit = %v, want STORE_FULL", err)
	}
	get(t, s, of)
}

// TestProviders checks that ids and times come from the context, as in the framework's services.
func TestProviders(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901, time.UTC)
	ctx := platform.WithTimeProvider(t.Context(), func() time.Time { return at })
	ctx = platform.WithUUIDProvider(ctx, func() string { return "provided" })
	s := newService(t, shared)
	reply, err := s.Create(ctx, &session.CreateRequest{AppName: "providers", UserID: "anna"})
	if err != nil || reply.Session.ID() != "provided" {
		t.Fatalf("Create = %v, %v, want the id of the provider", reply, err)
	}
	want := at.Truncate(time.Microsecond)
	if got := reply.Session.LastUpdateTime(); !got.Equal(want) {
		t.Errorf("LastUpdateTime = %v, want %v", got, want)
	}
	if got := get(t, s, reply.Session).LastUpdateTime(); !got.Equal(want) {
		t.Errorf("LastUpdateTime after Get = %v, want %v", got, want)
	}
}

// TestRetention checks the retention of sessions: that of the option, or one without any limit.
func TestRetention(t *testing.T) {
	t.Parallel()
	c := dial(t, shared)
	create(t, adk.NewSessionService(c), "retention", "anna", "kept", nil)
	create(t, adk.NewSessionService(c, adk.WithRetention(&parleyv1.Retention{MaxMessages: 7})), "retention", "anna", "short", nil)
	for id, want := range map[string]*parleyv1.Retention{
		"kept": {KeepAll: true, NoExpiry: true, NoEviction: true}, "short": {MaxMessages: 7},
	} {
		reply, err := c.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "retention/anna/" + id})
		got := reply.GetConversation().GetRetention()
		if err != nil || got.GetKeepAll() != want.GetKeepAll() || got.GetNoExpiry() != want.GetNoExpiry() ||
			got.GetNoEviction() != want.GetNoEviction() || want.MaxMessages > 0 && got.GetMaxMessages() != want.MaxMessages {
			t.Errorf("retention of %q = %v, %v, want %v", id, got, err, want)
		}
		wantLabels := map[string]string{"adk.app": "retention", "adk.user": "anna"}
		if got := reply.GetConversation().GetLabels(); !maps.Equal(got, wantLabels) {
			t.Errorf("labels of %q = %v", id, got)
		}
	}
}

// TestSetChangesOnlyTheCopy checks the state of a session that a caller has.
func TestSetChangesOnlyTheCopy(t *testing.T) {
	t.Parallel()
	s := newService(t, shared)
	of := create(t, s, "set", "anna", "1", map[string]any{"a": "b", "temp:t": 1})
	if err := of.State().Set("c", "d"); err != nil {
		t.Fatal(err)
	}
	if got, err := of.State().Get("c"); got != "d" || err != nil {
		t.Errorf("Get = %v, %v, want d", got, err)
	}
	if _, err := of.State().Get("x"); !errors.Is(err, session.ErrStateKeyNotExist) {
		t.Errorf("Get of a missing key = %v, want ErrStateKeyNotExist", err)
	}
	if got := stateOf(get(t, s, of)); !maps.Equal(got, map[string]any{"a": "b"}) {
		t.Errorf("stored state = %v, want only a", got)
	}
	if got := of.Events().At(0); got != nil {
		t.Errorf("At(0) of no events = %v, want nil", got)
	}
}
