package record_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// withoutEvents is a record of a version in which turns had no events: turn "first" has ended,
// "second" runs.
const withoutEvents = "" +
	"01a91808420000000000000000450035000a3d0a016132070814120308901c380362067365636f6e646a060880a4a7da0672" +
	"060880a4a7da067a060890c0a7da068a01037569649201060880a4a7da062a0461636d650a1c0a0566697273741201612803" +
	"4a060880a4a7da0652060880a4a7da060a150a067365636f6e6412016128024a060880a4a7da06"

// unhex decodes hexadecimal digits.
func unhex(tb testing.TB, digits string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(digits)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// write makes an append without messages and returns the record as it is stored.
func write(tb rapid.TB, r *record.Record, a *store.Append) *record.Record {
	tb.Helper()
	o := store.Options{}.WithDefaults()
	out, err := record.Append(r, a, nil, nil, "uid", time.Unix(1_800_000_000, 0), &o)
	if err != nil {
		tb.Fatal(err)
	}
	r, err = record.Unmarshal(marshal(tb, out.Record))
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func wantTurns(t *testing.T, r *record.Record, want *storev1.Turns) {
	t.Helper()
	got, err := r.AllTurns()
	if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("turns: %v (-want +got):\n%s", err, diff)
	}
}

// TestTurnsWithoutEvents appends to a record of an older version.
func TestTurnsWithoutEvents(t *testing.T) {
	r, err := record.Unmarshal(unhex(t, withoutEvents))
	if err != nil {
		t.Fatal(err)
	}
	at := timestamppb.New(time.Unix(1_800_000_000, 0))
	first := &parleyv1.Turn{
		Id: "first", ConversationId: "a", State: parleyv1.TurnState_TURN_STATE_COMPLETED, CreateTime: at, FinishTime: at,
	}
	second := &parleyv1.Turn{
		Id: "second", ConversationId: "a", State: parleyv1.TurnState_TURN_STATE_RUNNING, CreateTime: at,
	}
	wantTurns(t, r, &storev1.Turns{Turns: []*parleyv1.Turn{first, second}})
	if events := r.Events("second"); events != nil {
		t.Errorf("Events of a turn without events = %v, want nil", events)
	}
	r = write(t, r, &store.Append{
		End:    &parleyv1.Turn{Id: "second", State: parleyv1.TurnState_TURN_STATE_FAILED},
		Events: &storev1.TurnEvents{Finished: 7},
	})
	second.State, second.FinishTime = parleyv1.TurnState_TURN_STATE_FAILED, at
	events := &storev1.TurnEvents{TurnId: "second", Finished: 7, ConversationVersion: 4}
	wantTurns(t, r, &storev1.Turns{Turns: []*parleyv1.Turn{first, second}, Events: []*storev1.TurnEvents{events}})
}

// TestTurnsUndecoded checks that an append that starts or ends no turn retains unknown fields of the turns.
func TestTurnsUndecoded(t *testing.T) {
	r := write(t, nil, &store.Append{
		ConversationID: "a", Begin: &parleyv1.Turn{Id: "turn"}, Events: &storev1.TurnEvents{Started: 1},
	})
	r.Turns = protowire.AppendVarint(protowire.AppendTag(r.Turns, 9, protowire.VarintType), 1)
	want := bytes.Clone(r.Turns)
	if got := write(t, r, &store.Append{}).Turns; !bytes.Equal(got, want) {
		t.Errorf("turns = %x, want %x", got, want)
	}
}

// TestTurnsAtRandom begins and ends turns, with or without events, under ids that may repeat, and
// compares the stored turns and events with simple lists.
func TestTurnsAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := write(t, nil, &store.Append{ConversationID: "a"})
		var turns []string
		stored := map[string]*storev1.TurnEvents{}
		step := func(id string, a *store.Append) {
			if rapid.Bool().Draw(t, "events") {
				a.Events = &storev1.TurnEvents{TurnId: "forged", Started: rapid.Int32().Draw(t, "started")}
			}
			r = write(t, r, a)
			if a.Events != nil {
				stored[id] = &storev1.TurnEvents{
					TurnId: id, Started: a.Events.GetStarted(), ConversationVersion: r.Conversation().GetVersion(),
				}
			}
		}
		for range rapid.IntRange(0, 80).Draw(t, "turns") {
			id := fmt.Sprint("turn ", rapid.IntRange(0, 60).Draw(t, "id"))
			turns = append(slices.DeleteFunc(turns, func(turn string) bool { return turn == id }), id)
			if len(turns) > 32 {
				delete(stored, turns[0])
				turns = turns[1:]
			}
			step(id, &store.Append{Begin: &parleyv1.Turn{Id: id}})
			step(id, &store.Append{End: &parleyv1.Turn{Id: id}})
		}
		got, err := r.AllTurns()
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, turn := range got.GetTurns() {
			ids = append(ids, turn.GetId())
		}
		var want []*storev1.TurnEvents
		for _, id := range turns {
			if events := stored[id]; events != nil {
				want = append(want, events)
			}
			if !proto.Equal(stored[id], r.Events(id)) {
				t.Errorf("Events(%s) = %v, want %v", id, r.Events(id), stored[id])
			}
		}
		if diff := cmp.Diff(turns, ids); diff != "" {
			t.Errorf("turns (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, got.GetEvents(), protocmp.Transform()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// TestRequestsAtRandom appends with requests of several methods, and compares the stored ones with simple lists: those
// that write only records, and all others.
func TestRequestsAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := write(t, nil, &store.Append{ConversationID: "a"})
		kinds := map[bool][]*store.Request{}
		for i := range rapid.IntRange(0, 120).Draw(t, "requests") {
			q := &store.Request{
				ID:     fmt.Sprint("r", i),
				Method: rapid.SampledFrom([]string{"WriteRecords", "AppendMessages", "Chat"}).Draw(t, "method"),
			}
			r = write(t, r, &store.Append{Request: q})
			recordsOnly := q.Method == "WriteRecords"
			kinds[recordsOnly] = append(kinds[recordsOnly], q)
		}
		for _, requests := range kinds {
			for i, q := range requests {
				seen, err := r.Seen(q)
				if want := i >= len(requests)-32; err != nil || (seen != nil) != want {
					t.Fatalf("Seen(%s %s), %d of %d = %v, %v, want %v", q.Method, q.ID, i, len(requests), seen, err, want)
				}
			}
		}
	})
}
