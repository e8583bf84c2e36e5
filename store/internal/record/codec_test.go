package record_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// sample returns a small record in which no part is empty.
func sample(tb rapid.TB) *record.Record {
	tb.Helper()
	o := store.Options{}.WithDefaults()
	a := &store.Append{
		Tenant: "acme", ConversationID: "a", Request: &store.Request{ID: "r", Method: "m"},
		Begin: &parleyv1.Turn{Id: "t"}, Events: &storev1.TurnEvents{
			Started: 1, Messages: []*storev1.MessageEvents{{ToolCalls: []int32{2, 3}}},
		},
		Messages: []*parleyv1.Message{{Id: "1", Role: parleyv1.Role_ROLE_USER, Content: "hello"}, {
			Id: "2", Role: parleyv1.Role_ROLE_USER, StructuredData: []*parleyv1.StructuredData{
				{Type: "list"}, {Type: "table"}, {Type: "list"},
			},
		}},
	}
	drafts, err := record.NewDrafts(a.Messages)
	if err != nil {
		tb.Fatal(err)
	}
	out, err := record.Append(nil, a, drafts, nil, "uid", time.Unix(1_800_000_000, 0), &o)
	if err != nil {
		tb.Fatal(err)
	}
	return out.Record
}

func marshal(tb rapid.TB, r *record.Record) []byte {
	tb.Helper()
	value, err := r.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	return value
}

func TestMarshal(t *testing.T) {
	want := sample(t)
	want.Prompt = []byte("be brief")
	value := marshal(t, want)
	got, err := record.Unmarshal(value)
	if err != nil {
		t.Fatal(err)
	}
	head, err := record.UnmarshalHead(value)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*record.Record{"the complete record": got, "the head": head} {
		if diff := cmp.Diff(want.Header, r.Header, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if !bytes.Equal(r.Requests, want.Requests) || !bytes.Equal(r.Turns, want.Turns) ||
			!bytes.Equal(r.Prompt, want.Prompt) {
			t.Errorf("%s: requests, turns or prompt differ", name)
		}
	}
	if got.Messages.Count() != 2 || head.Messages != nil {
		t.Errorf("Unmarshal = %d messages, UnmarshalHead = %d, want 2 and 0", got.Messages.Count(), head.Messages.Count())
	}
	if got, want := record.Uses(got.Data), []string{"2 list", "2 table"}; !slices.Equal(got, want) || head.Data != nil {
		t.Errorf("data = %v, want %v; %d bytes in the head", got, want, len(head.Data))
	}
	if !bytes.Equal(marshal(t, got), value) {
		t.Error("Marshal(Unmarshal(value)) differs from value")
	}
}

func TestMarshalBadText(t *testing.T) {
	r := sample(t)
	r.Conversation().Title = "\xff"
	if value, err := r.Marshal(); err == nil {
		t.Errorf("Marshal with an invalid UTF-8 title = %x, want an error", value)
	}
}

// TestDamage flips every bit and truncates the value at every byte. Damage after the head must not
// affect UnmarshalHead.
func TestDamage(t *testing.T) {
	value := marshal(t, sample(t))
	r, err := record.Unmarshal(value)
	if err != nil {
		t.Fatal(err)
	}
	head := len(value) - len(r.Messages) - len(r.Data)
	check := func(damaged []byte, inHead bool, what string, at int) {
		if _, err := record.Unmarshal(damaged); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("Unmarshal with %s %d of %d = %v, want ErrCorrupt", what, at, len(value), err)
		}
		if _, err := record.UnmarshalHead(damaged); errors.Is(err, store.ErrCorrupt) != inHead {
			t.Errorf("UnmarshalHead with %s %d of %d, head of %d bytes = %v", what, at, len(value), head, err)
		}
	}
	for bit := range 8 * len(value) {
		damaged := slices.Clone(value)
		damaged[bit/8] ^= 1 << (bit % 8)
		at := bit / 8
		check(damaged, at < 9 || at >= 17 && at < head, "flipped bit", bit)
	}
	for n := range value {
		check(value[:n], n < head+len(r.Data), "truncation to byte", n)
	}
	check(append(slices.Clone(value), 0), false, "an additional byte at", len(value))
}

func FuzzUnmarshal(f *testing.F) {
	folded := sample(f)
	folded.Header.Applied = 1 << 40
	f.Add(marshal(f, folded))
	f.Add(unhex(f, oldFormat))
	f.Add(make([]byte, 12)) // three empty parts, without a conversation
	f.Fuzz(func(t *testing.T, value []byte) {
		// Damage that the checksums do not find must be harmless.
		for _, b := range [][]byte{value, record.Sealed(value)} {
			r, err := record.Unmarshal(b)
			if err != nil {
				if !errors.Is(err, store.ErrCorrupt) {
					t.Errorf("Unmarshal = %v, want ErrCorrupt", err)
				}
				continue
			}
			messages, applied, err := record.MessagesIn(b)
			if err != nil || !bytes.Equal(messages, r.Messages) || applied != r.Header.GetApplied() {
				t.Errorf("MessagesIn = %q, %d, %v, want %q, %d", messages, applied, err, r.Messages, r.Header.GetApplied())
			}
			r.Expired(time.Unix(0, 0), record.Ephemeral{})
			_, _ = r.AllTurns()
			r.Events("t")
			_, _ = r.Seen(&store.Request{ID: "r", Method: "m"})
			_, _ = record.Read(r, record.Part{Messages: r.Messages}, &store.Read{Newest: -1, Turns: true}, time.Unix(0, 0))
			r.Entry()
		}
	})
}

// progressWithoutEvents is a stored progress of a version in which turns had no events.
const progressWithoutEvents = "01750b92d0047475726e120d0a013118022206736f2066617212052203637574"

func TestProgressWithoutEvents(t *testing.T) {
	want := &store.Progress{TurnID: "turn", Messages: []*parleyv1.Message{
		{Id: "1", Role: parleyv1.Role_ROLE_ASSISTANT, Content: "so far"}, {Content: "cut"},
	}}
	old := unhex(t, progressWithoutEvents)
	got, err := record.UnmarshalProgress(old)
	if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("UnmarshalProgress: %v (-want +got):\n%s", err, diff)
	}
	written, err := record.MarshalProgress(want)
	if err != nil || !bytes.Equal(written, old) {
		t.Errorf("MarshalProgress without events = %x, %v; want the older value", written, err)
	}
	// The new part follows the part that older versions read.
	want.Events = &storev1.TurnEvents{Started: 1}
	written, err = record.MarshalProgress(want)
	if err != nil || !bytes.HasPrefix(written[5:], old[5:]) {
		t.Errorf("MarshalProgress with events = %x, %v; want the older value as a prefix", written, err)
	}
}

func TestProgress(t *testing.T) {
	messages := []*parleyv1.Message{
		{Id: "1", Role: parleyv1.Role_ROLE_ASSISTANT, Content: "so far"},
		{Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE},
	}
	events := &storev1.TurnEvents{
		TurnId: "turn", Started: 1, LostAfter: 9, Messages: []*storev1.MessageEvents{{FirstText: 2, LastText: 8}, {}},
	}
	for name, want := range map[string]*store.Progress{
		"nothing":      {TurnID: "turn"},
		"messages":     {TurnID: "turn", Messages: messages},
		"events":       {TurnID: "turn", Events: events},
		"both":         {TurnID: "turn", Messages: messages, Events: events},
		"empty events": {TurnID: "turn", Messages: messages, Events: &storev1.TurnEvents{}},
	} {
		t.Run(name, func(t *testing.T) {
			value, err := record.MarshalProgress(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := record.UnmarshalProgress(value)
			if diff := cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("UnmarshalProgress: %v (-want +got):\n%s", err, diff)
			}
			damageProgress(t, value)
		})
	}
	if _, err := record.MarshalProgress(&store.Progress{Messages: []*parleyv1.Message{{Content: "\xff"}}}); err == nil {
		t.Error("MarshalProgress with an invalid UTF-8 message succeeded")
	}
	if _, err := record.MarshalProgress(&store.Progress{Events: &storev1.TurnEvents{TurnId: "\xff"}}); err == nil {
		t.Error("MarshalProgress with invalid UTF-8 events succeeded")
	}
}

// damageProgress flips every bit and truncates the value at every byte.
func damageProgress(t *testing.T, value []byte) {
	t.Helper()
	for bit := range 8 * len(value) {
		value[bit/8] ^= 1 << (bit % 8)
		if _, err := record.UnmarshalProgress(value); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("UnmarshalProgress with bit %d flipped = %v, want ErrCorrupt", bit, err)
		}
		value[bit/8] ^= 1 << (bit % 8)
	}
	for n := range value {
		if _, err := record.UnmarshalProgress(value[:n]); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("UnmarshalProgress of %d bytes = %v, want ErrCorrupt", n, err)
		}
	}
}

func FuzzUnmarshalProgress(f *testing.F) {
	for _, events := range []*storev1.TurnEvents{
		nil, {Started: 1, Messages: []*storev1.MessageEvents{{FirstText: 2, LastText: 8}}},
	} {
		value, err := record.MarshalProgress(&store.Progress{
			TurnID: "turn", Messages: []*parleyv1.Message{{Content: "so far"}}, Events: events,
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		for _, b := range [][]byte{value, record.SealedProgress(value)} {
			if _, err := record.UnmarshalProgress(b); err != nil && !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("UnmarshalProgress = %v, want ErrCorrupt", err)
			}
		}
	})
}
