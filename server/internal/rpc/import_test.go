package rpc

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// ignoreUID ignores the uid in comparisons with the result of an import, which has a new uid.
func ignoreUID() cmp.Option { return protocmp.IgnoreFields(&parleyv1.Conversation{}, "uid") }

func TestImport(t *testing.T) {
	clock := newManualClock()
	f := open(t, func(s *setup) {
		onClock(clock)(s)
		s.storeOptions.MaxConversations = 4
	})
	file := exportOf("a", clock.Now())
	if failures := f.wantImport(t, false, 0, 0); len(failures) > 0 {
		t.Errorf("failures of an empty import = %v", failures)
	}
	f.wantImport(t, false, 1, 0, file)
	check := func(want *parleyv1.ExportConversationsResponse) {
		t.Helper()
		want = proto.CloneOf(want)
		want.Conversation.MessageCount = int32(len(want.GetMessages()))
		want.Conversation.ExpireTime = timestamppb.New(
			want.GetConversation().GetLastAppendTime().AsTime().Add(
				want.GetConversation().GetRetention().GetTtl().AsDuration(),
			),
		)
		if diff := cmp.Diff([]*parleyv1.ExportConversationsResponse{want}, f.mustExport(t, want.GetConversation().GetId()),
			protocmp.Transform(), ignoreUID()); diff != "" {
			t.Errorf("exported (-want +got):\n%s", diff)
		}
	}
	check(file)
	// Sequences, exchanges and versions continue.
	next := f.append(t, "a", user("next"))
	if n := next.GetAppended()[0]; n.GetSequence() != 10 || n.GetExchange() != 4 ||
		next.GetConversation().GetVersion() != 8 {
		t.Errorf("AppendMessages after the import = %v", next)
	}

	// One conversation is new, one exists already, one is expired. Then the store is full.
	late, other := exportOf("late", clock.Now().Add(-50*time.Minute)), exportOf("b", clock.Now())
	f.wantImport(t, false, 1, 2, file, late, other)
	f.create(t, &parleyv1.Conversation{Id: "c"})
	f.create(t, &parleyv1.Conversation{Id: "d"})
	before := f.changeCount()
	reply, err := f.tryImport(
		t.Context(),
		true,
		exportOf("e", clock.Now()),
		exportOf("late", clock.Now().Add(-50*time.Minute)),
	)
	if err != nil || reply.GetSkippedCount() != 2 || reply.GetNoRoomCount() != 1 {
		t.Errorf("import into a full store = %v, %v", reply, err)
	}
	if n := f.changeCount(); n != before {
		t.Errorf("import into a full store made %d changes, want 0", n-before)
	}
	// An import that overwrites a conversation works in a full store.
	changed := exportOf("a", clock.Now())
	changed.Conversation.Title, changed.Messages = "other", nil
	f.wantImport(t, true, 1, 0, changed)
	check(changed)
	// The first request of a conversation determines whether it is overwritten.
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
		t.Errorf("import with overwrite in the second request = %v, %v, want 1 skipped", reply, err)
	}
	check(changed)
	if lines := f.log.lines("level=INFO", "msg=imported", "conversations=1", "skipped=2", "failed=0", "complete=true"); len(
		lines,
	) != 1 {
		t.Errorf("got log lines %v, want 1", lines)
	}
}

// TestImportGaps imports conversations after ClearConversation: their sequences have gaps, and the
// newest messages are missing.
func TestImportGaps(t *testing.T) {
	f, other := open(t, nil), open(t, nil)
	clearAfter := func(id string, sequence int32) {
		t.Helper()
		if _, err := f.ClearConversation(t.Context(),
			&parleyv1.ClearConversationRequest{ConversationId: id, AfterSequence: sequence}); err != nil {
			t.Fatal(err)
		}
	}
	f.append(t, "gaps", user("1"), user("2"), user("3"))
	clearAfter("gaps", 1)
	f.append(t, "gaps", user("4"), user("5"))
	clearAfter("gaps", 4)
	f.append(t, "emptied", user("1"), user("2"))
	clearAfter("emptied", 0)
	parts := f.mustExport(t)
	if got := sequences(parts[0].GetMessages()); !slices.Equal(got, []int32{1, 4}) ||
		parts[0].GetConversation().GetLastSequence() != 5 {
		t.Fatalf("export = %v, want sequences 1 and 4 of 5", parts[0])
	}
	other.wantImport(t, false, 2, 0, parts...)
	if diff := cmp.Diff(parts, other.mustExport(t), protocmp.Transform(), ignoreUID()); diff != "" {
		t.Errorf("after an import (-want +got):\n%s", diff)
	}
	for id, want := range map[string]int32{"gaps": 6, "emptied": 3} {
		if got := other.append(t, id, user("next")).GetAppended()[0].GetSequence(); got != want {
			t.Errorf("next sequence of %s = %d, want %d", id, got, want)
		}
	}
}

func TestImportDuringTurn(t *testing.T) {
	f, script := openScripted(t, nil)
	run := f.startChat(t, t.Context(), &parleyv1.ChatRequest{ConversationId: "busy", Content: "hello"})
	now := time.Now()
	files := []*parleyv1.ExportConversationsResponse{exportOf("busy", now), exportOf("other", now)}
	failures := f.wantImport(t, true, 1, 0, files...)
	if len(failures) != 1 || failures[0].GetConversationId() != "busy" ||
		!strings.HasPrefix(failures[0].GetReason(), "CONVERSATION_BUSY: turn "+run.turnID) {
		t.Errorf("failures = %v, want CONVERSATION_BUSY", failures)
	}
	f.wantImport(t, false, 0, 2, files...)
	script.send(t, "busy", "answer", end)
	run.wait(t)
	f.wantImport(t, true, 2, 0, files...)
	if got := f.mustExport(t, "busy")[0].GetMessages(); len(got) != 1 || got[0].GetContent() != "hello" ||
		got[0].GetSequence() != 5 {
		t.Errorf("messages after the import = %v", got)
	}
}

func TestTransferIsolation(t *testing.T) {
	f := open(t, func(s *setup) { s.Auth = byMetadata() })
	a, b := withMetadata(t, "tenant", "a"), withMetadata(t, "tenant", "b")
	now := time.Now()
	files := []*parleyv1.ExportConversationsResponse{exportOf("both", now), exportOf("secret", now)}
	if reply, err := f.tryImport(a, false, files...); err != nil || reply.GetImportedCount() != 2 {
		t.Fatal(reply, err)
	}
	if parts, err := f.export(b); err != nil || len(parts) != 0 {
		t.Errorf("export of tenant b = %v, %v, want nothing", parts, err)
	}
	_, err := f.export(b, "secret")
	foreign := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	_, err = f.export(b, "nobody")
	missing := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if want := strings.ReplaceAll(missing.text, "nobody", "secret"); foreign.text != want {
		t.Errorf("error for another tenant's conversation = %q, want %q", foreign.text, want)
	}
	before, err := f.export(a)
	if err != nil {
		t.Fatal(err)
	}
	other := exportOf("both", now)
	other.Conversation.Title = "of b"
	if reply, err := f.tryImport(b, true, other); err != nil || reply.GetImportedCount() != 1 {
		t.Errorf("import of tenant b = %v, %v", reply, err)
	}
	after, err := f.export(a)
	if diff := cmp.Diff(before, after, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("a's conversations after b's import, %v (-before +after):\n%s", err, diff)
	}
	if _, err := f.tryImport(t.Context(), false, other); statusOf(err).code != codes.Unauthenticated {
		t.Errorf("import without a credential = %v, want Unauthenticated", err)
	}
}
