package record_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestReplay makes random appends, with requests and turns, and replays their operations on earlier
// states. Each replay must give the same bytes as the append, whatever the settings are then, also with
// the head and sizes alone. An operation that was applied changes nothing.
func TestReplay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := store.Options{
			MaxMessages:          rapid.IntRange(1, 6).Draw(t, "max messages"),
			MaxConversationBytes: rapid.IntRange(1, 900).Draw(t, "max bytes"),
		}.WithDefaults()
		values := [][]byte{appended(t, nil, o)} // after each operation
		var operations [][]byte
		now, running := time.Unix(1_800_000_000, 0), ""
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-5, 5).Draw(t, "seconds")) * time.Second)
			a := randomAppend(t, step, running)
			running = runningAfter(running, a)
			r := unmarshal(t, values[step])
			size := r.Size()
			if size != len(values[step]) {
				t.Fatalf("Size = %d, want %d", size, len(values[step]))
			}
			out := decide(t, r, a, now, &o)
			op := marshalOperation(t, record.NewOperation(a, out, size, now, &o))
			checkInfo(t, op)
			out.Record.Header.Applied = uint64(step) + 1
			values, operations = append(values, marshal(t, out.Record)), append(operations, op)
		}
		from := rapid.IntRange(0, len(operations)).Draw(t, "from")
		again := max(0, from-3) // These were applied already.
		full, head := unmarshal(t, values[from]), headOf(t, values[from])
		for i := again; i < len(operations); i++ {
			for _, r := range []*record.Record{full, head} {
				if err := record.Replay(r, uint64(i)+1, unmarshalOperation(t, operations[i])); err != nil {
					t.Fatal(err)
				}
			}
		}
		last := values[len(values)-1]
		if got := marshal(t, full); !bytes.Equal(got, last) {
			t.Fatalf("replayed from %d: %d bytes, want %d\n%v\n%v", from, len(got), len(last), full.Header,
				unmarshal(t, last).Header)
		}
		checkHead(t, head, last)
	})
}

// checkInfo checks that an operation is read as it is decoded.
func checkInfo(t *rapid.T, encoded []byte) {
	t.Helper()
	op := unmarshalOperation(t, encoded)
	got, err := record.ReadOperationInfo(encoded)
	if err != nil || string(got.Tenant) != op.GetTenant() || !bytes.Equal(got.Key, op.GetKey()) ||
		string(got.UID) != op.GetUid() || !bytes.Equal(got.Messages, op.GetMessages()) || got.Turn != (op.GetBegin() != nil || op.GetEnd() != nil) ||
		got.MessagesAdded != int64(op.GetMessagesAdded()) || got.BytesAdded != op.GetBytesAdded() {
		t.Fatalf("ReadOperationInfo = %+v, %v, want that of %v", got, err, op)
	}
	if _, err := record.ReadOperationInfo(encoded[:len(encoded)-1]); err == nil {
		t.Fatal("ReadOperationInfo of a cut operation succeeded")
	}
}

// checkHead checks a record with sizes against the value that it should have.
func checkHead(t *rapid.T, head *record.Record, value []byte) {
	t.Helper()
	if got := head.Size(); got != len(value) {
		t.Fatalf("Size of a record with sizes = %d, want %d", got, len(value))
	}
	if want := record.Sizes(unmarshal(t, value).Messages); !slices.Equal(slices.Collect(head.AllSizes().All()), want) {
		t.Fatalf("sizes = %v, want %v", slices.Collect(head.AllSizes().All()), want)
	}
	encoded, err := head.MarshalHead()
	if err != nil {
		t.Fatal(err)
	}
	got, want := unmarshal(t, encoded), unmarshal(t, value)
	if len(got.Messages) != 0 {
		t.Fatal("a head has messages")
	}
	got.Messages = want.Messages
	if !bytes.Equal(marshal(t, got), value) {
		t.Fatal("a head with its messages is not the record")
	}
}

// TestReplayOnOtherRecord checks that an operation is refused if the record is not the one to which it
// was applied first.
func TestReplayOnOtherRecord(t *testing.T) {
	o := store.Options{}.WithDefaults()
	value := appended(t, nil, o)
	now := time.Unix(1_800_000_000, 0)
	a := &store.Append{Tenant: "acme", ConversationID: "a", Messages: []*parleyv1.Message{withData()}}
	out := decide(t, unmarshal(t, value), a, now, &o)
	op := marshalOperation(t, record.NewOperation(a, out, len(value), now, &o))
	for name, spoil := range map[string]func(r *record.Record, op *storev1.Operation){
		"other version": func(r *record.Record, _ *storev1.Operation) { r.Conversation().Version++ },
		"other uid":     func(r *record.Record, _ *storev1.Operation) { r.Conversation().Uid = "other" },
		"cut messages":  func(_ *record.Record, op *storev1.Operation) { op.Messages = op.Messages[:5] },
		"unknown turn":  func(_ *record.Record, op *storev1.Operation) { op.End = &parleyv1.Turn{Id: "other"} },
	} {
		r, spoilt := unmarshal(t, value), unmarshalOperation(t, op)
		spoil(r, spoilt)
		if err := record.Replay(r, 1, spoilt); err == nil {
			t.Errorf("%s: Replay succeeded", name)
		}
	}
}

// randomAppend returns an append that a conversation with that running turn accepts.
func randomAppend(t *rapid.T, step int, running string) *store.Append {
	a := &store.Append{Tenant: "acme", ConversationID: "a"}
	for i := range rapid.IntRange(0, 8).Draw(t, "messages") {
		m := withData(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "types")...)
		m.Id, m.Content = fmt.Sprint(step, i), strings.Repeat("x", rapid.IntRange(0, 300).Draw(t, "length"))
		m.Role = rapid.SampledFrom([]parleyv1.Role{parleyv1.Role_ROLE_USER, parleyv1.Role_ROLE_ASSISTANT}).Draw(t, "role")
		a.Messages = append(a.Messages, m)
	}
	if rapid.Bool().Draw(t, "request") {
		a.Request = &store.Request{ID: fmt.Sprint("request", step), Method: "AppendMessages", Digest: [32]byte{byte(step)}}
	}
	if !rapid.Bool().Draw(t, "turn") {
		return a
	}
	if running == "" {
		a.Begin = &parleyv1.Turn{Id: fmt.Sprint("turn", step), Agent: "echo"}
		if rapid.Bool().Draw(t, "create time") {
			a.Begin.CreateTime = timestamppb.New(time.Unix(1_700_000_000, 0))
		}
	} else {
		a.End = &parleyv1.Turn{Id: running, State: parleyv1.TurnState_TURN_STATE_COMPLETED}
	}
	if rapid.Bool().Draw(t, "events") {
		a.Events = &storev1.TurnEvents{Started: int32(step)}
	}
	return a
}

func runningAfter(running string, a *store.Append) string {
	switch {
	case a.Begin != nil:
		return a.Begin.GetId()
	case a.End != nil:
		return ""
	}
	return running
}

func decide(tb rapid.TB, r *record.Record, a *store.Append, now time.Time, o *store.Options) *record.Outcome {
	tb.Helper()
	drafts, err := record.NewDrafts(a.Messages)
	if err != nil {
		tb.Fatal(err)
	}
	out, err := record.Append(r, a, drafts, nil, "", now, o)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func headOf(tb rapid.TB, value []byte) *record.Record {
	tb.Helper()
	r := unmarshal(tb, value)
	r.Sizes, r.Messages = new(record.SizeList{}.With(r.Messages)), nil
	return r
}

func marshalOperation(tb rapid.TB, op *storev1.Operation) []byte {
	tb.Helper()
	b, err := proto.Marshal(op)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func unmarshalOperation(tb rapid.TB, b []byte) *storev1.Operation {
	tb.Helper()
	op := new(storev1.Operation)
	if err := proto.Unmarshal(b, op); err != nil {
		tb.Fatal(err)
	}
	return op
}
