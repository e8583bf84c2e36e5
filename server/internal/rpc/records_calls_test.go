package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestRecordsWithMessages: an append, also in a stream, writes records in the commit of its messages, and creates the
// conversation for them.
func TestRecordsWithMessages(t *testing.T) {
	f := open(t, nil)
	reply, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c1", Messages: []*parleyv1.Message{user("hello")},
		Records: []*parleyv1.RecordWrite{put("a", "1"), putTenant("b", "1")},
	})
	if c := reply.GetConversation(); err != nil || c.GetVersion() != 1 || c.GetRecordCount() != 1 ||
		reply.GetTenantRevision() != 1 {
		t.Errorf("AppendMessages = %v, %v, want version 1 with 1 record, tenant_revision 1", reply, err)
	}
	stream, err := f.AppendStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := stream.Send(&parleyv1.AppendStreamRequest{Append: &parleyv1.AppendMessagesRequest{
			ConversationId: "c1", Messages: []*parleyv1.Message{user("more")},
			Records: []*parleyv1.RecordWrite{at(int64(i+1), put("a", fmt.Sprint(i+2)))},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		reply, err := stream.Recv()
		if got := reply.GetResponse().GetConversation().GetVersion(); err != nil || int(got) != i+2 {
			t.Errorf("append %d = %v, %v, want version %d", i, reply, err, i+2)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("Recv = %v, want EOF", err)
	}
	f.wantRecords(t, "c1", "a@4 4")
	f.wantRecords(t, "", "b@1 1")
}

// TestRecordPrefixes: GetContext and LoadConversation return the selected records of the same version.
func TestRecordPrefixes(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("hello"))
	f.write(t, "c1", put("a/1", "1"), put("a/2", "2"), put("b", "3"), put("c", "4"), putTenant("a/3", "5"))
	for _, test := range []struct {
		prefixes []string
		want     []string
	}{
		{nil, nil},
		{[]string{""}, []string{"a/1@2 1", "a/2@2 2", "b@2 3", "c@2 4"}},
		{[]string{"c", "a/", "a/1"}, []string{"a/1@2 1", "a/2@2 2", "c@2 4"}},
		{[]string{"x"}, nil},
	} {
		got, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c1", RecordPrefixes: test.prefixes})
		if d := cmp.Diff(test.want, describeRecords(got.GetRecords())); err != nil || d != "" || got.GetMoreRecords() ||
			got.GetVersion() != 2 || len(got.GetMessages()) != 1 {
			t.Errorf("GetContext(%q) = %v, %v (-want +got):\n%s", test.prefixes, got, err, d)
		}
		loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{
			ConversationId: "c1", RecordPrefixes: test.prefixes,
		})
		if d := cmp.Diff(test.want, describeRecords(loaded.GetRecords())); err != nil || d != "" || loaded.GetMoreRecords() ||
			loaded.GetConversation().GetVersion() != 2 || len(loaded.GetMessages()) != 1 {
			t.Errorf("LoadConversation(%q) = %v, %v (-want +got):\n%s", test.prefixes, loaded, err, d)
		}
	}
	// A new conversation has none.
	loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{RecordPrefixes: []string{""}})
	if err != nil || !loaded.GetCreated() || len(loaded.GetRecords()) > 0 {
		t.Errorf("LoadConversation = %v, %v, want a new conversation without records", loaded, err)
	}
	// More than 512 KiB, and a record that alone has more.
	f.write(t, "c1", put("d/1", strings.Repeat("x", 300<<10)), put("d/2", strings.Repeat("x", 300<<10)))
	f.write(t, "c1", put("e", strings.Repeat("x", 3<<20)))
	for prefix, want := range map[string][]string{"d": {"d/1"}, "e": nil} {
		got, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c1", RecordPrefixes: []string{prefix}})
		if err != nil || !got.GetMoreRecords() || !slices.Equal(keysOf(got.GetRecords()), want) {
			t.Errorf("GetContext(%s) = %q, more %t, %v, want %q and more", prefix, keysOf(got.GetRecords()), got.GetMoreRecords(), err, want)
		}
	}
}

// TestLargestContext: the largest messages and records together fit into a reply.
func TestLargestContext(t *testing.T) {
	f := open(t, func(s *setup) { s.MaxMessageBytes = store.MaxMessageBytes })
	if _, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{
		Id: "c1", SystemPrompt: strings.Repeat("x", 64<<10),
	}}); err != nil {
		t.Fatal(err)
	}
	f.append(t, "c1", user(strings.Repeat("x", 3<<20-100)))
	f.write(t, "c1", put("a", strings.Repeat("x", 512<<10-600)), put("b", "more"))
	got, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c1", RecordPrefixes: []string{""}})
	if err != nil || len(got.GetMessages()) != 1 || len(got.GetRecords()) == 0 {
		t.Errorf("GetContext = %d messages, %d records, %v, want some of both", len(got.GetMessages()), len(got.GetRecords()), err)
	}
	loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{
		ConversationId: "c1", RecordPrefixes: []string{""},
	})
	if err != nil || len(loaded.GetMessages()) != 1 || len(loaded.GetRecords()) == 0 {
		t.Errorf("LoadConversation = %d messages, %d records, %v, want some of both",
			len(loaded.GetMessages()), len(loaded.GetRecords()), err)
	}
}

// TestRecordLimits: the limit of a conversation's records, and those of its tenant, apply to records. Deletions succeed.
func TestRecordLimits(t *testing.T) {
	limits := store.Limits{}
	f := open(t, func(s *setup) {
		s.storeOptions.MaxRecordBytes = 10 + 2*store.RecordOverhead
		s.storeOptions.Limits = func(string) store.Limits { return limits }
	})
	f.append(t, "c1", user("hello"))
	f.write(t, "c1", put("a", "123456"))
	_, err := f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{
		ConversationId: "c1", Writes: []*parleyv1.RecordWrite{put("b", "1234")},
	})
	got := wantError(t, err, codes.ResourceExhausted, "RECORDS_FULL")
	if d := cmp.Diff(map[string]string{"bytes": "268", "limit": "266"}, got.metadata); d != "" {
		t.Errorf("metadata (-want +got):\n%s", d)
	}
	f.write(t, "", put("b", strings.Repeat("x", 100))) // That limit is not of the tenant's records.
	limits.MaxRecordBytes = 1
	for _, id := range []string{"", "c1"} {
		_, err = f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{
			ConversationId: id, Writes: []*parleyv1.RecordWrite{putTenant("c", "1")},
		})
		got = wantError(t, err, codes.ResourceExhausted, "RECORDS_FULL")
		if got.metadata["limit"] != "1" || !strings.HasPrefix(got.text, "the records of the tenant") {
			t.Errorf("error of the tenant's records = %+v", got)
		}
	}
	limits.MaxBytes, limits.MaxRecordBytes = 1, 0
	_, err = f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{Writes: []*parleyv1.RecordWrite{put("c", "1")}})
	wantError(t, err, codes.ResourceExhausted, "TENANT_BYTES")
	f.write(t, "", &parleyv1.RecordWrite{Key: "b", Delete: true})
	f.write(t, "c1", &parleyv1.RecordWrite{Key: "a", Delete: true})
	f.wantRecords(t, "c1")
	f.wantRecords(t, "")
}

// TestForkWithRecords: a fork copies the records only if asked.
func TestForkWithRecords(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"), assistant("2"))
	f.write(t, "c1", put("a", "1"), putTenant("t", "1"))
	f.write(t, "c1", put("b", "2"))
	for id, include := range map[string]bool{"with": true, "without": false} {
		r := &parleyv1.ForkConversationRequest{
			ConversationId: "c1", NewConversationId: id, AtSequence: 1, IncludeRecords: include, RequestId: "r1",
		}
		reply, err := f.ForkConversation(t.Context(), r)
		if err != nil || reply.GetConversation().GetRecordCount() > 0 != include {
			t.Fatalf("ForkConversation = %v, %v, include_records %t", reply, err, include)
		}
		r.IncludeRecords = !include
		_, err = f.ForkConversation(t.Context(), r)
		wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	}
	f.wantRecords(t, "with", "a@1 1", "b@1 2")
	f.wantRecords(t, "without")
	f.write(t, "c1", put("a", "3"))
	f.wantRecords(t, "with", "a@1 1", "b@1 2")
}

// TestWatchWithRecords: only a watch with include_records receives the changes of records, without their values.
func TestWatchWithRecords(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("hello"))
	watch := func(include bool) parleyv1.ConversationService_WatchConversationsClient {
		stream, err := f.WatchConversations(t.Context(), &parleyv1.WatchConversationsRequest{IncludeRecords: include})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	with, without := watch(true), watch(false)
	f.write(t, "c1", put("a", "secret"), &parleyv1.RecordWrite{Key: "missing", Delete: true}, putTenant("b", "secret"))
	f.write(t, "c1", &parleyv1.RecordWrite{Key: "a", Delete: true})
	f.append(t, "c1", user("more"))
	ignored := protocmp.IgnoreFields(&parleyv1.ConversationChange{}, "cursor", "time", "conversation", "message")
	want := []*parleyv1.ConversationChange{
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_UPDATED, Version: 2},
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_RECORD, Version: 2, Record: &parleyv1.RecordChange{Key: "a", Revision: 2}},
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_UPDATED, Version: 3},
		{
			Kind: parleyv1.ChangeKind_CHANGE_KIND_RECORD, Version: 3,
			Record: &parleyv1.RecordChange{Key: "a", Revision: 3, Deleted: true},
		},
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED, Version: 4},
	}
	for _, change := range want {
		change.ConversationId = "c1"
		streams := []parleyv1.ConversationService_WatchConversationsClient{with}
		if change.GetRecord() == nil {
			streams = append(streams, without)
		}
		for _, stream := range streams {
			reply, err := stream.Recv()
			if d := cmp.Diff(change, reply.GetChange(), protocmp.Transform(), ignored); err != nil || d != "" {
				t.Errorf("change: %v (-want +got):\n%s", err, d)
			}
		}
	}
}

// TestRecordsElsewhere: routing summaries and the interaction log have no records.
func TestRecordsElsewhere(t *testing.T) {
	_, withLog := withInteractionLog(t, nil)
	f := open(t, withLog)
	const secret = "a value that is in the record only"
	if _, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c1", Messages: []*parleyv1.Message{user("hello"), assistant("hi")},
		Records: []*parleyv1.RecordWrite{put("key of a record", secret), putTenant("key of a record", secret)},
	}); err != nil {
		t.Fatal(err)
	}
	summary, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{ConversationId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	logged, err := f.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{
		ConversationId: "c1",
	})
	if err != nil || len(logged.GetInteractions()) != 2 {
		t.Fatalf("ListInteractions = %v, %v, want 2 entries", logged, err)
	}
	for _, m := range []proto.Message{summary, logged} {
		wire, err := proto.Marshal(m)
		if err != nil || bytes.Contains(wire, []byte(secret)) || bytes.Contains(wire, []byte("key of a record")) {
			t.Errorf("%T has a record: %v, %v", m, m, err)
		}
	}
}

// TestRecordRoles: a reader may read records, and only a writer may write them.
func TestRecordRoles(t *testing.T) {
	f := open(t, func(s *setup) { s.Auth = byMetadata() })
	reader, writer := withMetadata(t, "tenant", "a", "role", "reader"), withMetadata(t, "tenant", "a", "role", "writer")
	write := func(ctx context.Context) error {
		_, err := f.WriteRecords(ctx, &parleyv1.WriteRecordsRequest{Writes: []*parleyv1.RecordWrite{put("a", "1")}})
		return err
	}
	wantError(t, write(reader), codes.PermissionDenied, "PERMISSION_DENIED")
	if err := write(writer); err != nil {
		t.Fatal(err)
	}
	get, err := f.GetRecords(reader, &parleyv1.GetRecordsRequest{Keys: []string{"a"}})
	list, listErr := f.ListRecords(reader, &parleyv1.ListRecordsRequest{})
	if err != nil || listErr != nil || len(get.GetRecords()) != 1 || len(list.GetRecords()) != 1 {
		t.Errorf("GetRecords = %v, %v, ListRecords = %v, %v, want 1 record", get, err, list, listErr)
	}
}
