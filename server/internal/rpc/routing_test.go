package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestGetRoutingSummary checks the summary of a conversation about libraries.
func TestGetRoutingSummary(t *testing.T) {
	f := open(t, nil)
	found := assistant("Zustand, Jotai, Redux")
	found.Summary, found.Agent, found.StructuredData = "searched for React libraries", "finder", data(
		"library_list",
		structpb.NewStringValue("Zustand"),
	)
	analyzed := assistant("It is small.")
	analyzed.Summary, analyzed.Agent, analyzed.StructuredData = "analyzed Zustand", "analyst", data(
		"analysis",
		structpb.NewStringValue("small"),
	)
	f.append(
		t,
		"c1",
		user("Which libraries are there?"),
		found,
		user("Tell me about the first"),
		analyzed,
		user("And the second one?"),
	)
	get := func(r *parleyv1.GetRoutingSummaryRequest) *parleyv1.RoutingSummary {
		t.Helper()
		r.ConversationId = "c1"
		reply, err := f.GetRoutingSummary(t.Context(), r)
		if err != nil || reply.GetNotModified() {
			t.Fatalf("GetRoutingSummary = %v, %v", reply, err)
		}
		return reply.GetSummary()
	}
	s := get(&parleyv1.GetRoutingSummaryRequest{})
	if got := sequences(s.GetRecentMessages()); !slices.Equal(got, []int32{3, 4, 5}) {
		t.Errorf("sequences of recent messages = %v, want 3, 4, 5", got)
	}
	if s.GetText() != "Previous: searched for React libraries, analyzed Zustand" || !s.GetAwaitingAnswer() ||
		s.GetVersion() != 1 {
		t.Errorf("summary = %v", s)
	}
	if len(s.GetStructuredDataTypes()) != 2 || len(s.GetReferencedData()) != 1 ||
		s.GetReferencedData()[0].GetData().GetType() != "library_list" {
		t.Errorf("types = %v, referenced data = %v", s.GetStructuredDataTypes(), s.GetReferencedData())
	}
	if n := len(get(&parleyv1.GetRoutingSummaryRequest{MessageLimit: proto.Int32(0)}).GetRecentMessages()); n != 0 {
		t.Errorf("got %d recent messages, want 0", n)
	}
	if n := len(get(&parleyv1.GetRoutingSummaryRequest{MessageLimit: proto.Int32(20)}).GetRecentMessages()); n != 5 {
		t.Errorf("got %d recent messages, want 5", n)
	}
	if s := get(&parleyv1.GetRoutingSummaryRequest{MaxBytes: 50}); !s.GetTruncated() {
		t.Errorf("summary with 50 bytes = %v, want it truncated", s)
	}
}

func TestKnownVersion(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("hello"))
	f.append(t, "c1", assistant("hi"))
	tests := []struct {
		name         string
		id           string
		known        *int32
		allowMissing bool
		want         *parleyv1.GetRoutingSummaryResponse // compared: not_modified, id and version
		code         codes.Code
	}{
		{"known", "c1", proto.Int32(2), false, &parleyv1.GetRoutingSummaryResponse{NotModified: true}, codes.OK},
		{
			"older",
			"c1",
			proto.Int32(1),
			false,
			&parleyv1.GetRoutingSummaryResponse{Summary: &parleyv1.RoutingSummary{ConversationId: "c1", Version: 2}},
			codes.OK,
		},
		{
			"known as missing",
			"c1",
			proto.Int32(0),
			false,
			&parleyv1.GetRoutingSummaryResponse{Summary: &parleyv1.RoutingSummary{ConversationId: "c1", Version: 2}},
			codes.OK,
		},
		{"missing", "c2", nil, false, nil, codes.NotFound},
		{
			"missing, known as missing",
			"c2",
			proto.Int32(0),
			false,
			&parleyv1.GetRoutingSummaryResponse{NotModified: true},
			codes.OK,
		},
		{"missing, known before", "c2", proto.Int32(7), false, nil, codes.NotFound},
		{
			"missing, allowed",
			"c2",
			nil,
			true,
			&parleyv1.GetRoutingSummaryResponse{Summary: &parleyv1.RoutingSummary{ConversationId: "c2"}},
			codes.OK,
		},
		{
			"missing, allowed, known before",
			"c2",
			proto.Int32(7),
			true,
			&parleyv1.GetRoutingSummaryResponse{Summary: &parleyv1.RoutingSummary{ConversationId: "c2"}},
			codes.OK,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
				ConversationId: test.id, KnownVersion: test.known, AllowMissing: test.allowMissing,
			})
			if statusOf(err).code != test.code {
				t.Fatal(err)
			}
			if got.GetSummary() != nil {
				got.Summary = &parleyv1.RoutingSummary{
					ConversationId: got.GetSummary().GetConversationId(),
					Version:        got.GetSummary().GetVersion(),
				}
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestNotModifiedReadsNoMessages checks that the server reads only the header of an unchanged
// conversation, because coordinators poll.
func TestNotModifiedReadsNoMessages(t *testing.T) {
	reads := new(readRecorder)
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			reads.Store = inner
			return reads
		}
	})
	f.append(t, "c1", user("hello"))
	reply, err := f.GetRoutingSummary(
		t.Context(),
		&parleyv1.GetRoutingSummaryRequest{ConversationId: "c1", KnownVersion: proto.Int32(1)},
	)
	if err != nil || !reply.GetNotModified() || !slices.Equal(reads.newest, []int{0}) {
		t.Errorf(
			"GetRoutingSummary = %v, %v, reads of %v messages, want not_modified and one read of 0",
			reply,
			err,
			reads.newest,
		)
	}
}

// readRecorder records the number of messages that each read requests.
type readRecorder struct {
	store.Store
	newest []int
}

func (s *readRecorder) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	s.newest = append(s.newest, r.Newest)
	return s.Store.Read(ctx, r)
}

func TestBatchGetRoutingSummaries(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"))
	f.append(t, "c2", user("2"), assistant("3"))
	reply, err := f.BatchGetRoutingSummaries(t.Context(), &parleyv1.BatchGetRoutingSummariesRequest{
		ConversationIds: []string{"c2", "x", "c1", "c2", "y", "x"}, MessageLimit: proto.Int32(1),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range reply.GetSummaries() {
		got = append(got, fmt.Sprint(s.GetConversationId(), sequences(s.GetRecentMessages())))
	}
	if diff := cmp.Diff([]string{"c2[2]", "c1[1]", "c2[2]"}, got); diff != "" {
		t.Errorf("summaries (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"x", "y", "x"}, reply.GetMissingIds()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

// TestMaxSummariesSize checks the size of replies for large conversations.
func TestMaxSummariesSize(t *testing.T) {
	f := open(t, nil)
	for i := range 12 {
		f.append(t, "words", user(strings.Repeat("x", 5<<10)))
		f.append(t, "tales", user(strings.Repeat("x", 200<<10)))
		m := assistant("")
		m.ToolCalls = []*parleyv1.ToolCall{{Id: fmt.Sprint(i), Name: "t", Arguments: strings.Repeat("x", 50<<10)}}
		f.append(t, "calls", m)
	}
	for _, id := range []string{"types", "agents"} {
		f.create(t, &parleyv1.Conversation{Id: id, Retention: &parleyv1.Retention{MaxMessages: 1000}})
	}
	for i := range 30 {
		m := assistant("")
		for j := range 64 {
			m.StructuredData = append(m.StructuredData, data(fmt.Sprintf("%0128d", 64*i+j), structpb.NewNullValue())...)
		}
		f.append(t, "types", m)
	}
	for i := range 10 {
		var messages []*parleyv1.Message
		for j := range 100 {
			m := assistant("")
			m.Agent = fmt.Sprintf("%0128d", 100*i+j)
			messages = append(messages, m)
		}
		f.append(t, "agents", messages...)
	}
	all := []string{"words", "tales", "calls", "types", "agents", "missing"}
	for _, test := range []struct {
		ids      []string
		maxBytes int32
		each     int // maximum size of a summary in bytes
	}{
		{slices.Repeat([]string{"words"}, 100), 0, defaultBatchBytes + 4<<10},
		{[]string{"words"}, 0, defaultBatchBytes + 4<<10},
		{slices.Repeat(all, 4), 0, maxSummariesBytes},
		{slices.Repeat(all, 2), 3 << 20, maxSummariesBytes},
		{slices.Repeat([]string{"calls"}, 3), 1, maxSummariesBytes},
		{slices.Repeat([]string{"agents"}, 40), 0, maxSummariesBytes},
	} {
		reply, err := f.BatchGetRoutingSummaries(t.Context(), &parleyv1.BatchGetRoutingSummariesRequest{
			ConversationIds: test.ids, MaxBytes: test.maxBytes, MessageLimit: proto.Int32(20),
		})
		if err != nil {
			t.Errorf("%d ids, %d bytes: %v", len(test.ids), test.maxBytes, err)
			continue
		}
		if size := proto.Size(reply); size > 3<<20+512<<10 {
			t.Errorf(
				"%d ids, max_bytes %d: reply has %d bytes, want at most 3.5 MiB",
				len(test.ids),
				test.maxBytes,
				size,
			)
		}
		for _, s := range reply.GetSummaries() {
			if size := proto.Size(s); size > test.each || len(s.GetRecentMessages()) == 0 && test.maxBytes != 1 {
				t.Errorf("%d ids, max_bytes %d: summary of %s has %d bytes and %d messages, want at most %d bytes",
					len(test.ids), test.maxBytes, s.GetConversationId(), size, len(s.GetRecentMessages()), test.each)
			}
		}
	}
	for _, id := range all[:5] {
		if _, err := f.GetRoutingSummary(t.Context(),
			&parleyv1.GetRoutingSummaryRequest{ConversationId: id, MessageLimit: proto.Int32(20)}); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// TestSummaryAgain requests the summary of the same version until the lease in it has ended, and with other
// options: each reply must be right, though the server has computed one before.
func TestSummaryAgain(t *testing.T) {
	clock := newManualClock()
	f := open(t, func(s *setup) { s.Now, s.storeOptions.Now = clock.Now, clock.Now })
	f.append(t, "c", assistant("one"), assistant("two"))
	if _, err := f.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{
		ConversationId: "c", Agent: "echo", LeaseDuration: durationpb.New(time.Minute),
	}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		wait     time.Duration
		limit    int32
		agent    string
		messages int
	}{
		{0, 3, "echo", 2},
		{0, 3, "echo", 2},
		{0, 1, "echo", 1},
		{time.Minute - 1, 1, "echo", 1},
		{1, 1, "", 1},
		{0, 1, "", 1},
	} {
		clock.advance(test.wait)
		reply, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c", MessageLimit: &test.limit,
		})
		if err != nil {
			t.Fatal(err)
		}
		s := reply.GetSummary()
		if s.GetActiveAgent().GetAgent() != test.agent || len(s.GetRecentMessages()) != test.messages {
			t.Errorf("%+v: agent %q and %d messages", test, s.GetActiveAgent().GetAgent(), len(s.GetRecentMessages()))
		}
	}
}
