package record_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// FuzzDraft appends an arbitrary valid message and compares the stored message with one on which the
// server's fields were set one by one.
func FuzzDraft(f *testing.F) {
	for _, m := range []*parleyv1.Message{
		{Id: "1", Role: parleyv1.Role_ROLE_USER, Content: "hello", Metadata: map[string]string{"k": "v"}},
		{
			Role: parleyv1.Role_ROLE_ASSISTANT, Sequence: 77, Exchange: 78,
			Status:     parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE,
			CreateTime: &timestamppb.Timestamp{Seconds: 79, Nanos: 80}, Usage: &parleyv1.Usage{InputTokens: 3},
		},
		{Sequence: -1, Exchange: -1, Status: -1, CreateTime: &timestamppb.Timestamp{Nanos: 1}},
	} {
		body, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		for _, nanos := range []int64{0, 1, 999_999_999} {
			f.Add(body, int64(1_800_000_000), nanos)
		}
		f.Add(append(body, 0x7a, 2, 8, 1, 0x78, 0), int64(0), int64(0)) // a second create_time, and field 15 as a number
	}
	f.Fuzz(func(t *testing.T, body []byte, seconds, nanos int64) {
		m := new(parleyv1.Message)
		if proto.Unmarshal(body, m) != nil || seconds < 0 || seconds > 1<<34 || nanos < 0 || nanos >= 1e9 {
			return
		}
		now, o := time.Unix(seconds, nanos), store.Options{}.WithDefaults()
		a := &store.Append{ConversationID: "a", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER}, m}}
		drafts, err := record.NewDrafts(a.Messages)
		if err != nil {
			t.Fatal(err) // A decoded message can be encoded.
		}
		out, err := record.Append(nil, a, drafts, nil, "uid", now, &o)
		if err != nil {
			t.Fatal(err)
		}
		want := proto.CloneOf(m)
		want.Sequence, want.Exchange, want.CreateTime = 2, 1, timestamppb.New(now)
		if m.GetRole() == parleyv1.Role_ROLE_USER {
			want.Exchange = 2
		}
		if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
			want.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
		}
		stored, err := record.Unmarshal(marshal(t, out.Record))
		if err != nil {
			t.Fatal(err)
		}
		messages, err := stored.Messages.Messages()
		if err != nil || len(messages) != 2 {
			t.Fatalf("stored messages = %v, %v, want 2", messages, err)
		}
		// Only unknown fields inside create_time stay in it.
		messages[1].GetCreateTime().ProtoReflect().SetUnknown(nil)
		if diff := cmp.Diff(want, messages[1], protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if frame := store.Frame(stored.Messages.Newest(1)); frame.Sequence() != 2 {
			t.Errorf("frame.Sequence() = %d, want 2", frame.Sequence())
		}
	})
}

func TestNewDraftsBadText(t *testing.T) {
	if _, err := record.NewDrafts([]*parleyv1.Message{{Content: "good"}, {Content: "\xff"}}); err == nil {
		t.Error("NewDrafts with invalid UTF-8 succeeded")
	}
}
