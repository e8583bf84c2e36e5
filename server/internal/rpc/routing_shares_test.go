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

// TestBatchKeepsLists: pending calls, types of data and agents stay as long as there is room
// for them, and messages are cut for them, in large conversations before small ones.
func TestBatchKeepsLists(t *testing.T) {
	f := open(t, nil)
	for n := range 6 {
		m := assistant("")
		for i := range 60 {
			m.StructuredData = append(m.StructuredData, data(fmt.Sprintf("%0100d", 60*n+i), structpb.NewBoolValue(true))...)
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
		{"one and many that are missing", append([]string{"types"}, many(99, "missing")...), 0, 1},
		{"beside large ones", append(many(20, "tales"), "types", "small", "missing"), 3 << 20, 1},
		{"large ones behind it", append([]string{"types", "small"}, many(30, "tales")...), 3 << 20, 1},
		{"large ones themselves", many(20, "both"), 3 << 20, 20},
		{"as many as there is room for", many(100, "types"), 1, maxSummariesBytes / full},
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
				t.Errorf("%d summaries, %d are missing", len(reply.GetSummaries()), len(reply.GetMissingIds()))
			}
			for _, s := range reply.GetSummaries() {
				switch {
				case s.GetConversationId() == "small" && (s.GetTruncated() || len(s.GetRecentMessages()) != 1):
					t.Errorf("the small one is cut: %v", s)
				case (s.GetConversationId() == "tales" || s.GetConversationId() == "both") && !s.GetTruncated():
					t.Error("a large one is whole")
				case len(s.GetStructuredDataTypes()) == 360:
					types++
				}
			}
			// Those that have none take a little too.
			if types > test.types || types < test.types-1 || types == 0 {
				t.Errorf("%d have their types, want %d", types, test.types)
			}
			if size := proto.Size(reply); size > 3<<20+512<<10 {
				t.Errorf("the reply has %d bytes", size)
			}
		})
	}
}

func many(n int, id string) []string { return slices.Repeat([]string{id}, n) }

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

func TestShares(t *testing.T) {
	// Each has 10 bytes that it always needs.
	e := func(messages, lists int) extent {
		return extent{all: 10 + messages + lists, messages: messages, lists: lists}
	}
	for _, test := range []struct {
		name string
		of   []extent
		room int
		want []share
	}{
		{"none", nil, 100, []share{}},
		{"all fit", []extent{e(10, 0), {}, e(20, 30)}, 80, []share{{20, true}, {0, true}, {60, true}}},
		{"the small ones leave their rest", []extent{e(100, 0), e(5, 0), e(100, 0)}, 115, []share{{50, true}, {15, true}, {50, true}}},
		{"lists go before messages", []extent{e(100, 0), e(10, 30)}, 110, []share{{60, true}, {50, true}}},
		{"half is for messages", []extent{e(100, 0), e(10, 50)}, 110, []share{{90, true}, {20, false}}},
		{"unless they need less", []extent{e(10, 50), e(10, 0)}, 90, []share{{70, true}, {20, true}}},
		{"small lists first", []extent{e(0, 60), e(0, 40), e(0, 50)}, 130, []share{{10, false}, {50, true}, {60, true}}},
		{"a reply for itself", []extent{e(200, 40)}, 110, []share{{110, true}}},
		{"a reply too small for it", []extent{e(200, 60)}, 110, []share{{110, false}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := shares(test.of, test.room); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestKnownUID: another conversation of the same id at the same version is a change.
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
		t.Error("the same conversation is not known")
	}
	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "c"}); err != nil {
		t.Fatal(err)
	}
	if got := get(1, first).GetSummary(); got == nil || got.GetVersion() != 0 {
		t.Errorf("after it was deleted: %v", got)
	}
	f.append(t, "c", user("something else"))
	if got := get(1, first).GetSummary(); got.GetUid() == "" || got.GetUid() == first || !get(1, got.GetUid()).GetNotModified() {
		t.Errorf("after it was made anew: %v", got)
	}
}

// TestWaitForAnother: whoever waits does not sleep through the end of a conversation when
// there is another one of its id and version by the time it looks.
func TestWaitForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := open(t, nil)
		first := f.append(t, "c", user("hello")).GetConversation().GetUid()
		behind := make(chan struct{})
		go func() {
			defer close(behind)
			<-time.After(time.Second)
			// At once: the reader does not see the time between.
			file := fileOf("c", time.Now())
			file.Conversation.Version = 1
			f.wantImport(t, true, 1, 0, file)
		}()
		reply, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: "c", KnownVersion: proto.Int32(1), WaitTimeout: durationpb.New(time.Minute),
		})
		if uid := reply.GetSummary().GetUid(); err != nil || reply.GetNotModified() || uid == "" || uid == first {
			t.Errorf("GetRoutingSummary = %v, %v; want a conversation other than %s", reply, err, first)
		}
		<-behind
	})
}
