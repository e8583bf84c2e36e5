package rpc

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// calling returns a message that calls a tool, and answering the result of a call.
func calling(id string) *parleyv1.Message {
	return &parleyv1.Message{
		Role: parleyv1.Role_ROLE_ASSISTANT, ToolCalls: []*parleyv1.ToolCall{{Id: id, Name: "find"}},
	}
}

func answering(id string) *parleyv1.Message {
	return &parleyv1.Message{
		Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: id, Content: "found"},
	}
}

// wantSequences checks the sequences of the kept messages of conversation c1, oldest first.
func (f *fixture) wantSequences(t *testing.T, want ...int32) {
	t.Helper()
	reply, err := f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "c1", Ascending: true})
	if got := sequences(reply.GetMessages()); err != nil || !slices.Equal(got, want) {
		t.Errorf("sequences = %v, %v, want %v", got, err, want)
	}
}

// TestReplace replaces the end of a history, also with a retry, with all other fields of an append.
func TestReplace(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"), assistant("2"), user("3"), assistant("4"))
	request := &parleyv1.AppendMessagesRequest{
		ConversationId: "c1", ReplaceAfterSequence: proto.Int32(2), RequestId: "r1", IfVersion: proto.Int32(1),
		MustExist: true, Messages: []*parleyv1.Message{user("5"), assistant("6")},
	}
	first, err := f.AppendMessages(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if c := first.GetConversation(); c.GetVersion() != 2 || c.GetMessageCount() != 4 || c.GetLastSequence() != 6 ||
		first.GetAppended()[0].GetSequence() != 5 || first.GetAppended()[0].GetExchange() != 3 {
		t.Errorf("AppendMessages = %v, want messages 5 and 6 of exchange 3 at version 2", first)
	}
	f.wantSequences(t, 1, 2, 5, 6)
	context, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c1"})
	if err != nil || !slices.Equal(sequences(context.GetMessages()), []int32{1, 2, 5, 6}) {
		t.Errorf("GetContext = %v, %v", context, err)
	}
	summary, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{ConversationId: "c1"})
	if err != nil || !slices.Equal(sequences(summary.GetSummary().GetRecentMessages()), []int32{2, 5, 6}) {
		t.Errorf("GetRoutingSummary = %v, %v, want messages 2, 5 and 6", summary, err)
	}

	f.append(t, "c1", user("7"))
	again, err := f.AppendMessages(t.Context(), request)
	if err != nil || !again.GetReplayed() {
		t.Fatalf("retry = %v, %v, want it replayed", again, err)
	}
	if d := cmp.Diff(first.GetAppended(), again.GetAppended(), protocmp.Transform()); d != "" {
		t.Errorf("appended (-first +retry):\n%s", d)
	}
	f.wantSequences(t, 1, 2, 5, 6, 7)

	request.ReplaceAfterSequence = proto.Int32(1) // The same id for another replacement.
	_, err = f.AppendMessages(t.Context(), request)
	wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	request.ReplaceAfterSequence = nil // The same id for an append of the same messages.
	_, err = f.AppendMessages(t.Context(), request)
	wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	reply, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c1", ReplaceAfterSequence: proto.Int32(0),
	})
	if err != nil || reply.GetConversation().GetMessageCount() != 0 || len(reply.GetAppended()) != 0 {
		t.Errorf("replacement by nothing = %v, %v, want no messages", reply, err)
	}
}

// TestReplaceRefused checks that a replacement that is refused changes nothing.
func TestReplaceRefused(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"), calling("a"), answering("a"))
	before := f.changeCount()
	for name, test := range map[string]struct {
		request  *parleyv1.AppendMessagesRequest
		code     codes.Code
		reason   string
		fields   []string
		metadata map[string]string
	}{
		"a call without its result": {
			&parleyv1.AppendMessagesRequest{
				ConversationId: "c1", ReplaceAfterSequence: proto.Int32(2), Messages: []*parleyv1.Message{assistant("4")},
			},
			codes.InvalidArgument, "CALL_SEPARATED",
			[]string{"replace_after_sequence"},
			map[string]string{"call_sequence": "2", "result_sequence": "3"},
		},
		"no messages and no replacement": {
			&parleyv1.AppendMessagesRequest{ConversationId: "c1"}, codes.InvalidArgument, "INVALID_REQUEST",
			[]string{"messages"},
			nil,
		},
		"a negative sequence": {
			&parleyv1.AppendMessagesRequest{ConversationId: "c1", ReplaceAfterSequence: proto.Int32(-1)},
			codes.InvalidArgument, "INVALID_REQUEST",
			[]string{"replace_after_sequence"},
			nil,
		},
		"an old version": {
			&parleyv1.AppendMessagesRequest{
				ConversationId: "c1", ReplaceAfterSequence: proto.Int32(0), IfVersion: proto.Int32(7),
			},
			codes.Aborted, "VERSION_MISMATCH", nil,
			map[string]string{"current_version": "1"},
		},
		"a missing conversation": {
			&parleyv1.AppendMessagesRequest{ConversationId: "c2", ReplaceAfterSequence: proto.Int32(0), MustExist: true},
			codes.NotFound, "CONVERSATION_NOT_FOUND", nil, nil,
		},
	} {
		_, err := f.AppendMessages(t.Context(), test.request)
		got := wantError(t, err, test.code, test.reason)
		if !slices.Equal(got.fields, test.fields) || !cmp.Equal(got.metadata, test.metadata) && test.metadata != nil {
			t.Errorf("%s: fields %q, metadata %v, want %q, %v", name, got.fields, got.metadata, test.fields, test.metadata)
		}
	}
	if n := f.changeCount(); n != before {
		t.Errorf("%d changes were committed", n-before)
	}
	f.wantSequences(t, 1, 2, 3)
	if _, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c1", ReplaceAfterSequence: proto.Int32(2), Messages: []*parleyv1.Message{answering("a")},
	}); err != nil {
		t.Errorf("replacement of a result by another = %v", err)
	}
}

// TestReplaceWhileTurnRuns checks that neither call removes messages while a turn runs.
func TestReplaceWhileTurnRuns(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"))
	_, err := f.store.Append(t.Context(), &store.Append{
		Tenant: "default", ConversationID: "c1", Begin: &parleyv1.Turn{Id: "t1", InputSequence: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c1", ReplaceAfterSequence: proto.Int32(0), Messages: []*parleyv1.Message{user("2")},
	})
	if got := wantError(t, err, codes.Aborted, "CONVERSATION_BUSY"); got.metadata["active_turn_id"] != "t1" {
		t.Errorf("metadata = %v, want active_turn_id t1", got.metadata)
	}
	_, err = f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{
		ConversationId: "c1", Sequences: []int32{1},
	})
	wantError(t, err, codes.Aborted, "CONVERSATION_BUSY")
	f.append(t, "c1", user("2")) // Other appends are possible.
	f.wantSequences(t, 1, 2)
}

// TestReplaceInStream checks that an AppendStream applies replacements and appends in the order in which they were
// sent: if_version of each is the version that the one before creates.
func TestReplaceInStream(t *testing.T) {
	f := open(t, nil)
	var requests []*parleyv1.AppendMessagesRequest
	for i := range int32(40) {
		r := appendOf("c1", fmt.Sprint(i))
		r.IfVersion = new(i)
		if i%3 == 2 {
			r.ReplaceAfterSequence = new(i - 1) // Replaces the message before.
		}
		requests = append(requests, r)
	}
	stream := f.openAppends(t, t.Context(), requests...)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	replies, err := receiveAppends(stream)
	if err != nil || len(replies) != len(requests) {
		t.Fatalf("%d replies, %v, want %d", len(replies), err, len(requests))
	}
	for i, reply := range replies {
		got := reply.GetResponse()
		if got.GetConversation().GetVersion() != int32(i+1) || len(got.GetAppended()) != 1 ||
			got.GetAppended()[0].GetSequence() != int32(i+1) {
			t.Errorf("reply %d = %v, want sequence and version %d", i, reply, i+1)
		}
	}
}

// TestClearSequences removes single messages.
func TestClearSequences(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"), calling("a"), answering("a"), assistant("4"), user("5"))
	remove := func(r *parleyv1.ClearConversationRequest) (*parleyv1.ClearConversationResponse, error) {
		r.ConversationId = "c1"
		return f.ClearConversation(t.Context(), r)
	}
	for name, test := range map[string]struct {
		request *parleyv1.ClearConversationRequest
		reason  string
	}{
		"a call":          {&parleyv1.ClearConversationRequest{Sequences: []int32{1, 2}}, "CALL_SEPARATED"},
		"a result":        {&parleyv1.ClearConversationRequest{Sequences: []int32{3, 5}}, "CALL_SEPARATED"},
		"two ways":        {&parleyv1.ClearConversationRequest{Sequences: []int32{1}, AfterSequence: 4}, "INVALID_REQUEST"},
		"sequence 0":      {&parleyv1.ClearConversationRequest{Sequences: []int32{1, 0}}, "INVALID_REQUEST"},
		"1001 sequences":  {&parleyv1.ClearConversationRequest{Sequences: slices.Repeat([]int32{1}, 1001)}, "INVALID_REQUEST"},
		"a bad requestID": {&parleyv1.ClearConversationRequest{RequestId: " has a space"}, "INVALID_REQUEST"},
	} {
		reply, err := remove(test.request)
		if got := statusOf(err); got.code != codes.InvalidArgument || got.reason != test.reason {
			t.Errorf("%s: ClearConversation = %v, %v, want %s", name, reply, err, test.reason)
		}
	}
	f.wantSequences(t, 1, 2, 3, 4, 5)
	request := &parleyv1.ClearConversationRequest{Sequences: []int32{5, 3, 2, 9}, RequestId: "r1"}
	reply, err := remove(request)
	if err != nil || reply.GetReplayed() || reply.GetConversation().GetVersion() != 2 ||
		reply.GetConversation().GetMessageCount() != 2 {
		t.Errorf("ClearConversation = %v, %v, want 2 messages at version 2", reply, err)
	}
	f.wantSequences(t, 1, 4)
	f.append(t, "c1", user("6"))
	request.AfterSequence = math.MaxInt32 // For servers that do not know sequences; it means the same.
	if reply, err = remove(request); err != nil || !reply.GetReplayed() || reply.GetConversation().GetVersion() != 3 {
		t.Errorf("retry = %v, %v, want it replayed at version 3", reply, err)
	}
	_, err = remove(&parleyv1.ClearConversationRequest{RequestId: "r1"})
	wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	f.wantSequences(t, 1, 4, 6)
}

// TestListMessagesByID lists messages by their ids, in pages.
func TestListMessagesByID(t *testing.T) {
	f := open(t, nil)
	var messages []*parleyv1.Message
	for i, id := range []string{"a", "b", "a", "c", "d"} {
		m := user(fmt.Sprint(i + 1))
		m.Id = id
		messages = append(messages, m)
	}
	f.append(t, "c1", messages...)
	for name, test := range map[string]struct {
		request *parleyv1.ListMessagesRequest
		want    []int32
	}{
		"newest first": {&parleyv1.ListMessagesRequest{MessageIds: []string{"b", "d", "a", "none"}}, []int32{5, 3, 2, 1}},
		"ascending":    {&parleyv1.ListMessagesRequest{MessageIds: []string{"d", "a"}, Ascending: true}, []int32{1, 3, 5}},
		"after":        {&parleyv1.ListMessagesRequest{MessageIds: []string{"a"}, AfterSequence: 1}, []int32{3}},
		"none":         {&parleyv1.ListMessagesRequest{MessageIds: []string{"none"}}, nil},
	} {
		test.request.ConversationId = "c1"
		for _, size := range []int32{0, 1} {
			var got []int32
			test.request.PageSize, test.request.PageToken = size, ""
			for pages := 0; pages == 0 || test.request.GetPageToken() != ""; pages++ {
				reply, err := f.ListMessages(t.Context(), test.request)
				if err != nil || size > 0 && len(reply.GetMessages()) > int(size) {
					t.Fatalf("%s: ListMessages = %v, %v", name, reply, err)
				}
				got = append(got, sequences(reply.GetMessages())...)
				test.request.PageToken = reply.GetNextPageToken()
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s, page size %d: sequences %v, want %v", name, size, got, test.want)
			}
		}
	}
	for name, ids := range map[string][]string{"an empty id": {""}, "101 ids": slices.Repeat([]string{"a"}, 101)} {
		_, err := f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "c1", MessageIds: ids})
		if got := statusOf(err); got.reason != "INVALID_REQUEST" {
			t.Errorf("%s: ListMessages = %v, want INVALID_REQUEST", name, err)
		}
	}
	first, err := f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{
		ConversationId: "c1", MessageIds: []string{"a"}, PageSize: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{
		ConversationId: "c1", MessageIds: []string{"b"}, PageToken: first.GetNextPageToken(),
	})
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}

// TestReplacementIsLogged checks that the interaction log keeps the removed messages, and that it lists and finds the
// entries of removals.
func TestReplacementIsLogged(t *testing.T) {
	_, withLog := withInteractionLog(t, nil)
	f := open(t, withLog)
	f.append(t, "a", user("one"), assistant("two"), user("three"))
	if _, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "a", ReplaceAfterSequence: proto.Int32(1), Messages: []*parleyv1.Message{assistant("four")},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{
		ConversationId: "a", Sequences: []int32{4, 1},
	}); err != nil {
		t.Fatal(err)
	}
	listed, err := f.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{ConversationId: "a"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"one", "two", "three", "2 messages removed after message 1", "four", "2 messages removed"}
	if d := cmp.Diff(want, contents(listed.GetInteractions())); d != "" {
		t.Fatalf("entries (-want +got):\n%s", d)
	}
	removed := listed.GetInteractions()[3]
	fields := removed.GetMetadata().AsMap()
	if removed.GetRole() != parleyv1.Role_ROLE_SYSTEM || removed.GetAgent() != "parley" ||
		fields["removed_after"] != 1.0 || fields["removed_count"] != 2.0 {
		t.Errorf("entry of the replacement = %v", removed)
	}
	if got := listed.GetInteractions()[5].GetMetadata().AsMap()["removed_sequences"]; !cmp.Equal(got, []any{1.0, 4.0}) {
		t.Errorf("removed_sequences = %v, want 1 and 4", got)
	}
	found, err := f.SearchInteractions(t.Context(), &parleyv1.SearchInteractionsRequest{Query: "REMOVED AFTER", Days: 1})
	if err != nil || !slices.Equal(contents(found.GetInteractions()), want[3:4]) {
		t.Errorf("SearchInteractions = %v, %v, want %q", found, err, want[3])
	}
	erased, err := f.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: "a"})
	if err != nil || erased.GetDeletedCount() != 6 {
		t.Errorf("DeleteInteractions = %v, %v, want 6 entries", erased, err)
	}
}
