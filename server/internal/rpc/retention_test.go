package rpc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
)

// keepAllOf is a retention without loss.
func keepAllOf() *parleyv1.Retention {
	return &parleyv1.Retention{KeepAll: true, NoExpiry: true, NoEviction: true}
}

// creating returns the calls that can create a conversation, by name.
func (f *fixture) creating(t *testing.T) map[string]func(
	id, request string, with *parleyv1.Conversation,
) (*parleyv1.Conversation, error) {
	t.Helper()
	return map[string]func(string, string, *parleyv1.Conversation) (*parleyv1.Conversation, error){
		"load": func(id, request string, with *parleyv1.Conversation) (*parleyv1.Conversation, error) {
			reply, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{
				ConversationId: id, RequestId: request, CreateWith: with,
			})
			return reply.GetConversation(), err
		},
		"append": func(id, request string, with *parleyv1.Conversation) (*parleyv1.Conversation, error) {
			reply, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
				ConversationId: id, RequestId: request, CreateWith: with, Messages: []*parleyv1.Message{user("hello")},
			})
			return reply.GetConversation(), err
		},
		"chat": func(id, request string, with *parleyv1.Conversation) (*parleyv1.Conversation, error) {
			events, err := f.chat(t, &parleyv1.ChatRequest{
				ConversationId: id, RequestId: request, CreateWith: with, Content: "hello",
			})
			for _, e := range events {
				if c := e.GetStarted().GetConversation(); c != nil {
					return c, err
				}
			}
			return nil, err
		},
	}
}

// TestCreateWith creates conversations with fields through each call that can create one.
func TestCreateWith(t *testing.T) {
	f := open(t, nil)
	for name, call := range f.creating(t) {
		t.Run(name, func(t *testing.T) {
			id := "with-" + name
			with := fullConversation(id)
			with.Agent, with.Retention = "echo", keepAllOf()
			with.Version, with.Uid, with.LastSequence = 41, "forged", 7
			if _, err := call(id, "r1", with); err != nil {
				t.Fatal(err)
			}
			got := f.get(t, id)
			want := &parleyv1.Conversation{
				Id: id, Title: with.GetTitle(), Labels: with.GetLabels(), Agent: "echo", SystemPrompt: with.GetSystemPrompt(),
				Retention: proto.CloneOf(got.GetRetention()),
			}
			chosen := &parleyv1.Conversation{
				Id: got.GetId(), Title: got.GetTitle(), Labels: got.GetLabels(), Agent: got.GetAgent(),
				SystemPrompt: got.GetSystemPrompt(), Retention: got.GetRetention(),
			}
			if diff := cmp.Diff(want, chosen, protocmp.Transform()); diff != "" {
				t.Errorf("conversation (-want +got):\n%s", diff)
			}
			r := got.GetRetention()
			if !r.GetKeepAll() || !r.GetNoExpiry() || !r.GetNoEviction() || r.GetMaxMessages() == 0 ||
				got.GetExpireTime() != nil || got.GetUid() == "forged" || got.GetVersion() > 3 {
				t.Errorf("conversation = %v, want the retention of the request, and defaults", got)
			}

			// A conversation that exists does not change.
			if _, err := call(id, "", &parleyv1.Conversation{Title: "other"}); err != nil {
				t.Fatal(err)
			}
			if title := f.get(t, id).GetTitle(); title != with.GetTitle() {
				t.Errorf("title after a call with another create_with = %q, want %q", title, with.GetTitle())
			}

			// The fields are part of what a request_id stands for; an id that says the same is not.
			repeated := proto.CloneOf(with)
			repeated.Id, repeated.Version = "", 0
			if _, err := call(id, "r1", repeated); err != nil {
				t.Errorf("retry = %v", err)
			}
			repeated.Title = "other"
			_, err := call(id, "r1", repeated)
			wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
			_, err = call(id, "r1", nil)
			wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")

			_, err = call("other-"+name, "", with)
			got2 := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
			if diff := cmp.Diff([]string{"create_with.id"}, got2.fields); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
			f.missing(t, "other-"+name)
		})
	}
	made, err := f.creating(t)["load"]("", "", &parleyv1.Conversation{Title: "anonymous"})
	if err != nil || made.GetTitle() != "anonymous" || made.GetId() == "" {
		t.Errorf("LoadConversation without an id = %v, %v", made, err)
	}
	_, err = f.creating(t)["load"]("", "", &parleyv1.Conversation{Id: "named"})
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}

// missing checks that a conversation does not exist.
func (f *fixture) missing(t *testing.T, id string) {
	t.Helper()
	_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
}

// TestCreateWithMustExist checks that create_with and must_exist exclude each other.
func TestCreateWithMustExist(t *testing.T) {
	f := open(t, nil)
	f.create(t, &parleyv1.Conversation{Id: "c"})
	before := f.changeCount()
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c", Messages: []*parleyv1.Message{user("1")}, MustExist: true,
		CreateWith: new(parleyv1.Conversation),
	})
	got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	if !cmp.Equal(got.fields, []string{"create_with"}) {
		t.Errorf("fields of AppendMessages = %v, want create_with", got.fields)
	}
	_, err = f.chat(t, &parleyv1.ChatRequest{
		ConversationId: "c", Content: "1", MustExist: true, CreateWith: new(parleyv1.Conversation),
	})
	got = wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	if !cmp.Equal(got.fields, []string{"create_with"}) {
		t.Errorf("fields of Chat = %v, want create_with", got.fields)
	}
	if n := f.changeCount(); n != before {
		t.Errorf("refused calls made %d changes, want 0", n-before)
	}
}

// TestCreateWithAgent checks that the first turn uses the agent and the system prompt of create_with.
func TestCreateWithAgent(t *testing.T) {
	f := open(t, nil)
	_, err := f.chat(t, &parleyv1.ChatRequest{
		ConversationId: "c", Content: "hello", CreateWith: &parleyv1.Conversation{Agent: "none"},
	})
	wantError(t, err, codes.FailedPrecondition, "AGENT_NOT_CONFIGURED")
	f.missing(t, "c")
}

// TestUpdateRetention sets and unsets each field without limits, by its path and without a mask.
func TestUpdateRetention(t *testing.T) {
	f := open(t, nil)
	f.create(t, &parleyv1.Conversation{Id: "c"})
	update := func(r *parleyv1.Retention, paths ...string) *parleyv1.Retention {
		t.Helper()
		request := &parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: "c", Retention: r}}
		if paths != nil {
			request.UpdateMask = &fieldmaskpb.FieldMask{Paths: paths}
		}
		if _, err := f.UpdateConversation(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		got := f.get(t, "c")
		if got.GetRetention().GetNoExpiry() != (got.GetExpireTime() == nil) {
			t.Errorf("expire_time = %v with %v", got.GetExpireTime(), got.GetRetention())
		}
		return &parleyv1.Retention{
			KeepAll: got.GetRetention().GetKeepAll(), NoExpiry: got.GetRetention().GetNoExpiry(),
			NoEviction: got.GetRetention().GetNoEviction(),
		}
	}
	for _, step := range []struct {
		set   *parleyv1.Retention
		paths []string
		want  *parleyv1.Retention
	}{
		{keepAllOf(), []string{"retention.keep_all"}, &parleyv1.Retention{KeepAll: true}},
		{keepAllOf(), []string{"retention.no_expiry"}, &parleyv1.Retention{KeepAll: true, NoExpiry: true}},
		{nil, []string{"retention.keep_all"}, &parleyv1.Retention{NoExpiry: true}},
		{&parleyv1.Retention{NoEviction: true}, nil, &parleyv1.Retention{NoExpiry: true, NoEviction: true}},
		{&parleyv1.Retention{KeepAll: true}, []string{"retention"}, &parleyv1.Retention{KeepAll: true}},
		{keepAllOf(), nil, keepAllOf()},
		{nil, []string{"retention.no_expiry", "retention.no_eviction"}, &parleyv1.Retention{KeepAll: true}},
		{nil, []string{"retention"}, new(parleyv1.Retention)},
	} {
		if diff := cmp.Diff(step.want, update(step.set, step.paths...), protocmp.Transform()); diff != "" {
			t.Errorf("retention after %v with mask %q (-want +got):\n%s", step.set, step.paths, diff)
		}
	}
}

// TestForbiddenRetention calls servers that forbid one field of the retention each.
func TestForbiddenRetention(t *testing.T) {
	for field, test := range map[string]struct {
		forbid rules.Retentions
		of     *parleyv1.Retention
		others *parleyv1.Retention
	}{
		"keep_all": {
			rules.Retentions{ForbidKeepAll: true},
			&parleyv1.Retention{KeepAll: true},
			&parleyv1.Retention{NoExpiry: true, NoEviction: true},
		},
		"no_expiry": {
			rules.Retentions{ForbidNoExpiry: true},
			&parleyv1.Retention{NoExpiry: true},
			&parleyv1.Retention{KeepAll: true, NoEviction: true},
		},
		"no_eviction": {
			rules.Retentions{ForbidNoEviction: true},
			&parleyv1.Retention{NoEviction: true},
			&parleyv1.Retention{KeepAll: true, NoExpiry: true},
		},
	} {
		t.Run(field, func(t *testing.T) {
			f := open(t, func(s *setup) { s.Retentions = test.forbid })
			f.create(t, &parleyv1.Conversation{Id: "c", Retention: test.others})
			before := f.changeCount()
			refused := func(what string, err error) {
				t.Helper()
				got := wantError(t, err, codes.FailedPrecondition, "RETENTION_FORBIDDEN")
				if got.metadata["field"] != "retention."+field || !strings.Contains(got.text, field) {
					t.Errorf("%s = %q %v, want the field %s", what, got.text, got.metadata, field)
				}
			}
			with := &parleyv1.Conversation{Retention: test.of}
			for name, call := range f.creating(t) {
				_, err := call("new", "", with)
				refused(name, err)
			}
			_, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: with})
			refused("create", err)
			update := &parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: "c", Retention: test.of}}
			_, err = f.UpdateConversation(t.Context(), update)
			refused("update", err)
			update.UpdateMask = &fieldmaskpb.FieldMask{Paths: []string{"retention"}}
			_, err = f.UpdateConversation(t.Context(), update)
			refused("update with a mask", err)
			if n := f.changeCount(); n != before {
				t.Errorf("refused calls made %d changes, want 0", n-before)
			}
			// A field that the mask does not name is not read.
			update.UpdateMask.Paths = []string{"title"}
			if _, err := f.UpdateConversation(t.Context(), update); err != nil {
				t.Error(err)
			}
			file := exportOf("imported", time.Now())
			file.Conversation.Retention = test.of
			failures := f.wantImport(t, false, 0, 0, file)
			if len(failures) != 1 || !strings.Contains(failures[0].GetReason(), "RETENTION_FORBIDDEN") {
				t.Errorf("failures of an import = %v, want RETENTION_FORBIDDEN", failures)
			}
			f.missing(t, "imported")
		})
	}
	t.Run("fork of a conversation from before", func(t *testing.T) {
		f := open(t, nil)
		f.create(t, &parleyv1.Conversation{Id: "c", Retention: keepAllOf()})
		f.server.retentions.ForbidNoExpiry = true
		_, err := f.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{ConversationId: "c"})
		wantError(t, err, codes.FailedPrecondition, "RETENTION_FORBIDDEN")
		f.append(t, "c", user("it still accepts messages"))
	})
}

// TestConversationFull fills a conversation that keeps all messages.
func TestConversationFull(t *testing.T) {
	const limit = 4000
	f := open(t, func(s *setup) { s.storeOptions.MaxConversationBytes = limit })
	f.create(t, &parleyv1.Conversation{Id: "c", Retention: &parleyv1.Retention{KeepAll: true, MaxMessages: 1}})
	f.append(t, "c", user(strings.Repeat("x", limit/2)))
	f.append(t, "c", assistant("kept"))
	before := f.get(t, "c")
	isFull := func(err error) {
		t.Helper()
		got := wantError(t, err, codes.ResourceExhausted, "CONVERSATION_FULL")
		if got.metadata["limit_bytes"] != "4000" || !strings.Contains(got.text, `conversation "c" is full`) {
			t.Errorf("error = %q %v, want the conversation and its limit", got.text, got.metadata)
		}
	}
	large := strings.Repeat("y", limit/2)
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c", Messages: []*parleyv1.Message{user(large)},
	})
	isFull(err)
	_, err = f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: large})
	isFull(err)
	if diff := cmp.Diff(before, f.get(t, "c"), protocmp.Transform()); diff != "" {
		t.Errorf("conversation after refused calls (-before +after):\n%s", diff)
	}

	// The echo of a message exceeds the limit, and is stored.
	third := strings.Repeat("z", limit/3)
	if _, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: third}); err != nil {
		t.Fatal(err)
	}
	c := f.get(t, "c")
	if c.GetSizeBytes() <= limit || c.GetMessageCount() != 4 {
		t.Errorf("after a turn %d messages of %d bytes, want 4 of more than %d", c.GetMessageCount(),
			c.GetSizeBytes(), limit)
	}
	_, err = f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "small"})
	isFull(err)
	if _, err := f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{
		ConversationId: "c", AfterSequence: 2,
	}); err != nil {
		t.Fatal(err)
	}
	f.append(t, "c", user("small"))
}

// TestFullConversationFits checks that replies with the messages of a conversation that is larger than a page have
// the newest ones.
func TestFullConversationFits(t *testing.T) {
	f := open(t, func(s *setup) { s.MaxMessageBytes = maxPageBytes })
	f.create(t, &parleyv1.Conversation{Id: "c", Retention: &parleyv1.Retention{KeepAll: true}})
	f.append(t, "c", user(strings.Repeat("x", 1<<20)))
	f.append(t, "c", user(strings.Repeat("x", 1<<20)))
	// The end of a turn may make it larger than the limit.
	turnOf := func(begin, end *parleyv1.Turn) error {
		stored := assistant(strings.Repeat("y", 1<<20-1000))
		stored.Id = "answer"
		a := &store.Append{Tenant: "default", ConversationID: "c", Begin: begin, End: end}
		if end != nil {
			a.Messages = []*parleyv1.Message{stored, proto.CloneOf(stored)}
		}
		_, err := f.store.Append(t.Context(), a)
		return err
	}
	if err := errors.Join(
		turnOf(&parleyv1.Turn{Id: "t", Agent: "echo", InputSequence: 2}, nil),
		turnOf(nil, &parleyv1.Turn{Id: "t", State: parleyv1.TurnState_TURN_STATE_COMPLETED}),
	); err != nil {
		t.Fatal(err)
	}
	loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"})
	if err != nil {
		t.Fatal(err)
	}
	got, count := sequences(loaded.GetMessages()), loaded.GetConversation().GetMessageCount()
	if !cmp.Equal(got, []int32{2, 3, 4}) || count != 4 {
		t.Errorf("LoadConversation returns the messages %v, want 2, 3 and 4 of 4", got)
	}
	for name, w := range map[string]*parleyv1.ContextWindow{
		"no window": nil, "a large window": {MaxBytes: 1 << 30}, "a window without bytes": {MaxMessages: 100},
	} {
		got, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c", Window: w})
		if err != nil || !cmp.Equal(sequences(got.GetMessages()), []int32{2, 3, 4}) || got.GetOmittedCount() != 1 {
			t.Errorf("GetContext with %s = messages %v, %v, want 2, 3 and 4", name, sequences(got.GetMessages()), err)
		}
	}
}

// TestEnded checks which errors say how a conversation ended.
func TestEnded(t *testing.T) {
	clock := newManualClock()
	f := open(t, func(s *setup) {
		onClock(clock)(s)
		s.storeOptions.MaxConversations = 2
	})
	get := func(id string) statusParts {
		t.Helper()
		_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
		return wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	}
	ended := func(got statusParts, kind, text string, at time.Time) {
		t.Helper()
		want := map[string]string{"ended": kind, "at": at.UTC().Format(time.RFC3339)}
		if diff := cmp.Diff(want, got.metadata); diff != "" || !strings.Contains(got.text, text) ||
			got.resource.GetDescription() != got.text {
			t.Errorf("error = %q, metadata (-want +got):\n%s", got.text, diff)
		}
	}
	if got := get("never"); got.metadata != nil {
		t.Errorf("metadata for a conversation that never existed = %v, want none", got.metadata)
	}
	f.create(t, &parleyv1.Conversation{Id: "evicted"})
	clock.advance(time.Second)
	f.create(t, &parleyv1.Conversation{Id: "deleted"})
	clock.advance(time.Second)
	f.create(t, &parleyv1.Conversation{Id: "expired"})
	evictedAt := clock.Now()
	ended(get("evicted"), "EVICTED", "was evicted", evictedAt)
	clock.advance(time.Minute)
	remove := func(id string) {
		t.Helper()
		_, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: id})
		if err != nil {
			t.Fatal(err)
		}
	}
	remove("deleted")
	ended(get("deleted"), "DELETED", "was deleted", clock.Now())

	// Each call that does not find it says so.
	for name, call := range map[string]func(ctx context.Context) error{
		"AppendMessages": func(ctx context.Context) error {
			_, err := f.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
				ConversationId: "evicted", Messages: []*parleyv1.Message{user("1")}, MustExist: true,
			})
			return err
		},
		"ListMessages": func(ctx context.Context) error {
			_, err := f.ListMessages(ctx, &parleyv1.ListMessagesRequest{ConversationId: "evicted"})
			return err
		},
		"GetContext": func(ctx context.Context) error {
			_, err := f.GetContext(ctx, &parleyv1.GetContextRequest{ConversationId: "evicted"})
			return err
		},
		"ListTurns": func(ctx context.Context) error {
			_, err := f.ListTurns(ctx, &parleyv1.ListTurnsRequest{ConversationId: "evicted"})
			return err
		},
		"ClearConversation": func(ctx context.Context) error {
			_, err := f.ClearConversation(ctx, &parleyv1.ClearConversationRequest{ConversationId: "evicted"})
			return err
		},
		"ForkConversation": func(ctx context.Context) error {
			_, err := f.ForkConversation(ctx, &parleyv1.ForkConversationRequest{ConversationId: "evicted"})
			return err
		},
		"ExportConversations": func(ctx context.Context) error {
			_, err := f.export(ctx, "evicted")
			return err
		},
		"Chat": func(context.Context) error {
			_, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "evicted", Content: "1", MustExist: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := wantError(t, call(t.Context()), codes.NotFound, "CONVERSATION_NOT_FOUND")
			ended(got, "EVICTED", "was evicted", evictedAt)
		})
	}

	expires := f.get(t, "expired").GetExpireTime().AsTime()
	clock.advance(expires.Sub(clock.Now()))
	ended(get("expired"), "EXPIRED", "expired", expires)
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "expired", Messages: []*parleyv1.Message{user("1")}, MustExist: true,
	})
	ended(wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND"), "EXPIRED", "expired", expires)

	// The sweep, which is later, does not change the time.
	clock.advance(time.Second)
	if _, err := f.store.Sweep(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	ended(get("expired"), "EXPIRED", "expired", expires)
	if got := get("evicted"); got.metadata != nil {
		t.Errorf("metadata an hour after the eviction = %v, want none", got.metadata)
	}

	// A conversation that was created again has not ended.
	f.create(t, &parleyv1.Conversation{Id: "expired"})
	f.get(t, "expired")
	remove("expired")
	ended(get("expired"), "DELETED", "was deleted", clock.Now())
}
