package rpc

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/store"
)

// exceptUID ignores the uid in comparisons with the result of an import, which has a new uid.
func exceptUID() cmp.Option { return protocmp.IgnoreFields(&parleyv1.Conversation{}, "uid") }

func TestImport(t *testing.T) {
	clock := newSteps()
	f := open(t, func(s *setup) {
		onClock(clock)(s)
		s.stored.MaxConversations = 4
	})
	file := fileOf("a", clock.Now())
	if failures := f.wantImport(t, false, 0, 0); len(failures) > 0 {
		t.Errorf("failures of nothing: %v", failures)
	}
	f.wantImport(t, false, 1, 0, file)
	look := func(want *parleyv1.ExportConversationsResponse) {
		t.Helper()
		want = proto.CloneOf(want)
		want.Conversation.MessageCount = int32(len(want.GetMessages()))
		want.Conversation.ExpireTime = timestamppb.New(want.GetConversation().GetLastAppendTime().AsTime().Add(want.GetConversation().GetRetention().GetTtl().AsDuration()))
		if diff := cmp.Diff([]*parleyv1.ExportConversationsResponse{want}, f.exported(t, want.GetConversation().GetId()), protocmp.Transform(), exceptUID()); diff != "" {
			t.Errorf("exported (-want +got):\n%s", diff)
		}
	}
	look(file)
	// It goes on where it was.
	next := f.append(t, "a", user("next"))
	if n := next.GetAppended()[0]; n.GetSequence() != 10 || n.GetExchange() != 4 || next.GetConversation().GetVersion() != 8 {
		t.Errorf("it goes on with %v", next)
	}

	// Not there yet, there already, expired, without room.
	late, other := fileOf("late", clock.Now().Add(-50*time.Minute)), fileOf("b", clock.Now())
	f.wantImport(t, false, 1, 2, file, late, other)
	f.create(t, &parleyv1.Conversation{Id: "c"})
	f.create(t, &parleyv1.Conversation{Id: "d"})
	before := f.changeCount()
	reply, err := f.importing(t.Context(), true, fileOf("e", clock.Now()), fileOf("late", clock.Now().Add(-50*time.Minute)))
	if err != nil || reply.GetSkippedCount() != 2 || reply.GetNoRoomCount() != 1 {
		t.Errorf("an import without room: %v, %v", reply, err)
	}
	if n := f.changeCount(); n != before {
		t.Errorf("an import without room made %d changes", n-before)
	}
	// Room is none of an import's that overwrites.
	changed := fileOf("a", clock.Now())
	changed.Conversation.Title, changed.Messages = "other", nil
	f.wantImport(t, true, 1, 0, changed)
	look(changed)
	// The first request says whether to overwrite.
	stream, err := f.ImportConversations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*parleyv1.ImportConversationsRequest{{Conversation: file.GetConversation()}, {Conversation: file.GetConversation(), Messages: file.GetMessages(), Overwrite: true}} {
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	if reply, err := stream.CloseAndRecv(); err != nil || reply.GetSkippedCount() != 1 {
		t.Errorf("overwrite of the second request: %v, %v", reply, err)
	}
	look(changed)
	if lines := f.log.lines("level=INFO", "msg=imported", "conversations=1", "skipped=2", "failed=0", "complete=true"); len(lines) != 1 {
		t.Errorf("log lines: %v", lines)
	}
}

// TestImportOfGaps: sequences have gaps and the newest messages are gone after a Clear.
func TestImportOfGaps(t *testing.T) {
	f, other := open(t, nil), open(t, nil)
	clearAfter := func(id string, sequence int32) {
		t.Helper()
		if _, err := f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{ConversationId: id, AfterSequence: sequence}); err != nil {
			t.Fatal(err)
		}
	}
	f.append(t, "gaps", user("1"), user("2"), user("3"))
	clearAfter("gaps", 1)
	f.append(t, "gaps", user("4"), user("5"))
	clearAfter("gaps", 4)
	f.append(t, "emptied", user("1"), user("2"))
	clearAfter("emptied", 0)
	parts := f.exported(t)
	if got := sequences(parts[0].GetMessages()); !slices.Equal(got, []int32{1, 4}) || parts[0].GetConversation().GetLastSequence() != 5 {
		t.Fatalf("exported %v", parts[0])
	}
	other.wantImport(t, false, 2, 0, parts...)
	if diff := cmp.Diff(parts, other.exported(t), protocmp.Transform(), exceptUID()); diff != "" {
		t.Errorf("after an import (-want +got):\n%s", diff)
	}
	for id, want := range map[string]int32{"gaps": 6, "emptied": 3} {
		if got := other.append(t, id, user("next")).GetAppended()[0].GetSequence(); got != want {
			t.Errorf("%s goes on with %d, want %d", id, got, want)
		}
	}
}

func TestImportOfParts(t *testing.T) {
	clock := newSteps()
	f := open(t, onClock(clock))
	parts := func(id string, n int) []*parleyv1.ExportConversationsResponse {
		var all []*parleyv1.ExportConversationsResponse
		for i := range n {
			part := fileOf(id, clock.Now())
			part.Conversation.LastSequence, part.Messages[0].Sequence = int32(n), int32(i+1)
			all = append(all, part)
		}
		return all
	}
	// The same header under another uid is a conversation of its own; the id is taken by then.
	again := fileOf("whole", clock.Now())
	again.Conversation.Uid = "another"
	differs := parts("differs", 3)
	differs[1].Conversation.Title = "other"
	backward := parts("backward", 3)
	slices.Reverse(backward)
	late := parts("late", 3)
	late[2].Messages[0].Role = 0
	failures := f.wantImport(t, false, 2, 1, slices.Concat(parts("whole", 3), []*parleyv1.ExportConversationsResponse{again}, differs, backward, late, parts("last", 1))...)
	var got []string
	for _, failure := range failures {
		got = append(got, failure.GetConversationId()+" "+failure.GetReason())
	}
	want := []string{
		"differs request 2 of it: conversation: is not the same as in the request before",
		"backward request 2 of it: messages[0].sequence: is 2, which must be more than 3, that of the message before",
		"late request 3 of it: messages[0].role: is required",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	if got := exportedIDs(f.exported(t)); !slices.Equal(got, []string{"whole", "last"}) {
		t.Errorf("imported %v", got)
	}
	if got := sequences(f.exported(t, "whole")[0].GetMessages()); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("messages %v", got)
	}

	// What breaks off is not taken for a whole.
	rest := append(parts("done", 1), parts("broken", 2)...)
	broken := &importing{server: f.server, tenant: auth.DefaultTenant, reply: new(parleyv1.ImportConversationsResponse)}
	err := broken.run(t.Context(), func() (*parleyv1.ImportConversationsRequest, error) {
		if len(rest) == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		part := rest[0]
		rest = rest[1:]
		return &parleyv1.ImportConversationsRequest{Conversation: part.GetConversation(), Messages: part.GetMessages()}, nil
	})
	if !errors.Is(err, io.ErrUnexpectedEOF) || broken.reply.GetImportedCount() != 1 {
		t.Errorf("what broke off ended with %v, %v", err, broken.reply)
	}
	_, err = f.export(t.Context(), "done", "broken")
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
}

// TestManyImportFailures: the reply lists the first, the counts tell of the others.
func TestManyImportFailures(t *testing.T) {
	clock := newSteps()
	f := open(t, onClock(clock))
	var parts []*parleyv1.ExportConversationsResponse
	for i := range maxImportFailures + 5 {
		bad := fileOf(fmt.Sprint("c", i), clock.Now())
		bad.Messages = slices.Repeat([]*parleyv1.Message{{Metadata: entries(64, 100, 1)}}, 2)
		if i < 50 { // Nobody can tell whether these are one.
			bad.Conversation.Id, bad.Conversation.Uid = "", ""
		}
		parts = append(parts, bad)
	}
	failures := f.wantImport(t, false, 1, 0, append(parts, fileOf("good", clock.Now()))...)
	if len(failures) != maxImportFailures || failures[99].GetConversationId() != "c99" {
		t.Errorf("%d failures are listed, the last is %v", len(failures), failures[len(failures)-1])
	}
	for _, failure := range failures {
		if n := len(failure.GetReason()); n == 0 || n > maxTextBytes {
			t.Fatalf("a reason has %d bytes", n)
		}
	}
	if lines := f.log.lines("msg=imported", "conversations=1", "failed=105"); len(lines) != 1 {
		t.Errorf("log lines: %v", lines)
	}
}

func TestImportWhileATurnRuns(t *testing.T) {
	f, words := openScripted(t, nil)
	run := f.begin(t, t.Context(), &parleyv1.ChatRequest{ConversationId: "busy", Content: "hello"})
	now := time.Now()
	over := []*parleyv1.ExportConversationsResponse{fileOf("busy", now), fileOf("other", now)}
	failures := f.wantImport(t, true, 1, 0, over...)
	if len(failures) != 1 || failures[0].GetConversationId() != "busy" || !strings.HasPrefix(failures[0].GetReason(), "CONVERSATION_BUSY: turn "+run.turnID) {
		t.Errorf("failures %v", failures)
	}
	f.wantImport(t, false, 0, 2, over...)
	words.say(t, "busy", "answer", end)
	run.drain(t)
	f.wantImport(t, true, 2, 0, over...)
	if got := f.exported(t, "busy")[0].GetMessages(); len(got) != 1 || got[0].GetContent() != "hello" || got[0].GetSequence() != 5 {
		t.Errorf("after it was overwritten: %v", got)
	}
}

func TestImportIntoAStoreThatFails(t *testing.T) {
	for _, test := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{store.ErrClosed, codes.Unavailable, "SHUTTING_DOWN"},
		{store.ErrNoSpace, codes.ResourceExhausted, "STORE_FULL"},
		{store.ErrFailed, codes.Unavailable, "STORE_FAILED"},
		{store.ErrOverloaded, codes.ResourceExhausted, "STORE_BUSY"},
		{errors.New("nobody knows"), codes.Internal, "INTERNAL"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			f, spy := openSpied(t, nil)
			spy.imported = func(i *store.Import) error {
				if i.Conversation.GetId() == "c2" {
					return test.err
				}
				return nil
			}
			now := time.Now()
			_, err := f.importing(t.Context(), false, fileOf("c1", now), fileOf("c2", now), fileOf("c3", now))
			wantError(t, err, test.code, test.reason)
			if got := exportedIDs(f.exported(t)); !slices.Equal(got, []string{"c1"}) {
				t.Errorf("imported by then: %v", got)
			}
			if lines := f.log.lines("msg=imported", "conversations=1", "complete=false"); len(lines) != 1 {
				t.Errorf("log lines: %v", lines)
			}
		})
	}
	t.Run("overloaded for a moment", func(t *testing.T) {
		f, spy := openSpied(t, nil)
		var calls atomic.Int32
		spy.imported = func(*store.Import) error {
			if calls.Add(1) <= 3 {
				return store.ErrOverloaded
			}
			return nil
		}
		f.wantImport(t, false, 2, 0, fileOf("c1", time.Now()), fileOf("c2", time.Now()))
	})
	t.Run("damaged", func(t *testing.T) {
		f, spy := openSpied(t, nil)
		spy.imported = func(i *store.Import) error {
			if i.Conversation.GetId() == "c1" {
				return store.ErrCorrupt
			}
			return nil
		}
		failures := f.wantImport(t, false, 1, 0, fileOf("c1", time.Now()), fileOf("c2", time.Now()))
		if len(failures) != 1 || !strings.HasPrefix(failures[0].GetReason(), "RECORD_CORRUPT: ") {
			t.Errorf("failures %v", failures)
		}
	})
}

func TestTransferIsolation(t *testing.T) {
	f := open(t, func(s *setup) { s.Authenticate = signIn })
	a, b := as(t, "tenant", "a"), as(t, "tenant", "b")
	now := time.Now()
	files := []*parleyv1.ExportConversationsResponse{fileOf("both", now), fileOf("secret", now)}
	if reply, err := f.importing(a, false, files...); err != nil || reply.GetImportedCount() != 2 {
		t.Fatal(reply, err)
	}
	if parts, err := f.export(b); err != nil || len(parts) != 0 {
		t.Errorf("b exports %v, %v", parts, err)
	}
	_, err := f.export(b, "secret")
	foreign := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	_, err = f.export(b, "nobody")
	missing := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if want := strings.ReplaceAll(missing.text, "nobody", "secret"); foreign.text != want {
		t.Errorf("another tenant's %q differs from a missing %q", foreign.text, want)
	}
	before, err := f.export(a)
	if err != nil {
		t.Fatal(err)
	}
	other := fileOf("both", now)
	other.Conversation.Title = "of b"
	if reply, err := f.importing(b, true, other); err != nil || reply.GetImportedCount() != 1 {
		t.Errorf("b imports: %v, %v", reply, err)
	}
	after, err := f.export(a)
	if diff := cmp.Diff(before, after, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("a's conversations after b's import, %v:\n%s", err, diff)
	}
	if _, err := f.importing(t.Context(), false, other); toldBy(err).code != codes.Unauthenticated {
		t.Errorf("without signing in: %v", err)
	}
}

// Those of different ids and create times are in the store's hands together, and no others.
func TestImportsShareCommits(t *testing.T) {
	f, spy := openSpied(t, nil)
	var inside sync.Map
	together := make(chan struct{})
	var count atomic.Int32
	spy.imported = func(i *store.Import) error {
		made := i.Conversation.GetCreateTime().AsTime()
		if _, there := inside.LoadOrStore(made, nil); there {
			t.Errorf("two of create time %v at once", made)
		}
		defer inside.Delete(made)
		if count.Add(1) == importsAtOnce {
			close(together)
		}
		<-together // All of them, else the test does not end.
		return nil
	}
	now := time.Now()
	var files []*parleyv1.ExportConversationsResponse
	for n := range importsAtOnce {
		files = append(files, fileOf(fmt.Sprint("c", n), now.Add(-time.Duration(n)*time.Second)))
	}
	for n := range 3 {
		files = append(files, fileOf(fmt.Sprint("same", n), now))
	}
	f.wantImport(t, false, importsAtOnce+3, 0, files...)
}
