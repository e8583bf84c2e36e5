package rpc

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestBatchKeepsLists checks that messages are truncated before pending calls, types of data and agents are
// removed, in large conversations before small ones.
func TestBatchKeepsLists(t *testing.T) {
	f := open(t, nil)
	for n := range 6 {
		m := assistant("")
		for i := range 60 {
			m.StructuredData = append(
				m.StructuredData,
				data(fmt.Sprintf("%0100d", 60*n+i), structpb.NewBoolValue(true))...)
		}
		f.append(t, "types", m)
		f.append(t, "both", m)
	}
	for range 12 {
		f.append(t, "tales", user(strings.Repeat("x", 200<<10)))
		f.append(t, "both", user(strings.Repeat("x", 200<<10)))
	}
	f.append(t, "small", user("hello"))
	full := proto.Size(f.summaries(t, 1, "types").GetSummaries()[0])
	for _, test := range []struct {
		name     string
		ids      []string
		maxBytes int32
		types    int // of summaries that have all of them
	}{
		{"one and many missing ones", append([]string{"types"}, repeatID(99, "missing")...), 0, 1},
		{"after large ones", append(repeatID(20, "tales"), "types", "small", "missing"), 3 << 20, 1},
		{"before large ones", append([]string{"types", "small"}, repeatID(30, "tales")...), 3 << 20, 1},
		{"large ones with types", repeatID(20, "both"), 3 << 20, 20},
		{"too many types", repeatID(100, "types"), 1, maxSummariesBytes / full},
	} {
		t.Run(test.name, func(t *testing.T) {
			reply, types := f.summaries(t, test.maxBytes, test.ids...), 0
			missing := 0
			for _, id := range test.ids {
				if strings.HasPrefix(id, "missing") {
					missing++
				}
			}
			if len(reply.GetSummaries()) != len(test.ids)-missing || len(reply.GetMissingIds()) != missing {
				t.Errorf("got %d summaries and %d missing ids, want %d and %d",
					len(reply.GetSummaries()), len(reply.GetMissingIds()), len(test.ids)-missing, missing)
			}
			for _, s := range reply.GetSummaries() {
				switch {
				case s.GetConversationId() == "small" && (s.GetTruncated() || len(s.GetRecentMessages()) != 1):
					t.Errorf("small summary = %v, want it complete", s)
				case (s.GetConversationId() == "tales" || s.GetConversationId() == "both") && !s.GetTruncated():
					t.Error("Truncated = false in a large summary")
				case len(s.GetStructuredDataTypes()) == 360:
					types++
				}
			}
			// Summaries without types need a few bytes, too.
			if types > test.types || types < test.types-1 || types == 0 {
				t.Errorf("%d summaries have their types, want %d", types, test.types)
			}
			if size := proto.Size(reply); size > 3<<20+512<<10 {
				t.Errorf("reply has %d bytes, want at most 3.5 MiB", size)
			}
		})
	}
}

func repeatID(n int, id string) []string { return slices.Repeat([]string{id}, n) }

func (f *fixture) summaries(t *testing.T, maxBytes int32, ids ...string) *parleyv1.BatchGetRoutingSummariesResponse {
	t.Helper()
	reply, err := f.BatchGetRoutingSummaries(t.Context(), &parleyv1.BatchGetRoutingSummariesRequest{
		ConversationIds: ids, MaxBytes: maxBytes, MessageLimit: proto.Int32(20),
	})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// TestKnownUID checks that a new conversation with the same id and version is a change.
func TestKnownUID(t *testing.T) {
	f := open(t, nil)
	get := func(known int32, uid string) *parleyv1.GetRoutingSummaryResponse {
		t.Helper()
		reply, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c", KnownVersion: &known, KnownUid: uid, AllowMissing: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	f.append(t, "c", user("hello"))
	first := get(0, "").GetSummary().GetUid()
	if !get(1, first).GetNotModified() || !get(1, "").GetNotModified() || get(2, first).GetNotModified() {
		t.Error("not_modified is wrong for the first conversation")
	}
	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "c"}); err != nil {
		t.Fatal(err)
	}
	if got := get(1, first).GetSummary(); got == nil || got.GetVersion() != 0 {
		t.Errorf("summary after the deletion = %v, want an empty one", got)
	}
	f.append(t, "c", user("something else"))
	if got := get(1, first).GetSummary(); got.GetUid() == "" || got.GetUid() == first ||
		!get(1, got.GetUid()).GetNotModified() {
		t.Errorf("summary of the new conversation = %v", got)
	}
}

// TestWaitForReplacement checks that a waiting call returns when its conversation is replaced by another
// one with the same id and version.
func TestWaitForReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		first := f.append(t, "c", user("hello")).GetConversation().GetUid()
		replaced := make(chan struct{})
		go func() {
			defer close(replaced)
			<-time.After(time.Second)
			// An import replaces the conversation in one step, so that no read finds it missing.
			file := exportOf("c", time.Now())
			file.Conversation.Version = 1
			f.wantImport(t, true, 1, 0, file)
		}()
		reply, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c", KnownVersion: proto.Int32(1), WaitTimeout: durationpb.New(time.Minute),
		})
		if uid := reply.GetSummary().GetUid(); err != nil || reply.GetNotModified() || uid == "" || uid == first {
			t.Errorf("GetRoutingSummary = %v, %v; want a conversation other than %s", reply, err, first)
		}
		<-replaced
	})
}
